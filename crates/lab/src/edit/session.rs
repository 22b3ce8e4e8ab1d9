//! An editor in the guest, and what is typed into it.

use super::config::{ClientEnd, EditConfig, Signals};
use super::screen::{Parser, Shown};
use crate::command::die_with_this_thread;
use crate::load::Sample;
use frontdesk_linux::sched::{self, SchedError};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::convert::Infallible;
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A letter that does not appear within this fails the run.
const LETTER_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a busy guest may take to log the client in and start the editor.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// What is typed at the begin of lines, in turn: more than a screen has lines, so that when one of these
/// appears, it is the new line's.
const MARKS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// What is typed and measured.
const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";

/// Letters in a line.
const LINE_LENGTH: usize = 40;

/// Bytes of the screen's updates that are kept for messages.
const KEPT_OUTPUT: usize = 400;

/// An editor in the guest.
pub(super) struct EditorSession<'a> {
    ssh: Child,
    keys: PipeWriter,
    screen: PipeReader,
    parser: Parser,
    /// The last bytes from the screen.
    pub(super) recent: Vec<u8>,
    signals: &'a Signals,
    /// Readable when the client is told to end.
    wakes: PipeReader,
    /// It is, and only waits for its letter.
    ending: bool,
}

impl EditorSession<'_> {
    /// Starts `ssh`, or what a test has in its place.
    pub(super) fn open<'a>(
        mut ssh: Command,
        signals: &'a Signals,
        wakes: PipeReader,
    ) -> io::Result<EditorSession<'a>> {
        let (keys_end, keys) = pipe()?;
        let (screen, screen_end) = pipe()?;
        // What ssh itself has to say comes on the same way. A group of its own: Ctrl-C is for the lab.
        ssh.stdin(keys_end).stdout(screen_end.try_clone()?).stderr(screen_end).process_group(0);
        // It is on this thread's CPUs from the start.
        let ssh = die_with_this_thread(&mut ssh).spawn()?;
        let session = EditorSession {
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
    pub(super) fn edit(&mut self, config: &EditConfig, samples: &mut Vec<Sample>) -> ClientEnd {
        match self.try_edit(config, samples) {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    fn try_edit(&mut self, config: &EditConfig, samples: &mut Vec<Sample>) -> Result<Infallible, ClientEnd> {
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
        Err(ClientEnd::Asked)
    }

    /// Sleeps, unless it is told to end.
    fn think(&self, time: Duration) -> Result<(), ClientEnd> {
        let mut fds = [PollFd::new(&self.wakes, PollFlags::IN)];
        if poll_until(&mut fds, Instant::now() + time)? { Err(ClientEnd::Asked) } else { Ok(()) }
    }

    /// Presses keys and tells when.
    fn press(&mut self, keys: &[u8]) -> Result<Instant, ClientEnd> {
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
    fn wait_for(&mut self, wanted: Shown, timeout: Duration, otherwise: &str) -> Result<(), ClientEnd> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut fds = vec![PollFd::new(&self.screen, PollFlags::IN)];
            if !self.ending {
                fds.push(PollFd::new(&self.wakes, PollFlags::IN));
            }
            if !poll_until(&mut fds, deadline)? {
                return Err(ClientEnd::Failed(format!("{otherwise} within {timeout:?}")));
            }
            if fds[0].revents().is_empty() {
                let is_typing = self.signals.typing.load(Ordering::Relaxed);
                if !is_typing || self.signals.abandon.load(Ordering::Relaxed) {
                    return Err(ClientEnd::Asked);
                }
                self.ending = true;
            } else if self.read(Some(wanted))? {
                return Ok(());
            }
        }
    }

    /// Reads once, and tells whether `wanted` was in it.
    fn read(&mut self, wanted: Option<Shown>) -> Result<bool, ClientEnd> {
        let mut buffer = [0; 4096];
        let length = self.screen.read(&mut buffer)?;
        if length == 0 {
            return Err(ClientEnd::Failed(format!("ssh ended ({})", self.ssh.wait()?)));
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

impl Drop for EditorSession<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn every_letter_that_appears_is_a_sample() {
        let signals = Signals::default();
        let (wakes, _wake) = pipe().unwrap();
        // A mark and 40 letters; then Enter, the next mark and 7 letters.
        let mut session =
            EditorSession::open(editor("dd bs=1 count=50 status=none"), &signals, wakes).unwrap();
        let mut samples = Vec::new();
        match session.edit(&config(Duration::ZERO), &mut samples) {
            ClientEnd::Failed(reason) => assert_eq!(reason, "ssh ended (exit status: 0)"),
            ClientEnd::Asked => panic!("nobody asked"),
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
            let mut session =
                EditorSession::open(editor("dd bs=1 count=30 status=none"), &signals, wakes).unwrap();
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
        let mut session = EditorSession::open(editor("cat"), &signals, wakes).unwrap();
        let pid = session.ssh.id();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !signals.typing.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                drop(wake);
            });
            let end = session.edit(&config(Duration::from_secs(3600)), &mut Vec::new());
            assert!(matches!(end, ClientEnd::Asked));
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
            EditorSession::open(editor("dd bs=1 count=1 status=none; exec sleep 1000"), &signals, wakes)
                .unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !signals.typing.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                signals.abandon.store(true, Ordering::Relaxed);
                drop(wake);
            });
            let mut samples = Vec::new();
            assert!(matches!(session.edit(&config(Duration::ZERO), &mut samples), ClientEnd::Asked));
            assert!(samples.is_empty());
        });
    }

    #[test]
    fn what_does_not_appear_is_told() {
        let signals = Signals::default();
        let (wakes, _wake) = pipe().unwrap();
        let mut session = EditorSession::open(editor("echo xyz; exec sleep 1000"), &signals, wakes).unwrap();
        let mut wait = |byte, time| session.wait_for(Shown::Byte(byte), time, "it did not appear");
        assert!(wait(b'y', LETTER_TIMEOUT).is_ok());
        match wait(b'a', Duration::from_millis(1)) {
            Err(ClientEnd::Failed(reason)) => assert_eq!(reason, "it did not appear within 1ms"),
            _ => panic!("there is no such letter"),
        }
        assert!(session.recent.ends_with(b"xyz\n"));
    }
}
