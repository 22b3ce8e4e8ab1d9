//! Physical CPUs under a scheduler: who runs where, and what happens when.

use crate::queue::{NEVER, Nanos, Timer};
use crate::scheduler::{
    Entity, EntitySpec, Group, GroupSpec, Happening, Host, HostScheduler, Pcpu, PcpuSet, RunState,
};
use frontdesk_engine::Boost;

/// As many happenings at one time are taken for a program that never gets anywhere.
const MOST_AT_ONE_TIME: u64 = 1_000_000;

/// What an entity does after it has run as long as it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It runs on.
    Continue,
    /// It sleeps until somebody wakes it.
    Block,
    /// It runs on, but lets the scheduler decide anew first.
    Yield,
}

/// What the entities of a machine do, and what happens around it.
///
/// An entity is a black box that uses CPU time until something happens in it: [`next`](Work::next) says how
/// long, [`ran`](Work::ran) takes what it got, and [`reached`](Work::reached) does what happens then.
pub trait Work {
    /// The entity has run for so long. Called before anything else is asked about it.
    fn ran(&mut self, entity: Entity, time: Nanos);

    /// CPU time until something happens in an entity that runs; [`NEVER`] if it computes for good.
    fn next(&mut self, entity: Entity) -> Nanos;

    /// An entity has run as long as it said, or was [poked](Machine::poke).
    fn reached(&mut self, machine: &mut Machine, entity: Entity) -> Flow;

    /// A timer made with [`Machine::add_timer`] fired.
    fn timer(&mut self, machine: &mut Machine, token: u32);

    /// An entity got a physical CPU.
    fn dispatched(&mut self, _machine: &mut Machine, _entity: Entity, _pcpu: Pcpu) {}

    /// An entity lost its physical CPU. `runnable`: it was preempted, and did not block.
    fn stopped(&mut self, _machine: &mut Machine, _entity: Entity, _runnable: bool) {}
}

/// Why a machine cannot run on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Things happen without time passing.
    #[error(
        "at {at} ns {MOST_AT_ONE_TIME} things happened and no time passed; the last concerned {entity:?}"
    )]
    NoProgress {
        /// When.
        at: Nanos,
        /// Who ran last.
        entity: Option<Entity>,
    },
    /// An entity may run on none of the physical CPUs.
    #[error("{entity:?} may run on no physical CPU")]
    NowhereToRun {
        /// Which.
        entity: Entity,
    },
    /// A group without weight would never run.
    #[error("{group:?} has weight 0")]
    NoWeight {
        /// Which.
        group: Group,
    },
}

/// A host: physical CPUs, a scheduler, and the time.
#[derive(Debug)]
pub struct Machine {
    host: Host,
    scheduler: Box<dyn HostScheduler>,
    switch_cost: Nanos,
    groups: u32,
    halted: bool,
    /// Counts what happened at the present time, up to the value of `queue.fired` when it came.
    since: (Nanos, u64),
}

impl Machine {
    /// A machine with so many physical CPUs, at time 0. `switch_cost`: CPU time that it takes until an entity
    /// does something on a physical CPU where another one ran; it counts as its own.
    #[must_use]
    pub fn new(pcpus: u16, scheduler: Box<dyn HostScheduler>, switch_cost: Nanos) -> Machine {
        Machine { host: Host::new(pcpus), scheduler, switch_cost, groups: 0, halted: false, since: (0, 0) }
    }

    /// Adds a group.
    ///
    /// # Errors
    /// It has no weight.
    pub fn add_group(&mut self, spec: GroupSpec) -> Result<Group, Fault> {
        let group = Group(self.groups);
        if spec.weight == 0 {
            return Err(Fault::NoWeight { group });
        }
        self.groups += 1;
        self.scheduler.add_group(group, spec);
        Ok(group)
    }

    /// Adds an entity, blocked.
    ///
    /// # Errors
    /// There is no physical CPU on which it may run.
    pub fn add_entity(&mut self, spec: EntitySpec) -> Result<Entity, Fault> {
        let entity = Entity(u32::try_from(self.host.places.len()).unwrap_or(u32::MAX));
        if !self.host.pcpus().any(|pcpu| spec.affinity.contains(pcpu)) {
            return Err(Fault::NowhereToRun { entity });
        }
        self.host.places.push(RunState::Blocked);
        self.host.ran.push(0);
        self.scheduler.add_entity(entity, spec);
        Ok(entity)
    }

