//! The owner's end.

use crate::journal;
use crate::process::{self, UndoReport};
use crate::promise::{Promise, Promiser};
use crate::undo::Undo;
use crate::wire::{self, JournalMessage};
use frontdesk_linux::sched;
use rustix::event::epoll::{self, EventData};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The guardian answers within microseconds; one that is silent for this long is stopped or broken.
const PATIENCE: Duration = Duration::from_secs(10);
/// Undoing tries for five seconds what the kernel calls busy, and large directories take their time.
const UNDO_PATIENCE: Duration = Duration::from_secs(120);

/// Why a change cannot be recorded, or was not undone.
#[derive(Debug, thiserror::Error)]
pub enum GuardianError {
    /// It could not be started.
    #[error("cannot start the guardian process ({} {arg}): {source}; no change is made without it", exe.display())]
    Start {
        /// The program.
        exe: PathBuf,
        /// Its argument.
        arg: String,
        /// What failed.
        source: io::Error,
    },
    /// Its journal cannot be had.
    #[error(
        "cannot open the journal of changes {}: {source}; no change is made without it",
        path.display()
    )]
    Journal {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// It does not answer.
    #[error(
        "the guardian process {pid} no longer answers ({source}); every change is undone, for none is safe without it"
    )]
    Silent {
        /// Its process id.
        pid: u32,
        /// What failed.
        source: io::Error,
    },
}

/// A recorded undo, for [`Guardian::forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UndoId(u64);

/// The owner's end of a guardian. Dropping it undoes everything and waits for that, as [`Guardian::finish`]
/// does.
#[derive(Debug)]
pub struct Guardian {
    child: Child,
    connection: Mutex<GuardianConnection>,
    /// Open here as well as there: locked as long as one of the two lives.
    journal: File,
    closed: bool,
}

#[derive(Debug)]
struct GuardianConnection {
    stream: UnixStream,
    next: u64,
    /// What the guardian has on record, in case that it dies.
    records: BTreeMap<u64, Undo>,
}

/// Gives the stream the highest descriptor number there is. When a process is killed, Linux closes the latest
/// of its descriptors first, and some of ours (probes in QEMU) take long to close: the guardian is to hear of
/// the death before.
fn last_of_all(stream: UnixStream) -> UnixStream {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1024);
    let highest = i32::try_from(limit.min(1 << 16)).unwrap_or(1024).saturating_sub(16);
    // Without it, undoing is late but not lost.
    rustix::io::fcntl_dupfd_cloexec(&stream, highest).map_or(stream, UnixStream::from)
}

impl Guardian {
    /// Starts `exe arg`, which is to call [`run`](crate::run) before anything else, and waits until it is
    /// ready. When the calling thread ends, everything is undone as if the process had ended. If both are
    /// killed, nothing is.
    ///
    /// # Errors
    /// If the program cannot be started or does not become a guardian.
    pub fn start(exe: &Path, arg: &str) -> Result<Guardian, GuardianError> {
        let journal = journal::in_memory().map_err(start_failed(exe, arg))?;
        Guardian::with(exe, arg, journal)
    }

    /// As [`start`](Self::start), with a journal at `path`: if owner and guardian are killed, the next ones
    /// with that journal first undo everything. Waits for former ones that are still at work, for two minutes
    /// at most. The file is to be where it does not outlive the threads, so in `/run`.
    ///
    /// # Errors
    /// If the program cannot be started or does not become a guardian, or the journal cannot be had.
    pub fn start_with_journal(exe: &Path, arg: &str, path: &Path) -> Result<Guardian, GuardianError> {
        let journal = journal::open_alone(path, UNDO_PATIENCE)
            .map_err(|source| GuardianError::Journal { path: path.to_owned(), source })?;
        Guardian::with(exe, arg, journal)
    }

