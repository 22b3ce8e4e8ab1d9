//! The metrics over HTTP, for Prometheus.
//!
//! A request is a head of a few kilobytes at most, and whoever sends it has the same deadline, the same
//! number of places and the same pace as clients of the socket: the address may be one that guests reach.
//! However often it is asked for, the loop, which is real-time, is asked twice a second at most. By hand
//! around `httparse`, because servers from crates have their own threads and other limits.

use crate::control::metrics::exposition;
use crate::control::permit::Permit;
use crate::control::request::{DEADLINE, LoopHandle};
use frontdesk_control_protocol::DeadlineStream;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const MAX_HEAD_BYTES: usize = 8192;
const MAX_HEADERS: usize = 64;
const PATH: &str = "/metrics";
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics stay the same for so long: no scraper needs them more often.
const AGE: Duration = Duration::from_millis(500);

/// What is told to all who ask at about the same time.
#[derive(Debug)]
pub(crate) struct Metrics {
    asker: LoopHandle,
    /// The last response that was one, and when the loop was asked for it.
    last: Mutex<Option<(Instant, Arc<[u8]>)>>,
}

impl Metrics {
    pub(crate) fn new(asker: LoopHandle) -> Metrics {
        Metrics { asker, last: Mutex::new(None) }
    }

    /// Who comes while the loop is asked waits for that answer.
    fn response(&self) -> Arc<[u8]> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some((at, response)) = &*last
            && now.duration_since(*at) < AGE
        {
            return Arc::clone(response);
        }
        // Guest tasks and ports are not among the metrics.
        match self.asker.status(None, 0) {
            Ok(status) => {
                let fresh: Arc<[u8]> = response("200 OK", METRICS_TYPE, &exposition(&status)).into();
                *last = Some((now, Arc::clone(&fresh)));
                fresh
            }
            Err(refusal) => text("503 Service Unavailable", &format!("{refusal}\n")),
        }
    }
}

/// Serves a client; one without a permit is dropped.
pub(crate) fn serve(stream: TcpStream, permit: Option<Permit>, metrics: &Metrics) {
    let Some(_permit) = permit else { return };
    let mut connection = DeadlineStream::new(stream, DEADLINE);
    let head = connection.read_until(MAX_HEAD_BYTES, |bytes, _| !matches!(parse(bytes), Ok(None)));
    let response = match head {
        Ok(head) => respond(&head, metrics),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            text("431 Request Header Fields Too Large", "the request is too long\n")
        }
        Err(_) => return,
    };
    connection.renew();
    // A client that does not read, or has gone, is none of our business.
    let _: io::Result<()> = connection.write(&response);
}

/// Method and path of a request; `None` if it is not complete.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(String, String)>, httparse::Error> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    if request.parse(bytes)?.is_partial() {
        return Ok(None);
    }
    Ok(request.method.zip(request.path).map(|(method, path)| (method.to_owned(), path.to_owned())))
}

fn respond(head: &[u8], metrics: &Metrics) -> Arc<[u8]> {
    let Ok(Some((method, path))) = parse(head) else {
        return text("400 Bad Request", "this is not a complete HTTP request\n");
    };
    if path.split('?').next() != Some(PATH) {
        return text("404 Not Found", "the metrics are at /metrics\n");
    }
    if method != "GET" {
        return text("405 Method Not Allowed", "the metrics are fetched with GET\n");
    }
    metrics.response()
}

fn text(status: &str, body: &str) -> Arc<[u8]> {
    response(status, "text/plain; charset=utf-8", body).into()
}

fn response(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
