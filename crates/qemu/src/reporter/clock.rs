//! The guest's clock on the host's, and how late reports come.

use frontdesk_engine::Time;
use frontdesk_linux::monotonic_ns;
use std::time::Duration;

/// Length of a window of which the least value is taken.
const WINDOW_NS: u64 = 1_000_000_000;

/// No report is held back longer than so many times as long as an I/O-bound task may run: as well as that its
/// runs are to be told. What comes later was held up by something else, most likely because the vCPU or
/// QEMU's main loop had no CPU, and is taken as happening now.
const LONGEST_HOLD: u64 = 8;
/// For a threshold of 0.5 ms.
pub(super) const USUAL_HOLD_NS: u64 = LONGEST_HOLD * 500_000;

/// With each report the time for which reports are held back becomes shorter by a part in so many.
const WEAR: u64 = 32;

/// A point in time on both clocks of the host that matter here.
#[derive(Clone, Copy, Debug)]
pub struct HostTime {
    /// The clock of all events.
    pub monotonic: Time,
    /// `CLOCK_MONOTONIC_RAW` in nanoseconds, which nobody adjusts: it runs as the guest's does.
    pub raw_ns: u64,
}

impl HostTime {
    /// Now.
    #[must_use]
    pub fn now() -> HostTime {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
        let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
        let raw_ns = seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos);
        HostTime { monotonic: Time(monotonic_ns()), raw_ns }
    }
}

/// The least of the values of the last window or two.
#[derive(Debug, Default)]
struct Least {
    began: Time,
    current: Option<i64>,
    previous: Option<i64>,
}

impl Least {
    /// Adds a value, and returns the least.
    fn add(&mut self, value: i64, now: Time) -> i64 {
        if now.since(self.began) >= WINDOW_NS {
            // A window in which nothing came does not count.
            let fresh = now.since(self.began) < 2 * WINDOW_NS;
            self.previous = self.current.take().filter(|_| fresh);
            self.began = now;
        }
        let current = *self.current.insert(self.current.map_or(value, |least| least.min(value)));
        self.previous.map_or(current, |previous| previous.min(current))
    }
}

/// Maps the times of a guest to the host's.
///
/// What lies between the clocks is the least that was seen between the sending of a report and its arrival: a
/// report is never early, and one of many comes nearly at once. It is taken anew each second, because the
/// clocks drift.
///
/// Runs of tasks are what the engine learns from, so their *length* must be right, more than when they were.
/// A guest that switches too often to report each switch at once sends several in a report, and each of them
/// would seem to happen when it arrives. So all that a guest tells is held back by as much as its reports are
/// late: a little for a quiet guest, a report's interval for a busy one. What one late report added wears off
/// slowly, so that runs are cut or stretched by little.
#[derive(Debug)]
pub(super) struct GuestClock {
    offset: Least,
    hold_ns: u64,
    longest_hold_ns: u64,
}

impl Default for GuestClock {
    fn default() -> Self {
        GuestClock { offset: Least::default(), hold_ns: 0, longest_hold_ns: USUAL_HOLD_NS }
    }
}

/// The times in a report.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockMapping {
    offset: i64,
    hold_ns: u64,
    now: HostTime,
}

impl GuestClock {
    /// The same, for a guest that begins anew.
    pub(super) fn anew(&self) -> GuestClock {
        GuestClock { longest_hold_ns: self.longest_hold_ns, ..GuestClock::default() }
    }

    /// An I/O-bound task runs no longer than that.
    pub(super) fn set_io_threshold(&mut self, threshold: Duration) {
        let threshold_ns = u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX);
        self.longest_hold_ns = threshold_ns.saturating_mul(LONGEST_HOLD);
        self.hold_ns = self.hold_ns.min(self.longest_hold_ns);
    }

    /// A report came whose changes, if there were any, began at `oldest_ns`, and which was sent at `sent_ns`.
    pub(super) fn report(&mut self, oldest_ns: Option<u64>, sent_ns: u64, now: HostTime) -> ClockMapping {
        let offset = self.offset.add(now.raw_ns.wrapping_sub(sent_ns).cast_signed(), now.monotonic);
        let mapping = ClockMapping { offset, hold_ns: 0, now };
        if let Some(late_ns) =
            oldest_ns.map(|at_ns| mapping.age_ns(at_ns)).filter(|late| *late <= self.longest_hold_ns)
        {
            self.hold_ns = late_ns.max(self.hold_ns - self.hold_ns / WEAR);
        }
        ClockMapping { hold_ns: self.hold_ns, ..mapping }
    }

    /// How long what the guest tells is held back.
    pub(super) fn hold_ns(&self) -> u64 {
        self.hold_ns
    }
}

