//! How many frames a second each task of a guest shows (MM §5.1).
//!
//! A batch of updates is a frame. Who it is of is not who draws it where a display server does: that is
//! mostly the task before it, or else the next (MM §5.1.1), which its region decides.

use super::asking::Drawing;
use crate::event::{Region, TaskId, Time};
use crate::nanos::nanos_f64;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// Tasks that are remembered to show something; who did so least recently is forgotten first.
const MOST_TASKS: usize = 16;
/// Updates of one drawing task that are no further apart may be one frame. In nanoseconds.
const BATCH_GAP: u64 = 4_000_000;
/// Regular intervals between frames after which one that is much longer is a missed frame.
const REGULAR: u8 = 8;
/// Whose frames were there so often in a row has its place there.
const STEADY: u8 = 4;
/// Longest time between two frames of what still is one film, however starved. In nanoseconds.
const LONGEST_PAUSE: u64 = 10_000_000_000;
/// What counts as the present, for who has a place, and for who is shown by a graphics processor. In
/// nanoseconds.
const PRESENT: u64 = 1_000_000_000;
/// What a graphics processor completes for a frame until it is learnt (§5.1.2: 110).
const GPU_PER_FRAME: f64 = 110.0;
/// What the latest frame adds to that.
const GPU_GAIN: f64 = 1.0 / 16.0;
const SECOND: f64 = 1e9;
/// What a sample adds to the average that lasts.
const LASTING: f64 = 0.25;

/// A task showed a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    pub(crate) task: TaskId,
    /// Whether frames are missing before it: the task shows some at regular intervals, and this one came much
    /// later.
    pub(crate) missed: bool,
}

/// What a task showed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Displaying {
    task: TaskId,
    /// Where it was last; `None` for the whole display.
    region: Option<Region>,
    /// How often in a row it was there.
    #[serde(default)]
    steady: u8,
    frames: u64,
    last: Time,
    /// Usual time between two frames, in nanoseconds.
    interval: u64,
    /// How regular they are: up with each that is, and quickly down.
    regular: u8,
}

/// The latest frame, as long as it may go on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Batch {
    drawer: TaskId,
    /// For whom it was drawn, by the order in which tasks ran.
    #[serde(default)]
    asker: Option<TaskId>,
    /// Where it began.
    first: Option<Region>,
    last: Time,
}

/// A frame whose task is not known before the next one runs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Undecided {
    by: Drawing,
    region: Option<Region>,
    at: Time,
}

/// What is known of a guest's frames.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Frames {
    displaying: Vec<Displaying>,
    batch: Option<Batch>,
    undecided: Option<Undecided>,
    /// The latest access to the display.
    pub(super) drawing: Option<Drawing>,
    updated: Option<Time>,
    /// What the graphics processor has completed in all,
    gpu_done: u64,
    /// since the last frame,
    gpu_since_frame: u32,
    /// and when last.
    gpu_last: Option<Time>,
    /// What it completes for a frame, learnt where frames are seen, too.
    gpu_per_frame: f64,
}

impl Default for Frames {
    fn default() -> Self {
        Frames {
            displaying: Vec::new(),
            batch: None,
            undecided: None,
            drawing: None,
            updated: None,
            gpu_done: 0,
            gpu_since_frame: 0,
            gpu_last: None,
            gpu_per_frame: GPU_PER_FRAME,
        }
    }
}

impl Frames {
    /// Checks what was loaded.
    pub(super) fn check(&self) -> Result<(), StateError> {
        check(self.displaying.len() <= MOST_TASKS, "more tasks with frames than are remembered")?;
        check(self.gpu_per_frame.is_finite() && self.gpu_per_frame > 0.0, "frames of no size")
    }

    /// Events were lost: what was going on is not known.
    pub(super) fn forget(&mut self) {
        (self.batch, self.undecided, self.drawing) = (None, None, None);
        self.gpu_since_frame = 0;
        self.displaying.iter_mut().for_each(|of| of.regular = 0);
    }

    /// The display was updated. `alone`: the drawing task is known to show frames of its own. Returns whose
    /// frame it is, if a new one begins and that is known already.
    pub(super) fn update(
        &mut self,
        region: Option<Region>,
        by: Drawing,
        alone: bool,
        now: Time,
    ) -> Option<Shown> {
        self.updated = Some(now);
        if self.goes_on(region, by, now)
            && let Some(batch) = &mut self.batch
        {
            batch.last = now;
            return None;
        }
        self.batch = Some(Batch { drawer: by.drawer, asker: by.usual(), first: region, last: now });
        let late = self.undecided.take().map(|frame| self.decide(frame, None));
        let matching = by.candidates().chain(by.loaded()).find(|task| self.matches(*task, region));
        let task = if alone { Some(by.drawer) } else { matching };
        match (task, self.usual(by)) {
            (Some(task), _) => Some(self.credit(task, region, now)),
            (None, None) => Some(self.credit(by.drawer, region, now)),
            (None, Some(_)) => {
                self.undecided = Some(Undecided { by, region, at: now });
                late
            }
        }
    }

