//! How much the device is given at once, and what each request cost.
//!
//! A device with many requests serves whichever it likes, so that one that a person waits for would be one of
//! many; with few it may be slower in all. So it is given more as long as it answers soon enough.

use super::config::DiskConfig;
use crate::event::Time;
use crate::nanos::nanos;

#[derive(Debug)]
pub(super) struct Flow {
    /// Requests that it may have, and has.
    depth: u32,
    serving: u32,
    /// Answers in time since the depth was changed, while it had as many as it may.
    timely: u32,
    /// Answers still to come to what it was given before the depth was lowered.
    stale: u32,
    /// Time that passed for each request that was being served, in nanoseconds.
    passed: u64,
    /// Up to when.
    at: Time,
}

impl Default for Flow {
    fn default() -> Self {
        Flow { depth: 1, serving: 0, timely: 0, stale: 0, passed: 0, at: Time(0) }
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
        let each = now.since(self.at) / u64::from(self.serving.max(1));
        if self.serving > 0 {
            self.passed = self.passed.saturating_add(each);
        }
        self.at = self.at.max(now);
    }

    /// The device is given a request: to be kept until it is served.
    pub(super) fn submitted(&mut self, now: Time) -> u64 {
        self.advance(now);
        self.serving += 1;
        self.passed
    }

    /// It has served one that was submitted `since`, when `passed` was what it is to be told again: the
    /// device time it took.
    pub(super) fn completed(&mut self, now: Time, since: Time, passed: u64, config: &DiskConfig) -> u64 {
        self.advance(now);
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
        self.passed.saturating_sub(passed)
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
                given.push_back((now, flow.submitted(now)));
                ends.push_back(end);
            }
            now = ends.pop_front().unwrap();
            let (since, passed) = given.pop_front().unwrap();
            flow.completed(now, since, passed, &config);
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
    fn time_is_divided_among_those_that_are_served() {
        let (mut flow, config) = (Flow::default(), DiskConfig::default());
        let one = flow.submitted(Time(0));
        let other = flow.submitted(Time(10 * MS));
        assert_eq!(flow.completed(Time(30 * MS), Time(0), one, &config), 20 * MS);
        assert_eq!(flow.completed(Time(40 * MS), Time(10 * MS), other, &config), 20 * MS);
        let later = flow.submitted(Time(100 * MS));
        assert_eq!(
            flow.completed(Time(101 * MS), Time(100 * MS), later, &config),
            MS,
            "idle time is nobody's"
        );
    }
}
