//! A client of the QEMU machine protocol that trusts nobody: whoever listens on the socket may stall, lie or
//! never stop talking.
//!
//! Hand-written because the `qapi` crate panics when the peer closes before its greeting and reads lines of
//! any length.

use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufReader, Write as _},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    time::{Duration, Instant},
};

/// Longest message taken. QEMU's longest answers to what is asked here: 512 vCPUs take half of it, and a disk
/// a few KiB.
const MESSAGE_MAX: usize = 256 << 10;
/// Characters of what a VM says that are told on.
const EXCERPT_MAX: usize = 200;

/// What went wrong in a conversation.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// Nobody can be reached.
    #[error("cannot connect: {0}; is the VM running, with -qmp unix:PATH,server=on,wait=off?")]
    Connect(io::Error),
    /// Another client holds the socket.
    #[error(
        "it does not answer: QMP serves one client at a time, and another seems to hold it; close that one or give the VM a \
         second -qmp socket for frontdesk"
    )]
    Busy,
    /// It stopped answering.
    #[error("no answer to {command} in time; the VM's main loop may be blocked or the process stopped")]
    Stalled {
        /// The command.
        command: &'static str,
    },
    /// It hung up.
    #[error("it closed the connection during {command}; the VM seems to have ended")]
    Closed {
        /// The command, or the greeting.
        command: &'static str,
    },
    /// Reading or writing failed otherwise.
    #[error("{command} failed: {source}")]
    Io {
        /// The command.
        command: &'static str,
        /// What failed.
        source: io::Error,
    },
    /// It does not speak QMP.
    #[error("it does not speak QMP (during {command}): {cause}; is this the VM's QMP socket?")]
    NotQmp {
        /// The command.
        command: &'static str,
        /// What is wrong with what it said.
        cause: String,
    },
    /// QEMU refused a command.
    #[error("QEMU refuses {command}: {description}")]
    Refused {
        /// The command.
        command: &'static str,
        /// What QEMU says.
        description: String,
    },
}

const GREETING: &str = "the greeting";
/// Events that may wait to be taken. A guest that resets itself without end gains nothing by more.
const EVENTS_MAX: usize = 16;

/// What QEMU tells unasked, as far as it is of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmEvent {
    /// The guest was reset.
    Reset,
    /// Its vCPUs were stopped.
    Paused,
    /// Its vCPUs go on.
    Resumed,
}

impl VmEvent {
    fn parse(message: &Value) -> Option<VmEvent> {
        match message.get("event")?.as_str()? {
            "RESET" => Some(VmEvent::Reset),
            "STOP" | "SUSPEND" => Some(VmEvent::Paused),
            "RESUME" | "WAKEUP" => Some(VmEvent::Resumed),
            _ => None,
        }
    }
}

/// A conversation, with one deadline for all of it until another is set.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    events: VecDeque<VmEvent>,
    deadline: Instant,
}

impl Qmp {
    /// Connects without waiting for a place in the listener's queue. Nothing is said yet.
    pub(super) fn connect(path: &Path, timeout: Duration) -> Result<Qmp, QmpError> {
        use rustix::{
            io::Errno,
            net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
        };
        let deadline = Instant::now() + timeout;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let failed = |e: Errno| QmpError::Connect(e.into());
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let socket: OwnedFd =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        match connect(&socket, &address) {
            Err(Errno::AGAIN) => return Err(QmpError::Busy),
            result => result.map_err(failed)?,
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false).map_err(QmpError::Connect)?;
        let stream = BufReader::new(stream);
        Ok(Qmp { stream, partial: Vec::new(), events: VecDeque::new(), deadline })
    }

    /// The connection, to ask who is at its other end.
    pub(super) fn stream(&self) -> &UnixStream {
        self.stream.get_ref()
    }

    /// Waits for the greeting and leaves the negotiation mode.
    pub(super) fn greet(&mut self) -> Result<(), QmpError> {
        let greeting = self.message(GREETING).map_err(|e| match e {
            QmpError::Stalled { .. } => QmpError::Busy,
            other => other,
        })?;
        if !greeting.get("QMP").is_some_and(Value::is_object) {
            return Err(QmpError::NotQmp {
                command: GREETING,
                cause: format!("it says {}", excerpt(&greeting.to_string())),
            });
        }
        self.execute("qmp_capabilities").map(drop)
    }