    /// Whether an update is another part of the latest frame: soon after it, elsewhere, for the same task as
    /// far as is known, and not where another one shows something.
    fn goes_on(&self, region: Option<Region>, by: Drawing, now: Time) -> bool {
        let Some(batch) = self.batch.filter(|batch| batch.drawer == by.drawer) else { return false };
        let (Some(first), Some(more)) = (batch.first, region) else { return false };
        let for_others = by.usual().is_some_and(|asker| batch.asker.is_some_and(|before| before != asker));
        let elsewhere = !same(first, more) && self.owner(region, by.drawer, now).is_none();
        now.since(batch.last) <= BATCH_GAP && elsewhere && !for_others
    }

    /// Who else than the drawing task has its place there. The whole display is everybody's.
    fn owner(&self, region: Option<Region>, drawer: TaskId, now: Time) -> Option<TaskId> {
        region?;
        let of_late =
            |of: &&Displaying| of.task != drawer && of.steady >= STEADY && now.since(of.last) <= PRESENT;
        let there = self.displaying.iter().filter(of_late).filter(|of| of.is_at(region));
        there.max_by_key(|of| (of.last, of.task)).map(|of| of.task)
    }

    /// Another task runs on a vCPU, or none: the frame that was drawn there may be the next one's.
    pub(super) fn next(&mut self, vcpu: u16, task: Option<TaskId>) -> Option<Shown> {
        let frame = self.undecided.take_if(|frame| frame.by.vcpu == vcpu && task != Some(frame.by.drawer))?;
        Some(self.decide(frame, task))
    }

    fn decide(&mut self, frame: Undecided, next: Option<TaskId>) -> Shown {
        let next = next.filter(|task| self.matches(*task, frame.region));
        // A display server that is asked by several draws for all of them when it runs: if the task before it
        // shows nothing here, the frame is of the one that does.
        let here = self.owner(frame.region, frame.by.drawer, frame.at);
        let task = next.or(here).or(self.usual(frame.by)).unwrap_or(frame.by.drawer);
        self.credit(task, frame.region, frame.at)
    }

    /// For whom a task mostly draws, if that is known. One that was loaded when nothing ran may have nothing
    /// to do with it: if it is known to show something elsewhere, it has not.
    fn usual(&self, by: Drawing) -> Option<TaskId> {
        by.usual().or(by.loaded().filter(|task| self.of(*task).is_none()))
    }

    /// Whether a task showed something there last.
    fn matches(&self, task: TaskId, region: Option<Region>) -> bool {
        self.of(task).is_some_and(|of| of.is_at(region))
    }

    fn of(&self, task: TaskId) -> Option<&Displaying> {
        self.displaying.iter().find(|of| of.task == task)
    }

    fn credit(&mut self, task: TaskId, region: Option<Region>, at: Time) -> Shown {
        let completed = f64::from(std::mem::take(&mut self.gpu_since_frame));
        if completed > 0.0 {
            self.gpu_per_frame += (completed - self.gpu_per_frame) * GPU_GAIN;
        }
        let place = self.displaying.iter().position(|of| of.task == task);
        let Some(of) = place.and_then(|place| self.displaying.get_mut(place)) else {
            let oldest = (0..self.displaying.len()).min_by_key(|place| self.displaying[*place].last);
            if let Some(oldest) = oldest.filter(|_| self.displaying.len() >= MOST_TASKS) {
                self.displaying.swap_remove(oldest);
            }
            let new = Displaying { task, region, steady: 0, frames: 1, last: at, interval: 0, regular: 0 };
            self.displaying.push(new);
            return Shown { task, missed: false };
        };
        let missed = of.add(region, at);
        Shown { task, missed }
    }

    /// The graphics processor completed something.
    pub(super) fn gpu_done(&mut self, now: Time) {
        self.gpu_done = self.gpu_done.saturating_add(1);
        self.gpu_since_frame = self.gpu_since_frame.saturating_add(1);
        self.gpu_last = Some(now);
    }

    /// Whether there are no frames to be seen but what the graphics processor completes.
    pub(crate) fn only_gpu(&self, now: Time) -> bool {
        let present = |at: Option<Time>| at.is_some_and(|at| now.since(at) <= PRESENT);
        // What is completed for a picture comes before the picture is seen.
        let many = f64::from(self.gpu_since_frame) >= GPU_PER_FRAME;
        many && present(self.gpu_last) && !present(self.updated)
    }

    /// Frames that a task showed in all; what the graphics processor completed for `gpu`, as frames.
    pub(crate) fn count(&self, task: TaskId, gpu: bool) -> f64 {
        if gpu {
            nanos_f64(self.gpu_done) / self.gpu_per_frame
        } else {
            self.of(task).map_or(0.0, |of| nanos_f64(of.frames))
        }
    }

