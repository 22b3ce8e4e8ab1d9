//! Random numbers: a generator of its own for each entity, so that one more entity changes nothing for the
//! others.

use crate::Nanos;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng as _;

/// A generator with a fixed algorithm (PCG MCG XSL 128/64): the same numbers on every machine and with every
/// version.
#[derive(Clone, Debug)]
pub struct Rng(Pcg64Mcg);

impl Rng {
    /// The generator of the entity number `stream` in the run with `seed`.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Rng {
        // SplitMix64 spreads seeds that lie close to each other.
        let mix = |value: u64| {
            let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            value ^ (value >> 31)
        };
        let golden = 0x9e37_79b9_7f4a_7c15u64;
        let high = mix(seed.wrapping_add(golden));
        let low = mix(high ^ stream.wrapping_mul(golden).wrapping_add(golden));
        Rng(Pcg64Mcg::new((u128::from(high) << 64) | u128::from(low)))
    }

    /// A number in `low..=high`, uniformly distributed; `low` if that is above `high`.
    pub fn uniform(&mut self, low: Nanos, high: Nanos) -> Nanos {
        let span = u128::from(high.saturating_sub(low)) + 1;
        // The bias of multiply-and-shift is below span / 2^64.
        let offset = (u128::from(self.0.next_u64()) * span) >> 64;
        low + u64::try_from(offset).unwrap_or(0)
    }

    /// A number from -6 to 6, near enough normally distributed with mean 0 and standard deviation 1: the sum
    /// of twelve uniform ones.
    pub fn normal(&mut self) -> f64 {
        const UNIT: Nanos = 1 << 32;
        let sum: u64 = (0..12).map(|_| self.uniform(0, UNIT)).sum();
        #[allow(clippy::cast_precision_loss)]
        let normal = sum as f64 / UNIT as f64 - 6.0;
        normal
    }

    /// An exponentially distributed number with this mean.
    pub fn exponential(&mut self, mean: Nanos) -> Nanos {
        #[allow(clippy::cast_precision_loss)]
        let unit = ((self.0.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let value = (-unit.ln() * mean as f64) as u64;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_is_uniform_and_streams_differ() {
        let mut rng = Rng::new(7, 0);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[usize::try_from(rng.uniform(0, 9)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_ne!(Rng::new(7, 1).uniform(0, NEVER), Rng::new(7, 2).uniform(0, NEVER));
        assert_ne!(Rng::new(8, 1).uniform(0, NEVER), Rng::new(7, 1).uniform(0, NEVER));
    }

    #[test]
    fn the_numbers_are_those_of_every_version() {
        let mut rng = Rng::new(42, 3);
        assert_eq!([rng.uniform(0, 999), rng.uniform(0, 999), rng.uniform(5, 5)], [610, 856, 5]);
    }

    const NEVER: u64 = u64::MAX;
}
