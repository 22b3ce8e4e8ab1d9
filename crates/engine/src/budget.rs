//! `PBratio`: how much of its CPU time a vCPU may use while boosted (TAVS §3.2).

use crate::event::Time;

/// CPU time of a vCPU, all of it and the boosted part, over the current and the previous period. The previous
/// one is kept so that a new period does not begin with a division by nothing.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    period_start: Time,
    total: [u64; 2],
    boosted: [u64; 2],
}

impl Budget {
    /// Adds run time; starts a new period when `period` nanoseconds have passed.
    pub(crate) fn charge(&mut self, now: Time, period: u64, ran: u64, boosted: bool) {
        self.roll(now, period);
        self.total[0] = self.total[0].saturating_add(ran);
        if boosted {
            self.boosted[0] = self.boosted[0].saturating_add(ran);
        }
    }

    fn roll(&mut self, now: Time, period: u64) {
        let elapsed = now.since(self.period_start);
        if elapsed < period {
            return;
        }
        let stale = elapsed >= period.saturating_mul(2);
        for account in [&mut self.total, &mut self.boosted] {
            *account = [0, if stale { 0 } else { account[0] }];
        }
        self.period_start = now;
    }

    /// Boosted time over all time; zero if the vCPU has not run.
    pub(crate) fn used(&self) -> f64 {
        let total = self.total[0].saturating_add(self.total[1]);
        let boosted = self.boosted[0].saturating_add(self.boosted[1]);
        if total == 0 { 0.0 } else { nanos_f64(boosted) / nanos_f64(total) }
    }

    /// Whether another boost is within `ratio`.
    pub(crate) fn allows(&mut self, now: Time, period: u64, ratio: f64) -> bool {
        self.roll(now, period);
        ratio > 0.0 && self.used() <= ratio
    }
}

/// Nanoseconds as a float; exact below 104 days.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn nanos_f64(nanos: u64) -> f64 {
    nanos as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_eighth_is_allowed_and_no_more() {
        let mut budget = Budget::default();
        budget.charge(Time(1), SECOND, 800, false);
        budget.charge(Time(2), SECOND, 100, true);
        assert!(budget.allows(Time(3), SECOND, 0.125));
        budget.charge(Time(4), SECOND, 100, true);
        assert!(!budget.allows(Time(5), SECOND, 0.125));
        assert!(!budget.allows(Time(5), SECOND, 0.0), "zero turns boosting off");
    }

    #[test]
    fn old_use_is_forgotten_after_two_periods() {
        let mut budget = Budget::default();
        budget.charge(Time(1), SECOND, 100, true);
        assert!(!budget.allows(Time(SECOND + 1), SECOND, 0.5), "the previous period still counts");
        assert!(budget.allows(Time(4 * SECOND), SECOND, 0.5));
    }
}
