//! The guest tasks of a VM (TAVS §4.1): one registry, whichever vCPUs they run on.

use crate::config::Tavs;
use crate::event::{TaskId, Time};

use crate::state::{StateError, check};
use lru::LruCache;
use serde::{Deserialize, Serialize};

/// What an observation of a task says about it (TAVS §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    Positive,
    Negative,
}

/// What is known of a guest task. Its threads may run on several vCPUs at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) belief: i32,
    pub(crate) ran: u64,
    pub(crate) dispatches: u64,
    pub(crate) last_seen: Time,
}

/// A bounded pool of tasks. Who makes room is the least recently seen of those that are not I/O-bound, and
/// only if there are none the I/O-bound one that was seen least recently (TAVS §4.3.1): a guest that forks
/// without end does not evict what was learnt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Registry {
    per_vcpu: usize,
    capacity: usize,
    #[serde(with = "crate::lru")]
    io_bound: LruCache<TaskId, Task>,
    #[serde(with = "crate::lru")]
    others: LruCache<TaskId, Task>,
}

/// Limits of the tasks of a VM, and of [`Tavs::tasks_per_vcpu`].
const MAX_CAPACITY: usize = 65_536;

impl Registry {
    pub(crate) fn new(vcpus: usize, config: &Tavs) -> Registry {
        let mut registry = Registry {
            per_vcpu: config.tasks_per_vcpu,
            capacity: 0,
            // A cache made with its bound would take the memory for all entries at once, and most guests have
            // few tasks.
            io_bound: LruCache::unbounded(),
            others: LruCache::unbounded(),
        };
        registry.resize(vcpus);
        registry
    }

    /// Makes room for the tasks of so many vCPUs.
    pub(crate) fn resize(&mut self, vcpus: usize) {
        self.capacity = self.per_vcpu.saturating_mul(vcpus).clamp(1, MAX_CAPACITY);
        while self.len() > self.capacity {
            self.evict();
        }
    }

    /// Completes a registry that was loaded.
    pub(crate) fn restore(&mut self, config: &Tavs) -> Result<(), StateError> {
        check((1..=MAX_CAPACITY).contains(&self.capacity), "a task table larger than any")?;
        check(self.len() <= self.capacity, "a task table beyond its capacity")?;
        check(self.io_bound.iter().all(|(id, _)| !self.others.contains(id)), "a task twice")?;
        self.reconsider(config);
        Ok(())
    }

    fn evict(&mut self) {
        let _ = self.others.pop_lru().or_else(|| self.io_bound.pop_lru());
    }

    /// Notes that `id` is dispatched; returns whether it is I/O-bound.
    pub(crate) fn dispatch(&mut self, id: TaskId, now: Time, config: &Tavs) -> bool {
        let known = self.io_bound.get_mut(&id);
        let io_bound = known.is_some();
        if let Some(task) = known.or_else(|| self.others.get_mut(&id)) {
            task.dispatches = task.dispatches.saturating_add(1);
            task.last_seen = now;
            return io_bound;
        }
        if self.len() >= self.capacity {
            self.evict();
        }
        let task = Task { dispatches: 1, last_seen: now, ..Task::default() };
        // Nothing is known of it, and that is enough with a threshold below 0.
        let io_bound = is_io_bound(&task, config);
        let tasks = if io_bound { &mut self.io_bound } else { &mut self.others };
        tasks.put(id, task);
        io_bound
    }

    /// Adds run time to a task.
    pub(crate) fn charge(&mut self, id: TaskId, ran: u64) {
        if let Some(task) = self.io_bound.peek_mut(&id).or_else(|| self.others.peek_mut(&id)) {
            task.ran = task.ran.saturating_add(ran);
        }
    }

    /// Applies evidence to a task's degree of belief.
    pub(crate) fn observe(&mut self, id: TaskId, evidence: Evidence, config: &Tavs) {
        let was = self.io_bound.contains(&id);
        let tasks = if was { &mut self.io_bound } else { &mut self.others };
        let Some(task) = tasks.peek_mut(&id) else { return };
        let change = match evidence {
            Evidence::Positive => config.positive_evidence,
            Evidence::Negative => config.negative_evidence.saturating_neg(),
        };
        task.belief = task.belief.saturating_add(change).max(config.belief_min).min(config.belief_max);
        if is_io_bound(task, config) != was {
            let task = tasks.pop(&id);
            let others = if was { &mut self.others } else { &mut self.io_bound };
            if let Some(task) = task {
                others.put(id, task);
            }
        }
    }

