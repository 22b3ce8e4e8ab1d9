//! The server: TLS connections, with a bound on their number and on the time each may take.

use crate::answers::Explain;
use crate::api::{ConnectedClient, ServerState, routes};
use crate::client::HostsError;
use crate::fingerprint::Fingerprint;
use crate::limits::Peer;
use crate::others::OtherHosts;
use crate::setup::{Credentials, Folder, SetupError};
use axum::extract::Extension;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

/// Connections at once.
const MOST: usize = 128;
/// Of one address.
const MOST_OF_ONE: usize = 16;
/// From the connection to the end of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// For the head of a request, and for a connection to stay without one.
const HEAD: Duration = Duration::from_secs(15);
/// For the client to take something of what is sent.
const STALL: Duration = Duration::from_secs(10);
/// No head of a request is larger; hyper takes no less.
const HEAD_BYTES: usize = 8192;
/// Header lines of a request.
const HEAD_LINES: usize = 64;
/// Before trying again to accept a client when that fails.
const PAUSE: Duration = Duration::from_millis(100);

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// The passwords, key and certificate, and the other hosts that the page shows.
    pub folder: Folder,
    /// The daemon's control socket.
    pub socket: PathBuf,
    /// Whether whoever has no certificate from one of those in the folder's `clients.pem` is turned away
    /// before anything is asked.
    pub require_client_certificate: bool,
    /// How the page explains a VM.
    pub explain: Explain,
}

/// The server does not start or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It is not set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The file with the other hosts is of no use.
    #[error(transparent)]
    OtherHosts(#[from] HostsError),
    /// The certificate and key are of no use.
    #[error("the certificate and key of the server cannot be used: {0}")]
    Tls(String),
    /// Client certificates are required, but none is accepted.
    #[error("client certificates are required, but the folder has no clients.pem with those who issue them")]
    NoClients,
    /// The address cannot be had.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What failed.
        source: io::Error,
    },
    /// The system does not give what a server needs.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What failed.
        source: io::Error,
    },
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    tls: TlsAcceptor,
    shared: Arc<ServerState>,
    fingerprint: Fingerprint,
}

impl Server {
    /// Listens. Clients are served by [`Server::run`].
    ///
    /// # Errors
    /// The server is not set up, or the address cannot be had.
    pub fn start(config: &ServerConfig) -> Result<Server, ServerError> {
        let credentials = config.folder.load()?;
        let fingerprint = Fingerprint::of(&credentials.certificates[0]);
        let others = OtherHosts::new(&config.folder.other_hosts()?)?;
        let passwords = credentials.passwords.clone();
        let shared = Arc::new(ServerState::new(config.socket.clone(), config.explain, others, passwords));
        let tls = tls(credentials, config.require_client_certificate)?;
        let address = config.listen;
        let failed = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Server { listener, tls: TlsAcceptor::from(Arc::new(tls)), shared, fingerprint })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Of its certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Serves until `stop` is readable or hung up.
    ///
    /// # Errors
    /// The system does not give what a server needs.
    pub fn run(self, stop: UnixStream) -> Result<(), ServerError> {
        let failed = |what| move |source| ServerError::System { what, source };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().enable_time().max_blocking_threads(16).build();
        let runtime = runtime.map_err(failed("start a runtime"))?;
        let served = runtime.block_on(async {
            let stop = stop.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(stop));
            let stop = stop.map_err(failed("wait for the signal to end"))?;
            let listener =
                tokio::net::TcpListener::from_std(self.listener).map_err(failed("wait for clients"))?;
            tokio::select! {
                _ = stop.readable() => Ok(()),
                () = accept(&listener, &self.tls, &self.shared) => Ok(()),
            }
        });
        // Nobody waits for a request to the daemon that has begun.
        runtime.shutdown_background();
        served
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Server").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// TLS 1.3 and HTTP/1.1; nothing older has to be served.
fn tls(credentials: Credentials, require: bool) -> Result<rustls::ServerConfig, ServerError> {
    let failed = |error: &dyn std::fmt::Display| ServerError::Tls(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| failed(&error))?;
    let builder = if credentials.clients.is_empty() {
        if require {
            return Err(ServerError::NoClients);
        }
        builder.with_no_client_auth()
    } else {
        let mut issuers = RootCertStore::empty();
        for issuer in credentials.clients {
            issuers.add(issuer).map_err(|error| failed(&error))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(issuers), provider);
        let verifier = if require { verifier } else { verifier.allow_unauthenticated() };
        builder.with_client_cert_verifier(verifier.build().map_err(|error| failed(&error))?)
    };
    let certificates = credentials.certificates;
    let mut config =
        builder.with_single_cert(certificates, credentials.key).map_err(|error| failed(&error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

async fn accept(listener: &tokio::net::TcpListener, tls: &TlsAcceptor, shared: &Arc<ServerState>) {
    let permits = Permits::default();
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            // The client has gone again, or descriptors have run out.
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let peer = Peer::new(address.ip());
        // One too many is hung up on.
        let Some(permit) = permits.take(peer) else {
            shared.log(format_args!("{peer} is turned away: too many connections"));
            continue;
        };
        tokio::spawn(serve(stream, peer, tls.clone(), Arc::clone(shared), permit));
    }
}

/// Serves a client until it goes, or is too slow. How that ends is its own affair.
async fn serve(stream: TcpStream, peer: Peer, tls: TlsAcceptor, shared: Arc<ServerState>, _permit: Permit) {
    // Without it, small answers wait for others to go with.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(STALL));
    let stream = match tokio::time::timeout(HANDSHAKE, tls.accept(Box::pin(stream))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!("{peer}: {error}"),
        Err(_) => return tracing::debug!("{peer}: no handshake in time"),
    };
    // The handshake has verified it.
    let certified = stream.get_ref().1.peer_certificates().is_some_and(|found| !found.is_empty());
    let routes = routes(shared).layer(Extension(ConnectedClient { peer, certified }));
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_LINES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
        .await;
    if let Err(error) = served {
        tracing::debug!("{peer}: {error}");
    }
}

/// Connections, by whose they are.
#[derive(Clone, Debug, Default)]
struct Permits(Arc<Mutex<HashMap<Peer, usize>>>);

/// A permit to be served, of which there are so many, free again when it is dropped.
struct Permit {
    permits: Permits,
    peer: Peer,
}

impl Permits {
    fn with<T>(&self, use_them: impl FnOnce(&mut HashMap<Peer, usize>) -> T) -> T {
        use_them(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take(&self, peer: Peer) -> Option<Permit> {
        self.with(|taken| {
            if taken.values().sum::<usize>() >= MOST {
                return None;
            }
            let of_peer = taken.entry(peer).or_default();
            if *of_peer >= MOST_OF_ONE {
                return None;
            }
            *of_peer += 1;
            Some(Permit { permits: self.clone(), peer })
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.with(|taken| {
            if let Some(of_peer) = taken.get_mut(&self.peer) {
                *of_peer -= 1;
                if *of_peer == 0 {
                    taken.remove(&self.peer);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_all_the_permits() {
        let permits = Permits::default();
        let peer = |last: u8| Peer::new(std::net::IpAddr::from([192, 0, 2, last]));
        let mut held: Vec<Permit> = std::iter::from_fn(|| permits.take(peer(1))).collect();
        assert_eq!(held.len(), MOST_OF_ONE);
        held.extend((2..=255).filter_map(|last| permits.take(peer(last))));
        assert_eq!(held.len(), MOST);
        held.pop();
        assert!(permits.take(peer(2)).is_some());
        drop(held);
        assert!(permits.0.lock().unwrap().is_empty());
    }
}
