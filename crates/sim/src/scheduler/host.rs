//! What every scheduler of a host is and knows.

use crate::queue::{Nanos, Queue, Timer};
use frontdesk_engine::Boost;

/// Something that runs on a physical CPU: a vCPU, an emulator thread, a vCPU of a driver domain. Numbered
/// from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entity(pub u32);

/// What shares are given to: a VM (a Xen domain, a control group) with all its entities. Numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u32);

/// A physical CPU. Numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pcpu(pub u16);

impl Entity {
    /// Its number.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Group {
    /// Its number.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Pcpu {
    /// Its number.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of physical CPUs, of at most 128.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcpuSet(u128);

impl PcpuSet {
    /// The most physical CPUs that a machine has.
    pub const MOST: u16 = 128;

    /// The first `count` physical CPUs.
    #[must_use]
    pub fn first(count: u16) -> PcpuSet {
        PcpuSet(1u128.checked_shl(u32::from(count)).map_or(u128::MAX, |bit| bit - 1))
    }

    /// Whether there is none in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether a physical CPU is in it.
    #[must_use]
    pub fn contains(self, pcpu: Pcpu) -> bool {
        self.0 & bit(pcpu) != 0
    }

    /// Puts a physical CPU in.
    pub fn insert(&mut self, pcpu: Pcpu) {
        self.0 |= bit(pcpu);
    }

    /// Takes a physical CPU out.
    pub fn remove(&mut self, pcpu: Pcpu) {
        self.0 &= !bit(pcpu);
    }

    /// Those that are in both.
    #[must_use]
    pub fn and(self, other: PcpuSet) -> PcpuSet {
        PcpuSet(self.0 & other.0)
    }

    /// The lowest in it.
    #[must_use]
    pub fn lowest(self) -> Option<Pcpu> {
        (self.0 != 0).then(|| Pcpu(u16::try_from(self.0.trailing_zeros()).unwrap_or(u16::MAX)))
    }

    /// All in it, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = Pcpu> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let lowest = rest.lowest()?;
            rest.remove(lowest);
            Some(lowest)
        })
    }
}

impl FromIterator<Pcpu> for PcpuSet {
    fn from_iter<I: IntoIterator<Item = Pcpu>>(pcpus: I) -> PcpuSet {
        pcpus.into_iter().fold(PcpuSet::default(), |mut set, pcpu| {
            set.insert(pcpu);
            set
        })
    }
}

fn bit(pcpu: Pcpu) -> u128 {
    1u128.checked_shl(u32::from(pcpu.0)).unwrap_or(0)
}

/// An entity as it is added.
#[derive(Clone, Copy, Debug)]
pub struct EntitySpec {
    /// The group that it belongs to.
    pub group: Group,
    /// Where it may run; not empty.
    pub affinity: PcpuSet,
    /// Niceness inside its group, -20 to 19. Schedulers without such a thing ignore it.
    pub nice: i8,
    /// Whether it is an emulator thread, which a boosted vCPU must not keep from running.
    pub emulator: bool,
}

/// A group as it is added.
#[derive(Clone, Copy, Debug)]
pub struct GroupSpec {
    /// Weight among the groups, as in `cpu.shares`; above 0.
    pub weight: u32,
    /// The CPU time that it gets at most, in percent of one physical CPU. Schedulers without such a thing
    /// ignore it.
    pub cap: Option<u32>,
    /// Whether it is a driver domain, which does the I/O of the others (TAVS §2.1).
    pub driver: bool,
}

impl GroupSpec {
    /// A group that is only told by its weight.
    #[must_use]
    pub fn of_weight(weight: u32) -> GroupSpec {
        GroupSpec { weight, cap: None, driver: false }
    }
}

/// A timer of a scheduler, by the number that the scheduler gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerTimer(pub u32);

/// What happens next on a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happening {
    /// The entity on a physical CPU has run as long as it said.
    Progress(Pcpu),
    /// A timer of the scheduler.
    Scheduler(SchedulerTimer),
    /// A timer of the work.
    Work(u32),
}

/// Where an entity is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunState {
    Blocked,
    Waiting,
    Running(Pcpu),
}

