//! For whom a task works that others ask: a display server, a sound server. Mostly it is scheduled at once
//! when it is asked, so that is the task before it (MM §5.1.1); or the one that interrupted its vCPU.

use crate::event::TaskId;
use serde::{Deserialize, Serialize};

/// Who may have asked the task on a vCPU.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Asking {
    /// The task before, if the vCPU was not idle then.
    before: Option<TaskId>,
    /// The task that interrupted the vCPU before that,
    waker: Option<TaskId>,
    /// and since then.
    interrupted: Option<TaskId>,
    /// The task whose address space was loaded when the vCPU went on from idleness, with the one that runs
    /// now as the next: it went on itself, or nobody did but the handler of what ended the idleness.
    #[serde(default)]
    loaded: Option<TaskId>,
}

impl Asking {
    /// Another vCPU, on which this task runs, interrupted this one.
    pub(super) fn interrupted(&mut self, by: Option<TaskId>) {
        self.interrupted = by.or(self.interrupted);
    }

    /// Another task is dispatched, after this one; `None`: the vCPU was idle, perhaps with this one `loaded`.
    pub(super) fn dispatched(&mut self, before: Option<TaskId>, loaded: Option<TaskId>) {
        // One that only goes on from idleness may be the idle task with the handler of what woke it.
        let waker = self.interrupted.take().or(self.waker.filter(|_| before.is_none()));
        (self.before, self.waker, self.loaded) = (before, waker, loaded.filter(|_| before.is_none()));
    }

    /// The vCPU idles.
    pub(super) fn halted(&mut self) {
        *self = Asking::default();
    }

    /// What the task that runs now draws.
    pub(super) fn drawing(&self, vcpu: u16, drawer: TaskId) -> Drawing {
        let other = |task: &TaskId| *task != drawer;
        let [before, waker, loaded] = [self.before, self.waker, self.loaded].map(|task| task.filter(other));
        Drawing { vcpu, drawer, before, waker, loaded }
    }
}

/// A task at work, and for whom it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Drawing {
    pub(super) vcpu: u16,
    pub(super) drawer: TaskId,
    before: Option<TaskId>,
    waker: Option<TaskId>,
    #[serde(default)]
    loaded: Option<TaskId>,
}

impl Drawing {
    /// Those who may have asked it, the likeliest first.
    pub(super) fn candidates(&self) -> impl Iterator<Item = TaskId> {
        [self.before, self.waker].into_iter().flatten()
    }

    /// One that may have asked it, or only was there when nothing ran.
    pub(super) fn loaded(&self) -> Option<TaskId> {
        self.loaded
    }

    /// Who mostly has, if anybody.
    pub(super) fn usual(&self) -> Option<TaskId> {
        self.before.or(self.waker)
    }
}