    /// The next event, if one comes within `timeout`.
    pub(super) fn event(&mut self, timeout: Duration) -> Result<Option<VmEvent>, QmpError> {
        const COMMAND: &str = "the wait for events";
        self.deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            match self.message(COMMAND) {
                Ok(message) => self.note(COMMAND, &message)?,
                Err(QmpError::Stalled { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps an event for later; anything else that comes unasked is out of order.
    fn note(&mut self, command: &'static str, message: &Value) -> Result<(), QmpError> {
        if message.get("event").is_none() {
            return Err(QmpError::NotQmp {
                command,
                cause: format!("it says {}", excerpt(&message.to_string())),
            });
        }
        if self.events.len() < EVENTS_MAX {
            self.events.extend(VmEvent::parse(message));
        }
        Ok(())
    }

    /// Executes a command without arguments and returns its result. Events in between are kept for later.
    pub(super) fn execute(&mut self, command: &'static str) -> Result<Value, QmpError> {
        let timeout = self.remaining(command)?;
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => QmpError::Closed { command },
            io::ErrorKind::WouldBlock => QmpError::Stalled { command },
            _ => QmpError::Io { command, source },
        };
        let mut stream = self.stream();
        stream.set_write_timeout(Some(timeout)).map_err(failed)?;
        let line = format!("{}\n", json!({ "execute": command }));
        stream.write_all(line.as_bytes()).map_err(failed)?;
        loop {
            let mut message = self.message(command)?;
            if let Some(result) = message.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = message.get("error") {
                let description =
                    excerpt(error.get("desc").and_then(Value::as_str).unwrap_or("without saying why"));
                return Err(QmpError::Refused { command, description });
            }
            self.note(command, &message)?;
        }
    }

    /// One line of JSON.
    fn message(&mut self, command: &'static str) -> Result<Value, QmpError> {
        loop {
            let timeout = self.remaining(command)?;
            let io = |source| QmpError::Io { command, source };
            self.stream().set_read_timeout(Some(timeout)).map_err(io)?;
            let chunk = match self.stream.fill_buf() {
                Ok([]) => return Err(QmpError::Closed { command }),
                Ok(chunk) => chunk,
                Err(e) => match e.kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock => return Err(QmpError::Stalled { command }),
                    io::ErrorKind::ConnectionReset => return Err(QmpError::Closed { command }),
                    _ => return Err(io(e)),
                },
            };
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(chunk.len(), |end| end + 1);
            self.partial.extend_from_slice(&chunk[..taken]);
            self.stream.consume(taken);
            if self.partial.len() > MESSAGE_MAX {
                return Err(QmpError::NotQmp {
                    command,
                    cause: format!("a message of more than {MESSAGE_MAX} bytes"),
                });
            }
            if end.is_some() {
                let line = std::mem::take(&mut self.partial);
                return serde_json::from_slice(&line)
                    .map_err(|e| QmpError::NotQmp { command, cause: format!("no JSON: {e}") });
            }
        }
    }

    fn remaining(&self, command: &'static str) -> Result<Duration, QmpError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(QmpError::Stalled { command }) } else { Ok(left) }
    }
}

/// The beginning of what a VM says, as a log can show it: nothing in it moves a cursor or begins a line.
pub(super) fn excerpt(said: &str) -> String {
    let shown = said.chars().take(EXCERPT_MAX);
    shown.fold(String::new(), |mut text, c| {
        match c {
            '"' | '\'' => text.push(c),
            c => text.extend(c.escape_debug()),
        }
        text
    })
}

/// Talks to somebody who says this and hangs up.
#[cfg(any(test, fuzzing))]
#[allow(clippy::unwrap_used)] // What panics is found.
pub(super) fn converse(said: &[u8]) -> Result<Value, QmpError> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(said).unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    let (partial, events) = (Vec::new(), VecDeque::new());
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut qmp = Qmp { stream: BufReader::new(ours), partial, events, deadline };
    let answer = qmp.greet().and_then(|()| qmp.execute("query-name"));
    while qmp.event(Duration::from_secs(120)).is_ok() {}
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixListener, thread};

    /// Longer than it takes on any machine.
    const LONG: Duration = Duration::from_secs(120);
    /// For what never comes.
    const SHORT: Duration = Duration::from_millis(100);

