//! Threads that are told from strangers who got their number later.

use super::attributes::{self, Attributes, SchedError};
use procfs::process::Process;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    sync::Arc,
};

/// A thread, told from any other that ever has its number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThreadId {
    /// Its process.
    pub pid: i32,
    /// Its thread id.
    pub tid: i32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

impl ThreadId {
    /// The thread `tid` of process `pid`, or `None` if there is no such thread in that process.
    #[must_use]
    pub fn of(pid: i32, tid: i32) -> Option<ThreadId> {
        Some(ThreadId { pid, tid, started: start_time(&format!("/proc/{pid}/task/{tid}/stat"))? })
    }

    /// Whether that very thread still lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        ThreadId::of(self.pid, self.tid) == Some(*self)
    }

    /// Whether it runs or waits for a CPU.
    #[must_use]
    pub fn is_runnable(&self) -> bool {
        let thread = Process::new(self.pid).and_then(|process| process.task_from_tid(self.tid));
        thread.and_then(|thread| thread.stat()).is_ok_and(|stat| stat.state == 'R')
    }

    /// Takes hold of that very thread, if it still lives.
    #[must_use]
    pub fn pin(self) -> PinnedThread {
        let name = File::open(format!("/proc/{}/task/{}/comm", self.pid, self.tid)).ok();
        // What was opened belongs to a thread, and not to its number.
        let name = name.filter(|_| self.is_alive()).map(Arc::new);
        PinnedThread { thread: self, name }
    }
}

/// A thread that was taken hold of. What is asked and changed through it is that very thread's: one that has
/// ended is [vanished](SchedError::Vanished), whoever has its number.
///
/// It is looked whether it lives before each change. It may end right after, for no Linux call takes anything
/// but the number of a thread; but then a stranger would have to get the number in between, and numbers are
/// given in turn.
#[derive(Clone, Debug)]
pub struct PinnedThread {
    thread: ThreadId,
    /// Its name, which can be read, by one short system call, as long as it lives. `None` if it had ended, or
    /// there were too many open files: then its start time is looked at.
    name: Option<Arc<File>>,
}

impl PinnedThread {
    /// Which thread it is.
    #[must_use]
    pub fn id(&self) -> ThreadId {
        self.thread
    }

    /// Whether it still lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let readable = |name: &Arc<File>| name.read_at(&mut [0; 16], 0).is_ok();
        self.name.as_ref().map_or_else(|| self.thread.is_alive(), readable)
    }

    /// Its number, if it still lives.
    fn number(&self) -> Result<i32, SchedError> {
        let tid = self.thread.tid;
        if self.is_alive() { Ok(tid) } else { Err(SchedError::Vanished { tid }) }
    }

    /// Reads its scheduling attributes.
    ///
    /// # Errors
    /// As [`get`](attributes::get).
    pub fn get(&self) -> Result<Attributes, SchedError> {
        let found = attributes::get(self.thread.tid)?;
        // What was read is its own if it still lives.
        self.number().map(|_| found)
    }

    /// Its nice value, which it has while it is real-time, too.
    ///
    /// # Errors
    /// [`SchedError::Vanished`] if it has ended, [`SchedError::Get`] if it cannot be read.
    pub fn nice(&self) -> Result<i32, SchedError> {
        let found = attributes::nice(self.thread.tid)?;
        self.number().map(|_| found)
    }

    /// Sets its scheduling attributes.
    ///
    /// # Errors
    /// As [`set`](attributes::set).
    pub fn set(&self, attributes: Attributes) -> Result<(), SchedError> {
        attributes::set(self.number()?, attributes)
    }

    /// The physical CPUs that it may run on.
    ///
    /// # Errors
    /// As [`affinity`](attributes::affinity).
    pub fn affinity(&self) -> Result<Vec<u16>, SchedError> {
        let found = attributes::affinity(self.thread.tid)?;
        self.number().map(|_| found)
    }

    /// Makes it run on these physical CPUs (0 to 1023) only.
    ///
    /// # Errors
    /// As [`set_affinity`](attributes::set_affinity).
    pub fn set_affinity(&self, cpus: &[u16]) -> Result<(), SchedError> {
        attributes::set_affinity(self.number()?, cpus)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// [`SchedError::Vanished`] if it has ended, [`SchedError::Signal`] if the kernel refuses.
    pub fn signal(&self, signal: i32) -> Result<(), SchedError> {
        attributes::signal(self.thread.pid, self.number()?, signal)
    }
}