    /// Whether a task shows frames, and not a single one that was taken for its own.
    pub(crate) fn is_steady(&self, task: TaskId) -> bool {
        self.of(task).is_some_and(|of| of.steady >= STEADY)
    }

    /// Whether a task has shown nothing for so long that it shows no film.
    pub(crate) fn is_over(&self, task: TaskId, gpu: bool, now: Time) -> bool {
        self.last(task, gpu).is_none_or(|last| now.since(last) > LONGEST_PAUSE)
    }

    /// When a task showed its last frame.
    pub(crate) fn last(&self, task: TaskId, gpu: bool) -> Option<Time> {
        if gpu { self.gpu_last } else { self.of(task).map(|of| of.last) }
    }

    /// Whether a task drew the latest frame.
    pub(crate) fn draws(&self, task: TaskId) -> bool {
        self.batch.is_some_and(|batch| batch.drawer == task)
    }

    /// Bytes held beyond its own size.
    pub(super) fn bytes(&self) -> usize {
        self.displaying.capacity() * size_of::<Displaying>()
    }
}

impl Displaying {
    /// Whether it was there last.
    fn is_at(&self, region: Option<Region>) -> bool {
        match (self.region, region) {
            (Some(before), Some(now)) => same(before, now),
            (before, now) => before == now,
        }
    }

    /// Adds a frame; returns whether some are missing before it.
    fn add(&mut self, region: Option<Region>, at: Time) -> bool {
        let interval = at.since(self.last);
        // More than a frame late: the film goes on with the next but one.
        let missed = self.regular >= REGULAR && interval >= self.interval.saturating_mul(7) / 4;
        let regular = interval >= self.interval / 2 && interval <= self.interval.saturating_mul(3) / 2;
        if regular {
            self.regular = self.regular.saturating_add(1).min(2 * REGULAR);
        } else {
            self.regular = self.regular.saturating_sub(2);
        }
        if self.interval == 0 {
            self.interval = interval;
        } else if regular || self.regular < REGULAR {
            self.interval = (self.interval - self.interval / 8).saturating_add(interval / 8);
        }
        self.frames = self.frames.saturating_add(1);
        let steady = self.is_at(region) && interval <= LONGEST_PAUSE;
        self.steady = if steady { self.steady.saturating_add(1) } else { 0 };
        (self.region, self.last) = (region, at);
        missed
    }
}

/// Whether two regions are about the same: what they have in common is half of the larger, or more.
fn same(one: Region, other: Region) -> bool {
    let common = |a: u16, long_a: u16, b: u16, long_b: u16| {
        let end = (u64::from(a) + u64::from(long_a)).min(u64::from(b) + u64::from(long_b));
        end.saturating_sub(u64::from(a.max(b)))
    };
    let common =
        common(one.x, one.width, other.x, other.width) * common(one.y, one.height, other.y, other.height);
    let area = |of: Region| u64::from(of.width) * u64::from(of.height);
    common * 2 >= area(one).max(area(other))
}

/// An exponentially weighted moving average of a frame rate (MM §5.2, footnote 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FrameRate {
    /// Frames a second, now
    pub(crate) current: f64,
    /// and a sample before.
    pub(crate) previous: f64,
    /// The same over some samples more, in which a frame more or less does not count.
    #[serde(default)]
    pub(crate) lasting: f64,
    /// Frames counted in all at the last sample, and when that was.
    counted: f64,
    at: Time,
    /// Whether the first sample is to be the average, rather than a part of it.
    #[serde(default)]
    unseeded: bool,
}

impl FrameRate {
    /// Begins when so many had been counted: with the first sample if `seeded`, else with nothing.
    pub(crate) fn new(counted: f64, at: Time, seeded: bool) -> FrameRate {
        FrameRate { counted, at, unseeded: seeded, ..FrameRate::default() }
    }

    /// Checks an average that was loaded.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        let numbers = [self.current, self.previous, self.lasting, self.counted];
        let finite = numbers.iter().all(|number| number.is_finite());
        check(finite, "a frame rate that is no number")
    }

    /// Frames are counted otherwise from now on.
    pub(crate) fn recount(&mut self, counted: f64, at: Time) {
        (self.counted, self.at) = (counted, at);
    }

    /// Takes the frames of the time since the last sample in with this weight.
    pub(crate) fn sample(&mut self, counted: f64, now: Time, weight: f64) {
        let elapsed = nanos_f64(now.since(self.at)).max(1.0);
        let value = (counted - self.counted).max(0.0) * SECOND / elapsed;
        let begins = std::mem::take(&mut self.unseeded);
        self.previous = if begins { value } else { self.current };
        self.current = if begins { value } else { (1.0 - weight) * self.current + weight * value };
        self.lasting = if begins { value } else { (1.0 - LASTING) * self.lasting + LASTING * value };
        (self.counted, self.at) = (counted, now);
    }
}

#[cfg(test)]
#[path = "frames/tests.rs"]
mod tests;
