//! A client that types into a text editor of a guest over ssh (TAVS §5.3).

use crate::command::die_with_this_thread;
use crate::load::{LoadError, Sample};
use frontdesk_host::sched::{self, SchedError};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::convert::Infallible;
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A letter that does not appear within this fails the run.
const LETTER_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a busy guest may take to log the client in and start the editor.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// The editor, with nothing on its screen but the text. On a terminal of this kind it shows a letter at the end of a line by that
/// letter alone.
const EDITOR: [&str; 8] =
    ["env", "TERM=vt100", "LINES=24", "COLUMNS=80", "nano", "--ignorercfiles", "--restricted", "--zero"];

/// Options of `ssh`. None of the user's settings; and letters go out when they are typed, which newer versions would not do.
const SSH_OPTIONS: [&str; 11] = [
    "StrictHostKeyChecking=no",
    "UserKnownHostsFile=/dev/null",
    "BatchMode=yes",
    "LogLevel=ERROR",
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "EscapeChar=none",
    // Its server may just be starting; one attempt a second.
    "ConnectionAttempts=100",
    "ConnectTimeout=100",
    "IgnoreUnknown=ObscureKeystrokeTiming",
    "ObscureKeystrokeTiming=no",
];

/// What is typed at the begin of lines, in turn: more than a screen has lines, so that when one of these appears, it is the new line's.
const MARKS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// What is typed and measured.
const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";

/// Letters in a line.
const LINE_LENGTH: usize = 40;

/// Bytes of the screen's updates that are kept for messages.
const KEPT_OUTPUT: usize = 400;

/// What one client does.
#[derive(Clone, Debug)]
pub(crate) struct EditConfig {
    /// Name of the VM, for messages.
    pub(crate) vm: String,
    /// Its ssh server.
    pub(crate) server: SocketAddr,
    /// File with the private key that lets root log in.
    pub(crate) ssh_key: PathBuf,
    /// Shortest and longest time between letters.
    pub(crate) think: [Duration; 2],
    /// Same seed, same letters and think times: every arm of a repeat gets the same load.
    pub(crate) seed: u64,
    /// Physical CPUs the client and its ssh run on.
    pub(crate) cpus: Vec<u16>,
}

/// A running client. Dropping it ends it and its ssh.
pub(crate) struct EditClient {
    signals: Arc<Signals>,
    /// Closed to wake the thread.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<Result<Vec<Sample>, LoadError>>>,
}

/// What is said between the client and its thread.
#[derive(Debug, Default)]
struct Signals {
    typing: AtomicBool,
    /// End, even within a letter.
    abandon: AtomicBool,
}

impl EditClient {
    /// Begins; does not wait until the guest's editor runs, so that several can start at the same time.
    pub(crate) fn start(config: EditConfig) -> Result<EditClient, LoadError> {
        let vm = config.vm.clone();
        let failed = |error: io::Error| LoadError::Setup { vm: vm.clone(), reason: error.to_string() };
        let (wakes, wake) = pipe().map_err(failed)?;
        let signals = Arc::new(Signals::default());
        let thread = std::thread::spawn({
            let signals = Arc::clone(&signals);
            move || run(&config, &signals, wakes)
        });
        Ok(EditClient { signals, wake: Some(wake), thread: Some(thread) })
    }

    /// Whether the editor runs and the first letter was typed.
    pub(crate) fn is_typing(&self) -> bool {
        self.signals.typing.load(Ordering::Relaxed)
    }

    /// Whether the client ended before it was told to.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the client after the letter it is in.
    pub(crate) fn finish(mut self) -> Result<Vec<Sample>, LoadError> {
        self.wake = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Vec::new()),
        }
    }
}

impl Drop for EditClient {
    fn drop(&mut self) {
        self.signals.abandon.store(true, Ordering::Relaxed);
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // Nobody wants its result.
            let _ = thread.join();
        }
    }
}

/// Why a client ends.
enum End {
    /// It was told to.
    Asked,
    /// The guest's side failed in this way.
    Failed(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Failed(error.to_string())
    }
}

