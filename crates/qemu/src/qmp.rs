//! A client of the QEMU machine protocol that trusts nobody and waits for nobody: whoever listens on the
//! socket may stall, lie or never stop talking.
//!
//! Hand-written because the `qapi` crate panics when the peer closes before its greeting and reads lines of
//! any length.

use rustix::io::Errno;
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
};

/// Longest message taken. QEMU's longest answers to what is asked here: 512 vCPUs take half of it, and a disk
/// a few KiB.
const MESSAGE_MAX: usize = 256 << 10;
/// So much is read at a time: who talks without end is to take no more of anybody's time than others.
const PART: usize = 16 << 10;
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

/// A connection. Nothing here waits: what has come is read when the descriptor is readable, a part at a time.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: UnixStream,
    /// What was read, and how much of that was looked at.
    heard: Vec<u8>,
    looked_at: usize,
    events: VecDeque<VmEvent>,
}

impl Qmp {
    /// Connects without waiting for a place in the listener's queue. Nothing is said yet.
    pub(super) fn connect(path: &Path) -> Result<Qmp, QmpError> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
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
        Ok(Qmp { stream, heard: Vec::new(), looked_at: 0, events: VecDeque::new() })
    }

    /// The connection, to ask who is at its other end.
    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Reads some of what has come. Whether anything had.
    fn read(&mut self, command: &'static str) -> Result<bool, QmpError> {
        let mut part = [0; PART];
        let count = match (&self.stream).read(&mut part) {
            Ok(0) => return Err(QmpError::Closed { command }),
            Ok(count) => count,
            Err(source) => match source.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => return Ok(false),
                io::ErrorKind::ConnectionReset => return Err(QmpError::Closed { command }),
                _ => return Err(QmpError::Io { command, source }),
            },
        };
        self.heard.drain(..std::mem::take(&mut self.looked_at));
        self.heard.extend_from_slice(&part[..count]);
        Ok(true)
    }

    /// The next line of what was read.
    fn message(&mut self, command: &'static str) -> Result<Option<Value>, QmpError> {
        let rest = &self.heard[self.looked_at..];
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            if rest.len() > MESSAGE_MAX {
                let cause = format!("a message of more than {MESSAGE_MAX} bytes");
                return Err(QmpError::NotQmp { command, cause });
            }
            return Ok(None);
        };
        let message = serde_json::from_slice(&rest[..end]);
        self.looked_at += end + 1;
        message.map(Some).map_err(|e| QmpError::NotQmp { command, cause: format!("no JSON: {e}") })
    }

    /// The next event of those that have come.
    pub(super) fn event(&mut self) -> Result<Option<VmEvent>, QmpError> {
        const COMMAND: &str = "the wait for events";
        if self.events.is_empty() {
            self.read(COMMAND)?;
            while let Some(message) = self.message(COMMAND)? {
                self.note(COMMAND, &message)?;
            }
        }
        Ok(self.events.pop_front())
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

    /// Asks for a command without arguments to be executed.
    fn ask(&self, command: &'static str) -> Result<(), QmpError> {
        let line = format!("{}\n", json!({ "execute": command }));
        // Whoever answers has taken what was asked before, so there is room for a line.
        (&self.stream).write_all(line.as_bytes()).map_err(|source| match source.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => QmpError::Closed { command },
            io::ErrorKind::WouldBlock => QmpError::Stalled { command },
            _ => QmpError::Io { command, source },
        })
    }

    /// The answer, if it is among what was read. Events in between are kept for later.
    fn answer(&mut self, command: &'static str) -> Result<Option<Value>, QmpError> {
        while let Some(mut message) = self.message(command)? {
            if command == GREETING {
                if message.get("QMP").is_some_and(Value::is_object) {
                    return Ok(Some(message));
                }
                let cause = format!("it says {}", excerpt(&message.to_string()));
                return Err(QmpError::NotQmp { command, cause });
            }
            if let Some(result) = message.get_mut("return") {
                return Ok(Some(result.take()));
            }
            if let Some(error) = message.get("error") {
                let description =
                    excerpt(error.get("desc").and_then(Value::as_str).unwrap_or("without saying why"));
                return Err(QmpError::Refused { command, description });
            }
            self.note(command, &message)?;
        }
        Ok(None)
    }
}

/// What begins every conversation.
const PREFACE: [&str; 2] = [GREETING, "qmp_capabilities"];

/// Commands that are asked one after the other, behind greeting and negotiation.
#[derive(Debug)]
pub(super) struct Conversation {
    qmp: Qmp,
    commands: &'static [&'static str],
    /// Greeting and negotiation included.
    answers: Vec<Value>,
}

