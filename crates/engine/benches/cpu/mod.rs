//! CPU time of the thread that measures: others on the machine do not count.

/// CPU time of this thread so far, in seconds.
pub(crate) fn seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    #[allow(clippy::cast_precision_loss)] // Exact for days.
    let (seconds, nanos) = (time.tv_sec as f64, time.tv_nsec as f64);
    seconds + nanos / 1e9
}
