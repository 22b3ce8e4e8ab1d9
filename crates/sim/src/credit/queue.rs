//! The run queue of a physical CPU: FIFO within a priority.

use super::Priority;
use crate::scheduler::Entity;
use std::collections::VecDeque;

/// vCPUs that wait, with the priority that they had when they were queued or when it was last stored.
#[derive(Debug, Default)]
pub(super) struct RunQueue(VecDeque<(Entity, Priority)>);

impl RunQueue {
    /// Queues behind all of the same or a higher priority; `first`: before those of the same.
    pub(super) fn insert(&mut self, entity: Entity, priority: Priority, first: bool) {
        // Between two sorts the queue may be out of order: Xen looks for the first of lower priority.
        let lower = |waiting: &(Entity, Priority)| waiting.1 < priority || (first && waiting.1 == priority);
        let place = self.0.iter().position(lower).unwrap_or(self.0.len());
        self.0.insert(place, (entity, priority));
    }

    pub(super) fn remove(&mut self, entity: Entity) {
        if let Some(place) = self.0.iter().position(|(waiting, _)| *waiting == entity) {
            self.0.remove(place);
        }
    }

    /// A waiting vCPU has another priority from now on, and keeps its place until the queue is sorted.
    pub(super) fn reprioritise(&mut self, entity: Entity, priority: Priority) {
        if let Some(waiting) = self.0.iter_mut().find(|(waiting, _)| *waiting == entity) {
            waiting.1 = priority;
        }
    }

    /// Moves those of at least UNDER before those that are OVER. BOOST and UNDER are not ordered against each
    /// other.
    pub(super) fn sort(&mut self) {
        self.0.make_contiguous().sort_by_key(|(_, priority)| *priority < Priority::Under);
    }

    pub(super) fn head(&self) -> Option<(Entity, Priority)> {
        self.0.front().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Entity, Priority)> + '_ {
        self.0.iter().copied()
    }
}
