//! The server with a daemon that is not a real one behind it, and clients as they should be and as they may
//! be.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod clients;
mod hostile;

use frontdesk_remote::client::{Address, ClientCertificate, Remote, RemoteError, Trust};
use frontdesk_remote::setup::Folder;
use frontdesk_remote::{Fingerprint, Server, ServerConfig};
use frontdesk_testing::FakeDaemon;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const PASSWORD: &str = "correct horse";

/// A daemon and a server; ended with the value.
struct World {
    daemon: FakeDaemon,
    folder: tempfile::TempDir,
    address: SocketAddr,
    fingerprint: Fingerprint,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl World {
    fn new() -> World {
        World::with(false, |_| {})
    }

    /// After `prepare` has had the server's folder.
    fn with(require_client_certificate: bool, prepare: impl FnOnce(&Path)) -> World {
        let daemon = FakeDaemon::start();
        let folder = tempfile::tempdir().unwrap();
        let of_server = Folder::new(folder.path());
        of_server.set_up(PASSWORD, &["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        prepare(folder.path());
        let server = Server::start(&ServerConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            folder: of_server,
            socket: daemon.socket(),
            require_client_certificate,
            explain: |status, vm| vec![format!("{} of {} VMs", vm.name, status.vms.len())],
        })
        .unwrap();
        let (address, fingerprint) = (server.address().unwrap(), server.fingerprint());
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || server.run(stopped).unwrap());
        World { daemon, folder, address, fingerprint, stop: Some(stop), thread: Some(thread) }
    }

    fn address(&self) -> Address {
        self.address.to_string().parse().unwrap()
    }

    /// A client that trusts the server.
    fn client(&self) -> Remote {
        self.client_with(Trust::Certificate(Some(self.fingerprint)), None)
    }

    fn client_with(&self, trust: Trust, identity: Option<ClientCertificate>) -> Remote {
        Remote::new(self.address(), trust, identity).unwrap()
    }

    /// A client that has logged in.
    fn user(&self) -> Remote {
        let mut client = self.client();
        client.log_in(PASSWORD).unwrap();
        client
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        // Longer than the server waits for anything.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// A connection over TLS.
    fn tls(&self) -> impl Read + Write + use<> {
        let certificate = CertificateDer::from_pem_file(self.folder.path().join("certificate.pem")).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        rustls::StreamOwned::new(connection, self.connect())
    }

    /// Sends something as it is over TLS; all that comes back until the server hangs up.
    fn say(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.tls();
        // A server that has had enough does not hear all of it.
        let _ = stream.write_all(bytes.as_ref());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A request with the usual headers, `more` of them, and a body.
    fn request(&self, line: &str, more: &str, body: &str) -> String {
        self.say(format!(
            "{line} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{more}\r\n{body}",
            self.address,
            body.len()
        ))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The status in an answer.
fn status(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

fn not_logged_in<T: std::fmt::Debug>(result: Result<T, RemoteError>) -> String {
    match result.unwrap_err() {
        RemoteError::NotLoggedIn { reason, .. } => reason,
        error => panic!("{error}"),
    }
}