/// The start time of a process, in clock ticks since boot, or `None` if it has ended.
#[must_use]
pub fn process_start_time(pid: i32) -> Option<u64> {
    start_time(&format!("/proc/{pid}/stat"))
}

/// By hand and not with the procfs crate: read before each change of a thread, and the only field needed.
fn start_time(stat: &str) -> Option<u64> {
    parse_start_time(&fs::read(stat).ok()?)
}

/// Field 22 of a stat file. Field 2, the name, may hold any bytes, hence counting starts behind its last
/// bracket.
pub(crate) fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::attributes::{get, set};
    use super::*;
    use proptest::prelude::*;
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    #[test]
    fn a_thread_that_may_not_be_signalled_is_there() {
        // As root, a process of another user, by a thread that may not signal such; else process 1.
        let root = rustix::process::geteuid().is_root();
        let mut child = root.then(|| Command::new("sleep").arg("60").uid(65534).spawn().unwrap());
        let pid = child.as_ref().map_or(1, |child| i32::try_from(child.id()).unwrap());
        let thread = ThreadId::of(pid, pid).unwrap();
        let (there, refused) = std::thread::spawn(move || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::KILL);
            set_capabilities(None, sets).unwrap();
            (thread.pin().is_alive(), thread.pin().signal(0))
        })
        .join()
        .unwrap();
        if let Some(child) = &mut child {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(there);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("Operation not permitted") && refused.contains("CAP_KILL"), "{refused}");
    }

    #[test]
    fn a_thread_with_a_name_that_is_no_text_is_there() {
        // The kernel cuts a name in the middle of a character.
        let (told, mine) = mpsc::channel();
        let named = std::thread::spawn(move || {
            // SAFETY: the name is a string that ends with 0.
            unsafe { libc::prctl(libc::PR_SET_NAME, c"fourteen bytesé".as_ptr()) };
            told.send(rustix::thread::gettid()).unwrap();
            std::thread::park();
        });
        let tid = mine.recv().unwrap().as_raw_nonzero().get();
        let thread = ThreadId::of(i32::try_from(std::process::id()).unwrap(), tid);
        assert!(thread.is_some_and(|thread| thread.is_alive()));
        named.thread().unpark();
        named.join().unwrap();
    }

    #[test]
    fn a_vanished_thread_is_told_apart() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let thread = ThreadId::of(pid, pid).unwrap();
        let pinned = thread.pin();
        assert!(thread.is_alive() && pinned.is_alive());
        let others = [ThreadId { pid: 1, ..thread }, ThreadId { started: 1, ..thread }];
        for (other, who) in others.iter().zip(["of another process", "one that had this number before"]) {
            assert!(!other.pin().is_alive(), "{who}");
        }
        assert_eq!(process_start_time(pid), Some(thread.started));
        assert!(
            !ThreadId { started: thread.started + 1, ..thread }.is_alive(),
            "the same number, another thread"
        );
        assert_eq!(ThreadId::of(pid, 1), None, "a thread of another process");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!thread.is_alive() && !pinned.is_alive());
        assert!(matches!(set(pid, Attributes::fifo(1)), Err(SchedError::Vanished { tid }) if tid == pid));
        assert!(matches!(get(pid), Err(SchedError::Vanished { .. })));
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_thread() {
        std::thread::spawn(|| {
            fs::write("/proc/thread-self/comm", b"\xff) S 1 (\xfe").unwrap();
            let [pid, tid] =
                [rustix::process::getpid(), rustix::thread::gettid()].map(|id| id.as_raw_nonzero().get());
            assert!(ThreadId::of(pid, tid).unwrap().is_alive());
        })
        .join()
        .unwrap();
    }

    proptest! {
        #[test]
        fn a_start_time_is_found_behind_any_name(
            name in prop::collection::vec(any::<u8>(), 0..16),
            fields in prop::collection::vec(any::<i64>(), 18..40),
            started: u64,
        ) {
            let mut stat = [b"7 (", &name[..], b") S"].concat();
            for (index, field) in fields.iter().enumerate() {
                if index == 18 {
                    stat.extend(format!(" {started}").bytes());
                }
                stat.extend(format!(" {field}").bytes());
            }
            prop_assert_eq!(parse_start_time(&stat), (fields.len() > 18).then_some(started));
        }

        #[test]
        fn fuzz_stat_files(stat in prop::collection::vec(any::<u8>(), 0..200)) {
            crate::fuzzing::stat(&stat);
        }
    }
}