#[derive(Debug)]
pub(crate) struct PcpuState {
    pub(crate) current: Option<Entity>,
    /// Up to when the current entity's run time is counted.
    pub(crate) counted: Nanos,
    /// What is left of the cost of the last switch.
    pub(crate) overhead: Nanos,
    /// The entity that ran last, whose state is still in the caches.
    pub(crate) last: Option<Entity>,
    pub(crate) progress: Timer,
}

/// What a scheduler may know of the machine, and do to it.
#[derive(Debug)]
pub struct Host {
    pub(crate) now: Nanos,
    pub(crate) queue: Queue<Happening>,
    pub(crate) pcpus: Vec<PcpuState>,
    pub(crate) places: Vec<RunState>,
    /// CPU time of each entity as far as it is counted.
    pub(crate) ran: Vec<Nanos>,
    /// Physical CPUs on which the scheduler is to decide anew.
    pub(crate) reschedule: PcpuSet,
    /// Physical CPUs on which nothing runs.
    pub(crate) idle: PcpuSet,
}

impl Host {
    pub(crate) fn new(pcpus: u16) -> Host {
        let mut queue = Queue::default();
        let pcpus = (0..pcpus.min(PcpuSet::MOST)).map(|pcpu| PcpuState {
            current: None,
            counted: 0,
            overhead: 0,
            last: None,
            progress: queue.add(Happening::Progress(Pcpu(pcpu))),
        });
        let pcpus: Vec<_> = pcpus.collect();
        let idle = PcpuSet::first(u16::try_from(pcpus.len()).unwrap_or(PcpuSet::MOST));
        Host {
            idle,
            now: 0,
            queue,
            pcpus,
            places: Vec::new(),
            ran: Vec::new(),
            reschedule: PcpuSet::default(),
        }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// All physical CPUs.
    pub fn pcpus(&self) -> impl Iterator<Item = Pcpu> + use<> {
        (0..u16::try_from(self.pcpus.len()).unwrap_or(u16::MAX)).map(Pcpu)
    }

    /// All entities.
    pub fn entities(&self) -> impl Iterator<Item = Entity> + use<> {
        (0..u32::try_from(self.places.len()).unwrap_or(u32::MAX)).map(Entity)
    }

    /// What runs on a physical CPU. While [`HostScheduler::pick`] decides there: what ran until now and still
    /// wants to.
    #[must_use]
    pub fn current(&self, pcpu: Pcpu) -> Option<Entity> {
        self.pcpus[pcpu.index()].current
    }

    /// The physical CPUs on which nothing runs.
    #[must_use]
    pub fn idle(&self) -> PcpuSet {
        self.idle
    }

    /// Where an entity runs, if it does.
    #[must_use]
    pub fn running_on(&self, entity: Entity) -> Option<Pcpu> {
        match self.places[entity.index()] {
            RunState::Running(pcpu) => Some(pcpu),
            RunState::Blocked | RunState::Waiting => None,
        }
    }

    /// Whether an entity runs or wants to.
    #[must_use]
    pub fn is_runnable(&self, entity: Entity) -> bool {
        self.places[entity.index()] != RunState::Blocked
    }

    /// CPU time that an entity has used, up to now.
    #[must_use]
    pub fn ran(&self, entity: Entity) -> Nanos {
        let counted = self.ran[entity.index()];
        match self.places[entity.index()] {
            RunState::Running(pcpu) => counted + (self.now - self.pcpus[pcpu.index()].counted),
            RunState::Blocked | RunState::Waiting => counted,
        }
    }

    /// Asks for a decision on a physical CPU: as soon as what happens now is over, at this very time,
    /// [`HostScheduler::pick`] is called for it. Several requests are one; of several physical CPUs the
    /// lowest decides first.
    pub fn reschedule(&mut self, pcpu: Pcpu) {
        self.reschedule.insert(pcpu);
    }

    /// Makes a timer, for [`HostScheduler::timer`] to be called with `number`.
    pub fn add_timer(&mut self, number: SchedulerTimer) -> Timer {
        self.queue.add(Happening::Scheduler(number))
    }

    /// Arms a timer, or moves it.
    pub fn arm(&mut self, timer: Timer, at: Nanos) {
        self.queue.arm(timer, at);
    }

    /// Cancels a timer, if it is armed.
    pub fn cancel(&mut self, timer: Timer) {
        self.queue.cancel(timer);
    }

    /// When a timer fires; [`NEVER`](crate::NEVER) if it is not armed.
    #[must_use]
    pub fn due(&self, timer: Timer) -> Nanos {
        self.queue.due(timer)
    }
}

/// A hypervisor's scheduler.
///
/// The machine owns the truth about who runs where; a scheduler owns its queues and accounts. To write one:
///
/// - [`start`](HostScheduler::start) makes its timers (a tick for each physical CPU, an accounting timer)
///   with [`Host::add_timer`] and arms them. A periodic timer is armed again when it fires.
/// - [`wake`](HostScheduler::wake) queues an entity that was blocked. If it should preempt, or its physical
///   CPU is idle: [`Host::reschedule`].
/// - [`block`](HostScheduler::block) is told that the entity that runs on a physical CPU sleeps from now on.
///   A decision follows.
/// - [`pick`](HostScheduler::pick) decides who runs. [`Host::current`] is who ran until now if it still wants
///   to, and it is *not* in the scheduler's queue unless the scheduler put it there; it queues it or picks it
///   again. Whoever is picked leaves the queue. A time slice is a timer of the scheduler's own, armed here.
/// - Nobody reports run time: [`Host::ran`] has it to the nanosecond, at any time. Charge at ticks and in
///   `pick`, `block` and `wake`.
/// - What the engine decides comes as [`boost`](HostScheduler::boost) and [`share`](HostScheduler::share).
///   Both may come for an entity in any state.
///
/// It must pick somebody when somebody may run (work conservation), and must not pick who runs elsewhere, is
/// blocked, or may not run there.
pub trait HostScheduler: Send + std::fmt::Debug {
    /// A short name, such as "credit".
    fn name(&self) -> &'static str;

