//! The client's side: what the commands that look in or change reservations ask.

use crate::connection::DeadlineStream;
use crate::model::{SCHEMA, Status};
use crate::protocol::{Answer, MAX_ANSWER_BYTES, Query, Refusal, line};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The daemon answers within less than this, or not at all.
const DEADLINE: Duration = Duration::from_secs(5);
/// The same for what changes something.
const CHANGE_DEADLINE: Duration = Duration::from_secs(20);

/// The daemon does not say what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is none.
    #[error(
        "no daemon answers at {socket}. Start one with `frontdesk run`, or name its socket with --socket", socket = .0.display()
    )]
    NoDaemon(PathBuf),
    /// Our user may not connect.
    #[error(
        "not allowed to ask the daemon at {socket}: run the command as root, or as a member of the group that owns the socket \
         (control.group in frontdesk's configuration)", socket = .0.display()
    )]
    Denied(PathBuf),
    /// It refuses.
    #[error("the daemon refuses: {0}")]
    Refused(#[from] Refusal),
    /// It speaks another version of the protocol.
    #[error(
        "the daemon's answer is of schema {daemon}, and this program understands schema {ours}: use the program of the daemon's \
         version", daemon = .0, ours = SCHEMA
    )]
    Schema(u64),
    /// What answers is no daemon.
    #[error("what answers at {socket} is not a frontdesk daemon: {reason}", socket = .socket.display())]
    Nonsense {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The connection failed.
    #[error("asking the daemon at {socket}: {source}", socket = .socket.display())]
    Io {
        /// The socket.
        socket: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// Asks the daemon behind a socket, and reads its answer; not for [`Query::Record`], whose answer has no end.
///
/// # Errors
/// [`ClientError::NoDaemon`] if there is none; [`ClientError::Refused`] if it refuses.
pub fn ask(socket: &Path, query: &Query) -> Result<Answer, ClientError> {
    let mut connection = connect(socket, query)?;
    let answer = connection.read_line(MAX_ANSWER_BYTES).map_err(failed(socket))?;
    understand(&answer, socket)
}

/// Asks the daemon behind a socket for its state; if `vm` is given, for everything about the VMs of that
/// name.
///
/// # Errors
/// [`ClientError::NoDaemon`] if there is none; [`ClientError::Refused`] if no VM has the name.
pub fn ask_status(socket: &Path, vm: Option<&str>) -> Result<Status, ClientError> {
    match ask(socket, &Query::Status { vm: vm.map(str::to_owned) })? {
        Answer::Status(status) => Ok(*status),
        _ => Err(nonsense(socket, "it sends no status")),
    }
}

/// Asks the daemon behind a socket for a recording, which comes from the stream. The daemon completes it when
/// the stream is shut down for writing.
///
/// # Errors
/// [`ClientError::NoDaemon`] if there is none; [`ClientError::Refused`] if it makes too many already.
pub fn ask_recording(socket: &Path) -> Result<UnixStream, ClientError> {
    let mut connection = connect(socket, &Query::Record {})?;
    let answer = connection.read_only_line(MAX_ANSWER_BYTES).map_err(failed(socket))?;
    match understand(&answer, socket)? {
        Answer::Record {} => {}
        _ => return Err(nonsense(socket, "it sends no recording")),
    }
    let stream = connection.into_stream();
    stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None)).map_err(failed(socket))?;
    Ok(stream)
}

fn connect(socket: &Path, query: &Query) -> Result<DeadlineStream<UnixStream>, ClientError> {
    let stream = UnixStream::connect(socket).map_err(failed(socket))?;
    let deadline = if query.changes() { CHANGE_DEADLINE } else { DEADLINE };
    let mut connection = DeadlineStream::new(stream, deadline);
    match connection.write(&line(query)) {
        // A daemon that turns us away answers without having read this.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(failed(socket)(error)),
        _ => Ok(connection),
    }
}

fn failed(socket: &Path) -> impl Fn(io::Error) -> ClientError {
    move |source| match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => ClientError::NoDaemon(socket.to_owned()),
        ErrorKind::PermissionDenied => ClientError::Denied(socket.to_owned()),
        ErrorKind::UnexpectedEof => nonsense(socket, "it hangs up without an answer"),
        _ => ClientError::Io { socket: socket.to_owned(), source },
    }
}

fn nonsense(socket: &Path, reason: impl Into<String>) -> ClientError {
    ClientError::Nonsense { socket: socket.to_owned(), reason: reason.into() }
}

fn understand(answer: &[u8], socket: &Path) -> Result<Answer, ClientError> {
    match serde_json::from_slice(answer) {
        Ok(Answer::Refused(refusal)) => Err(refusal.into()),
        Ok(answer) if answer.schema().is_none_or(|schema| schema == SCHEMA) => Ok(answer),
        result => {
            let value: serde_json::Value = serde_json::from_slice(answer).unwrap_or_default();
            // An answer is an object with one key.
            let told = value.as_object().and_then(|answer| answer.values().next()?.get("schema")?.as_u64());
            let reason = result.err().map(|error| error.to_string()).unwrap_or_default();
            Err(told
                .filter(|schema| *schema != u64::from(SCHEMA))
                .map_or_else(|| nonsense(socket, reason), ClientError::Schema))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_version_is_told_from_nonsense() {
        let socket = Path::new("/run/x.sock");
        let say = |answer: &str| understand(answer.as_bytes(), socket).unwrap_err().to_string();
        assert!(say(r#"{"status":{"schema":9,"new":true}}"#).contains("schema 9"));
        assert!(say(r#"{"targets":{"schema":9,"targets":[],"left_off":0}}"#).contains("schema 9"));
        assert!(say(r#"{"status":{"schema":2}}"#).contains("not a frontdesk daemon"));
        assert!(say("HTTP/1.1 400 Bad Request").contains("not a frontdesk daemon"));
        let refused = r#"{"refused":{"kind":"busy","message":"later"}}"#;
        assert_eq!(say(refused), "the daemon refuses: later");
    }
}
