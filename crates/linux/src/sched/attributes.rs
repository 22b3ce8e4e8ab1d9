//! Scheduling attributes: what they are, and the calls that read and set them by a thread's number.

use libc::sched_attr;
use rustix::{
    io::Errno,
    process::{Pid, getpriority_process},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use serde::{Deserialize, Serialize};
use std::io;

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

/// The nice value of a thread, also of one whose policy does not heed it: it does again when it is ordinary.
///
/// # Errors
/// [`SchedError::Vanished`] if there is no such thread, [`SchedError::Get`] otherwise.
pub(super) fn nice(tid: i32) -> Result<i32, SchedError> {
    getpriority_process(Pid::from_raw(tid)).map_err(|source| match source {
        Errno::SRCH => SchedError::Vanished { tid },
        source => SchedError::Get { tid, source: source.into() },
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
pub(super) fn signal(pid: i32, tid: i32, signal: i32) -> Result<(), SchedError> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
