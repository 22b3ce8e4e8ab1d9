//! The process that undoes everything when the extension ends, however it ends.
//!
//! It is this program again. Its standard input is a pipe that closes with the extension's death, and its
//! standard output a file in memory that says what was moved.

use super::ledger::Ledger;
use super::system::Linux;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, ExitCode};

/// The argument that makes this program the guardian.
pub(crate) const ARGUMENT: &str = "guardian";

/// Where the journal begins, behind what tells which of its halves holds.
const HEAD: u64 = 4096;
/// Bytes of a half: room for all threads that account is kept of.
const HALF: u64 = 8 << 20;

/// The extension's end.
#[derive(Debug)]
pub(crate) struct Guardian {
    child: Child,
    /// Closes when this process ends.
    _alive: OwnedFd,
    journal: File,
    /// Which half was written last.
    second: bool,
}

impl Guardian {
    /// Starts one.
    pub(crate) fn start() -> io::Result<Guardian> {
        let (theirs, alive) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let journal = File::from(memfd_create("frontdesk-guest", MemfdFlags::CLOEXEC)?);
        journal.set_len(HEAD)?;
        let child = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .stdin(theirs)
            .stdout(journal.try_clone()?)
            .spawn()?;
        Ok(Guardian { child, _alive: alive, journal, second: false })
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is still there.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Writes down what is moved. Nothing reads it before this process has ended, which may be in the middle
    /// of that: what was written before holds until the new text is complete.
    pub(crate) fn note(&mut self, ledger: &Ledger) -> io::Result<()> {
        let text = ledger.to_text();
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if length > HALF {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.second = !self.second;
        let begin = if self.second { HEAD + HALF } else { HEAD };
        self.journal.write_all_at(text.as_bytes(), begin)?;
        let mut head = [0; 16];
        head[..8].copy_from_slice(&begin.to_ne_bytes());
        head[8..].copy_from_slice(&length.to_ne_bytes());
        self.journal.write_all_at(&head, 0)
    }
}

/// Waits for the death of whoever started this process, and undoes what that has done.
pub(crate) fn run() -> ExitCode {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // It leads a session already, which is as good.
    let _ = rustix::process::setsid();
    let mut byte = [0];
    while matches!(io::stdin().read(&mut byte), Ok(1..)) {}
    let own = vec![std::process::id()];
    match read_journal() {
        Ok(text) => {
            Ledger::parse(&text).undo(&mut Linux { own });
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("frontdesk-guest {ARGUMENT}: {error}; the program itself starts it, nobody else");
            ExitCode::FAILURE
        }
    }
}

fn read_journal() -> io::Result<String> {
    let journal = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut head = [[0; 8]; 2];
    journal.read_exact_at(head.as_flattened_mut(), 0)?;
    let [begin, length] = head.map(u64::from_ne_bytes);
    let mut bytes = vec![0; usize::try_from(length.min(HALF)).unwrap_or(0)];
    journal.read_exact_at(&mut bytes, begin)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