    /// A group is added, number [`Group`] in order. All groups come before [`start`](HostScheduler::start),
    /// and before their entities.
    fn add_group(&mut self, group: Group, spec: GroupSpec);

    /// An entity is added, blocked, number [`Entity`] in order. All come before
    /// [`start`](HostScheduler::start), and the vCPUs of a group before its emulator threads.
    fn add_entity(&mut self, entity: Entity, spec: EntitySpec);

    /// The machine begins to run.
    fn start(&mut self, host: &mut Host);

    /// A blocked entity wants to run.
    fn wake(&mut self, host: &mut Host, entity: Entity);

    /// The entity that runs on `pcpu` sleeps from now on.
    fn block(&mut self, host: &mut Host, entity: Entity, pcpu: Pcpu);

    /// Who runs on `pcpu` from now on; `None`: it idles.
    fn pick(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity>;

    /// A timer of this scheduler fired.
    fn timer(&mut self, host: &mut Host, timer: SchedulerTimer);

    /// Sets the dispatch preference of an entity (the engine's `Boost`, for a vCPU or an emulator thread).
    fn boost(&mut self, host: &mut Host, entity: Entity, level: Boost);

    /// Sets a group's share to this fraction of its weight, in permille (the engine's `Share`).
    fn share(&mut self, host: &mut Host, group: Group, permille: u32);

    /// Whether boosted run time is charged like any other: the engine's `Capabilities::charges_boosts`.
    fn charges_boosts(&self) -> bool {
        false
    }

    /// How long it lets an entity run while others wait; 0 if that depends.
    fn slice(&self) -> Nanos {
        0
    }

    /// Changes where an entity may run. A scheduler for which this never happens keeps what it was told at
    /// first.
    fn set_affinity(&mut self, _host: &mut Host, _entity: Entity, _affinity: PcpuSet) {}

    /// Changes the niceness of an entity inside its group (the engine's weight of a vCPU, if the host does it
    /// by nice).
    fn set_nice(&mut self, _host: &mut Host, _entity: Entity, _nice: i8) {}
}
