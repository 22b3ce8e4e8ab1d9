//! How often the reporter may run.

use std::time::Duration;

/// Time between two runs in the long term. It bounds what the reporter costs, and how late a report comes.
pub(crate) const INTERVAL_NS: u64 = 1_000_000;

/// Runs that may follow each other without a pause after a quiet time.
const BURST: u64 = 32;

/// It may run for one part in so many of the time: where a run takes long, because the host has little CPU
/// for the guest or emulates it, a real-time process that runs at intervals would leave nothing to the
/// others.
const SHARE: u64 = 10;

/// Lets the reporter run at once while little happens, and at intervals when much does.
#[derive(Default)]
pub(crate) struct Pacer {
    /// When all that ran so far would have been due, had it come at intervals.
    due_ns: u64,
}

impl Pacer {
    /// Notes a run. Returns how long to pause before the next.
    pub(crate) fn ran(&mut self, begun_ns: u64, ended_ns: u64) -> Duration {
        let interval = INTERVAL_NS.max(SHARE * ended_ns.saturating_sub(begun_ns));
        self.due_ns = self.due_ns.max(begun_ns) + interval;
        Duration::from_nanos(self.due_ns.saturating_sub(ended_ns + BURST * INTERVAL_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// How often who runs for `length_ns` whenever it may runs in so many seconds.
    fn runs(length_ns: u64, seconds: u64) -> u64 {
        let (mut pacer, mut now, mut runs) = (Pacer::default(), SECOND, 0);
        while now < (1 + seconds) * SECOND {
            now += length_ns + u64::try_from(pacer.ran(now, now + length_ns).as_nanos()).unwrap();
            runs += 1;
        }
        runs
    }

    #[test]
    fn a_burst_is_free_and_a_storm_is_not() {
        let mut pacer = Pacer::default();
        for _ in 0..BURST {
            assert_eq!(pacer.ran(SECOND, SECOND), Duration::ZERO);
        }
        assert_eq!(pacer.ran(SECOND, SECOND), Duration::from_nanos(INTERVAL_NS));
        assert!((1000..1040).contains(&runs(10_000, 1)), "{}", runs(10_000, 1));
        // What comes at intervals never pauses.
        let mut pacer = Pacer::default();
        let begins = (0..1000).map(|run| SECOND + run * INTERVAL_NS);
        assert!(begins.into_iter().all(|begun| pacer.ran(begun, begun + 20_000).is_zero()));
    }

    #[test]
    fn long_runs_leave_time_to_the_others() {
        for length_ms in [1, 10, 100] {
            let busy_ms = runs(length_ms * 1_000_000, 100) * length_ms;
            assert!((9_000..=10_200).contains(&busy_ms), "{busy_ms} of 100,000");
        }
    }
}
