//! Real-time priority for our own threads.

use crate::sched::{self, Attributes};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::time::Duration;

/// A thread of ours could not be made real-time.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot {what}: {reason}. It needs root (or CAP_SYS_NICE) and, with RT_GROUP_SCHED, a control group with a real-time budget"
)]
pub struct RealtimeError {
    what: &'static str,
    reason: String,
}

/// Makes the calling thread SCHED_FIFO with this priority (1 to 99), on these physical CPUs (any if empty).
/// Processes and threads it starts do not inherit the priority.
///
/// # Errors
/// No privilege, no real-time budget, or a CPU that is not there.
pub fn enter(priority: u32, cpus: &[u16]) -> Result<(), RealtimeError> {
    if !cpus.is_empty() {
        pin(cpus)?;
    }
    sched::set(0, Attributes::fifo(priority))
        .map_err(|error| RealtimeError { what: "make a thread real-time", reason: error.to_string() })
}

/// Makes the calling thread run on these physical CPUs only; on any if empty.
///
/// # Errors
/// None of the CPUs is there.
pub fn pin(cpus: &[u16]) -> Result<(), RealtimeError> {
    let mut set = CpuSet::new();
    if cpus.is_empty() {
        (0..CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    }
    cpus.iter()
        .map(|cpu| usize::from(*cpu))
        .filter(|cpu| *cpu < CpuSet::MAX_CPU)
        .for_each(|cpu| set.set(cpu));
    sched_setaffinity(None, &set)
        .map_err(|error| RealtimeError { what: "pin a thread to its CPUs", reason: error.to_string() })
}

/// Has the kernel kill this process if one of its real-time threads (not those of `SCHED_DEADLINE`) runs for
/// so long, in steps of a tick, without a pause. Holds for processes that it starts from then on, too.
///
/// # Errors
/// The limit is lower already.
pub fn limit(most: Duration) -> rustix::io::Result<()> {
    let most = u64::try_from(most.as_micros()).ok();
    // Both: the kernel would say so by a signal that writes the memory to disk first.
    setrlimit(Resource::Rttime, Rlimit { current: most, maximum: most })
}

/// Makes the calling thread run before everything but the daemon on these physical CPUs, as a load generator
/// needs that stands for another machine.
///
/// # Errors
/// As [`enter`].
pub fn run_ahead(cpus: &[u16]) -> Result<(), RealtimeError> {
    enter(10, cpus)
}
