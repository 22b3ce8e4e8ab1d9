//! The process that undoes everything when the extension ends, however it ends.
//!
//! It is this program again. Its standard input is a pipe that closes with the extension's death, and its
//! standard output a file that says what was moved. Where it is killed as well, the next start of this
//! program reads that file.

use super::ledger::Ledger;
use super::system::Linux;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The argument that makes this program the guardian.
pub(crate) const ARGUMENT: &str = "guardian";

/// Where the journal begins, behind what tells which of its halves holds.
const HEAD: u64 = 4096;
/// Bytes of a half: room for all threads that account is kept of.
const HALF: u64 = 8 << 20;

/// Where the journal is, unless systemd says where: nothing in it outlives the kernel.
const FOLDER: &str = "/run/frontdesk-guest";
/// How long the guardian of a process that has ended may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(20);

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
        let folder = folder();
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let journal = open(&folder, true)?;
        restore(&journal)?;
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
    let restored = io::stdout().as_fd().try_clone_to_owned().map(File::from).and_then(|journal| {
        Ledger::parse(&read(&journal)?).undo(&mut Linux { own });
        clear(&journal)
    });
    match restored {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("frontdesk-guest {ARGUMENT}: {error}; the program itself starts it, nobody else");
            ExitCode::FAILURE
        }
    }
}

/// Undoes what a process of this program left that was killed with its guardian, if there is any.
pub(crate) fn recover() -> io::Result<()> {
    match open(&folder(), false) {
        Ok(journal) => restore(&journal),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn folder() -> PathBuf {
    std::env::var_os("RUNTIME_DIRECTORY").unwrap_or_else(|| OsString::from(FOLDER)).into()
}

/// Opens the journal when nobody else has it: neither another process of this program nor its guardian.
fn open(folder: &Path, create: bool) -> io::Result<File> {
    let journal = File::options()
        .read(true)
        .write(true)
        .create(create)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(folder.join("journal"))?;
    let begin = Instant::now();
    loop {
        match flock(&journal, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(journal),
            Err(Errno::WOULDBLOCK) if begin.elapsed() < PATIENCE => sleep(LOOK),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Undoes what the journal says, which then says nothing.
fn restore(journal: &File) -> io::Result<()> {
    if journal.metadata()?.len() >= HEAD {
        Ledger::parse(&read(journal)?).undo(&mut Linux { own: vec![std::process::id()] });
    }
    clear(journal)
}

/// Only the head tells how much holds.
fn clear(journal: &File) -> io::Result<()> {
    journal.set_len(0)?;
    journal.set_len(HEAD)
}

fn read(journal: &File) -> io::Result<String> {
    let mut head = [[0; 8]; 2];
    journal.read_exact_at(head.as_flattened_mut(), 0)?;
    let [begin, length] = head.map(u64::from_ne_bytes);
    let mut bytes = vec![0; usize::try_from(length.min(HALF)).unwrap_or(0)];
    journal.read_exact_at(&mut bytes, begin)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_for_one_process_and_says_nothing_when_it_is_restored() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(open(folder.path(), false).unwrap_err().kind(), ErrorKind::NotFound);
        let journal = open(folder.path(), true).unwrap();
        let again = File::open(folder.path().join("journal")).unwrap();
        assert_eq!(flock(&again, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
        restore(&journal).unwrap();
        assert_eq!(read(&journal).unwrap(), "");

        // No thread began then, and so none is moved.
        let text = "thread 1 1 1 1 3 3 1\n";
        journal.write_all_at(text.as_bytes(), HEAD).unwrap();
        let head = [HEAD.to_ne_bytes(), (text.len() as u64).to_ne_bytes()];
        journal.write_all_at(head.as_flattened(), 0).unwrap();
        assert_eq!(read(&journal).unwrap(), text);
        restore(&journal).unwrap();
        assert_eq!(read(&journal).unwrap(), "");
        // Whoever ends lets go of it.
        drop(journal);
        open(folder.path(), false).unwrap();
    }
}