impl Conversation {
    pub(super) fn new(qmp: Qmp, commands: &'static [&'static str]) -> Conversation {
        Conversation { qmp, commands, answers: Vec::new() }
    }

    /// What is waited for.
    fn awaited(&self) -> Option<&'static str> {
        let command = |index: usize| self.commands.get(index.checked_sub(PREFACE.len())?);
        PREFACE.get(self.answers.len()).or_else(|| command(self.answers.len())).copied()
    }

    /// Goes on as far as what has come allows, and some of that at a time. All answers, once they are there.
    pub(super) fn advance(&mut self) -> Result<Option<Vec<Value>>, QmpError> {
        while let Some(command) = self.awaited() {
            let answer = match self.qmp.answer(command)? {
                None if self.qmp.read(command)? => self.qmp.answer(command)?,
                answer => answer,
            };
            let Some(answer) = answer else { return Ok(None) };
            self.answers.push(answer);
            if let Some(next) = self.awaited() {
                self.qmp.ask(next)?;
            }
        }
        Ok(Some(self.answers.drain(..).skip(PREFACE.len()).collect()))
    }

    /// What it means that it does not go on.
    pub(super) fn stalled(&self) -> QmpError {
        match self.awaited() {
            Some(GREETING) | None => QmpError::Busy,
            Some(command) => QmpError::Stalled { command },
        }
    }

    pub(super) fn qmp(&self) -> &Qmp {
        &self.qmp
    }

    pub(super) fn into_qmp(self) -> Qmp {
        self.qmp
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
    ours.set_nonblocking(true).unwrap();
    let qmp = Qmp { stream: ours, heard: Vec::new(), looked_at: 0, events: VecDeque::new() };
    let mut conversation = Conversation::new(qmp, &["query-name"]);
    // All has come, so each turn reads a part of it, or its end.
    let answer = loop {
        match conversation.advance() {
            Ok(Some(mut answers)) => break Ok(answers.remove(0)),
            Ok(None) => {}
            Err(error) => break Err(error),
        }
    };
    let mut qmp = conversation.into_qmp();
    while qmp.event().is_ok() {}
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::{os::unix::net::UnixListener, thread, time::Duration};

    /// Longer than it takes on any machine.
    const LONG: Duration = Duration::from_secs(120);
    /// For what never comes.
    const SHORT: Duration = Duration::from_millis(100);

    /// Talks to a listener that says `lines` at once and then holds the connection, or hangs up.
    fn converse(lines: &[u8], hang_up: bool) -> Result<Value, QmpError> {
        converse_within(LONG, lines, hang_up)
    }

    /// The same, waiting so long for each part of what it says.
    fn converse_within(patience: Duration, lines: &[u8], hang_up: bool) -> Result<Value, QmpError> {
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
            let mut conversation = Conversation::new(Qmp::connect(&path).unwrap(), &["query-name"]);
            let result = loop {
                match conversation.advance() {
                    Ok(Some(answers)) => break Ok(answers[0].clone()),
                    Ok(None) if readable(conversation.qmp().stream(), patience) => {}
                    Ok(None) => break Err(conversation.stalled()),
                    Err(error) => break Err(error),
                }
            };
            drop((conversation, done));
            result
        })
    }

    fn readable(stream: &UnixStream, patience: Duration) -> bool {
        let patience = patience.try_into().unwrap();
        poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&patience)).is_ok_and(|ready| ready > 0)
    }

    const HELLO: &str = "{\"QMP\":{\"version\":{}}}\n{\"return\":{}}\n";

    #[test]
    fn takes_answers_and_skips_events() {
        let answer = converse(format!("{HELLO}{{\"event\":\"X\"}}\n{{\"return\":[1]}}\n").as_bytes(), false);
        assert_eq!(answer.unwrap(), json!([1]));
    }

    #[test]
    fn tells_apart_what_can_go_wrong() {
        assert!(matches!(converse_within(SHORT, b"", false), Err(QmpError::Busy)));
        assert!(matches!(converse(b"", true), Err(QmpError::Closed { command: GREETING })));
        assert!(matches!(converse(b"SSH-2.0\n", false), Err(QmpError::NotQmp { .. })));
        assert!(matches!(converse(b"{\"return\":{}}\n", false), Err(QmpError::NotQmp { .. })));
        assert!(matches!(
            converse_within(SHORT, HELLO.as_bytes(), false),
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
        let chattered = converse_within(SHORT, chatter.as_bytes(), false);
        assert!(matches!(chattered, Err(QmpError::Stalled { .. })));
        let missing = Path::new("/nonexistent/socket");
        assert!(matches!(Qmp::connect(missing), Err(QmpError::Connect(_))));
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
