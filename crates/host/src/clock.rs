//! The clock that all events carry.

use frontdesk_engine::Time;
use frontdesk_linux::monotonic_ns;
use rustix::time::{ClockId, clock_getres};
use std::time::Duration;

/// The time now.
pub(crate) fn monotonic() -> Time {
    Time(monotonic_ns())
}

/// How often the kernel interrupts each CPU that runs something; `None` if there are CPUs where it need not.
pub(crate) fn tick() -> Option<Duration> {
    let without = std::fs::read_to_string("/sys/devices/system/cpu/nohz_full").unwrap_or_default();
    // This clock advances by ticks.
    let tick = clock_getres(ClockId::MonotonicCoarse);
    let tick = Duration::try_from(tick).ok().filter(|tick| !tick.is_zero())?;
    without.chars().all(|c| !c.is_ascii_digit()).then_some(tick)
}
