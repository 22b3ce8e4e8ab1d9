//! How much the device is given at once, and what each request cost.
//!
//! A device with many requests serves whichever it likes, so that one that a person waits for would be one of
//! many; with few it may be slower in all. So it is given more as long as it answers soon enough.

use super::config::{Device, DiskConfig};
use crate::event::Time;
use crate::nanos::nanos;

/// What a request costs beside its bytes: what a device could transfer meanwhile, in bytes.
const BASE: u64 = 64 << 10;
/// The largest request that counts as such, in bytes.
const LARGEST: u64 = 1 << 30;
/// Bits behind the point of what passes.
const FRACTION: u32 = 24;

/// How requests share the time in which they are served together, as bytes: a device tells only when each is
/// done, so that large ones would else be as cheap as small ones.
pub(super) fn weight(bytes: u64) -> u64 {
    BASE + bytes.min(LARGEST)
}

#[derive(Debug)]
pub(super) struct Flow {
    /// Requests that it may have, and has.
    depth: u32,
    serving: u32,
    /// Answers in time since the depth was changed, while it had as many as it may.
    timely: u32,
    /// Answers still to come to what it was given before the depth was lowered.
    stale: u32,
    /// The weight of those that it has.
    weight: u64,
    /// Device time of a byte of weight that was there all the time, as a fixed-point number of nanoseconds.
    passed: u64,
    /// How long the device was busy of late, in nanoseconds, and the weight that it served meanwhile.
    busy: u64,
    served: u64,
    /// Up to when.
    at: Time,
}

impl Default for Flow {
    fn default() -> Self {
        Flow {
            depth: 1,
            serving: 0,
            timely: 0,
            stale: 0,
            weight: 0,
            passed: 0,
            busy: 0,
            served: 0,
            at: Time(0),
        }
    }
}

impl Flow {
    pub(super) fn has_room(&self) -> bool {
        self.serving < self.depth
    }

    pub(super) fn idle(&self) -> bool {
        self.serving == 0
    }

    fn advance(&mut self, now: Time) {
        if self.serving > 0 {
            self.busy = self.busy.saturating_add(now.since(self.at));
            let each = now.since(self.at).saturating_mul(1 << FRACTION) / self.weight.max(1);
            self.passed = self.passed.saturating_add(each);
        }
        self.at = self.at.max(now);
    }

    /// The device is given a request of this weight: to be kept until it is served.
    pub(super) fn submitted(&mut self, now: Time, weight: u64) -> u64 {
        self.advance(now);
        self.serving += 1;
        self.weight += weight;
        self.passed
    }

    /// It has served one of this weight that was submitted `since`, when `passed` was what it is to be told
    /// again: the device time it took.
    pub(super) fn completed(
        &mut self,
        now: Time,
        (since, passed, weight): (Time, u64, u64),
        device: Device,
        config: &DiskConfig,
    ) -> u64 {
        self.advance(now);
        self.served += weight;
        let cost = match device {
            Device::Arm => (u128::from(self.passed.saturating_sub(passed)) * u128::from(weight)) >> FRACTION,
            // Requests of several VMs are served together, and it cannot be seen who waits for whom.
            Device::Flash => u128::from(self.busy) * u128::from(weight) / u128::from(self.served),
        };
        if self.served >= LARGEST {
            self.busy /= 2;
            self.served /= 2;
        }
        self.weight = self.weight.saturating_sub(weight);
        let full = self.serving >= self.depth;
        self.serving = self.serving.saturating_sub(1);
        let slow = now.since(since) > nanos(config.target_latency);
        if self.stale > 0 {
            self.stale -= 1;
        } else if slow {
            self.depth = (self.depth - self.depth.div_ceil(4)).max(1);
            (self.timely, self.stale) = (0, self.serving);
        } else if full {
            self.timely += 1;
            if self.timely >= self.depth {
                self.depth = (self.depth + 1).min(config.max_depth);
                self.timely = 0;
            }
        }
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Always gives the device what it may have, which it serves `parallel` at a time in `service` each, and
    /// returns the depth after so many.
    fn depth(parallel: u64, service: u64, requests: u64) -> u32 {
        let (mut flow, config) = (Flow::default(), DiskConfig::default());
        let mut given = std::collections::VecDeque::new();
        let mut ends = std::collections::VecDeque::new();
        let mut now = Time(0);
        for number in 0..requests {
            while flow.has_room() {
                let begins = ends.iter().rev().nth(usize::try_from(parallel).unwrap() - 1).copied();
                let end = begins.unwrap_or(now).max(now).plus(service + number % 2);
                given.push_back((now, flow.submitted(now, BASE)));
                ends.push_back(end);
            }
            now = ends.pop_front().unwrap();
            let (since, passed) = given.pop_front().unwrap();
            flow.completed(now, (since, passed, BASE), Device::Flash, &config);
        }
        flow.depth
    }

    #[test]
    fn the_depth_is_what_is_served_in_time() {
        assert_eq!(depth(1, 12 * MS, 1_000), 1, "an arm that is slow");
        let arm = depth(1, 2 * MS, 1_000);
        assert!((3..=6).contains(&arm), "{arm} in 10 ms");
        assert_eq!(depth(8, MS / 10, 10_000), DiskConfig::default().max_depth, "flash");
    }

    #[test]
    fn time_is_divided_among_those_that_are_served_by_what_they_are() {
        let (mut flow, config) = (Flow::default(), DiskConfig::default());
        let [small, large] = [weight(0), weight(3 * BASE)];
        let about = |time: u64, expected: u64| time.abs_diff(expected) < 10;
        let one = flow.submitted(Time(0), small);
        let other = flow.submitted(Time(10 * MS), large);
        let cost = flow.completed(Time(30 * MS), (Time(0), one, small), Device::Arm, &config);
        assert!(about(cost, 14 * MS), "10 ms alone, and a fifth of 20: {cost}");
        let cost = flow.completed(Time(40 * MS), (Time(10 * MS), other, large), Device::Arm, &config);
        assert!(about(cost, 26 * MS), "{cost}");
        let later = flow.submitted(Time(100 * MS), small);
        let cost = flow.completed(Time(101 * MS), (Time(100 * MS), later, small), Device::Arm, &config);
        assert!(about(cost, MS), "idle time is nobody's: {cost}");
    }

    #[test]
    fn of_flash_a_request_costs_what_its_bytes_do() {
        let (mut flow, config) = (Flow::default(), DiskConfig::default());
        let [small, large] = [weight(0), weight(3 * BASE)];
        let mut costs = [0; 2];
        for round in 0..1_000 {
            let begin = Time(round * 20 * MS);
            let given = [small, large].map(|weight| (begin, flow.submitted(begin, weight), weight));
            // The small one waits for the other.
            costs[1] += flow.completed(begin.plus(9 * MS), given[1], Device::Flash, &config);
            costs[0] += flow.completed(begin.plus(10 * MS), given[0], Device::Flash, &config);
        }
        let all = costs.iter().sum::<u64>();
        assert!((9_900 * MS..10_100 * MS).contains(&all), "the time in which it was busy: {all}");
        assert!((3_960..=4_040).contains(&(costs[1] * 1_000 / costs[0])), "{costs:?}");
    }
}
