//! What the guardian can undo, and how.

use frontdesk_linux::sched::{self, Attributes, SchedError, ThreadId};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// What every directory tree that frontdesk creates and the guardian may remove is called, at least in front.
pub const TREE_PREFIX: &str = "frontdesk";

/// How long a process that is killed is given to end.
const ENDING: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// One change, told as what undoes it. Undoing twice, or what is gone already, does no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Undo {
    /// Give a thread its scheduling attributes back, if that very thread still lives.
    Thread {
        /// The thread.
        thread: ThreadId,
        /// What it had.
        attributes: Attributes,
    },
    /// Write a file's former content back, if the file still exists.
    File {
        /// The file, for example one of a control group.
        path: PathBuf,
        /// What it held.
        content: String,
    },
    /// Remove a control group once it is empty. Kills nothing.
    ControlGroup {
        /// Its directory.
        path: PathBuf,
    },
    /// Disable the cpu controller for the groups below this one (version 2), unless another program has come
    /// to use it in them: it would lose its settings.
    CpuController {
        /// The group's directory.
        path: PathBuf,
    },
    /// Remove a directory with all it holds. Made by [`Undo::tree`], which checks that it is frontdesk's.
    Tree(Tree),
    /// Let a thread run on the CPUs that it had, if that very thread still lives.
    Affinity {
        /// The thread.
        thread: ThreadId,
        /// The CPUs by number.
        cpus: Vec<u16>,
    },
    /// Let a process go on that was stopped, if that very one still lives.
    Continue {
        /// The process.
        pid: i32,
        /// When it started, in clock ticks since boot ([`sched::process_start_time`]).
        started: u64,
    },
    /// Move a process back to the control group that it was in, if that very one still lives.
    Return {
        /// The process.
        pid: i32,
        /// When it started, in clock ticks since boot ([`sched::process_start_time`]).
        started: u64,
        /// The file `cgroup.procs` of the group.
        procs: PathBuf,
    },
    /// Kill a process, if that very one still lives.
    Process {
        /// The process.
        pid: i32,
        /// When it started, in clock ticks since boot ([`sched::process_start_time`]).
        started: u64,
    },
}

/// A directory tree that may be removed: absolute, without `..`, and with a name that starts with
/// [`TREE_PREFIX`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PathBuf", into = "PathBuf")]
pub struct Tree(PathBuf);

/// A directory that frontdesk must not remove.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} is not a directory tree to remove: it must be absolute, without '..', and its name start with {TREE_PREFIX:?}",
    .0.display()
)]
pub struct NotOurs(PathBuf);

impl TryFrom<PathBuf> for Tree {
    type Error = NotOurs;

    fn try_from(path: PathBuf) -> Result<Tree, NotOurs> {
        let named =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(TREE_PREFIX.as_bytes()));
        let plain = path.is_absolute() && !path.components().any(|c| c == std::path::Component::ParentDir);
        if named && plain { Ok(Tree(path)) } else { Err(NotOurs(path)) }
    }
}

impl From<Tree> for PathBuf {
    fn from(tree: Tree) -> PathBuf {
        tree.0
    }
}

/// How an undo went, unless it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UndoOutcome {
    Done,
    /// What was to be undone no longer exists.
    Gone,
}

/// Why an undo failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UndoFailure {
    /// For people.
    pub(super) message: String,
    /// Whether the kernel says that it is only for now.
    pub(super) busy: bool,
}

impl From<SchedError> for UndoFailure {
    fn from(error: SchedError) -> UndoFailure {
        UndoFailure { message: error.to_string(), busy: false }
    }
}

impl Undo {
    /// Removes the directory at `path` with all it holds.
    ///
    /// # Errors
    /// If the path is not absolute, contains `..`, or its last part does not start with [`TREE_PREFIX`].
    pub fn tree(path: &Path) -> Result<Undo, NotOurs> {
        Ok(Undo::Tree(Tree::try_from(path.to_owned())?))
    }

    /// Undoes.
    pub(super) fn run(&self) -> Result<UndoOutcome, UndoFailure> {
        match self {
            Undo::Thread { thread, attributes } => of_thread(thread, |tid| sched::set(tid, *attributes)),
            Undo::File { path, content } => outcome(write_existing(path, content), |e| {
                format!("cannot write {content:?} to {}: {e}", path.display())
            }),
            Undo::ControlGroup { path } => outcome(fs::remove_dir(path), |e| {
                format!(
                    "cannot remove the control group {}: {e}; end its processes, then rmdir it",
                    path.display()
                )
            }),
            Undo::CpuController { path } => outcome(disable_cpu(path), |e| {
                format!("cannot disable the cpu controller below {}: {e}", path.display())
            }),
            Undo::Tree(Tree(path)) => {
                outcome(remove_tree(path), |e| format!("cannot remove {}: {e}", path.display()))
            }
            Undo::Affinity { thread, cpus } => of_thread(thread, |tid| sched::set_affinity(tid, cpus)),
            Undo::Continue { pid, started } => outcome(signal(*pid, *started, Signal::CONT).map(drop), |e| {
                format!("cannot let process {pid} go on: {e}; `kill -CONT {pid}` does")
            }),
            Undo::Return { pid, started, procs } => {
                if sched::process_start_time(*pid) != Some(*started) {
                    return Ok(UndoOutcome::Gone);
                }
                outcome(write_existing(procs, &pid.to_string()), |e| {
                    format!("cannot move process {pid} back, by writing to {}: {e}", procs.display())
                })
            }
            Undo::Process { pid, started } => {
                outcome(kill(*pid, *started), |e| format!("cannot kill process {pid}: {e}"))
            }
        }
    }
}

