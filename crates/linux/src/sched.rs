//! Scheduling attributes of threads: reading them, setting them, and telling a thread from a stranger that
//! got its number later.

use libc::sched_attr;
use procfs::process::Process;
use rustix::{
    io::Errno,
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
};

/// A scheduling policy with its parameters, as `sched_setattr(2)` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// Ordinary (`SCHED_OTHER`).
    Other {
        /// -20 to 19.
        nice: i32,
        /// Requested slice in nanoseconds (100,000 to 100,000,000; Linux 6.12 or newer), 0 for the default.
        /// The kernel reports the default's value too; setting that back changes nothing while the default
        /// stays.
        slice_ns: u64,
    },
    /// Ordinary, taken for a CPU hog at wake-up (`SCHED_BATCH`).
    Batch {
        /// -20 to 19.
        nice: i32,
        /// As in [`Policy::Other`].
        slice_ns: u64,
    },
    /// Only when nothing else runs (`SCHED_IDLE`).
    Idle {
        /// -20 to 19.
        nice: i32,
        /// As in [`Policy::Other`].
        slice_ns: u64,
    },
    /// Real time, first in first out (`SCHED_FIFO`).
    Fifo {
        /// 1 to 99.
        priority: u32,
    },
    /// Real time, round robin (`SCHED_RR`).
    RoundRobin {
        /// 1 to 99.
        priority: u32,
    },
    /// Earliest deadline first with a reservation (`SCHED_DEADLINE`).
    Deadline {
        /// Run time per period in nanoseconds.
        runtime_ns: u64,
        /// Relative deadline in nanoseconds.
        deadline_ns: u64,
        /// Period in nanoseconds.
        period_ns: u64,
        /// Its flags (`SCHED_FLAG_RECLAIM`, `SCHED_FLAG_DL_OVERRUN`).
        flags: u64,
    },
    /// A BPF scheduler's (`SCHED_EXT`).
    Ext {
        /// -20 to 19.
        nice: i32,
        /// As in [`Policy::Other`].
        slice_ns: u64,
    },
}

impl Policy {
    /// The nice value and the slice of a policy that has such.
    pub const fn fair_mut(&mut self) -> Option<(&mut i32, &mut u64)> {
        match self {
            Policy::Other { nice, slice_ns }
            | Policy::Batch { nice, slice_ns }
            | Policy::Idle { nice, slice_ns }
            | Policy::Ext { nice, slice_ns } => Some((nice, slice_ns)),
            Policy::Fifo { .. } | Policy::RoundRobin { .. } | Policy::Deadline { .. } => None,
        }
    }

    /// The nice value of a policy that has one; the others are ahead of all that have.
    #[must_use]
    pub fn nice(mut self) -> Option<i32> {
        self.fair_mut().map(|(nice, _)| *nice)
    }
}

/// How a thread is scheduled. Utilisation clamps and affinity are not part of it and never touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Its policy.
    pub policy: Policy,
    /// Whether threads and processes it creates start with the default policy rather than its own.
    pub reset_on_fork: bool,
}