fn run(config: &EditConfig, signals: &Signals, wakes: PipeReader) -> Result<Vec<Sample>, LoadError> {
    let setup = |reason: String| LoadError::Setup { vm: config.vm.clone(), reason };
    // The client stands for a separate machine: what runs beside it here must not delay its clock.
    frontdesk_host::run_ahead(&config.cpus).map_err(|error| setup(error.to_string()))?;
    let mut session = Session::open(ssh(config), signals, wakes)
        .map_err(|error| setup(format!("starting ssh (Debian package openssh-client): {error}")))?;
    let mut samples = Vec::new();
    match session.edit(config, &mut samples) {
        End::Asked => Ok(samples),
        End::Failed(reason) => Err(LoadError::Editor {
            vm: config.vm.clone(),
            server: config.server,
            reason,
            output: session.recent.escape_ascii().to_string(),
        }),
    }
}

/// The command that runs the editor in the guest.
fn ssh(config: &EditConfig) -> Command {
    let mut command = Command::new("ssh");
    command.args(["-F", "/dev/null", "-tt", "-i"]).arg(&config.ssh_key);
    command.args(SSH_OPTIONS.iter().flat_map(|option| ["-o", option]));
    command.args(["-p", &config.server.port().to_string(), "-l", "root", &config.server.ip().to_string()]);
    command.args(EDITOR);
    command
}

/// An editor in the guest.
struct Session<'a> {
    ssh: Child,
    keys: PipeWriter,
    screen: PipeReader,
    parser: Parser,
    /// The last bytes from the screen.
    recent: Vec<u8>,
    signals: &'a Signals,
    /// Readable when the client is told to end.
    wakes: PipeReader,
    /// It is, and only waits for its letter.
    ending: bool,
}

impl Session<'_> {
    /// Starts `ssh`, or what a test has in its place.
    fn open<'a>(mut ssh: Command, signals: &'a Signals, wakes: PipeReader) -> io::Result<Session<'a>> {
        let (keys_end, keys) = pipe()?;
        let (screen, screen_end) = pipe()?;
        // What ssh itself has to say comes on the same way. A group of its own: Ctrl-C is for the lab.
        ssh.stdin(keys_end).stdout(screen_end.try_clone()?).stderr(screen_end).process_group(0);
        // It is on this thread's CPUs from the start.
        let ssh = die_with_this_thread(&mut ssh).spawn()?;
        let session = Session {
            ssh,
            keys,
            screen,
            parser: Parser::Text,
            recent: Vec::new(),
            signals,
            wakes,
            ending: false,
        };
        // Threads do not pass their priority on. If ssh has ended already, its output says why.
        let priority = sched::get(0).map_err(io::Error::other)?;
        let pid = i32::try_from(session.ssh.id()).map_err(io::Error::other)?;
        match sched::set(pid, priority) {
            Ok(()) | Err(SchedError::Vanished { .. }) => Ok(session),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Types until it is told to end, or fails.
    fn edit(&mut self, config: &EditConfig, samples: &mut Vec<Sample>) -> End {
        match self.try_edit(config, samples) {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    fn try_edit(&mut self, config: &EditConfig, samples: &mut Vec<Sample>) -> Result<Infallible, End> {
        let mut rng = SmallRng::seed_from_u64(config.seed);
        // What is typed before is shown by the terminal, not by the editor.
        self.wait_for(Shown::Cleared, START_TIMEOUT, "the editor did not start")?;
        for line in 0.. {
            let mark = MARKS[line % MARKS.len()];
            let keys = [b'\r', mark];
            // All that a new line changes on the screen comes before its mark.
            self.press(if line == 0 { &keys[1..] } else { &keys })?;
            self.wait_for(Shown::Byte(mark), LETTER_TIMEOUT, "a new line did not appear")?;
            self.signals.typing.store(true, Ordering::Relaxed);
            for _ in 0..LINE_LENGTH {
                self.think(rng.random_range(config.think[0]..=config.think[1]))?;
                let letter = LETTERS[rng.random_range(0..LETTERS.len())];
                let sent = self.press(&[letter])?;
                self.wait_for(Shown::Byte(letter), LETTER_TIMEOUT, "a letter did not appear")?;
                samples.push(Sample { sent, response: sent.elapsed() });
            }
        }
        Err(End::Asked)
    }

    /// Sleeps, unless it is told to end.
    fn think(&self, time: Duration) -> Result<(), End> {
        let mut fds = [PollFd::new(&self.wakes, PollFlags::IN)];
        if poll_until(&mut fds, Instant::now() + time)? { Err(End::Asked) } else { Ok(()) }
    }

    /// Presses keys and tells when.
    fn press(&mut self, keys: &[u8]) -> Result<Instant, End> {
        // What was shown before is no answer.
        while poll_until(&mut [PollFd::new(&self.screen, PollFlags::IN)], Instant::now())? {
            self.read(None)?;
        }
        let sent = Instant::now();
        match self.keys.write_all(keys) {
            // It ended: what it said last is still to be read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => loop {
                self.read(None)?;
            },
            result => result?,
        }
        Ok(sent)
    }

    /// Waits until this is shown.
    fn wait_for(&mut self, wanted: Shown, timeout: Duration, otherwise: &str) -> Result<(), End> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut fds = vec![PollFd::new(&self.screen, PollFlags::IN)];
            if !self.ending {
                fds.push(PollFd::new(&self.wakes, PollFlags::IN));
            }
            if !poll_until(&mut fds, deadline)? {
                return Err(End::Failed(format!("{otherwise} within {timeout:?}")));
            }
            if fds[0].revents().is_empty() {
                let is_typing = self.signals.typing.load(Ordering::Relaxed);
                if !is_typing || self.signals.abandon.load(Ordering::Relaxed) {
                    return Err(End::Asked);
                }
                self.ending = true;
            } else if self.read(Some(wanted))? {
                return Ok(());
            }
        }
    }

    /// Reads once, and tells whether `wanted` was in it.
    fn read(&mut self, wanted: Option<Shown>) -> Result<bool, End> {
        let mut buffer = [0; 4096];
        let length = self.screen.read(&mut buffer)?;
        if length == 0 {
            return Err(End::Failed(format!("ssh ended ({})", self.ssh.wait()?)));
        }
        let bytes = &buffer[..length];
        self.recent.extend_from_slice(bytes);
        self.recent.drain(..self.recent.len().saturating_sub(KEPT_OUTPUT));
        let mut found = false;
        for byte in bytes {
            let shown = self.parser.feed(*byte);
            found |= shown.is_some() && shown == wanted;
        }
        Ok(found)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.ssh.kill();
        let _ = self.ssh.wait();
    }
}

