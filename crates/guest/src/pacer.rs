//! How often the reporter may run.

use std::time::Duration;

/// Time between two runs in the long term. It bounds what the reporter costs, and how late a report comes.
pub(crate) const INTERVAL_NS: u64 = 1_000_000;

/// Runs that may follow each other without a pause after a quiet time.
const BURST: u64 = 32;

/// Lets the reporter run at once while little happens, and at intervals when much does.
#[derive(Default)]
pub(crate) struct Pacer {
    /// When all that ran so far would have been due, had it come at intervals.
    due_ns: u64,
}

impl Pacer {
    /// Notes a run at `now_ns`. Returns how long to pause before the next.
    pub(crate) fn ran(&mut self, now_ns: u64) -> Duration {
        self.due_ns = self.due_ns.max(now_ns) + INTERVAL_NS;
        Duration::from_nanos(self.due_ns.saturating_sub(now_ns + BURST * INTERVAL_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_a_storm_is_not() {
        let mut pacer = Pacer::default();
        let begin = 1_000_000_000;
        for _ in 0..BURST {
            assert_eq!(pacer.ran(begin), Duration::ZERO);
        }
        assert_eq!(pacer.ran(begin), Duration::from_nanos(INTERVAL_NS));
        // A busy second: who pauses as told runs a thousand times.
        let (mut now, mut runs) = (begin, 0);
        while now < begin + 1_000_000_000 {
            now += u64::try_from(pacer.ran(now).as_nanos()).unwrap() + 10_000;
            runs += 1;
        }
        assert!((990..1010).contains(&runs), "{runs}");
        // What comes at intervals never pauses.
        let mut pacer = Pacer::default();
        assert!((0..1000).all(|run| pacer.ran(begin + run * INTERVAL_NS).is_zero()));
    }
}