    /// Starts the scheduler. All groups and entities are there.
    pub fn start(&mut self) {
        self.scheduler.start(&mut self.host);
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.host.now
    }

    /// What a scheduler sees.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The name of the scheduler.
    #[must_use]
    pub fn scheduler(&self) -> &'static str {
        self.scheduler.name()
    }

    /// Things that happened so far.
    #[must_use]
    pub fn happened(&self) -> u64 {
        self.host.queue.fired()
    }

    /// Makes a timer for [`Work::timer`].
    pub fn add_timer(&mut self, token: u32) -> Timer {
        self.host.queue.add(Happening::Work(token))
    }

    /// Arms a timer, or moves it.
    pub fn arm(&mut self, timer: Timer, at: Nanos) {
        self.host.queue.arm(timer, at);
    }

    /// Cancels a timer, if it is armed.
    pub fn cancel(&mut self, timer: Timer) {
        self.host.queue.cancel(timer);
    }

    /// Wakes an entity; returns whether it slept.
    pub fn wake(&mut self, entity: Entity) -> bool {
        let place = &mut self.host.places[entity.index()];
        let slept = *place == RunState::Blocked;
        if slept {
            *place = RunState::Waiting;
            self.scheduler.wake(&mut self.host, entity);
        }
        slept
    }

    /// Takes back a wake-up.
    #[cfg(test)]
    pub(crate) fn forget_wake(&mut self, entity: Entity) {
        self.host.places[entity.index()] = RunState::Blocked;
    }

    /// Something changed for an entity: if it runs, [`Work::reached`] is called for it at this very time.
    pub fn poke(&mut self, entity: Entity) {
        if let RunState::Running(pcpu) = self.host.places[entity.index()] {
            let progress = self.host.pcpus[pcpu.index()].progress;
            self.host.queue.arm(progress, self.host.now);
        }
    }

    /// Sets the dispatch preference of an entity.
    pub fn boost(&mut self, entity: Entity, level: Boost) {
        self.scheduler.boost(&mut self.host, entity, level);
    }

    /// Whether boosted run time is charged like any other.
    #[must_use]
    pub fn charges_boosts(&self) -> bool {
        self.scheduler.charges_boosts()
    }

    /// How long its scheduler lets an entity run while others wait; 0 if that depends.
    #[must_use]
    pub fn slice(&self) -> Nanos {
        self.scheduler.slice()
    }

    /// Sets a group's share to a fraction of its weight, in permille.
    pub fn share(&mut self, group: Group, permille: u32) {
        self.scheduler.share(&mut self.host, group, permille);
    }

    /// Changes the niceness of an entity inside its group.
    pub fn set_nice(&mut self, entity: Entity, nice: i8) {
        self.scheduler.set_nice(&mut self.host, entity, nice);
    }

    /// Changes where an entity may run.
    ///
    /// # Errors
    /// There is no physical CPU on which it may run.
    pub fn set_affinity(&mut self, entity: Entity, affinity: PcpuSet) -> Result<(), Fault> {
        if !self.host.pcpus().any(|pcpu| affinity.contains(pcpu)) {
            return Err(Fault::NowhereToRun { entity });
        }
        self.scheduler.set_affinity(&mut self.host, entity, affinity);
        Ok(())
    }

    /// Ends the run with what happens now: the rest would be in vain.
    pub fn halt(&mut self) {
        self.halted = true;
    }

    /// Runs until a time, inclusively, or until it is [halted](Machine::halt).
    ///
    /// # Errors
    /// It gets nowhere.
    pub fn run_until<W: Work>(&mut self, work: &mut W, end: Nanos) -> Result<(), Fault> {
        self.settle(work);
        while !self.halted && self.host.queue.next() <= end {
            let Some((at, happening)) = self.host.queue.pop() else { break };
            self.host.now = at;
            match happening {
                Happening::Progress(pcpu) => self.progress(work, pcpu),
                Happening::Scheduler(timer) => self.scheduler.timer(&mut self.host, timer),
                Happening::Work(token) => work.timer(self, token),
            }
            self.settle(work);
            if at != self.since.0 {
                self.since = (at, self.host.queue.fired());
            } else if self.host.queue.fired() - self.since.1 > MOST_AT_ONE_TIME {
                let entity = self.host.pcpus().find_map(|pcpu| self.host.current(pcpu));
                return Err(Fault::NoProgress { at, entity });
            }
        }
        if end != NEVER && !self.halted {
            self.host.now = self.host.now.max(end);
        }
        for pcpu in self.host.pcpus() {
            self.count(work, pcpu);
        }
        Ok(())
    }

    /// Decides where decisions are asked for.
    fn settle<W: Work>(&mut self, work: &mut W) {
        while let Some(pcpu) = self.host.reschedule.lowest() {
            self.host.reschedule.remove(pcpu);
            self.decide(work, pcpu);
        }
    }

    fn progress<W: Work>(&mut self, work: &mut W, pcpu: Pcpu) {
        self.count(work, pcpu);
        let Some(entity) = self.host.current(pcpu) else { return };
        match work.reached(self, entity) {
            Flow::Continue => self.expect(work, pcpu),
            Flow::Yield => {
                self.host.reschedule(pcpu);
                self.expect(work, pcpu);
            }
            Flow::Block => {
                self.scheduler.block(&mut self.host, entity, pcpu);
                self.host.places[entity.index()] = RunState::Blocked;
                self.host.pcpus[pcpu.index()].current = None;
                self.host.idle.insert(pcpu);
                work.stopped(self, entity, false);
                self.host.reschedule(pcpu);
            }
        }
    }

    /// Lets the scheduler decide who runs.
    fn decide<W: Work>(&mut self, work: &mut W, pcpu: Pcpu) {
        self.count(work, pcpu);
        let before = self.host.current(pcpu);
        let next = self.scheduler.pick(&mut self.host, pcpu);
        if before == next {
            return;
        }
        self.host.pcpus[pcpu.index()].current = next;
        match next {
            Some(_) => self.host.idle.remove(pcpu),
            None => self.host.idle.insert(pcpu),
        }
        if let Some(before) = before {
            self.host.places[before.index()] = RunState::Waiting;
            work.stopped(self, before, true);
        }
        let state = &mut self.host.pcpus[pcpu.index()];
        let Some(next) = next else {
            let progress = state.progress;
            return self.host.queue.cancel(progress);
        };
        state.counted = self.host.now;
        state.overhead = if state.last == Some(next) { 0 } else { self.switch_cost };
        state.last = Some(next);
        debug_assert_eq!(
            self.host.places[next.index()],
            RunState::Waiting,
            "{next:?} cannot run on {pcpu:?}"
        );
        self.host.places[next.index()] = RunState::Running(pcpu);
        work.dispatched(self, next, pcpu);
        self.expect(work, pcpu);
    }

    /// Counts what the current entity has run.
    fn count<W: Work>(&mut self, work: &mut W, pcpu: Pcpu) {
        let now = self.host.now;
        let state = &mut self.host.pcpus[pcpu.index()];
        let Some(entity) = state.current else { return };
        let ran = now - state.counted;
        if ran == 0 {
            return;
        }
        state.counted = now;
        self.host.ran[entity.index()] += ran;
        let overhead = ran.min(state.overhead);
        state.overhead -= overhead;
        work.ran(entity, ran - overhead);
    }

    /// Sets the time at which the current entity wants attention.
    fn expect<W: Work>(&mut self, work: &mut W, pcpu: Pcpu) {
        let state = &self.host.pcpus[pcpu.index()];
        let Some(entity) = state.current else { return };
        let at = match work.next(entity) {
            NEVER => NEVER,
            next => self.host.now.saturating_add(state.overhead).saturating_add(next),
        };
        let progress = self.host.pcpus[pcpu.index()].progress;
        self.host.queue.arm(progress, at);
    }
}
