//! How often the reporter may run.

use std::time::Duration;

/// Least time between two runs in the long term. It bounds what the reporter costs, and how late a report
/// comes.
pub(crate) const INTERVAL_NS: u64 = 1_000_000;

/// Runs that may follow each other without a pause after a quiet time.
const BURST: u64 = 32;

/// It may run for one part in so many of the time: where a run takes long, because the host has little CPU
/// for the guest or emulates it, a real-time process that runs at intervals would leave nothing to the
/// others.
const SHARE: u64 = 10;

/// Of so many runs the shortest tells how long one takes: in another the host may have had no CPU for the
/// guest.
const RUNS: usize = 8;

/// Lets the reporter run at once while little happens, and at intervals when much does.
pub(crate) struct Pacer {
    /// When all that ran so far would have been due, had it come at intervals.
    due_ns: u64,
    /// Between two runs, in the long term.
    interval_ns: u64,
    /// Runs that may follow each other without a pause.
    burst: u64,
    /// The lengths of the last runs, in a circle.
    lengths_ns: [u64; RUNS],
    next: usize,
}

impl Default for Pacer {
    fn default() -> Pacer {
        Pacer { due_ns: 0, interval_ns: INTERVAL_NS, burst: BURST, lengths_ns: [u64::MAX; RUNS], next: 0 }
    }
}

impl Pacer {
    /// Whoever listens is in no haste: so long at least is between two runs, whatever happens.
    pub(crate) fn set_interval(&mut self, interval: Duration) {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        (self.interval_ns, self.burst) =
            if interval_ns > INTERVAL_NS { (interval_ns, 0) } else { (INTERVAL_NS, BURST) };
    }

    /// Notes a run. Returns how long to pause before the next.
    pub(crate) fn ran(&mut self, begun_ns: u64, ended_ns: u64) -> Duration {
        self.lengths_ns[self.next] = ended_ns.saturating_sub(begun_ns);
        self.next = (self.next + 1) % RUNS;
        let shortest_ns = self.lengths_ns.into_iter().min().unwrap_or(0);
        let interval = self.interval_ns.max(SHARE.saturating_mul(shortest_ns));
        // Whoever is called out of turn, by orders, does not pay for that later.
        let most_ns = begun_ns + self.burst * INTERVAL_NS;
        self.due_ns = self.due_ns.clamp(begun_ns, most_ns) + interval;
        Duration::from_nanos(self.due_ns.saturating_sub(ended_ns + self.burst * INTERVAL_NS))
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
    fn who_is_in_no_haste_gets_few_reports() {
        let mut pacer = Pacer::default();
        pacer.set_interval(Duration::from_millis(100));
        assert_eq!(pacer.ran(SECOND, SECOND), Duration::from_millis(100));
        let called = (1..20).map(|call| pacer.ran(SECOND + call * 1_000_000, SECOND + call * 1_000_000));
        assert_eq!(called.last(), Some(Duration::from_millis(100)), "orders do not add up");
        pacer.set_interval(Duration::ZERO);
        assert_eq!(pacer.ran(2 * SECOND, 2 * SECOND), Duration::ZERO);
    }

    /// A few hundredths of a second of the host's time, taken in the middle of a run, are not the run's.
    #[test]
    fn a_run_that_the_host_held_up_costs_no_pause() {
        let mut pacer = Pacer::default();
        for run in 0..1000 {
            let begun = SECOND + run * INTERVAL_NS * 40;
            let length = if run % 4 == 3 { 30_000_000 } else { 20_000 };
            assert!(pacer.ran(begun, begun + length).is_zero(), "{run}");
        }
    }

    #[test]
    fn long_runs_leave_time_to_the_others() {
        for length_ms in [1, 10, 100] {
            let busy_ms = runs(length_ms * 1_000_000, 100) * length_ms;
            assert!((9_000..=10_200).contains(&busy_ms), "{busy_ms} of 100,000");
        }
    }
}
