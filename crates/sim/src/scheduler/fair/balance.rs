//! Load balancing between physical CPUs: who finds nothing to do takes from the others, and now and then the
//! load is evened out.

use super::discipline::Discipline;
use super::group_fair::GroupFair;
use super::load::SCALE;
use crate::Nanos;
use crate::scheduler::{Entity, Host, Pcpu};

/// Between two looks at the other physical CPUs, for each of them: 1 ms, and 16 times that while there is
/// something to do.
const INTERVAL: Nanos = 16_000_000;
/// Two loads whose quotient is below this, in percent, are equal.
const IMBALANCE_PCT: u64 = 117;
/// Who was picked or queued so short a time ago is in the caches.
const HOT: Nanos = 500_000;

impl<D: Discipline> GroupFair<D> {
    /// The fair entity that runs next on a physical CPU, taken from another one if there is none.
    pub(super) fn pick_fairly(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity> {
        self.choose(host.now(), pcpu).or_else(|| {
            let entity = self.spare(host, pcpu)?;
            self.migrate(host, entity, pcpu);
            self.choose(host.now(), pcpu)
        })
    }

    /// Fair entities that wait on a physical CPU.
    fn waiting(&self, host: &Host, pcpu: Pcpu) -> usize {
        let fair = |entity: Entity| self.tasks[entity.index()].priority == 0;
        self.pcpus[pcpu.index()].members.len() - usize::from(host.current(pcpu).is_some_and(fair))
    }

    /// Of those that wait on a physical CPU and could run on another, the one that was touched longest ago.
    fn candidate(&self, host: &Host, from: Pcpu, to: Pcpu, suits: impl Fn(Entity) -> bool) -> Option<Entity> {
        let movable = |entity: &Entity| {
            host.running_on(*entity).is_none()
                && self.tasks[entity.index()].affinity.contains(to)
                && suits(*entity)
        };
        let members = self.pcpus[from.index()].members.iter().copied().filter(movable);
        members.min_by_key(|entity| (self.tasks[entity.index()].touched, *entity))
    }

    /// Who waits where most do and could run here.
    fn spare(&self, host: &Host, pcpu: Pcpu) -> Option<Entity> {
        let busiest =
            host.pcpus().filter(|other| *other != pcpu).max_by_key(|other| self.waiting(host, *other))?;
        if self.waiting(host, busiest) == 0 {
            return None;
        }
        self.candidate(host, busiest, pcpu, |_| true)
    }

    /// Tells a physical CPU that idles that somebody waits here.
    pub(super) fn offer(&self, host: &mut Host, pcpu: Pcpu) {
        if self.waiting(host, pcpu) == 0 {
            return;
        }
        let idle = host.idle().iter().find(|other| {
            self.is_idle(host, *other) && self.candidate(host, pcpu, *other, |_| true).is_some()
        });
        if let Some(idle) = idle {
            host.reschedule(idle);
        }
    }

    /// The load of an entity on the level of groups.
    fn load_of(&self, entity: Entity, pcpu: Pcpu) -> u64 {
        let cell = self.cell(self.tasks[entity.index()].group, pcpu);
        let group = self.nodes[self.cell_node(cell) as usize].weight;
        let part = u128::from(self.nodes[entity.index()].weight) * u128::from(group)
            / u128::from(self.cells[cell].queue.load.max(1));
        u64::try_from(part).unwrap_or(u64::MAX) / SCALE
    }

    /// Takes load from the physical CPU that has most of it.
    pub(super) fn balance(&mut self, host: &mut Host, pcpu: Pcpu) {
        let now = host.now();
        let pcpus = u64::try_from(self.pcpus.len()).unwrap_or(1);
        self.pcpus[pcpu.index()].balance_at = now + INTERVAL * pcpus;
        for other in host.pcpus() {
            // Who idles has no tick to do it itself.
            if other == pcpu || self.is_idle(host, other) {
                self.fade(now, other);
            }
        }
        let load = |pcpu: Pcpu| self.pcpus[pcpu.index()].queue.load / SCALE;
        let overloaded = |other: &Pcpu| *other != pcpu && self.waiting(host, *other) > 0;
        let Some(busiest) = host.pcpus().filter(overloaded).max_by_key(|other| load(*other)) else { return };
        let average = host.pcpus().map(load).sum::<u64>() / pcpus;
        let (most, own) = (load(busiest), load(pcpu));
        if own >= average || most * 100 <= own * IMBALANCE_PCT {
            self.pcpus[pcpu.index()].failed = 0;
            return;
        }
        let mut imbalance = (average - own).min(most.saturating_sub(average));
        let failed = self.pcpus[pcpu.index()].failed;
        let mut moved = false;
        while imbalance > 0 {
            // Who is too heavy is moved all the same, after some vain attempts.
            let suits = |entity| {
                let task = &self.tasks[Entity::index(entity)];
                now - task.touched >= HOT && self.load_of(entity, busiest) >> failed.min(63) <= imbalance
            };
            let Some(entity) = self.candidate(host, busiest, pcpu, suits) else { break };
            imbalance = imbalance.saturating_sub(self.load_of(entity, busiest).max(1));
            self.migrate(host, entity, pcpu);
            moved = true;
        }
        self.pcpus[pcpu.index()].failed = if moved { 0 } else { failed + 1 };
    }
}