/// Waits for one of these until the deadline, and tells whether there was one.
fn poll_until(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(fds, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Something that appears on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// A character.
    Byte(u8),
    /// The screen was cleared, or a part of it.
    Cleared,
}

/// Takes apart what a terminal gets: characters, and control sequences (ECMA-48).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parser {
    /// Outside of sequences.
    Text,
    /// After ESC.
    Escape,
    /// After `ESC [`, up to a letter.
    Control,
    /// After what begins a text that is not shown, like a window's title: up to BEL or ESC `\`.
    Hidden,
}

impl Parser {
    fn feed(&mut self, byte: u8) -> Option<Shown> {
        const ESCAPE: u8 = 0x1b;
        const BELL: u8 = 0x07;
        let (next, shown) = match (*self, byte) {
            (_, ESCAPE) => (Parser::Escape, None),
            (Parser::Text, b' '..=b'~') => (Parser::Text, Some(Shown::Byte(byte))),
            (Parser::Text, _) => (Parser::Text, None),
            (Parser::Escape, b'[') => (Parser::Control, None),
            (Parser::Escape, b']' | b'P' | b'X' | b'^' | b'_') => (Parser::Hidden, None),
            // Like the choice of a character set, which ends with the next byte.
            (Parser::Escape, b' '..=b'/') => (Parser::Escape, None),
            (Parser::Escape, b'0'..=b'~') => (Parser::Text, None),
            (Parser::Control, b'J') => (Parser::Text, Some(Shown::Cleared)),
            (Parser::Control, b'@'..=b'~') => (Parser::Text, None),
            (Parser::Hidden, BELL) => (Parser::Text, None),
            // A control character within a sequence is not part of it.
            (state, _) => (state, None),
        };
        *self = next;
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What nano sends when it starts.
    const START: &[u8] =
        b"\x1b[?2004h\x1b(B\x1b)0\x1b[1;24r\x1b[m\x0f\x1b[?7h\x1b[?1h\x1b=\x1b[?1h\x1b=\x1b[H\x1b[J";

    /// An editor for one line after the other, on this machine.
    fn editor(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!(r"printf '\033[?1h\033[H\033[J'; {script}")]);
        command
    }

    fn config(think: Duration) -> EditConfig {
        EditConfig {
            vm: "test".into(),
            server: "10.77.1.2:22".parse().unwrap(),
            ssh_key: "/key".into(),
            think: [think; 2],
            seed: 1,
            cpus: Vec::new(),
        }
    }

    fn shown(bytes: &[u8]) -> Vec<Shown> {
        let mut parser = Parser::Text;
        bytes.iter().filter_map(|byte| parser.feed(*byte)).collect()
    }

    #[test]
    fn letters_of_control_sequences_are_not_on_the_screen() {
        assert_eq!(shown(START), [Shown::Cleared]);
        assert_eq!(shown(b"a"), [Shown::Byte(b'a')]);
        // New lines: within the screen, and when it scrolls.
        assert_eq!(shown(b"\r\x1b[1BA"), [Shown::Byte(b'A')]);
        assert_eq!(shown(b"\r\nW"), [Shown::Byte(b'W')]);
        // A title, a character set, a key pad mode, and a line feed amid a sequence.
        assert_eq!(shown(b"\x1b]0;nano\x07x\x1b]0;nano\x1b\\y"), [Shown::Byte(b'x'), Shown::Byte(b'y')]);
        assert_eq!(shown(b"\x1b(0\x1b>q\x1b[\n3mz"), [Shown::Byte(b'q'), Shown::Byte(b'z')]);
    }

    #[test]
    fn every_letter_that_appears_is_a_sample() {
        let signals = Signals::default();
        let (wakes, _wake) = pipe().unwrap();
        // A mark and 40 letters; then Enter, the next mark and 7 letters.
        let mut session = Session::open(editor("dd bs=1 count=50 status=none"), &signals, wakes).unwrap();
        let mut samples = Vec::new();
        match session.edit(&config(Duration::ZERO), &mut samples) {
            End::Failed(reason) => assert_eq!(reason, "ssh ended (exit status: 0)"),
            End::Asked => panic!("nobody asked"),
        }
        assert_eq!(samples.len(), 47);
        assert!(samples.is_sorted_by_key(|sample| sample.sent));
        let text = session.recent.escape_ascii().to_string();
        assert!(text.contains("J0") && text.contains("\\r1"), "{text}");
    }

    #[test]
    fn same_seed_same_letters() {
        let typed = |seed| {
            let signals = Signals::default();
            let (wakes, _wake) = pipe().unwrap();
            let mut session = Session::open(editor("dd bs=1 count=30 status=none"), &signals, wakes).unwrap();
            session.edit(&EditConfig { seed, ..config(Duration::ZERO) }, &mut Vec::new());
            session.recent.clone()
        };
        assert_eq!(typed(1), typed(1));
        assert_ne!(typed(1), typed(2));
    }

    #[test]
    fn a_client_ends_when_it_is_told_to() {
        let signals = Signals::default();
        let (wakes, wake) = pipe().unwrap();
        let mut session = Session::open(editor("cat"), &signals, wakes).unwrap();
        let pid = session.ssh.id();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !signals.typing.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                drop(wake);
            });
            let end = session.edit(&config(Duration::from_secs(3600)), &mut Vec::new());
            assert!(matches!(end, End::Asked));
        });
        drop(session);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "its ssh is gone, too");
    }

    #[test]
    fn a_client_that_nobody_wants_does_not_wait_for_its_letter() {
        let signals = Signals::default();
        let (wakes, wake) = pipe().unwrap();
        // Shows the mark and nothing more.
        let mut session =
            Session::open(editor("dd bs=1 count=1 status=none; exec sleep 1000"), &signals, wakes).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !signals.typing.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                signals.abandon.store(true, Ordering::Relaxed);
                drop(wake);
            });
            let mut samples = Vec::new();
            assert!(matches!(session.edit(&config(Duration::ZERO), &mut samples), End::Asked));
            assert!(samples.is_empty());
        });
    }

    #[test]
    fn what_does_not_appear_is_told() {
        let signals = Signals::default();
        let (wakes, _wake) = pipe().unwrap();
        let mut session = Session::open(editor("echo xyz; exec sleep 1000"), &signals, wakes).unwrap();
        let mut wait = |byte, time| session.wait_for(Shown::Byte(byte), time, "it did not appear");
        assert!(wait(b'y', LETTER_TIMEOUT).is_ok());
        match wait(b'a', Duration::from_millis(1)) {
            Err(End::Failed(reason)) => assert_eq!(reason, "it did not appear within 1ms"),
            _ => panic!("there is no such letter"),
        }
        assert!(session.recent.ends_with(b"xyz\n"));
    }
}
