//! The real-time class (SCHED_FIFO), in which boosted entities run.

use super::{Discipline, GroupFair, Placement};
use crate::scheduler::{Entity, Host, Pcpu};
use frontdesk_engine::Boost;

/// Real-time entities that wait for a physical CPU: the highest priority first, and the first come of those.
#[derive(Debug, Default)]
pub(super) struct Waiting(Vec<(u8, Entity)>);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Behind those of its priority.
    pub(super) fn push_back(&mut self, entity: Entity, priority: u8) {
        let place = self.0.partition_point(|(other, _)| *other >= priority);
        self.0.insert(place, (priority, entity));
    }

    /// Before those of its priority, as it was preempted.
    fn push_front(&mut self, entity: Entity, priority: u8) {
        let place = self.0.partition_point(|(other, _)| *other > priority);
        self.0.insert(place, (priority, entity));
    }

    pub(super) fn remove(&mut self, entity: Entity) {
        self.0.retain(|(_, other)| *other != entity);
    }
}

impl<D: Discipline> GroupFair<D> {
    /// The real-time entity that runs next on a physical CPU.
    pub(super) fn pick_realtime(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity> {
        let priority = |entity: Entity| self.tasks[entity.index()].priority;
        let here = |entity: &Entity| self.tasks[entity.index()].home == Some(pcpu);
        let current = host.current(pcpu).filter(|entity| priority(*entity) > 0 && here(entity));
        let waiting = self.pcpus[pcpu.index()].realtime.0.first().copied();
        match (current, waiting) {
            (Some(current), Some((higher, first))) if higher > priority(current) => {
                let own = priority(current);
                let queue = &mut self.pcpus[pcpu.index()].realtime;
                queue.remove(first);
                queue.push_front(current, own);
                self.push(host, current);
                Some(first)
            }
            (Some(current), _) => Some(current),
            (None, Some((_, first))) => {
                self.pcpus[pcpu.index()].realtime.remove(first);
                Some(first)
            }
            (None, None) => self.pull_realtime(host, pcpu),
        }
    }

    /// Takes over a real-time entity that waits elsewhere.
    fn pull_realtime(&mut self, host: &Host, pcpu: Pcpu) -> Option<Entity> {
        let allowed = |(_, entity): &&(u8, Entity)| self.tasks[entity.index()].affinity.contains(pcpu);
        let first = |from: &super::PcpuState| from.realtime.0.iter().find(allowed).copied();
        let (_, entity) = self.pcpus.iter().filter_map(first).max_by_key(|(priority, _)| *priority)?;
        if let Some(from) = self.tasks[entity.index()].home {
            self.pcpus[from.index()].realtime.remove(entity);
        }
        self.settle(host, entity, pcpu);
        Some(entity)
    }

    /// Sends a real-time entity that has to wait to a physical CPU on which none runs.
    pub(super) fn push(&mut self, host: &mut Host, entity: Entity) {
        let task = &self.tasks[entity.index()];
        let Some(home) = task.home else { return };
        let priority = |entity: Entity| self.tasks[entity.index()].priority;
        if task.priority == 0 || host.current(home).is_none_or(|current| priority(current) < task.priority) {
            return;
        }
        let free = |pcpu: &Pcpu| {
            task.affinity.contains(*pcpu)
                && self.pcpus[pcpu.index()].realtime.is_empty()
                && host.current(*pcpu).is_none_or(|current| priority(current) == 0)
        };
        let idle = host.pcpus().filter(free).find(|pcpu| self.is_idle(host, *pcpu));
        if let Some(to) = idle.or_else(|| host.pcpus().find(free)) {
            self.migrate(host, entity, to);
        }
    }

    /// Moves an entity to the real-time class, or back. Emulator threads are above vCPUs: a vCPU must not starve the thread that delivers
    /// its input.
    pub(super) fn set_priority(&mut self, host: &mut Host, entity: Entity, level: Boost) {
        let task = &self.tasks[entity.index()];
        let priority = if level == Boost::None { 0 } else { 1 + u8::from(task.emulator) };
        if priority == task.priority {
            return;
        }
        let Some(home) = task.home else {
            self.tasks[entity.index()].priority = priority;
            return;
        };
        let runnable = host.is_runnable(entity);
        if runnable {
            self.dismiss(host, entity);
            self.forget(host, entity);
        } else if self.nodes[entity.index()].delayed {
            self.release(host.now(), home, entity);
        }
        self.tasks[entity.index()].priority = priority;
        if host.running_on(entity).is_some() {
            if priority == 0 {
                self.enqueue(host, home, entity, Placement::Moved);
                self.switch(host.now(), home, Some(entity));
            }
            host.reschedule(home);
        } else if runnable {
            self.admit(host, entity, Placement::Moved);
            self.push(host, entity);
        }
    }
}
