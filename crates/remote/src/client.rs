//! The client: asks the daemon of another host, whose server it knows by its certificate.

mod address;
mod hosts;
mod trust;

pub use address::{Address, DEFAULT_PORT, NoAddress};
#[cfg(any(test, fuzzing))]
pub(crate) use hosts::parse as parse_hosts;
pub use hosts::{Hosts, HostsError, KnownHost};
pub use trust::{ClientCertificate, Trust, TrustError};

use crate::answers::{LoginToken, SessionInfo};
use crate::fingerprint::Fingerprint;
use frontdesk_control_protocol::{Answer, MAX_ANSWER_BYTES, Query, Refusal, RefusalKind, SCHEMA};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use trust::Seen;

/// A connection that was not used for so long is made anew: servers hang up on who is silent, and that is
/// only seen when something is sent.
const FRESH: Duration = Duration::from_secs(10);
/// For a connection and an answer each.
const PATIENCE: Duration = Duration::from_secs(10);

/// The host's daemon does not say what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// It cannot be reached.
    #[error("cannot connect to {address}: {reason}; is `frontdesk serve` running there?")]
    Connect {
        /// The server.
        address: Address,
        /// What failed.
        reason: String,
    },
    /// Nothing is known of its certificate yet. Nothing was sent.
    #[error("{address} is not known; the fingerprint of its certificate is {fingerprint}")]
    Unknown {
        /// The server.
        address: Address,
        /// To be compared with what `frontdesk serve --setup` printed.
        fingerprint: Fingerprint,
    },
    /// It shows another certificate than it did before, or was said to. Nothing was sent.
    #[error(
        "{address} shows another certificate than is known: {found} instead of {expected}. Either it was set up anew, or somebody is in \
         between. If you know that it was set up anew, forget it with `frontdesk logout --host {address}`"
    )]
    Changed {
        /// The server.
        address: Address,
        /// What it showed.
        found: Fingerprint,
        /// What it should.
        expected: Fingerprint,
    },
    /// The TLS handshake failed.
    #[error("no secure connection to {address}: {reason}")]
    Tls {
        /// The server.
        address: Address,
        /// Why.
        reason: String,
    },
    /// The password is wrong, or there was none.
    #[error("{address} does not let us in: {reason}")]
    NotLoggedIn {
        /// The server.
        address: Address,
        /// What it says.
        reason: String,
    },
    /// It refuses.
    #[error("the daemon of {address} refuses: {refusal}")]
    Refused {
        /// The server.
        address: Address,
        /// Why.
        refusal: Refusal,
    },
    /// What answers is no server of frontdesk's, or one of another version.
    #[error("what answers at {address} is no frontdesk server of this version: {reason}")]
    Nonsense {
        /// The server.
        address: Address,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The system does not give what a client needs.
    #[error("cannot start the client: {0}")]
    System(#[from] io::Error),
}

/// A client of one server. It keeps its connection.
pub struct Remote {
    runtime: tokio::runtime::Runtime,
    address: Address,
    tls: TlsConnector,
    seen: Arc<Seen>,
    token: Option<String>,
    /// And when it was used last.
    connection: Option<(SendRequest<Full<Bytes>>, Instant)>,
}

impl Remote {
    /// A client of the server at `address`. It connects when it is first asked for something.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn new(
        address: Address,
        trust: Trust,
        identity: Option<ClientCertificate>,
    ) -> Result<Remote, RemoteError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (config, seen) = trust::config(trust, identity)
            .map_err(|error| RemoteError::Tls { address: address.clone(), reason: error.to_string() })?;
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Remote { runtime, address, tls, seen, token: None, connection: None })
    }

    /// Uses a token from an earlier [`Remote::log_in`].
    pub fn set_token(&mut self, token: String) {
        self.token = Some(token);
    }

    /// Logs in; the token is used from now on, and may be kept.
    ///
    /// # Errors
    /// [`RemoteError::NotLoggedIn`] if the password is wrong.
    pub fn log_in(&mut self, password: &str) -> Result<String, RemoteError> {
        let body = serde_json::json!({ "password": password }).to_string();
        let answer = self.request(Method::POST, "/token", body)?;
        let token: LoginToken = serde_json::from_slice(&answer).map_err(|error| self.nonsense(error))?;
        self.token = Some(token.token.clone());
        Ok(token.token)
    }

    /// Whether whoever logged in may change something, and not only look.
    ///
    /// # Errors
    /// [`RemoteError::NotLoggedIn`] without a token or with one whose time has come.
    pub fn may_change(&mut self) -> Result<bool, RemoteError> {
        let answer = self.request(Method::GET, "/session", String::new())?;
        let info: SessionInfo = serde_json::from_slice(&answer).map_err(|error| self.nonsense(error))?;
        Ok(info.may_change)
    }

    /// Ends the session of the token in use.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn log_out(&mut self) -> Result<(), RemoteError> {
        self.request(Method::DELETE, "/token", String::new()).map(drop)
    }

    /// Asks the host's daemon.
    ///
    /// # Errors
    /// [`RemoteError::NotLoggedIn`] without a token or with one whose time has come;
    /// [`RemoteError::Refused`].
    pub fn ask(&mut self, query: &Query) -> Result<Answer, RemoteError> {
        let body = serde_json::to_string(query).map_err(|error| self.nonsense(error))?;
        let answer = self.request(Method::POST, "/api", body)?;
        let answer: Answer = serde_json::from_slice(&answer).map_err(|error| self.nonsense(error))?;
        match answer.schema() {
            Some(schema) if schema != SCHEMA => {
                Err(self
                    .nonsense(format!("the answer is of schema {schema}, and this program's is {SCHEMA}")))
            }
            _ => Ok(answer),
        }
    }

    fn nonsense(&self, reason: impl Display) -> RemoteError {
        RemoteError::Nonsense { address: self.address.clone(), reason: reason.to_string() }
    }

    /// What comes back if all is well.
    fn request(&mut self, method: Method, path: &str, body: String) -> Result<Bytes, RemoteError> {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(HOST, self.address.to_string()).header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| self.nonsense(error))?;
        let (address, tls, seen) = (&self.address, &self.tls, &self.seen);
        let connection = &mut self.connection;
        let (status, bytes) = self.runtime.block_on(async {
            let open = match connection.take().filter(|(_, used)| used.elapsed() < FRESH) {
                Some((mut sender, _)) => sender.ready().await.is_ok().then_some(sender),
                None => None,
            };
            let sender = match open {
                Some(sender) => sender,
                None => connect(address, tls, seen).await?,
            };
            let (sender, _) = connection.insert((sender, Instant::now()));
            let lost = |reason: String| RemoteError::Connect { address: address.clone(), reason };
            let exchange = async {
                let response = sender.send_request(request).await.map_err(|error| lost(error.to_string()))?;
                let status = response.status();
                let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
                Ok((status, body.map_err(|error| lost(error.to_string()))?.to_bytes()))
            };
            let late = |_| Err(lost(format!("no answer within {} s", PATIENCE.as_secs())));
            tokio::time::timeout(PATIENCE, exchange).await.unwrap_or_else(late)
        })?;
        if status.is_success() {
            return Ok(bytes);
        }
        let address = self.address.clone();
        Err(match serde_json::from_slice(&bytes) {
            Ok(Answer::Refused(refusal)) if refusal.kind == RefusalKind::Unauthenticated => {
                RemoteError::NotLoggedIn { address, reason: refusal.message }
            }
            Ok(Answer::Refused(refusal)) if status == StatusCode::TOO_MANY_REQUESTS => {
                RemoteError::NotLoggedIn { address, reason: refusal.message }
            }
            Ok(Answer::Refused(refusal)) => RemoteError::Refused { address, refusal },
            _ => self.nonsense(format!("HTTP status {status}")),
        })
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Remote").field("address", &self.address).finish_non_exhaustive()
    }
}

