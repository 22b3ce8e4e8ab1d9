//! Where a guest's time stamp counter lies on the host's clock.
//!
//! An emulated guest's counter is the host's plus a constant. Each exchange with the guest bounds the
//! constant: the guest read its counter after the host asked and before the host had the answer. All
//! exchanges together bound it well.

use frontdesk_engine::Time;
use frontdesk_linux::monotonic_ns;

/// The host's time stamp counter.
pub(crate) fn host_tsc() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// What is known of the difference between a guest's counter and the host's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GuestClock {
    /// Smallest and largest difference that all exchanges allow.
    bounds: Option<(i64, i64)>,
}

impl GuestClock {
    /// Learns from an exchange: the host's counter before it, the guest's, and the host's after it.
    pub(crate) fn learn(&mut self, before: u64, guest: u64, after: u64) {
        let new = (guest.wrapping_sub(after).cast_signed(), guest.wrapping_sub(before).cast_signed());
        let bounds = self.bounds.map_or(new, |(low, high)| (low.max(new.0), high.min(new.1)));
        // A contradiction: the guest's counter was set meanwhile. What counts is the latest.
        self.bounds = Some(if bounds.0 <= bounds.1 { bounds } else { new });
    }

    /// The host's counter when the guest's was `guest`; `None` before the first exchange.
    pub(crate) fn to_host(self, guest: u64) -> Option<u64> {
        let (low, high) = self.bounds?;
        Some(guest.wrapping_sub((low + (high - low) / 2).cast_unsigned()))
    }
}

/// The host's counter against its monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostClock {
    tsc: u64,
    at: Time,
    /// Nanoseconds per tick.
    pace: f64,
}

impl HostClock {
    /// Reads both now.
    pub(crate) fn read() -> (u64, Time) {
        (host_tsc(), Time(monotonic_ns()))
    }

    /// The clock through two readings.
    pub(crate) fn through(first: (u64, Time), second: (u64, Time)) -> HostClock {
        let (ticks, nanos) = (second.0.wrapping_sub(first.0), second.1.since(first.1));
        #[allow(clippy::cast_precision_loss)]
        let pace = if ticks == 0 { 0.0 } else { nanos as f64 / ticks as f64 };
        HostClock { tsc: first.0, at: first.1, pace }
    }

    /// The monotonic time when the counter was `tsc`.
    pub(crate) fn time(&self, tsc: u64) -> Time {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        let nanos = (tsc.wrapping_sub(self.tsc).cast_signed() as f64 * self.pace) as i64;
        Time(self.at.0.saturating_add_signed(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_narrow_the_difference() {
        let mut clock = GuestClock::default();
        assert_eq!(clock.to_host(5), None);
        // The guest's counter is 1000 ahead; one exchange was slow on the way there, the other on the way
        // back.
        clock.learn(100, 1190, 200);
        clock.learn(300, 1310, 400);
        assert_eq!(clock.bounds, Some((990, 1010)));
        assert_eq!(clock.to_host(1500), Some(500));
        clock.learn(500, 90_500, 600);
        assert_eq!(clock.bounds, Some((89_900, 90_000)), "the counter was set");
    }

    #[test]
    fn ticks_become_nanoseconds_before_and_after() {
        let clock = HostClock::through((1000, Time(10_000)), (3000, Time(11_000)));
        assert_eq!(
            (clock.time(2000), clock.time(5000), clock.time(0)),
            (Time(10_500), Time(12_000), Time(9500))
        );
    }
}
