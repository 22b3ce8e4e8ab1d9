//! A film that has had so little of the CPU from its begin on that it shows no frame: nothing tells that it
//! is one, and so it would never get more (not in the paper).
//!
//! Where a guest plays sound, shows nothing, and waits for CPUs most of the time, the task that plays and
//! wants the CPU is taken for a player for a while. If it then shows frames it is one; if not, it is left
//! alone for longer each time.

use crate::event::{TaskId, Time};
use crate::policy::view::View;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// For so long a task is a player that has shown nothing. In nanoseconds.
pub(super) const TRIAL: u64 = 3_000_000_000;
/// For so long a guest is to wait for CPUs before.
const WINDOW: u64 = 1_000_000_000;
/// Between two trials that are in vain, at first and at most.
const PAUSE: u64 = 10_000_000_000;
const LONGEST_PAUSE: u64 = 640_000_000_000;
/// What the task wants of a CPU, in permille.
const LOAD: u64 = 300;

/// When a film that shows nothing was looked for, and is to be next.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Unseen {
    looked: Time,
    /// What the VM's threads had waited by then.
    waited: u64,
    not_before: Time,
    /// After the latest trial, in nanoseconds; 0 if frames were shown since.
    pause: u64,
}

impl Unseen {
    /// Checks one that was loaded.
    pub(super) fn check(&self, now: Time) -> Result<(), StateError> {
        let bounded = self.not_before <= now.plus(TRIAL + LONGEST_PAUSE) && self.pause <= LONGEST_PAUSE;
        check(bounded, "a film that is never looked for")
    }

    /// A player showed a frame.
    pub(super) fn shown(&mut self) {
        self.pause = 0;
    }

    /// The guest plays sound: the task that may be a player that shows nothing, if it is to be tried now.
    pub(super) fn find(&mut self, view: &View<'_>) -> Option<TaskId> {
        let elapsed = view.now.since(self.looked);
        if elapsed < WINDOW || view.config.multimedia.most_share() <= 1.0 || !view.may_act() {
            return None;
        }
        let before = std::mem::replace(&mut self.waited, view.waited());
        self.looked = view.now;
        // It is to be heard all the time.
        let heard = elapsed < 2 * WINDOW;
        let deprived = self.waited.saturating_sub(before) > elapsed / 2;
        if !heard || !deprived || view.now < self.not_before {
            return None;
        }
        let task = view.guest.unseen_player(LOAD, view.now)?;
        self.pause = self.pause.saturating_mul(2).clamp(PAUSE, LONGEST_PAUSE);
        self.not_before = view.now.plus(TRIAL + self.pause);
        Some(task)
    }
}
