//! Load averages, and what a group weighs on each physical CPU.

use crate::Nanos;

/// The kernel counts in units of 1024: one of these is a weight of 1.
pub(super) const SCALE: u64 = 1024;
/// The least weight of a group on a physical CPU, in those units (`MIN_SHARES`).
const LEAST: u64 = 2;
/// After this time an average has forgotten half: 32 periods of 2^20 ns each.
const HALF_LIFE: f64 = 32.0 * 1_048_576.0;
/// How often a physical CPU tells the group about its load, at most.
const CONTRIBUTE_EVERY: Nanos = 1_000_000;

/// An exponentially decaying average, as per-entity load tracking (PELT) keeps it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Average {
    value: f64,
    at: Nanos,
}

impl Average {
    pub(super) fn new(value: f64) -> Average {
        Average { value, at: 0 }
    }

    pub(super) fn value(self) -> f64 {
        self.value
    }

    /// Takes into account that `current` lasted from the last update until now.
    pub(super) fn update(&mut self, now: Nanos, current: f64) {
        if now > self.at {
            #[allow(clippy::cast_precision_loss, reason = "an average need not be exact to the nanosecond")]
            let kept = (-((now - self.at) as f64) / HALF_LIFE).exp2();
            self.value = current + (self.value - current) * kept;
            self.at = now;
        }
    }
}

/// The load of a group on one physical CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupLoad {
    average: Average,
    /// The average as the group knows it.
    contributed: f64,
    contributed_at: Nanos,
}

impl GroupLoad {
    /// Brings the average up to date, and what it contributes to the load of the group if that has changed.
    /// `current`: the weights of the queued entities; `total`: the load of the group on all physical CPUs.
    pub(super) fn update(&mut self, now: Nanos, current: f64, total: &mut f64) {
        self.average.update(now, current);
        let change = self.average.value() - self.contributed;
        if now - self.contributed_at >= CONTRIBUTE_EVERY && change.abs() > self.contributed / 64.0 {
            self.contribute(now, total);
        }
    }

    fn contribute(&mut self, now: Nanos, total: &mut f64) {
        *total += self.average.value() - self.contributed;
        self.contributed = self.average.value();
        self.contributed_at = now;
    }

    /// An entity comes from another physical CPU with this load, or goes there.
    pub(super) fn shift(&mut self, now: Nanos, by: f64, total: &mut f64) {
        self.average.value = (self.average.value + by).max(0.0);
        self.contribute(now, total);
    }

    /// Forgets what is left of the load of a group that has no entities here, once it is next to nothing.
    /// Returns whether it did.
    pub(super) fn forget(&mut self, now: Nanos, total: &mut f64) -> bool {
        let next_to_nothing = self.average.value() < 1.0;
        if next_to_nothing {
            self.average.value = 0.0;
            self.contribute(now, total);
        }
        next_to_nothing
    }

    /// What the group weighs here, in units of 1 / [`SCALE`]: the part of its share that its load here is of
    /// its load everywhere.
    pub(super) fn weight(&self, share: u64, current: f64, total: f64) -> u64 {
        let here = self.average.value().max(current);
        let everywhere = (total - self.contributed + here).max(f64::MIN_POSITIVE);
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a weight is below 2^28 and not negative"
        )]
        let part = (share as f64 * here / everywhere) as u64;
        part.clamp(LEAST, share.max(LEAST))
    }
}

/// Weight of a nice value, in units of 1 / [`SCALE`].
pub(crate) fn nice_weight(nice: i8) -> u64 {
    u64::from(frontdesk_engine::nice_weight(nice)) * SCALE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_forgets_half_in_32_periods() {
        let mut average = Average::new(1000.0);
        average.update(32 << 20, 0.0);
        assert!((average.value() - 500.0).abs() < 1e-9);
    }

    #[test]
    fn a_share_is_divided_by_load() {
        let mut total = 0.0;
        let mut loads = [GroupLoad::default(); 2];
        for (load, current) in loads.iter_mut().zip([1024.0, 3072.0]) {
            load.update(1_000_000_000, current, &mut total);
        }
        let share = 1024 * SCALE;
        let weights = [loads[0].weight(share, 1024.0, total), loads[1].weight(share, 3072.0, total)];
        assert!(weights[0].abs_diff(share / 4) < 2 && weights[1].abs_diff(share / 4 * 3) < 2, "{weights:?}");
        // Load that arrives where there was none counts at once, and until the group knows, the parts sum up
        // to more than the share.
        assert!(GroupLoad::default().weight(share, 1024.0, total) > share / 6);
    }
}
