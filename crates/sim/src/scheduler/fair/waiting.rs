//! The run queues of the real-time class.

use crate::scheduler::{Entity, Pcpu};

/// Real-time entities that wait, for each physical CPU: the highest priority first, and the first come of
/// those.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) queues: Vec<Vec<(u8, Entity)>>,
    /// How many wait anywhere.
    pub(super) count: usize,
}

impl Waiting {
    pub(super) fn on(pcpus: usize) -> Waiting {
        Waiting { queues: vec![Vec::new(); pcpus], count: 0 }
    }

    pub(super) fn len(&self, pcpu: Pcpu) -> usize {
        self.queues[pcpu.index()].len()
    }

    /// Behind those of its priority.
    pub(super) fn push_back(&mut self, pcpu: Pcpu, entity: Entity, priority: u8) {
        let queue = &mut self.queues[pcpu.index()];
        let place = queue.partition_point(|(other, _)| *other >= priority);
        queue.insert(place, (priority, entity));
        self.count += 1;
    }

    /// Before those of its priority, as it was preempted.
    pub(super) fn push_front(&mut self, pcpu: Pcpu, entity: Entity, priority: u8) {
        let queue = &mut self.queues[pcpu.index()];
        let place = queue.partition_point(|(other, _)| *other > priority);
        queue.insert(place, (priority, entity));
        self.count += 1;
    }

    pub(super) fn remove(&mut self, pcpu: Pcpu, entity: Entity) {
        let queue = &mut self.queues[pcpu.index()];
        if let Some(place) = queue.iter().position(|(_, other)| *other == entity) {
            queue.remove(place);
            self.count -= 1;
        }
    }
}