/// What comes of setting something of a thread, if it is still there.
fn of_thread(
    thread: &ThreadId,
    set: impl FnOnce(i32) -> Result<(), SchedError>,
) -> Result<UndoOutcome, UndoFailure> {
    if !thread.is_alive() {
        return Ok(UndoOutcome::Gone);
    }
    match set(thread.tid) {
        Ok(()) => Ok(UndoOutcome::Done),
        Err(SchedError::Vanished { .. }) => Ok(UndoOutcome::Gone),
        Err(e) => Err(e.into()),
    }
}

fn outcome(
    result: io::Result<()>,
    describe: impl Fn(io::Error) -> String,
) -> Result<UndoOutcome, UndoFailure> {
    match result {
        Ok(()) => Ok(UndoOutcome::Done),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(UndoOutcome::Gone),
        // A control file of a group that is being removed.
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(UndoOutcome::Gone),
        // A process that has ended.
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(UndoOutcome::Gone),
        Err(e) => Err(UndoFailure { busy: e.kind() == io::ErrorKind::ResourceBusy, message: describe(e) }),
    }
}

/// Never creates the file and never follows a link someone put in its place.
fn write_existing(path: &Path, content: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    // Ordinary files hold the former content only; those of a control group ignore it.
    file.set_len(0)?;
    file.write_all(content.as_bytes())
}

fn disable_cpu(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group)?.flatten() {
        for (file, default) in [("cpu.weight", "100"), ("cpu.max", "max 100000")] {
            // Not every entry is a group, and a group may vanish meanwhile.
            if fs::read_to_string(entry.path().join(file)).is_ok_and(|content| content.trim() != default) {
                return Ok(());
            }
        }
    }
    match write_existing(&group.join("cgroup.subtree_control"), "-cpu") {
        // It is enabled for groups further below, too.
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        result => result,
    }
}

/// Removes a real directory only: a link in its place is left alone.
fn remove_tree(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is no longer a directory"));
    }
    fs::remove_dir_all(path)
}

fn kill(pid: i32, started: u64) -> io::Result<()> {
    let process = signal(pid, started, Signal::KILL)?;
    // Its files and its control group are removed next: better when it no longer uses them.
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&ENDING))?;
    Ok(())
}

/// Sends a signal to the process meant and no other.
fn signal(pid: i32, started: u64, signal: Signal) -> io::Result<OwnedFd> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let number = (pid > 1).then(|| Pid::from_raw(pid)).flatten().ok_or_else(gone)?;
    let found = |e: Errno| if e == Errno::SRCH { gone() } else { e.into() };
    // The descriptor pins the process; only then is it known to be the one meant.
    let process = pidfd_open(number, PidfdFlags::empty()).map_err(found)?;
    if sched::process_start_time(pid) != Some(started) {
        return Err(gone());
    }
    pidfd_send_signal(&process, signal).map_err(found)?;
    Ok(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_trees_of_its_own() {
        for path in ["/", "/etc", "frontdesk", "/tmp/../frontdesk", "/tmp/frontdesk/..", "/tmp/not-frontdesk"]
        {
            assert!(Undo::tree(Path::new(path)).is_err(), "{path}");
        }
        assert!(serde_json::from_str::<Undo>(r#"{"Tree":"/etc"}"#).is_err(), "nor when told by record");
        let home = tempfile::tempdir().unwrap();
        let ours = home.path().join("frontdesk-lab");
        fs::create_dir_all(ours.join("a/b")).unwrap();
        fs::write(ours.join("a/file"), "x").unwrap();
        let undo = Undo::tree(&ours).unwrap();
        assert_eq!(undo.run(), Ok(UndoOutcome::Done));
        assert!(!ours.exists());
        assert_eq!(undo.run(), Ok(UndoOutcome::Gone), "idempotent");
        std::os::unix::fs::symlink(home.path(), &ours).unwrap();
        assert!(undo.run().is_err(), "a link in its place");
        assert!(home.path().exists());
    }

    #[test]
    fn writes_a_file_back_only_if_it_exists() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("cpu.shares");
        let undo = Undo::File { path: path.clone(), content: "1024\n".into() };
        assert_eq!(undo.run(), Ok(UndoOutcome::Gone));
        assert!(!path.exists());
        fs::write(&path, "a longer content than before").unwrap();
        assert_eq!(undo.run(), Ok(UndoOutcome::Done));
        assert_eq!(fs::read_to_string(&path).unwrap(), "1024\n");
    }

    #[test]
    fn kills_the_process_meant_and_no_other() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let started = sched::process_start_time(pid).unwrap();
        assert_eq!(Undo::Process { pid, started: started + 1 }.run(), Ok(UndoOutcome::Gone));
        assert!(child.try_wait().unwrap().is_none(), "a stranger with the same number lives on");
        let undo = Undo::Process { pid, started };
        assert_eq!(undo.run(), Ok(UndoOutcome::Done));
        assert!(!child.wait().unwrap().success());
        assert_eq!(undo.run(), Ok(UndoOutcome::Gone));
        assert_eq!(Undo::Process { pid: 1, started: 0 }.run(), Ok(UndoOutcome::Gone), "never init");
        assert_eq!(Undo::Process { pid: -1, started: 0 }.run(), Ok(UndoOutcome::Gone), "never a group");
    }

    #[test]
    fn an_occupied_directory_is_reported() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        let failure = Undo::ControlGroup { path: home.path().to_owned() }.run().unwrap_err();
        assert!(failure.message.contains("cannot remove the control group"), "{failure:?}");
    }
}