impl ClockMapping {
    /// How long ago `at_ns` of the guest is; 0 if the guest says that it is to come.
    fn age_ns(&self, at_ns: u64) -> u64 {
        let at_ns = at_ns.wrapping_add(self.offset.cast_unsigned());
        self.now.raw_ns.wrapping_sub(at_ns).cast_signed().max(0).cast_unsigned()
    }

    /// When `at_ns` of the guest was on the host, if it is not to come.
    pub(super) fn happened(&self, at_ns: u64) -> Time {
        Time(self.now.monotonic.0.saturating_sub(self.age_ns(at_ns)))
    }

    /// When the engine is to hear of what happened at `at_ns` of the guest. Not before now, and not long
    /// after.
    pub(super) fn due(&self, at_ns: u64) -> Time {
        let now = self.now.monotonic;
        now.plus(self.hold_ns.saturating_sub(self.age_ns(at_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// The host's clocks differ, and the guest's from both.
    fn host(at_ns: u64) -> HostTime {
        HostTime { monotonic: Time(at_ns + 77), raw_ns: at_ns }
    }

    fn guest(at_ns: u64) -> u64 {
        at_ns.wrapping_sub(5_000_000_000)
    }

    #[test]
    fn reports_that_come_at_once_are_passed_on_at_once() {
        let mut clock = GuestClock::default();
        for round in 1..100 {
            let at = 10_000 * MS + round * 10 * MS;
            let mapping = clock.report(Some(guest(at)), guest(at + 20_000), host(at + 50_000));
            let due = mapping.due(guest(at));
            assert_eq!(due, host(at + 50_000).monotonic);
        }
    }

    /// A busy guest: a report each millisecond, with switches in between.
    #[test]
    fn runs_keep_their_length_however_they_are_reported() {
        let mut clock = GuestClock::default();
        let switches: Vec<u64> =
            (0..20_000).map(|index| 10_000 * MS + index * 170_000 + index % 7 * 10_000).collect();
        let (mut heard, mut next) = (Vec::new(), 0);
        for report in 1..3_000 {
            let sent = 10_000 * MS + report * MS;
            let end = switches.partition_point(|at| *at < sent);
            let oldest = switches[next..end].first().map(|at| guest(*at));
            // Some arrive later than others.
            let mapping = clock.report(oldest, guest(sent), host(sent + 30_000 + report % 5 * 20_000));
            heard.extend(switches[next..end].iter().map(|at| mapping.due(guest(*at)).0));
            next = end;
        }
        let true_length = |index: usize| switches[index + 1] - switches[index];
        let off = |index: usize| (heard[index + 1] - heard[index]).abs_diff(true_length(index));
        let wrong = (100..heard.len() - 1).filter(|index| off(*index) > 100_000).count();
        // A fifth of io_threshold is no harm. Without holding back, most would be wrong by more.
        assert!(wrong < heard.len() / 50, "{wrong} of {}", heard.len());
    }

    #[test]
    fn what_is_held_up_is_not_waited_for() {
        let mut clock = GuestClock::default();
        let at = 10_000 * MS;
        clock.report(None, guest(at), host(at + 10_000));
        let mapping = clock.report(Some(guest(at + MS)), guest(at + 30 * MS), host(at + 30 * MS + 10_000));
        assert_eq!(mapping.due(guest(at + MS)), host(at + 30 * MS + 10_000).monotonic);
        assert_eq!(clock.hold_ns(), 0);
    }

    #[test]
    fn a_guest_that_was_suspended_is_understood_again() {
        let mut clock = GuestClock::default();
        clock.report(None, guest(10_000 * MS), host(10_000 * MS));
        // The guest's clock stood still for a minute.
        let behind = |at: u64| guest(at) - 60_000 * MS;
        let mut due = Time(0);
        for second in 0..5 {
            let at = 80_000 * MS + second * 1_000 * MS;
            due = clock.report(Some(behind(at)), behind(at), host(at)).due(behind(at));
        }
        assert_eq!(due, host(84_000 * MS).monotonic);
    }

    proptest! {
        #[test]
        fn whatever_a_guest_says_it_is_heard_soon(
            reports in prop::collection::vec((any::<u64>(), any::<Option<u64>>(), 0u64..10_000_000_000), 1..100)
        ) {
            let (mut clock, mut now) = (GuestClock::default(), 1_000 * MS);
            for (sent, at, pause) in reports {
                now += pause;
                let mapping = clock.report(at, sent, host(now));
                let due = mapping.due(at.unwrap_or(sent));
                prop_assert!(due >= host(now).monotonic && due <= host(now).monotonic.plus(USUAL_HOLD_NS));
            }
        }
    }
}