    fn with(exe: &Path, arg: &str, journal: File) -> Result<Guardian, GuardianError> {
        let failed = start_failed(exe, arg);
        let (stream, theirs) = UnixStream::pair().map_err(&failed)?;
        // It may have to undo what others left.
        stream.set_read_timeout(Some(UNDO_PATIENCE)).map_err(&failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(&failed)?;
        // Its end of the connection is its standard input, and the journal its standard output: it is given
        // no other descriptors besides standard error.
        let child = Command::new(exe)
            .arg(arg)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(journal.try_clone().map_err(&failed)?)
            .spawn()
            .map_err(&failed)?;
        // It sees to that itself, but on a busy host it would wait for a CPU until it can, and what it may
        // have to undo with it. It is our child, so nobody else has its number.
        let _ = sched::set(child.id().cast_signed(), process::AHEAD);
        let stream = last_of_all(stream);
        let guardian = Guardian {
            child,
            connection: Mutex::new(GuardianConnection { stream, next: 0, records: BTreeMap::new() }),
            journal,
            closed: false,
        };
        let ready = |stream: &UnixStream| {
            wire::read_acknowledgement(stream)?;
            stream.set_read_timeout(Some(PATIENCE))
        };
        ready(&guardian.connection().stream).map_err(failed)?;
        Ok(guardian)
    }

    /// Records what undoes a change. The change may be made once this has returned.
    ///
    /// # Errors
    /// If the guardian is dead or does not answer: the change must then not be made.
    pub fn record(&self, undo: Undo) -> Result<UndoId, GuardianError> {
        let mut connection = self.connection();
        let id = connection.next;
        connection.next += 1;
        // Undoing a change that was not made does no harm.
        connection.records.insert(id, undo.clone());
        self.send(&connection, &JournalMessage::Record { id, undo })?;
        Ok(UndoId(id))
    }

    /// Takes a record back, because its change has been undone.
    ///
    /// # Errors
    /// If the guardian is dead or does not answer.
    pub fn forget(&self, UndoId(id): UndoId) -> Result<(), GuardianError> {
        let mut connection = self.connection();
        connection.records.remove(&id);
        self.send(&connection, &JournalMessage::Forget { id })
    }

    /// For promises to be back in time.
    ///
    /// # Errors
    /// There are too many open files.
    pub fn promise(&self, of: Promiser) -> io::Result<Promise> {
        Ok(Promise::new(self.journal.try_clone()?, of))
    }

    /// The guardian's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it tell this epoll instance of the guardian's death, with this data.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch(&self, epoll: impl AsFd, data: EventData) -> rustix::io::Result<()> {
        epoll::add(epoll, &self.connection().stream, data, epoll::EventFlags::RDHUP)
    }

    /// That the guardian is dead.
    #[must_use]
    pub fn dead(&self) -> GuardianError {
        GuardianError::Silent { pid: self.child.id(), source: io::ErrorKind::BrokenPipe.into() }
    }

    /// Undoes everything that is recorded, waits for it and for the guardian's end.
    ///
    /// # Errors
    /// If the guardian died or does not answer: everything is undone nevertheless.
    pub fn finish(mut self) -> Result<UndoReport, GuardianError> {
        self.close()
    }

    fn close(&mut self) -> Result<UndoReport, GuardianError> {
        self.closed = true;
        let pid = self.child.id();
        let GuardianConnection { stream, records, .. } =
            self.connection.get_mut().unwrap_or_else(PoisonError::into_inner);
        let report = stream
            .shutdown(Shutdown::Write)
            .and_then(|()| stream.set_read_timeout(Some(UNDO_PATIENCE)))
            .and_then(|()| wire::read_frame(&*stream))
            .and_then(|report| report.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()))
            .map_err(|source| {
                tell(&process::undo_all(records.values()));
                // Undoing it again would do no harm.
                let _ = journal::clear(&self.journal);
                GuardianError::Silent { pid, source }
            })?;
        self.child.wait().map_err(|source| GuardianError::Silent { pid, source })?;
        Ok(report)
    }

    fn connection(&self) -> MutexGuard<'_, GuardianConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, connection: &GuardianConnection, message: &JournalMessage) -> Result<(), GuardianError> {
        wire::write_frame(&connection.stream, message)
            .and_then(|()| wire::read_acknowledgement(&connection.stream))
            .map_err(|source| GuardianError::Silent { pid: self.child.id(), source })
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        match self.close() {
            Ok(report) => tell(&report),
            Err(e) => tracing::error!("{e}"),
        }
    }
}

fn start_failed<'a>(exe: &'a Path, arg: &'a str) -> impl Fn(io::Error) -> GuardianError + 'a {
    |source| GuardianError::Start { exe: exe.to_owned(), arg: arg.to_owned(), source }
}

fn tell(report: &UndoReport) {
    if !report.failed.is_empty() {
        tracing::error!(failed = ?report.failed, "some changes were not undone");
    }
}
