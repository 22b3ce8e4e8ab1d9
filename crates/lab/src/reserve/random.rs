//! Random sets of reservations (VSched §4.2).

use frontdesk_scenario::PeriodSlice;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// The least that a process of a set gets.
const LEAST_PART: f64 = 0.005;

/// `cases` sets of `targets` reservations with random periods, whose total utilisations cover a range evenly.
pub(super) fn sets(
    cases: u32,
    targets: [u16; 2],
    periods: [Duration; 2],
    utilisation: [f64; 2],
    seed: u64,
) -> Vec<Vec<PeriodSlice>> {
    let mut random = SmallRng::seed_from_u64(seed);
    let sets = (0..cases).map(|index| {
        let at = (f64::from(index) + 0.5) / f64::from(cases);
        let total = utilisation[0] + (utilisation[1] - utilisation[0]) * at;
        let count = random.random_range(targets[0]..=targets[1]);
        let weights: Vec<f64> = (0..count).map(|_| random.random_range(0.2..1.0)).collect();
        let sum: f64 = weights.iter().sum();
        let reservations = weights.into_iter().map(|weight| {
            // Evenly over the orders of magnitude.
            let [low, high] = periods.map(|period| period.as_secs_f64().ln());
            let period = (low + (high - low) * random.random_range(0.0..=1.0)).exp();
            let period = Duration::from_micros(micros(period).next_multiple_of(10));
            let part = (total * weight / sum).max(LEAST_PART);
            PeriodSlice { period, slice: Duration::from_micros(micros(period.as_secs_f64() * part)) }
        });
        reservations.collect()
    });
    sets.collect()
}

fn micros(seconds: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let micros = (seconds * 1e6) as u64;
    micros
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_the_same_for_a_seed_and_cover_the_range() {
        let periods = [Duration::from_millis(1), Duration::from_millis(100)];
        let make = |seed| sets(40, [1, 4], periods, [0.1, 0.98], seed);
        assert_eq!(make(7), make(7));
        assert_ne!(make(7), make(8));
        let part = |of: &PeriodSlice| of.slice.as_secs_f64() / of.period.as_secs_f64();
        for (index, set) in (0_u32..).zip(make(7)) {
            assert!((1..=4).contains(&set.len()));
            let wanted = 0.1 + 0.88 * (f64::from(index) + 0.5) / 40.0;
            let total: f64 = set.iter().map(part).sum();
            assert!(total <= wanted + 0.02 && total > wanted - 0.01, "{total} for {wanted}");
            assert!(set.iter().all(|of| of.period >= periods[0] && of.slice <= of.period));
        }
    }
}
