//! The engine's own reservation dispatcher (VSched §3.3) as the scheduler of a host.
//!
//! Entities of a group with a reservation are its members, each on a physical CPU of its own; the [`Dispatcher`] decides when they run.
//! The others share what is left, in turns, and one that is boosted comes before those that are not.

use super::{Entity, EntitySpec, Group, GroupSpec, Host, HostScheduler, Pcpu, PcpuSet, SchedulerTimer};
use crate::{NEVER, Nanos, Timer};
use frontdesk_engine::reservation::{
    DispatchKind, Dispatcher, Event, EventKind, Member, Meter, Reading, Reservation, TargetId,
};
use frontdesk_engine::{Boost, Time};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// How long one without a reservation runs before it is another's turn.
const TURN: Nanos = 10_000_000;
/// The timer of the dispatcher; those of the turns have the numbers of their physical CPUs.
const DISPATCH: SchedulerTimer = SchedulerTimer(u32::MAX);

/// Earliest deadline first for groups with reservations. Whether they fit is for the engine's
/// [`Admission`](frontdesk_engine::reservation::Admission) to say; here they may ask for too much, and miss.
#[must_use]
pub fn edf(reservations: &[(Group, Reservation)]) -> Box<dyn HostScheduler> {
    Box::new(Edf { reservations: reservations.to_vec(), ..Edf::default() })
}

#[derive(Debug, Default)]
struct Edf {
    reservations: Vec<(Group, Reservation)>,
    dispatcher: Dispatcher,
    /// What it was told last; kept for its memory.
    told: Event,
    dispatch: Option<Timer>,
    turns: Vec<Timer>,
    entities: Vec<State>,
    /// Those that are runnable and do not run, the first come first.
    waiting: VecDeque<Entity>,
    /// Something happened that the dispatcher does not know yet. It decides once about all that happens at one time.
    stale: bool,
}

#[derive(Debug)]
struct State {
    group: Group,
    affinity: PcpuSet,
    boosted: bool,
    woken: Time,
    /// How it is scheduled, if it has a reservation.
    kind: Option<DispatchKind>,
}

/// Who comes first: the highest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Leftover,
    Ordinary,
    Boosted,
    Reserved(u8),
}

impl State {
    /// Its rank; `None`: it must not run.
    fn rank(&self) -> Option<Rank> {
        match self.kind {
            Some(DispatchKind::Run { level }) => Some(Rank::Reserved(level)),
            Some(DispatchKind::Leftover) => Some(Rank::Leftover),
            Some(DispatchKind::Stop) => None,
            None => Some(if self.boosted { Rank::Boosted } else { Rank::Ordinary }),
        }
    }
}

/// What the dispatcher is told about the machine.
struct View<'a> {
    host: &'a Host,
    entities: &'a [State],
}

impl Meter for View<'_> {
    fn read(&self, member: Member) -> Reading {
        let of_target = |(_, state): &(usize, &State)| state.group == Group(member.target.0);
        let mut members = self.entities.iter().enumerate().filter(of_target);
        let Some((index, state)) = members.nth(usize::from(member.index)) else { return Reading::default() };
        let entity = Entity(u32::try_from(index).unwrap_or(u32::MAX));
        Reading { ran_ns: self.host.ran(entity), ready: self.host.is_runnable(entity), woken: state.woken }
    }
}

impl Edf {
    fn rank(&self, entity: Entity) -> Option<Rank> {
        self.entities[entity.index()].rank()
    }

    /// The entity that is this member.
    fn entity(&self, member: Member) -> Option<Entity> {
        let of_target = |(_, state): &(usize, &State)| state.group == Group(member.target.0);
        let mut members = self.entities.iter().enumerate().filter(of_target);
        members.nth(usize::from(member.index)).and_then(|(index, _)| u32::try_from(index).ok()).map(Entity)
    }

    /// Tells the dispatcher what happened, and how its members are.
    fn tell(&mut self, host: &Host, kind: EventKind) {
        (self.told.at, self.told.kind) = (Time(host.now()), kind);
        self.dispatcher.read(&mut self.told, &View { host, entities: &self.entities });
        self.dispatcher.on_event(&self.told);
    }

    /// Lets the dispatcher decide, and does what it says.
    fn decide(&mut self, host: &mut Host) {
        self.tell(host, EventKind::Decide { tolerance_ns: 0 });
        self.carry_out(host);
    }

    fn carry_out(&mut self, host: &mut Host) {
        while let Some(action) = self.dispatcher.poll_action() {
            if let Some(entity) = self.entity(action.member) {
                self.entities[entity.index()].kind = Some(action.kind);
                host.reschedule(Pcpu(action.cpu));
            }
        }
        if let Some(timer) = self.dispatch {
            host.arm(timer, self.dispatcher.next_due().map_or(NEVER, |due| due.at.0.max(host.now())));
        }
    }

    /// Asks for a decision where an entity that wants to run comes before who runs: wherever nobody does, or where the lowest does.
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

    fn add_entity(&mut self, _: Entity, spec: EntitySpec) {
        self.entities.push(State {
            group: spec.group,
            affinity: spec.affinity,
            boosted: false,
            woken: Time::default(),
            kind: None,
        });
    }

    fn start(&mut self, host: &mut Host) {
        self.turns = host.pcpus().map(|pcpu| host.add_timer(SchedulerTimer(u32::from(pcpu.0)))).collect();
        self.dispatch = Some(host.add_timer(DISPATCH));
        for (group, reservation) in self.reservations.clone() {
            let mut taken = PcpuSet::default();
            for index in 0u16.. {
                let member = Member { target: TargetId(group.0), index };
                let Some(entity) = self.entity(member) else { break };
                let allowed = self.entities[entity.index()].affinity;
                let mut candidates = host.pcpus().filter(|pcpu| allowed.contains(*pcpu));
                let free = candidates.find(|pcpu| !taken.contains(*pcpu));
                let Some(pcpu) = free.or(allowed.lowest()) else { continue };
                taken.insert(pcpu);
                self.entities[entity.index()].affinity = [pcpu].into_iter().collect();
                self.tell(host, EventKind::Set { member, cpu: pcpu.0, reservation });
            }
        }
        self.carry_out(host);
    }

    fn wake(&mut self, host: &mut Host, entity: Entity) {
        self.entities[entity.index()].woken = Time(host.now());
        self.waiting.push_back(entity);
        self.stale = true;
        if let Some(pcpu) = self.entities[entity.index()].affinity.lowest() {
            host.reschedule(pcpu);
        }
        self.preempt(host, entity);
    }

    fn block(&mut self, _: &mut Host, _: Entity, _: Pcpu) {
        self.stale = true;
    }

    fn pick(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity> {
        if std::mem::take(&mut self.stale) {
            self.decide(host);
        }
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
            self.stale = true;
            host.reschedule(Pcpu(0));
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
