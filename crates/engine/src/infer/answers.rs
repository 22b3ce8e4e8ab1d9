//! How a guest answers: how long it runs from an event to the task that the event wakes, and whether that
//! rings a doorbell.

use crate::config::Tavs;
use crate::event::Time;
use crate::nanos::nanos;
use serde::{Deserialize, Serialize};

/// Delays to learn from before the patience may be shorter than [`Tavs::patience`]: a guest that mostly
/// preempts at once may seldom need a whole tick.
const ENOUGH: u8 = 32;
/// The largest delay of late fades by this fraction with a new one, at most once in [`FADES_EVERY`]: it is
/// forgotten after some minutes. Not by their number alone: a stream has hundreds of short ones between two
/// that take long, when all that the guest has missed comes at once.
const FADING: u64 = 512;
/// In nanoseconds.
const FADES_EVERY: u64 = 1_000_000_000;
/// Largest value of the counter of doorbells.
const MOST_RINGS: u8 = 3;

/// What a VM's events taught about its answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answers {
    /// Largest run time of late, in nanoseconds, from the delivery of an event to the dispatch of an
    /// I/O-bound task.
    delay: u64,
    /// When it faded last.
    faded: Time,
    /// How many were seen, up to [`ENOUGH`].
    seen: u8,
    /// A saturating counter: up if a doorbell rang before the task gave the CPU away, else down.
    rings: u8,
}

impl Default for Answers {
    fn default() -> Self {
        Answers { delay: 0, faded: Time(0), seen: 0, rings: 1 }
    }
}

impl Answers {
    /// An I/O-bound task was dispatched after the guest had run for so long since the delivery of an event.
    pub(crate) fn dispatched(&mut self, ran: u64, now: Time) {
        self.seen = self.seen.saturating_add(1).min(ENOUGH);
        if now.since(self.faded) >= FADES_EVERY {
            self.delay -= self.delay / FADING;
            self.faded = now;
        }
        self.delay = ran.max(self.delay);
    }

    /// An event was handled; whether with a doorbell.
    pub(crate) fn handled(&mut self, rang: bool) {
        self.rings = if rang { (self.rings + 1).min(MOST_RINGS) } else { self.rings.saturating_sub(1) };
    }

    /// Whether an I/O-bound task that gave the CPU away without a doorbell has probably not answered yet.
    /// `sampled`: that it did is not known for sure, as its tasks are only seen now and then.
    pub(crate) fn expects_doorbell(&self, sampled: bool) -> bool {
        self.rings > MOST_RINGS / 2 || sampled && self.rings > 0
    }

    /// How long, in nanoseconds of run time since the delivery of an event, its task may yet be dispatched.
    /// Half as much again as the largest delay of late: most are of a guest that finishes its tick first, and
    /// any part of a tick may be left.
    pub(crate) fn patience(&self, config: &Tavs) -> u64 {
        let least =
            if self.seen < ENOUGH { config.io_threshold.max(config.patience) } else { config.io_threshold };
        let wanted = self.delay.saturating_add(self.delay / 2);
        wanted.max(nanos(least)).min(nanos(config.max_boost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn patience_follows_the_largest_delay_of_late_within_its_bounds() {
        let config = Tavs::default();
        let mut answers = Answers::default();
        assert_eq!(answers.patience(&config), nanos(config.patience));
        for _ in 0..32 {
            answers.dispatched(MS / 10, Time(0));
        }
        assert_eq!(answers.patience(&config), nanos(config.io_threshold), "not below the threshold");
        answers.dispatched(4 * MS, Time(0));
        assert_eq!(answers.patience(&config), 6 * MS);
        answers.dispatched(30 * MS, Time(0));
        assert_eq!(answers.patience(&config), nanos(config.max_boost), "not beyond the longest boost");
        for _ in 0..3000 {
            answers.dispatched(MS, Time(FADES_EVERY - 1));
        }
        assert_eq!(answers.patience(&config), nanos(config.max_boost), "a second of many short ones");
        for second in 1..3000 {
            answers.dispatched(MS, Time(second * FADES_EVERY));
        }
        assert_eq!(answers.patience(&config), MS + MS / 2, "forgotten");
    }

    #[test]
    fn a_doorbell_is_expected_of_guests_that_ring() {
        let mut answers = Answers::default();
        assert!(!answers.expects_doorbell(false) && answers.expects_doorbell(true));
        answers.handled(false);
        assert!(!answers.expects_doorbell(true));
        answers.handled(true);
        answers.handled(true);
        assert!(answers.expects_doorbell(false));
        answers.handled(true);
        answers.handled(true);
        answers.handled(false);
        assert!(answers.expects_doorbell(false), "one without does not undo it");
    }
}