    /// Talks to a listener that says `lines` at once and then holds the connection, or hangs up.
    fn converse(lines: &[u8], hang_up: bool) -> Result<Value, QmpError> {
        converse_within(LONG, LONG, lines, hang_up)
    }

    /// The same, waiting so long for the greeting and then for the answer.
    fn converse_within(
        greeting: Duration,
        answer: Duration,
        lines: &[u8],
        hang_up: bool,
    ) -> Result<Value, QmpError> {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        thread::scope(|scope| {
            let (done, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                let _ = stream.write_all(lines);
                if !hang_up {
                    let _ = wait.recv();
                }
            });
            let mut qmp = Qmp::connect(&path, greeting).unwrap();
            let result = qmp.greet().and_then(|()| {
                qmp.deadline = Instant::now() + answer;
                qmp.execute("query-name")
            });
            drop((qmp, done));
            result
        })
    }

    const HELLO: &str = "{\"QMP\":{\"version\":{}}}\n{\"return\":{}}\n";

    #[test]
    fn takes_answers_and_skips_events() {
        let answer = converse(format!("{HELLO}{{\"event\":\"X\"}}\n{{\"return\":[1]}}\n").as_bytes(), false);
        assert_eq!(answer.unwrap(), json!([1]));
    }

    #[test]
    fn tells_apart_what_can_go_wrong() {
        assert!(matches!(converse_within(SHORT, LONG, b"", false), Err(QmpError::Busy)));
        assert!(matches!(converse(b"", true), Err(QmpError::Closed { command: GREETING })));
        assert!(matches!(converse(b"SSH-2.0\n", false), Err(QmpError::NotQmp { .. })));
        assert!(matches!(converse(b"{\"return\":{}}\n", false), Err(QmpError::NotQmp { .. })));
        assert!(matches!(
            converse_within(LONG, SHORT, HELLO.as_bytes(), false),
            Err(QmpError::Stalled { command: "query-name" })
        ));
        let refusal = format!("{HELLO}{{\"error\":{{\"class\":\"GenericError\",\"desc\":\"no\"}}}}\n");
        assert!(
            matches!(converse(refusal.as_bytes(), false), Err(QmpError::Refused { description, .. }) if description == "no")
        );
        let escapes =
            format!("{HELLO}{{\"error\":{{\"desc\":\"\\u001b[2J\\n\u{202e}{}\"}}}}\n", "x".repeat(9999));
        let said = converse(escapes.as_bytes(), false).unwrap_err().to_string();
        assert!(said.contains(r"\u{1b}[2J\n\u{202e}xxx") && said.len() < 400, "{said}");
        let endless = [HELLO.as_bytes(), &vec![b'x'; MESSAGE_MAX + 1]].concat();
        assert!(matches!(converse(&endless, false), Err(QmpError::NotQmp { .. })));
        let chatter = format!("{HELLO}{}", "{\"event\":\"X\"}\n".repeat(1000));
        let chattered = converse_within(LONG, SHORT, chatter.as_bytes(), false);
        assert!(matches!(chattered, Err(QmpError::Stalled { .. })));
        let missing = Path::new("/nonexistent/socket");
        assert!(matches!(Qmp::connect(missing, Duration::from_secs(1)), Err(QmpError::Connect(_))));
    }

    proptest::proptest! {
        /// A listener that sends pieces of the protocol in any order, and hangs up.
        #[test]
        fn fuzz_conversations(pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..24)) {
            let _ = super::converse(&pieces.concat());
        }

        #[test]
        fn fuzz_bytes(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400), greets: bool) {
            let hello = if greets { HELLO.as_bytes() } else { &[] };
            let result = super::converse(&[hello, &bytes].concat());
            // By chance nothing of this is an answer.
            proptest::prop_assert!(result.is_err());
        }
    }

    const PIECES: &[&[u8]] = &[
        b"{\"QMP\":{}}",
        b"{\"return\":",
        b"{\"error\":",
        b"{\"event\":",
        b"{}",
        b"[]",
        b"}",
        b"]",
        b"[[[[[[[[",
        b"null",
        b"\"desc\"",
        b":",
        b",",
        b"\n",
        b"\n",
        b"\n",
        b"1e999",
        b"\"\\ud800\"",
        b"\xff\xfe",
        b"\0",
    ];
}
