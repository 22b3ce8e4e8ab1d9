//! The engine's own reservation dispatcher (VSched §3.3) as the scheduler of a host.
//!
//! What has no reservation shares what is left, in turns, and who is boosted comes before who is not.

use super::reserved::{DISPATCH, ReservedGroups};
use super::{Entity, EntitySpec, Group, GroupSpec, Host, HostScheduler, Pcpu, PcpuSet, SchedulerTimer};
use crate::{NEVER, Nanos, Timer};
use frontdesk_engine::Boost;
use frontdesk_engine::reservation::{DispatchKind, Reservation};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// How long one without a reservation runs before it is another's turn.
const TURN: Nanos = 10_000_000;

/// Earliest deadline first for groups with reservations. Whether they fit is for the engine's
/// [`Admission`](frontdesk_engine::reservation::Admission) to say; here they may ask for too much, and miss.
#[must_use]
pub fn edf(reservations: &[(Group, Reservation)]) -> Box<dyn HostScheduler> {
    Box::new(Edf { reserved: ReservedGroups::new(reservations), ..Edf::default() })
}

#[derive(Debug, Default)]
struct Edf {
    reserved: ReservedGroups,
    /// Of the physical CPUs, with their numbers.
    turns: Vec<Timer>,
    entities: Vec<EntityState>,
    /// Those that are runnable and do not run, the first come first.
    waiting: VecDeque<Entity>,
}

#[derive(Debug)]
struct EntityState {
    affinity: PcpuSet,
    emulator: bool,
    boosted: bool,
    /// How it is scheduled, if it has a reservation.
    kind: Option<DispatchKind>,
}

/// Who comes first: the highest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Leftover,
    Ordinary,
    Boosted,
    /// By level, an emulator thread before the vCPU that it runs with.
    Reserved(u8, bool),
}

impl EntityState {
    /// Its rank; `None`: it must not run.
    fn rank(&self) -> Option<Rank> {
        match self.kind {
            Some(DispatchKind::Run { level }) => Some(Rank::Reserved(level, self.emulator)),
            Some(DispatchKind::Leftover) => Some(Rank::Leftover),
            Some(DispatchKind::Stop) => None,
            None => Some(if self.boosted { Rank::Boosted } else { Rank::Ordinary }),
        }
    }
}

impl Edf {
    fn rank(&self, entity: Entity) -> Option<Rank> {
        self.entities[entity.index()].rank()
    }

    /// Does what the dispatcher said.
    fn carry_out(&mut self, host: &mut Host, dispatches: Vec<(Entity, DispatchKind)>) {
        for (entity, kind) in dispatches {
            let state = &mut self.entities[entity.index()];
            state.kind = Some(kind);
            state.affinity.iter().for_each(|pcpu| host.reschedule(pcpu));
        }
    }

    /// Asks for a decision where an entity that wants to run comes before who runs: wherever nobody does, or
    /// where the lowest does.
    fn preempt(&self, host: &mut Host, entity: Entity) {
        let rank = self.rank(entity);
        let allowed = self.entities[entity.index()].affinity;
        let lower = |pcpu: &Pcpu| allowed.contains(*pcpu) && self.running(host, *pcpu) < rank;
        let lowest = host.pcpus().filter(lower).min_by_key(|pcpu| (self.running(host, *pcpu), *pcpu));
        let idle: PcpuSet = host.pcpus().filter(|pcpu| host.current(*pcpu).is_none()).collect();
        idle.and(allowed).iter().chain(lowest).for_each(|pcpu| host.reschedule(pcpu));
    }

    /// Rank of who runs on a physical CPU; `None`: nobody does, or must not.
    fn running(&self, host: &Host, pcpu: Pcpu) -> Option<Rank> {
        host.current(pcpu).and_then(|current| self.rank(current))
    }
}

impl HostScheduler for Edf {
    fn name(&self) -> &'static str {
        "edf"
    }

    fn add_group(&mut self, _: Group, _: GroupSpec) {}

    fn add_entity(&mut self, entity: Entity, spec: EntitySpec) {
        self.reserved.add(entity, &spec);
        let EntitySpec { affinity, emulator, .. } = spec;
        self.entities.push(EntityState { affinity, emulator, boosted: false, kind: None });
    }

    fn start(&mut self, host: &mut Host) {
        self.turns = host.pcpus().map(|pcpu| host.add_timer(SchedulerTimer(u32::from(pcpu.0)))).collect();
        for (entity, pcpu) in self.reserved.start(host) {
            self.entities[entity.index()].affinity = [pcpu].into_iter().collect();
        }
        let dispatches = self.reserved.dispatches(host);
        self.carry_out(host, dispatches);
    }

    fn wake(&mut self, host: &mut Host, entity: Entity) {
        self.waiting.push_back(entity);
        self.reserved.wake(host, entity);
        self.preempt(host, entity);
    }

    fn block(&mut self, _: &mut Host, entity: Entity, _: Pcpu) {
        self.reserved.block(entity);
    }

    fn pick(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity> {
        let dispatches = self.reserved.decide(host);
        self.carry_out(host, dispatches);
        let current = host.current(pcpu);
        let may = |entity: &Entity| self.entities[entity.index()].affinity.contains(pcpu);
        let rank = |entity: Entity| self.rank(entity).filter(|_| may(&entity));
        let over = host.due(self.turns[pcpu.index()]) <= host.now();
        // Whoever runs goes on beside its equals, unless its turn is over.
        let own = current.and_then(|entity| Some((rank(entity)?, if over { 0 } else { 2 }, entity)));
        let others = self.waiting.iter().enumerate();
        let others = others.filter_map(|(at, entity)| Some(((rank(*entity)?, 1, Reverse(at)), *entity)));
        let first = others.max_by_key(|(key, _)| *key);
        let next = match (own, first) {
            (Some((rank, turn, own)), Some(((higher, other, _), first))) => {
                Some(if (rank, turn) > (higher, other) { own } else { first })
            }
            (own, first) => own.map(|(_, _, own)| own).or(first.map(|(_, first)| first)),
        };
        if next != current {
            self.waiting.extend(current);
        }
        self.waiting.retain(|waiting| Some(*waiting) != next);
        if next != current || over {
            host.arm(self.turns[pcpu.index()], if next.is_some() { host.now() + TURN } else { NEVER });
        }
        next
    }

    fn timer(&mut self, host: &mut Host, timer: SchedulerTimer) {
        if timer == DISPATCH {
            self.reserved.due(host);
        } else if let Ok(pcpu) = u16::try_from(timer.0) {
            // The timer is no longer armed, which says that the turn is over.
            host.reschedule(Pcpu(pcpu));
        }
    }

    fn boost(&mut self, host: &mut Host, entity: Entity, level: Boost) {
        self.entities[entity.index()].boosted = level != Boost::None;
        match host.running_on(entity) {
            Some(pcpu) => host.reschedule(pcpu),
            None if host.is_runnable(entity) => self.preempt(host, entity),
            None => {}
        }
    }

    fn share(&mut self, _: &mut Host, _: Group, _: u32) {}
}