/// A failed scheduling call.
#[derive(Debug, thiserror::Error)]
pub enum SchedError {
    /// The thread has ended.
    #[error("thread {tid} has ended")]
    Vanished {
        /// The thread.
        tid: i32,
    },
    /// The kernel does not let the caller.
    #[error(
        "not allowed to set thread {tid} to {attributes:?}: needs root or CAP_SYS_NICE and, for a real-time policy \
         where the kernel has RT_GROUP_SCHED, a real-time budget of the thread's control group \
         (cpu.rt_runtime_us above 0)"
    )]
    Denied {
        /// The thread.
        tid: i32,
        /// What was to be set.
        attributes: Attributes,
    },
    /// Any other refusal.
    #[error("cannot set thread {tid} to {attributes:?}: {source}")]
    Set {
        /// The thread.
        tid: i32,
        /// What was to be set.
        attributes: Attributes,
        /// What the kernel said.
        source: io::Error,
    },
    /// The CPUs could not be read or set.
    #[error("cannot {what} the CPUs of thread {tid}: {source}")]
    Affinity {
        /// The thread.
        tid: i32,
        /// `read` or `set`.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// It could not be stopped, or let go on.
    #[error(
        "cannot send signal {signal} to process {pid}: {source}; for processes of other users it takes CAP_KILL"
    )]
    Signal {
        /// The process.
        pid: i32,
        /// The signal's number.
        signal: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The attributes could not be read.
    #[error("cannot read the scheduling attributes of thread {tid}: {source}")]
    Get {
        /// The thread.
        tid: i32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// `SCHED_EXT`, which libc does not have.
const EXT: libc::c_int = 7;
const RESET_ON_FORK: u64 = libc::SCHED_FLAG_RESET_ON_FORK as u64;
const DEADLINE_FLAGS: u64 = (libc::SCHED_FLAG_RECLAIM | libc::SCHED_FLAG_DL_OVERRUN) as u64;

/// The size of the first version of the kernel's structure, which has no utilisation clamps.
const RAW_SIZE: u32 = 48;
const _: () = assert!(size_of::<sched_attr>() == RAW_SIZE as usize);

const EMPTY: sched_attr = sched_attr {
    size: RAW_SIZE,
    sched_policy: 0,
    sched_flags: 0,
    sched_nice: 0,
    sched_priority: 0,
    sched_runtime: 0,
    sched_deadline: 0,
    sched_period: 0,
};

impl Attributes {
    /// Real time, first in first out, at `priority` (1 to 99), not inherited by children.
    #[must_use]
    pub const fn fifo(priority: u32) -> Attributes {
        Attributes { policy: Policy::Fifo { priority }, reset_on_fork: true }
    }

    /// Whether a thread that was set to these has them if `found` is what it has: for a slice of 0 the kernel
    /// reports its default.
    #[must_use]
    pub fn agrees_with(self, found: Attributes) -> bool {
        let (mut wanted, mut found) = (self, found);
        if let (Some((_, &mut 0)), Some((_, slice))) = (wanted.policy.fair_mut(), found.policy.fair_mut()) {
            *slice = 0;
        }
        wanted == found
    }

    fn to_raw(self) -> sched_attr {
        let mut raw = EMPTY;
        let mut fair = |policy, nice, slice_ns| {
            (raw.sched_nice, raw.sched_runtime) = (nice, slice_ns);
            policy
        };
        let policy = match self.policy {
            Policy::Other { nice, slice_ns } => fair(libc::SCHED_OTHER, nice, slice_ns),
            Policy::Batch { nice, slice_ns } => fair(libc::SCHED_BATCH, nice, slice_ns),
            Policy::Idle { nice, slice_ns } => fair(libc::SCHED_IDLE, nice, slice_ns),
            Policy::Ext { nice, slice_ns } => fair(EXT, nice, slice_ns),
            Policy::Fifo { priority } => {
                raw.sched_priority = priority;
                libc::SCHED_FIFO
            }
            Policy::RoundRobin { priority } => {
                raw.sched_priority = priority;
                libc::SCHED_RR
            }
            Policy::Deadline { runtime_ns, deadline_ns, period_ns, flags } => {
                (raw.sched_runtime, raw.sched_deadline, raw.sched_period) =
                    (runtime_ns, deadline_ns, period_ns);
                raw.sched_flags = flags & DEADLINE_FLAGS;
                libc::SCHED_DEADLINE
            }
        };
        raw.sched_policy = policy.cast_unsigned();
        raw.sched_flags |= if self.reset_on_fork { RESET_ON_FORK } else { 0 };
        raw
    }

    fn from_raw(raw: &sched_attr) -> Option<Attributes> {
        let (nice, slice_ns, priority) = (raw.sched_nice, raw.sched_runtime, raw.sched_priority);
        let policy = match raw.sched_policy.cast_signed() {
            libc::SCHED_OTHER => Policy::Other { nice, slice_ns },
            libc::SCHED_BATCH => Policy::Batch { nice, slice_ns },
            libc::SCHED_IDLE => Policy::Idle { nice, slice_ns },
            EXT => Policy::Ext { nice, slice_ns },
            libc::SCHED_FIFO => Policy::Fifo { priority },
            libc::SCHED_RR => Policy::RoundRobin { priority },
            libc::SCHED_DEADLINE => Policy::Deadline {
                runtime_ns: raw.sched_runtime,
                deadline_ns: raw.sched_deadline,
                period_ns: raw.sched_period,
                flags: raw.sched_flags & DEADLINE_FLAGS,
            },
            _ => return None,
        };
        Some(Attributes { policy, reset_on_fork: raw.sched_flags & RESET_ON_FORK != 0 })
    }
}

/// Sets the scheduling attributes of a thread (0: the calling one). Costs about half a microsecond.
///
/// # Errors
/// [`SchedError::Vanished`] if there is no such thread, [`SchedError::Denied`] and [`SchedError::Set`] if the
/// kernel refuses.
pub fn set(tid: i32, attributes: Attributes) -> Result<(), SchedError> {
    let raw = attributes.to_raw();
    // SAFETY: `raw` is a valid sched_attr of the size it states, alive for the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const raw, 0) };
    if result == 0 {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    Err(match source.raw_os_error() {
        Some(libc::ESRCH) => SchedError::Vanished { tid },
        Some(libc::EPERM | libc::EACCES) => SchedError::Denied { tid, attributes },
        _ => SchedError::Set { tid, attributes, source },
    })
}

/// Reads the scheduling attributes of a thread (0: the calling one).
///
/// # Errors
/// [`SchedError::Vanished`] if there is no such thread, [`SchedError::Get`] otherwise.
pub fn get(tid: i32) -> Result<Attributes, SchedError> {
    let mut raw = EMPTY;
    // SAFETY: the kernel writes at most RAW_SIZE bytes to `raw`, which is that large.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut raw, RAW_SIZE, 0) };
    if result != 0 {
        let source = io::Error::last_os_error();
        return Err(match source.raw_os_error() {
            Some(libc::ESRCH) => SchedError::Vanished { tid },
            _ => SchedError::Get { tid, source },
        });
    }
    Attributes::from_raw(&raw).ok_or_else(|| SchedError::Get {
        tid,
        source: io::Error::new(io::ErrorKind::Unsupported, format!("unknown policy {}", raw.sched_policy)),
    })
}

/// The physical CPUs that a thread may run on.
///
/// # Errors
/// [`SchedError::Vanished`] if there is no such thread, [`SchedError::Affinity`] otherwise.
pub fn affinity(tid: i32) -> Result<Vec<u16>, SchedError> {
    let set = sched_getaffinity(Pid::from_raw(tid)).map_err(|e| affinity_error(tid, "read", e))?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .filter_map(|cpu| u16::try_from(cpu).ok())
        .collect())
}

/// Makes a thread run on these physical CPUs (0 to 1023) only.
///
/// # Errors
/// [`SchedError::Vanished`] if there is no such thread, [`SchedError::Affinity`] if none of the CPUs is there
/// or the kernel refuses.
pub fn set_affinity(tid: i32, cpus: &[u16]) -> Result<(), SchedError> {
    let mut set = CpuSet::new();
    let known = cpus.iter().map(|cpu| usize::from(*cpu)).filter(|cpu| *cpu < CpuSet::MAX_CPU);
    known.for_each(|cpu| set.set(cpu));
    sched_setaffinity(Pid::from_raw(tid), &set).map_err(|e| affinity_error(tid, "set", e))
}

fn affinity_error(tid: i32, what: &'static str, error: Errno) -> SchedError {
    match error {
        Errno::SRCH => SchedError::Vanished { tid },
        _ => SchedError::Affinity { tid, what, source: error.into() },
    }
}

/// Sends a signal to the thread `tid` of process `pid`.
///
/// # Errors
/// [`SchedError::Vanished`] if there is no such thread in that process, [`SchedError::Signal`] if the kernel
/// refuses.
pub fn signal(pid: i32, tid: i32, signal: i32) -> Result<(), SchedError> {
    // SAFETY: sends a signal, and touches no memory.
    if unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) } == 0 {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    Err(match source.raw_os_error() {
        Some(libc::ESRCH) => SchedError::Vanished { tid },
        _ => SchedError::Signal { pid, signal, source },
    })
}

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

    /// Whether that very thread still lives. It may end right after: no Linux call sets the attributes of a
    /// thread held by anything but its number.
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

    /// Takes hold of that very thread, so that it costs one short system call to see whether it still lives;
    /// `None` if it does not, or there are too many open files.
    #[must_use]
    pub fn pin(&self) -> Option<PinnedThread> {
        let name = File::open(format!("/proc/{}/task/{}/comm", self.pid, self.tid)).ok()?;
        // What was opened belongs to a thread, and not to its number.
        self.is_alive().then_some(PinnedThread { name })
    }
}

