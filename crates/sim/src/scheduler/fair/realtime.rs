//! The real-time class (SCHED_FIFO), in which boosted entities run.

use super::discipline::{Discipline, Placement};
use super::group_fair::{GroupFair, SchedEntity};
use crate::scheduler::{Entity, Host, Pcpu};
use frontdesk_engine::Boost;
use frontdesk_engine::reservation::DispatchKind;

impl SchedEntity {
    /// Its real-time priority; 0 in the fair class. Emulator threads are above vCPUs, with the daemon's
    /// priorities: a vCPU must not starve the thread that delivers its input. A reservation with a limit that
    /// is not hard, as those of an arm are, never stops anybody.
    fn wanted_priority(&self) -> u8 {
        let vcpu = match (self.reserved, self.boost) {
            (Some(DispatchKind::Run { level }), _) => 3 + 2 * level,
            (Some(DispatchKind::Leftover | DispatchKind::Stop), _) | (None, Boost::None) => return 0,
            (None, Boost::Io) => 1,
            (None, Boost::Multimedia) => 3,
        };
        vcpu + u8::from(self.emulator)
    }
}

impl<D: Discipline> GroupFair<D> {
    /// The real-time entity that runs next on a physical CPU.
    pub(super) fn pick_realtime(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity> {
        let priority = |entity: Entity| self.tasks[entity.index()].priority;
        let here = |entity: &Entity| self.tasks[entity.index()].home == Some(pcpu);
        let current = host.current(pcpu).filter(|entity| priority(*entity) > 0 && here(entity));
        let waiting = self.realtime.queues[pcpu.index()].first().copied();
        match (current, waiting) {
            (Some(current), Some((higher, first))) if higher > priority(current) => {
                let own = priority(current);
                self.realtime.remove(pcpu, first);
                self.realtime.push_front(pcpu, current, own);
                self.push(host, current);
                Some(first)
            }
            (Some(current), _) => Some(current),
            (None, Some((_, first))) => {
                self.realtime.remove(pcpu, first);
                Some(first)
            }
            (None, None) => self.pull_realtime(host, pcpu),
        }
    }

    /// Takes over a real-time entity that waits elsewhere.
    fn pull_realtime(&mut self, host: &Host, pcpu: Pcpu) -> Option<Entity> {
        if self.realtime.count == 0 {
            return None;
        }
        let allowed = |(_, entity): &&(u8, Entity)| self.tasks[entity.index()].affinity.contains(pcpu);
        let first = |queue: &Vec<(u8, Entity)>| queue.iter().find(allowed).copied();
        let (_, entity) =
            self.realtime.queues.iter().filter_map(first).max_by_key(|(priority, _)| *priority)?;
        if let Some(from) = self.tasks[entity.index()].home {
            self.realtime.remove(from, entity);
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
                && self.realtime.len(*pcpu) == 0
                && host.current(*pcpu).is_none_or(|current| priority(current) == 0)
        };
        let idle = host.idle().iter().filter(free).find(|pcpu| self.is_idle(host, *pcpu));
        if let Some(to) = idle.or_else(|| host.pcpus().find(free)) {
            self.migrate(host, entity, to);
        }
    }

    /// Does what the dispatcher of reservations said.
    pub(super) fn schedule_reserved(&mut self, host: &mut Host, dispatches: Vec<(Entity, DispatchKind)>) {
        for (entity, kind) in dispatches {
            self.tasks[entity.index()].reserved = Some(kind);
            self.reclass(host, entity);
        }
    }

    /// Moves an entity to the real-time class, or back, as its boost and its reservation say.
    pub(super) fn reclass(&mut self, host: &mut Host, entity: Entity) {
        let task = &self.tasks[entity.index()];
        let priority = task.wanted_priority();
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
