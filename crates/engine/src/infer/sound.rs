//! Which tasks of a guest play sound: those that access the sound card themselves, and those for which a
//! sound server does (MM §5.1.1, vAMP §3.1.3). An access in the handler of an interrupt is of no task.

use super::asking::Drawing;
use crate::event::{TaskId, Time};
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// Tasks remembered; who had to do with sound least recently is forgotten first.
const MOST_TASKS: usize = 16;
/// Who has played nothing for so long has ceased to: cards with large buffers are seldom accessed. In
/// nanoseconds.
const MEMORY: u64 = 2_000_000_000;
/// What an access adds to the score of whoever may have asked for it; each that another asked for costs it 1.
const GAIN: u8 = 4;
/// Who has this score is one that plays.
const SURE: u8 = 12;
/// Largest score.
const MOST: u8 = 64;

/// A task that has to do with sound.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Playing {
    task: TaskId,
    /// When it last accessed the card itself.
    accessed: Option<Time>,
    /// How often others that accessed the card may have done so for it, of late.
    score: u8,
    last: Time,
}

/// What is known of a guest's sound.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sound {
    playing: Vec<Playing>,
}

impl Sound {
    /// Checks what was loaded.
    pub(super) fn check(&self) -> Result<(), StateError> {
        check(self.playing.len() <= MOST_TASKS, "more tasks with sound than are remembered")
    }

    /// A task accessed the sound card, not in the handler of an interrupt.
    pub(super) fn accessed(&mut self, by: Drawing, now: Time) {
        for of in &mut self.playing {
            of.score = of.score.saturating_sub(1);
        }
        let of = self.of(by.drawer, now);
        of.accessed = Some(now);
        for task in by.candidates() {
            let of = self.of(task, now);
            of.score = of.score.saturating_add(GAIN + 1).min(MOST);
        }
    }

    fn of(&mut self, task: TaskId, now: Time) -> &mut Playing {
        let place = self.playing.iter().position(|of| of.task == task);
        let place = place.unwrap_or_else(|| {
            let new = Playing { task, accessed: None, score: 0, last: now };
            if self.playing.len() < MOST_TASKS {
                self.playing.push(new);
                return self.playing.len() - 1;
            }
            let oldest = (0..MOST_TASKS).min_by_key(|place| self.playing[*place].last).unwrap_or(0);
            self.playing[oldest] = new;
            oldest
        });
        let of = &mut self.playing[place];
        of.last = now;
        of
    }

    /// Whether a task accesses the sound card itself.
    pub(crate) fn accesses(&self, task: TaskId, now: Time) -> bool {
        let of = self.playing.iter().find(|of| of.task == task);
        of.and_then(|of| of.accessed).is_some_and(|at| now.since(at) <= MEMORY)
    }

    /// Whether a task accesses the sound card for others, as far as is known.
    pub(crate) fn serves(&self, task: TaskId, now: Time) -> bool {
        let asks = |of: &Playing| of.task != task && of.plays(now) && !self.accesses(of.task, now);
        self.accesses(task, now) && self.playing.iter().any(asks)
    }

    /// Whether a task plays sound.
    pub(crate) fn plays(&self, task: TaskId, now: Time) -> bool {
        self.playing.iter().any(|of| of.task == task && of.plays(now))
    }

    /// The task that accessed the sound card last, if one did of late.
    pub(super) fn latest(&self, now: Time) -> Option<TaskId> {
        let known = self.playing.iter().filter(|of| of.accessed.is_some_and(|at| now.since(at) <= MEMORY));
        known.max_by_key(|of| (of.accessed, of.task)).map(|of| of.task)
    }

    /// Bytes held beyond its own size.
    pub(super) fn bytes(&self) -> usize {
        self.playing.capacity() * size_of::<Playing>()
    }
}

impl Playing {
    fn plays(&self, now: Time) -> bool {
        let accesses = self.accessed.is_some_and(|at| now.since(at) <= MEMORY);
        accesses || self.score >= SURE && now.since(self.last) <= MEMORY
    }
}

#[cfg(test)]
mod tests {
    use super::super::asking::Asking;
    use super::*;

    const MS: u64 = 1_000_000;
    const PLAYER: TaskId = TaskId(1);
    const SERVER: TaskId = TaskId(2);
    const HOG: TaskId = TaskId(3);

    fn after(before: Option<TaskId>, task: TaskId) -> Drawing {
        let mut asking = Asking::default();
        asking.dispatched(before, None);
        asking.drawing(0, task)
    }

    #[test]
    fn who_accesses_the_card_plays_until_it_ceases_to() {
        let mut sound = Sound::default();
        sound.accessed(after(Some(HOG), PLAYER), Time(0));
        assert!(sound.plays(PLAYER, Time(MEMORY)) && sound.accesses(PLAYER, Time(0)));
        assert!(!sound.plays(PLAYER, Time(MEMORY + 1)));
        assert!(!sound.plays(HOG, Time(0)), "it ran before once");
    }

    #[test]
    fn who_mostly_runs_before_a_sound_server_plays() {
        let mut sound = Sound::default();
        for access in 0..100u64 {
            let before = if access % 3 == 0 { PLAYER } else { TaskId(100 + access) };
            sound.accessed(after(Some(before), SERVER), Time(access * 10 * MS));
        }
        let now = Time(1000 * MS);
        assert!(sound.plays(PLAYER, now) && !sound.accesses(PLAYER, now) && sound.plays(SERVER, now));
        assert!((100..200).all(|task| !sound.plays(TaskId(task), now)), "each of them once");
        assert!(sound.playing.len() <= MOST_TASKS);
        assert_eq!(sound.latest(now), Some(SERVER));
    }
}
