//! What has reservations: the engine's own dispatcher (VSched §3.3), and who of a VM runs in whose slices.
//!
//! As on a real host, each vCPU of a VM is a member with slices of its own on a physical CPU of its own, and
//! the emulator threads run with the first one and share its slices.

use super::{Entity, EntitySpec, Group, Host, Pcpu, PcpuSet, SchedulerTimer};
use crate::{NEVER, Timer};
use frontdesk_engine::Time;
use frontdesk_engine::reservation::{
    DispatchKind, Dispatcher, Member, Meter, Reading, Reservation, ReservationEvent, ReservationEventKind,
    TargetId,
};
use std::collections::BTreeMap;

/// The timer of the dispatcher. Schedulers number their own from 0.
pub(super) const DISPATCH: SchedulerTimer = SchedulerTimer(u32::MAX);

/// The groups that have reservations.
#[derive(Debug, Default)]
pub(super) struct ReservedGroups {
    reservations: Vec<(Group, Reservation)>,
    members: BTreeMap<Member, MemberEntities>,
    /// By entity: the member that it runs with.
    of: Vec<Option<Member>>,
    dispatcher: Dispatcher,
    /// What it was told last; kept for its memory.
    event: ReservationEvent,
    timer: Option<Timer>,
    /// Something happened that the dispatcher does not know yet. It decides once about all that happens at
    /// one time.
    stale: bool,
}

/// What of a VM runs on one physical CPU.
#[derive(Debug)]
struct MemberEntities {
    entities: Vec<Entity>,
    affinity: PcpuSet,
    pcpu: Pcpu,
    /// When the first of them last wanted to run after a sleep of all.
    woken: Time,
}

/// What the dispatcher is told about the machine.
struct MemberView<'a> {
    host: &'a Host,
    members: &'a BTreeMap<Member, MemberEntities>,
}

impl Meter for MemberView<'_> {
    fn read(&self, member: Member) -> Reading {
        let Some(threads) = self.members.get(&member) else { return Reading::default() };
        let entities = || threads.entities.iter().copied();
        Reading {
            ran_ns: entities().map(|entity| self.host.ran(entity)).sum(),
            ready: entities().any(|entity| self.host.is_runnable(entity)),
            woken: threads.woken,
        }
    }
}

impl ReservedGroups {
    pub(super) fn new(reservations: &[(Group, Reservation)]) -> ReservedGroups {
        ReservedGroups { reservations: reservations.to_vec(), ..ReservedGroups::default() }
    }

    /// Whether a group has a reservation.
    pub(super) fn has(&self, group: Group) -> bool {
        self.reservations.iter().any(|(reserved, _)| *reserved == group)
    }

    /// An entity is added; the vCPUs of a group before its emulator threads.
    pub(super) fn add(&mut self, entity: Entity, spec: &EntitySpec) {
        let target = TargetId(spec.group.0);
        let member = self.has(spec.group).then(|| {
            let vcpus = self.members.keys().filter(|member| member.target == target).count();
            let index = if spec.emulator { 0 } else { u16::try_from(vcpus).unwrap_or(u16::MAX) };
            Member { target, index }
        });
        self.of.push(member);
        if let Some(member) = member {
            let (affinity, pcpu) = (spec.affinity, Pcpu(0));
            let none = MemberEntities { entities: Vec::new(), affinity, pcpu, woken: Time::default() };
            self.members.entry(member).or_insert(none).entities.push(entity);
        }
    }

    /// The machine begins to run: each member gets the physical CPU with the most room, those of one VM
    /// different ones. Returns where each entity is to be from now on.
    pub(super) fn start(&mut self, host: &mut Host) -> Vec<(Entity, Pcpu)> {
        if self.members.is_empty() {
            return Vec::new();
        }
        self.timer = Some(host.add_timer(DISPATCH));
        let mut taken = vec![0; host.pcpus().count()];
        let mut pins = Vec::new();
        for (group, reservation) in self.reservations.clone() {
            let target = TargetId(group.0);
            let members: Vec<Member> =
                self.members.keys().filter(|member| member.target == target).copied().collect();
            let mut own = PcpuSet::default();
            for member in members {
                let Some(threads) = self.members.get_mut(&member) else { continue };
                let allowed = host.pcpus().filter(|pcpu| threads.affinity.contains(*pcpu));
                let Some(pcpu) = allowed.min_by_key(|pcpu| (own.contains(*pcpu), taken[pcpu.index()])) else {
                    continue;
                };
                own.insert(pcpu);
                taken[pcpu.index()] += reservation.utilisation();
                threads.pcpu = pcpu;
                pins.extend(threads.entities.iter().map(|entity| (*entity, pcpu)));
                self.tell(host, ReservationEventKind::Set { member, cpu: pcpu.0, reservation, since: None });
            }
        }
        pins
    }

    /// An entity wants to run after a sleep.
    pub(super) fn wake(&mut self, host: &mut Host, entity: Entity) {
        let Some(threads) = self.of[entity.index()].and_then(|member| self.members.get_mut(&member)) else {
            return;
        };
        if threads.entities.iter().filter(|entity| host.is_runnable(**entity)).count() == 1 {
            threads.woken = Time(host.now());
        }
        self.stale = true;
        host.reschedule(threads.pcpu);
    }

    /// An entity sleeps from now on.
    pub(super) fn block(&mut self, entity: Entity) {
        self.stale |= self.of[entity.index()].is_some();
    }

    /// The dispatcher's timer fired.
    pub(super) fn due(&mut self, host: &mut Host) {
        self.stale = true;
        host.reschedule(Pcpu(0));
    }

    /// Lets the dispatcher decide if something happened. Returns who is to be scheduled in another way from
    /// now on.
    pub(super) fn decide(&mut self, host: &mut Host) -> Vec<(Entity, DispatchKind)> {
        if !std::mem::take(&mut self.stale) {
            return Vec::new();
        }
        self.tell(host, ReservationEventKind::Decide { tolerance_ns: 0 });
        self.dispatches(host)
    }

    /// Tells the dispatcher what happened, and how its members are.
    fn tell(&mut self, host: &Host, kind: ReservationEventKind) {
        (self.event.at, self.event.kind) = (Time(host.now()), kind);
        self.dispatcher.read(&mut self.event, &MemberView { host, members: &self.members });
        self.dispatcher.on_event(&self.event);
    }

    /// Who is to be scheduled in another way, by what was decided.
    pub(super) fn dispatches(&mut self, host: &mut Host) -> Vec<(Entity, DispatchKind)> {
        let mut dispatches = Vec::new();
        while let Some(action) = self.dispatcher.poll_action() {
            let threads = self.members.get(&action.member);
            dispatches
                .extend(threads.into_iter().flat_map(|threads| &threads.entities).map(|e| (*e, action.kind)));
        }
        if let Some(timer) = self.timer {
            host.arm(timer, self.dispatcher.next_due().map_or(NEVER, |due| due.at.0.max(host.now())));
        }
        dispatches
    }
}