async fn connect(
    address: &Address,
    tls: &TlsConnector,
    seen: &Seen,
) -> Result<SendRequest<Full<Bytes>>, RemoteError> {
    let failed = |reason: String| RemoteError::Connect { address: address.clone(), reason };
    let insecure = |reason: String| RemoteError::Tls { address: address.clone(), reason };
    let name =
        ServerName::try_from(address.host().to_owned()).map_err(|error| insecure(error.to_string()))?;
    let connect = async {
        let stream = TcpStream::connect((address.host(), address.port())).await;
        let stream = stream.map_err(|error| failed(error.to_string()))?;
        // Without it, small requests wait for others to go with.
        let _ = stream.set_nodelay(true);
        tls.connect(name, stream).await.map_err(|error| match seen.distrusted() {
            Some((found, Some(expected))) => {
                RemoteError::Changed { address: address.clone(), found, expected }
            }
            Some((fingerprint, None)) => RemoteError::Unknown { address: address.clone(), fingerprint },
            None => insecure(error.to_string()),
        })
    };
    let late = |_| Err(failed(format!("no connection within {} s", PATIENCE.as_secs())));
    let stream = tokio::time::timeout(PATIENCE, connect).await.unwrap_or_else(late)?;
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(error.to_string()))?;
    // Whoever sends hears of its end.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}
