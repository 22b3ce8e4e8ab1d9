//! `PBratio`: how much of its CPU time a VM may use while boosted (TAVS §3.2).

use crate::event::Time;
use crate::nanos::nanos_f64;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// CPU time of a vCPU, all of it and the boosted part, over the current and the previous period. The previous
/// one is kept so that a new period does not begin with a division by nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Budget {
    period_start: Time,
    total: [u64; 2],
    boosted: [u64; 2],
}

impl Budget {
    /// Adds run time; starts a new period when `period` nanoseconds have passed.
    pub(crate) fn charge(&mut self, now: Time, period: u64, ran: u64, boosted: bool) {
        self.advance(now, period);
        self.total[0] = self.total[0].saturating_add(ran);
        if boosted {
            self.boosted[0] = self.boosted[0].saturating_add(ran);
        }
    }

    /// Boosted time that the guest could not do without is not counted.
    pub(crate) fn excuse(&mut self, ran: u64) {
        self.boosted[0] = self.boosted[0].saturating_sub(ran);
    }

    /// Begins a new period if it is time.
    pub(crate) fn advance(&mut self, now: Time, period: u64) {
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

    /// Boosted time of these vCPUs over all their time; zero if none has run.
    pub(crate) fn used<'a>(budgets: impl IntoIterator<Item = &'a Budget>) -> f64 {
        let sum = |account: [u64; 2]| account[0].saturating_add(account[1]);
        let (total, boosted) = budgets.into_iter().fold((0u64, 0u64), |(total, boosted), budget| {
            (total.saturating_add(sum(budget.total)), boosted.saturating_add(sum(budget.boosted)))
        });
        if total == 0 { 0.0 } else { nanos_f64(boosted) / nanos_f64(total) }
    }
}

/// How long a VM may be boosted beyond the steady rate, as real time in which the rate would allow it.
const BURST: u64 = 250_000_000;

/// CPU time that the threads of a VM may use boosted, together: a bucket that fills at a steady rate.
///
/// A host may stop real-time threads that use too much, for a second and more, which is worse than no boost.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Allowance {
    /// Nanoseconds left, or overdrawn.
    left: f64,
    filled: Option<Time>,
    used: u64,
}

impl Allowance {
    /// Checks an allowance that was loaded.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        check(self.left.is_finite(), "an allowance without bound")
    }

    /// Whether another boost is allowed at `rate` CPUs; `used` is all boosted time of the VM so far.
    pub(crate) fn allows(&mut self, now: Time, rate: f64, used: u64) -> bool {
        let most = nanos_f64(BURST) * rate;
        let passed = self.filled.map_or(BURST, |filled| now.since(filled));
        let ran = used.saturating_sub(self.used);
        self.left = (self.left + nanos_f64(passed) * rate).min(most) - nanos_f64(ran);
        (self.filled, self.used) = (Some(now), used);
        self.left > 0.0
    }
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
        assert!(Budget::used([&budget]) <= 0.125);
        budget.charge(Time(4), SECOND, 100, true);
        assert!(Budget::used([&budget]) > 0.125);
        let mut idle = Budget::default();
        assert_eq!(Budget::used([&budget, &idle]), 0.2);
        idle.charge(Time(5), SECOND, 1000, false);
        assert_eq!(Budget::used([&budget, &idle]), 0.1, "what another vCPU runs counts as well");
    }

    #[test]
    fn an_allowance_is_a_rate_with_a_burst() {
        const MS: u64 = 1_000_000;
        let mut allowance = Allowance::default();
        // A tenth of a CPU: 25 ms at once.
        assert!(allowance.allows(Time(0), 0.1, 0));
        assert!(allowance.allows(Time(0), 0.1, 24 * MS));
        assert!(!allowance.allows(Time(0), 0.1, 30 * MS));
        assert!(!allowance.allows(Time(50 * MS), 0.1, 30 * MS));
        assert!(allowance.allows(Time(51 * MS), 0.1, 30 * MS));
        assert!(!allowance.allows(Time(10 * SECOND), 0.1, 60 * MS), "what was not used is not saved up");
    }

    #[test]
    fn old_use_is_forgotten_after_two_periods() {
        let mut budget = Budget::default();
        budget.charge(Time(1), SECOND, 100, true);
        budget.advance(Time(SECOND + 1), SECOND);
        assert_eq!(Budget::used([&budget]), 1.0, "the previous period still counts");
        budget.advance(Time(4 * SECOND), SECOND);
        assert_eq!(Budget::used([&budget]), 0.0);
    }
}