    /// Sorts anew after a change of the threshold.
    pub(crate) fn reconsider(&mut self, config: &Tavs) {
        let sorted = |tasks: &LruCache<TaskId, Task>, io_bound| {
            tasks.iter().all(|(_, task)| is_io_bound(task, config) == io_bound)
        };
        if sorted(&self.io_bound, true) && sorted(&self.others, false) {
            return;
        }
        let (io_bound, others) = (self.io_bound.iter(), self.others.iter());
        let mut tasks: Vec<_> = io_bound.chain(others).map(|(id, task)| (*id, task.clone())).collect();
        tasks.sort_by_key(|(id, task)| (task.last_seen, *id));
        self.io_bound.clear();
        self.others.clear();
        for (id, task) in tasks {
            let of = if is_io_bound(&task, config) { &mut self.io_bound } else { &mut self.others };
            of.put(id, task);
        }
    }

    pub(crate) fn is_io_bound(&self, id: TaskId) -> bool {
        self.io_bound.contains(&id)
    }

    pub(crate) fn belief(&self, id: TaskId) -> Option<i32> {
        self.io_bound.peek(&id).or_else(|| self.others.peek(&id)).map(|task| task.belief)
    }

    /// When a task was dispatched last.
    pub(crate) fn last_seen(&self, id: TaskId) -> Option<Time> {
        self.io_bound.peek(&id).or_else(|| self.others.peek(&id)).map(|task| task.last_seen)
    }

    /// Whether any task is I/O-bound.
    pub(crate) fn any_io_bound(&self) -> bool {
        !self.io_bound.is_empty()
    }

    /// How many tasks are remembered.
    pub(crate) fn len(&self) -> usize {
        self.io_bound.len() + self.others.len()
    }

    /// How many of them are I/O-bound.
    pub(crate) fn io_bound_count(&self) -> usize {
        self.io_bound.len()
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |len| crate::lru::bytes::<TaskId, Task>(len, len);
        bytes(self.io_bound.len()) + bytes(self.others.len())
    }

    /// All tasks, the most recently seen of either kind first; whether each is I/O-bound.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TaskId, &Task, bool)> {
        let (mut io_bound, mut others) = (self.io_bound.iter().peekable(), self.others.iter().peekable());
        std::iter::from_fn(move || {
            let first = match (io_bound.peek(), others.peek()) {
                (Some((_, a)), Some((_, b))) => a.last_seen >= b.last_seen,
                (a, _) => a.is_some(),
            };
            let next = if first { io_bound.next() } else { others.next() };
            next.map(|(id, task)| (*id, task, first))
        })
    }
}

fn is_io_bound(task: &Task, config: &Tavs) -> bool {
    task.belief > config.belief_threshold
}

#[cfg(test)]
mod tests {
    use super::*;

    fn believed(registry: &mut Registry, id: u64, config: &Tavs) {
        registry.dispatch(TaskId(id), Time(id), config);
        for _ in 0..5 {
            registry.observe(TaskId(id), Evidence::Positive, config);
        }
    }

    #[test]
    fn who_is_not_io_bound_makes_room_first_and_then_the_least_recently_seen() {
        let config = Tavs { tasks_per_vcpu: 8, ..Tavs::default() };
        let mut registry = Registry::new(1, &config);
        believed(&mut registry, 1, &config);
        for task in 1000..1100 {
            registry.dispatch(TaskId(task), Time(task), &config);
        }
        assert_eq!(
            (registry.len(), registry.is_io_bound(TaskId(1))),
            (8, true),
            "forks evict nobody believed"
        );
        for task in 2..10 {
            believed(&mut registry, task, &config);
        }
        assert_eq!(registry.io_bound_count(), 8);
        assert!(!registry.is_io_bound(TaskId(1)) && registry.is_io_bound(TaskId(2)));
        registry.resize(2);
        registry.dispatch(TaskId(2000), Time(2000), &config);
        assert_eq!((registry.len(), registry.io_bound_count()), (9, 8));
        registry.resize(1);
        assert_eq!((registry.len(), registry.io_bound_count()), (8, 8));
    }

    #[test]
    fn a_change_of_the_threshold_sorts_anew() {
        let mut config = Tavs::default();
        let mut registry = Registry::new(1, &config);
        believed(&mut registry, 1, &config);
        registry.dispatch(TaskId(2), Time(2), &config);
        config.belief_threshold = 25;
        registry.reconsider(&config);
        assert_eq!(registry.io_bound_count(), 0);
        config.belief_threshold = 24;
        registry.reconsider(&config);
        assert!(registry.is_io_bound(TaskId(1)) && !registry.is_io_bound(TaskId(2)));
        let order: Vec<u64> = registry.iter().map(|(id, ..)| id.0).collect();
        assert_eq!(order, [2, 1], "most recently seen first");
    }

    #[test]
    fn with_a_threshold_below_0_every_task_is_io_bound_from_the_first() {
        let config = Tavs { belief_threshold: -1, ..Tavs::default() };
        let mut registry = Registry::new(1, &config);
        assert!(registry.dispatch(TaskId(1), Time(1), &config) && registry.is_io_bound(TaskId(1)));
        registry.observe(TaskId(1), Evidence::Negative, &config);
        assert!(!registry.dispatch(TaskId(1), Time(2), &config), "until it is known better");
    }
}
