//! A web server on the host's side of a VM's network, for what its programs download: the path is the number
//! of bytes.

use crate::net::slow_down;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use tiny_http::{Request, Response, Server};

/// The port, which `{host}` in a program's arguments implies.
const PORT: u16 = 80;
/// More than any disk of a guest holds.
const MOST: usize = 1 << 30;

/// A running server. Dropping it ends it.
pub(crate) struct WebServer {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

impl WebServer {
    /// Begins to serve at the address, which must be one of this network namespace.
    pub(crate) fn start(address: Ipv4Addr) -> std::io::Result<WebServer> {
        let listener = TcpListener::bind((address, PORT))?;
        slow_down(&listener)?;
        let server = Arc::new(Server::from_listener(listener, None).map_err(std::io::Error::other)?);
        let serving = Arc::clone(&server);
        // Each answer in a thread of its own, which ends with the connection: who serves must not wait for a
        // client that has gone without a word, as a VM that is killed does.
        let thread = std::thread::spawn(move || {
            for request in serving.incoming_requests() {
                std::thread::spawn(|| answer(request));
            }
        });
        Ok(WebServer { server, thread: Some(thread) })
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            // It does not panic, and if it did, nobody needs it any more.
            let _ = thread.join();
        }
    }
}

fn answer(request: Request) {
    // A client that goes away is its own business.
    let _ = match request.url().trim_start_matches('/').parse() {
        Ok(bytes) if bytes <= MOST => {
            let body = std::io::repeat(b'x').take(bytes as u64);
            request.respond(Response::empty(200).with_data(body, Some(bytes)))
        }
        _ => request.respond(Response::empty(404)),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    #[test]
    fn the_path_is_the_number_of_bytes() {
        // Of the loopback network one address that nobody else uses.
        let address = Ipv4Addr::new(127, 77, 7, 7);
        let server = WebServer::start(address).unwrap();
        let get = |path: &str| {
            let mut stream = TcpStream::connect((address, PORT)).unwrap();
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        let answer = get("/1000");
        assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with(&"x".repeat(1000)), "{answer}");
        assert!(get("/everything").starts_with("HTTP/1.0 404"));
        // One that asks for much and reads none of it delays nobody, and not the end either.
        let mut stuck = TcpStream::connect((address, PORT)).unwrap();
        write!(stuck, "GET /{MOST} HTTP/1.0\r\n\r\n").unwrap();
        assert!(get("/1000").ends_with(&"x".repeat(1000)));
        drop(server);
        // Its thread lets go of the port when it notices.
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect((address, PORT)).is_ok() {
            assert!(Instant::now() < deadline, "it still listens");
            std::thread::yield_now();
        }
    }
}
