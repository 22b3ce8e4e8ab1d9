//! The guest tasks of one vCPU and how sure we are that each is I/O-bound (TAVS §3.1, §4.1).

use crate::config::Tavs;
use crate::event::{TaskId, Time};
use crate::lru_bytes;
use crate::state::{StateError, check, lru as lru_list};
use lru::LruCache;
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;

/// What an observation of a task says about it (TAVS §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    Positive,
    Negative,
}

/// What is known of a guest task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) belief: i32,
    pub(crate) ran: u64,
    pub(crate) dispatches: u64,
    pub(crate) last_seen: Time,
}

/// A bounded pool of tasks; the least recently seen makes room.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TaskTable {
    capacity: NonZeroUsize,
    #[serde(with = "lru_list")]
    tasks: LruCache<TaskId, Task>,
    #[serde(skip)]
    io_bound: usize,
}

/// Limits of `capacity`, as of [`Tavs::tasks_per_vcpu`].
const MAX_CAPACITY: usize = 65_536;

impl TaskTable {
    pub(crate) fn new(config: &Tavs) -> TaskTable {
        let capacity = NonZeroUsize::new(config.tasks_per_vcpu).unwrap_or(NonZeroUsize::MIN);
        TaskTable { capacity, tasks: bounded(LruCache::unbounded(), capacity), io_bound: 0 }
    }

    /// Completes a table that was loaded.
    pub(crate) fn restore(&mut self, config: &Tavs) -> Result<(), StateError> {
        check(self.capacity.get() <= MAX_CAPACITY, "a task table larger than any")?;
        check(self.tasks.len() <= self.capacity.get(), "a task table beyond its capacity")?;
        let tasks = std::mem::replace(&mut self.tasks, LruCache::unbounded());
        self.tasks = bounded(tasks, self.capacity);
        self.reconsider(config);
        Ok(())
    }

    /// Notes that `id` is dispatched; returns whether it is I/O-bound.
    pub(crate) fn dispatch(&mut self, id: TaskId, now: Time, config: &Tavs) -> bool {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.dispatches = task.dispatches.saturating_add(1);
            task.last_seen = now;
            return is_io_bound(task, config);
        }
        let task = Task { dispatches: 1, last_seen: now, ..Task::default() };
        if let Some((_, evicted)) = self.tasks.push(id, task)
            && is_io_bound(&evicted, config)
        {
            self.io_bound = self.io_bound.saturating_sub(1);
        }
        false
    }

    /// Adds run time to the task that was dispatched last, if that is `id`.
    pub(crate) fn charge(&mut self, id: TaskId, ran: u64) {
        // It is the most recently used, so it need not be looked up.
        if let Some((_, task)) = self.tasks.iter_mut().next().filter(|(latest, _)| **latest == id) {
            task.ran = task.ran.saturating_add(ran);
        }
    }

    /// Applies evidence to a task's degree of belief.
    pub(crate) fn observe(&mut self, id: TaskId, evidence: Evidence, config: &Tavs) {
        let Some(task) = self.tasks.peek_mut(&id) else { return };
        let before = is_io_bound(task, config);
        let change = match evidence {
            Evidence::Positive => config.positive_evidence,
            Evidence::Negative => config.negative_evidence.saturating_neg(),
        };
        let belief = task.belief.saturating_add(change);
        task.belief = belief.max(config.belief_min).min(config.belief_max);
        match (before, is_io_bound(task, config)) {
            (false, true) => self.io_bound += 1,
            (true, false) => self.io_bound = self.io_bound.saturating_sub(1),
            _ => {}
        }
    }

    /// Counts anew after a change of the threshold.
    pub(crate) fn reconsider(&mut self, config: &Tavs) {
        self.io_bound = self.tasks.iter().filter(|(_, task)| is_io_bound(task, config)).count();
    }

    pub(crate) fn is_io_bound(&self, id: TaskId, config: &Tavs) -> bool {
        self.tasks.peek(&id).is_some_and(|task| is_io_bound(task, config))
    }

    pub(crate) fn belief(&self, id: TaskId) -> Option<i32> {
        self.tasks.peek(&id).map(|task| task.belief)
    }

    /// Whether any task is I/O-bound.
    pub(crate) fn any_io_bound(&self) -> bool {
        self.io_bound > 0
    }

    /// How many tasks are remembered.
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// How many of them are I/O-bound.
    pub(crate) fn io_bound_count(&self) -> usize {
        self.io_bound
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        lru_bytes::<TaskId, Task>(self.tasks.len(), self.tasks.len())
    }

    /// All tasks, most recently seen first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        self.tasks.iter().map(|(id, task)| (*id, task))
    }
}

pub(crate) fn is_io_bound(task: &Task, config: &Tavs) -> bool {
    task.belief > config.belief_threshold
}

/// A cache made with its bound would take the memory for all entries at once, and most guests have few tasks.
fn bounded(mut tasks: LruCache<TaskId, Task>, capacity: NonZeroUsize) -> LruCache<TaskId, Task> {
    tasks.resize(capacity);
    tasks
}