/// A thread that was taken hold of.
#[derive(Debug)]
pub struct PinnedThread {
    /// Its name, which can be read as long as it lives.
    name: File,
}

impl PinnedThread {
    /// Whether it still lives, whoever has its number.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.name.read_at(&mut [0; 16], 0).is_ok()
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
    use super::*;
    use proptest::prelude::*;
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    #[test]
    fn attributes_survive_the_kernel_layout() {
        let policies = [
            Policy::Other { nice: -7, slice_ns: 0 },
            Policy::Batch { nice: 3, slice_ns: 3_000_000 },
            Policy::Idle { nice: 19, slice_ns: 100_000 },
            Policy::Ext { nice: 0, slice_ns: 0 },
            Policy::Fifo { priority: 99 },
            Policy::RoundRobin { priority: 1 },
            Policy::Deadline { runtime_ns: 1, deadline_ns: 2, period_ns: 3, flags: 6 },
        ];
        for policy in policies {
            for reset_on_fork in [false, true] {
                let attributes = Attributes { policy, reset_on_fork };
                assert_eq!(Attributes::from_raw(&attributes.to_raw()), Some(attributes));
            }
        }
        let [asked, other] = [0, 100_000].map(|slice_ns| Policy::Ext { nice: 0, slice_ns });
        let agree = |wanted, found| {
            let attributes = |policy| Attributes { policy, reset_on_fork: true };
            attributes(wanted).agrees_with(attributes(found))
        };
        assert!(
            agree(asked, other)
                && !agree(other, asked)
                && !agree(asked, Policy::Ext { nice: 1, slice_ns: 0 })
        );
        assert_eq!(Attributes::from_raw(&sched_attr { sched_policy: 4, ..EMPTY }), None);
    }

    #[test]
    fn reads_back_what_it_set() {
        // On a thread of its own, which ends with what was set.
        std::thread::spawn(|| {
            let wanted = Attributes { policy: Policy::Batch { nice: 5, slice_ns: 0 }, reset_on_fork: true };
            set(0, wanted).unwrap();
            let got = get(0).unwrap();
            assert!(matches!(got.policy, Policy::Batch { nice: 5, .. }) && got.reset_on_fork, "{got:?}");
            set(0, got).unwrap();
            assert_eq!(get(0).unwrap(), got, "restoring what was read changes nothing");
        })
        .join()
        .unwrap();
    }

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
            (thread.pin().is_some_and(|pinned| pinned.is_alive()), signal(pid, pid, 0))
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
        let pinned = thread.pin().unwrap();
        assert!(thread.is_alive() && pinned.is_alive());
        assert!(ThreadId { pid: 1, ..thread }.pin().is_none(), "a thread of another process");
        assert!(ThreadId { started: 1, ..thread }.pin().is_none(), "one that had this number before");
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
