//! How long a request keeps a disk.

use frontdesk_scenario::DiskModel;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// The part of the longest seek that the shortest one takes.
const SHORTEST_SEEK: f64 = 0.05;

/// What is asked of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    Flush,
}

/// A disk that serves one request at a time. Times are since any one point in time.
#[derive(Debug)]
pub(super) struct Arm {
    model: DiskModel,
    /// Bytes of the disk.
    size: u64,
    /// Where it is.
    at: u64,
    /// When it is done with the request before.
    free_at: Duration,
    /// Whether something was written since the last flush.
    dirty: bool,
    rng: SmallRng,
}

impl Arm {
    pub(super) fn new(model: DiskModel, size: u64) -> Arm {
        let rng = SmallRng::seed_from_u64(0);
        Arm { model, size: size.max(1), at: 0, free_at: Duration::ZERO, dirty: false, rng }
    }

    /// Serves a request that came at `arrived`: when it is done, and how long it kept the disk.
    pub(super) fn serve(
        &mut self,
        access: Access,
        offset: u64,
        bytes: u64,
        arrived: Duration,
    ) -> (Duration, Duration) {
        let follows = offset == self.at;
        let service = match access {
            // What a drive keeps is written in one turn.
            Access::Flush if self.dirty => self.model.rotation.max(self.model.access),
            Access::Flush => Duration::ZERO,
            Access::Read | Access::Write => self.transfer(follows, offset, bytes),
        };
        self.dirty = access == Access::Write || (self.dirty && access == Access::Read);
        let start = arrived.max(self.free_at);
        // A drive reads on behind what was read, until something else is asked of it.
        let read_ahead = access == Access::Read && follows && self.model.has_arm();
        let ahead = if read_ahead { (start - self.free_at).min(service) } else { Duration::ZERO };
        self.free_at = start + service - ahead;
        (self.free_at, service - ahead)
    }

    fn transfer(&mut self, follows: bool, offset: u64, bytes: u64) -> Duration {
        #[allow(clippy::cast_precision_loss)]
        let part = offset.abs_diff(self.at) as f64 / self.size as f64;
        self.at = offset + bytes;
        #[allow(clippy::cast_precision_loss)]
        let data = Duration::from_secs_f64(bytes as f64 / (self.model.mb_per_s * 1e6));
        let place = if follows {
            Duration::ZERO
        } else {
            let seek = SHORTEST_SEEK + (1.0 - SHORTEST_SEEK) * part.sqrt();
            self.model.seek.mul_f64(seek) + self.model.rotation.mul_f64(self.rng.random_range(0.0..=1.0))
        };
        self.model.access + place + data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn hard_disk() -> DiskModel {
        let [seek, rotation] = [Duration::from_millis(17), Duration::from_micros(8333)];
        DiskModel { seek, rotation, access: Duration::ZERO, mb_per_s: 100.0 }
    }

    /// Mean time of a read of 4 KiB at this distance, back and forth.
    fn mean_ms(distance: u64) -> f64 {
        let mut arm = Arm::new(hard_disk(), GIB);
        let reads = (1..=1000).map(|n| arm.serve(Access::Read, n % 2 * distance, 4096, Duration::ZERO).1);
        reads.sum::<Duration>().as_secs_f64()
    }

    #[test]
    fn what_is_far_away_takes_longer() {
        let [near, far, end] = [GIB / 100, GIB / 4, GIB - 4096].map(mean_ms);
        // A twentieth of a seek, and the square root of the distance of the rest; half a rotation.
        for (got, expected) in [(near, 6.7), (far, 13.2), (end, 21.2)] {
            assert!((got - expected).abs() < 0.5, "{got} ms instead of {expected} ms");
        }
    }

    #[test]
    fn what_follows_pays_for_its_bytes_only_and_may_have_been_read_ahead() {
        let mut arm = Arm::new(hard_disk(), GIB);
        let ms = Duration::from_millis;
        let (first, _) = arm.serve(Access::Read, GIB / 2, 1_000_000, ms(0));
        let (second, took) = arm.serve(Access::Read, GIB / 2 + 1_000_000, 1_000_000, ms(0));
        assert_eq!((second - first, took), (ms(10), ms(10)));
        let (third, took) = arm.serve(Access::Read, GIB / 2 + 2_000_000, 1_000_000, second + ms(4));
        assert_eq!((third - second, took), (ms(10), ms(6)), "4 ms of it were read before it was asked for");
        let (_, took) = arm.serve(Access::Write, GIB / 2 + 3_000_000, 1_000_000, third + ms(4));
        assert_eq!(took, ms(10), "nothing is written before it is there");
    }

    #[test]
    fn a_flush_costs_a_rotation_if_something_was_written() {
        let mut arm = Arm::new(hard_disk(), GIB);
        let flush = |arm: &mut Arm| arm.serve(Access::Flush, 0, 0, Duration::ZERO).1;
        assert_eq!(flush(&mut arm), Duration::ZERO);
        arm.serve(Access::Write, 0, 4096, Duration::ZERO);
        arm.serve(Access::Read, GIB / 2, 4096, Duration::ZERO);
        assert_eq!(flush(&mut arm), hard_disk().rotation);
        assert_eq!(flush(&mut arm), Duration::ZERO);
    }

    #[test]
    fn flash_has_no_place() {
        let model = DiskModel {
            seek: Duration::ZERO,
            rotation: Duration::ZERO,
            access: Duration::from_micros(200),
            mb_per_s: 500.0,
        };
        let mut arm = Arm::new(model, GIB);
        for offset in [0, GIB / 2, GIB / 2 + 5_000] {
            let (_, took) = arm.serve(Access::Read, offset, 5_000, Duration::from_secs(1));
            assert_eq!(took, Duration::from_micros(210));
        }
    }
}
