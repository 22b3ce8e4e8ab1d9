//! A machine under the scheduler, on which entities do what a test says.

use super::super::*;
use crate::{Flow, Machine, Work};
use std::sync::{Arc, Mutex, MutexGuard};

/// A scheduler that the test can look into while a machine uses it.
#[derive(Clone, Debug)]
pub(super) struct Shared(pub(super) Arc<Mutex<Credit>>);

impl Shared {
    pub(super) fn get(&self) -> MutexGuard<'_, Credit> {
        self.0.lock().unwrap()
    }
}

impl HostScheduler for Shared {
    fn name(&self) -> &'static str {
        "credit"
    }
    fn add_group(&mut self, group: Group, spec: GroupSpec) {
        self.get().add_group(group, spec);
    }
    fn add_entity(&mut self, entity: Entity, spec: EntitySpec) {
        self.get().add_entity(entity, spec);
    }
    fn start(&mut self, host: &mut Host) {
        self.get().start(host);
    }
    fn wake(&mut self, host: &mut Host, entity: Entity) {
        self.get().wake(host, entity);
    }
    fn block(&mut self, host: &mut Host, entity: Entity, pcpu: Pcpu) {
        self.get().block(host, entity, pcpu);
    }
    fn pick(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity> {
        self.get().pick(host, pcpu)
    }
    fn timer(&mut self, host: &mut Host, timer: SchedulerTimer) {
        self.get().timer(host, timer);
    }
    fn boost(&mut self, host: &mut Host, entity: Entity, level: Boost) {
        self.get().boost(host, entity, level);
    }
    fn share(&mut self, host: &mut Host, group: Group, permille: u32) {
        self.get().share(host, group, permille);
    }
}

/// Entities that compute until the test says what else.
#[derive(Default)]
pub(super) struct ScriptedWork {
    pub(super) flow: Option<Flow>,
    pub(super) dispatches: Vec<(Nanos, Entity)>,
}

impl Work for ScriptedWork {
    fn ran(&mut self, _: Entity, _: Nanos) {}
    fn next(&mut self, _: Entity) -> Nanos {
        Nanos::MAX
    }
    fn reached(&mut self, _: &mut Machine, _: Entity) -> Flow {
        self.flow.take().unwrap()
    }
    fn timer(&mut self, _: &mut Machine, _: u32) {}
    fn dispatched(&mut self, machine: &mut Machine, entity: Entity, _: Pcpu) {
        self.dispatches.push((machine.now(), entity));
    }
}

pub(super) struct Bench {
    pub(super) machine: Machine,
    pub(super) credit: Shared,
    pub(super) work: ScriptedWork,
}

impl Bench {
    /// `domains`: weight and cap, with one vCPU each.
    pub(super) fn new(config: Config, pcpus: u16, domains: &[(u32, Option<u32>)]) -> Bench {
        Bench::seeded(config, pcpus, domains, Rng::new(1, 0))
    }

    /// `phases`: where those of the ticks are drawn from.
    pub(super) fn seeded(config: Config, pcpus: u16, domains: &[(u32, Option<u32>)], phases: Rng) -> Bench {
        let credit = Shared(Arc::new(Mutex::new(Credit::new(&config, phases))));
        let mut machine = Machine::new(pcpus, Box::new(credit.clone()), 0);
        for (index, (weight, cap)) in domains.iter().enumerate() {
            // Only the first is one, and only matters where the test says so.
            let spec = GroupSpec { weight: *weight, cap: *cap, driver: index == 0 };
            let group = machine.add_group(spec).unwrap();
            let affinity = PcpuSet::first(pcpus);
            machine.add_entity(EntitySpec { group, affinity, nice: 0, emulator: false }).unwrap();
        }
        machine.start();
        Bench { machine, credit, work: ScriptedWork::default() }
    }

    /// One pCPU and so many domains of equal weight; timers are exact.
    pub(super) fn plain(domains: usize) -> Bench {
        Bench::new(exact(), 1, &vec![(256, None); domains])
    }

    pub(super) fn to(&mut self, at: Nanos) {
        self.machine.run_until(&mut self.work, at).unwrap();
    }

    pub(super) fn wake(&mut self, entity: u32) {
        self.machine.wake(Entity(entity));
        self.to(self.machine.now());
    }

    pub(super) fn flow(&mut self, entity: u32, flow: Flow) {
        self.work.flow = Some(flow);
        self.machine.poke(Entity(entity));
        self.to(self.machine.now());
        assert_eq!(self.work.flow, None, "{entity} does not run");
    }

    pub(super) fn block(&mut self, entity: u32) {
        self.flow(entity, Flow::Block);
    }

    /// Wakes an entity that has run before: it is UNDER, and not boosted.
    pub(super) fn hog(&mut self, entity: u32) {
        self.set_credits(entity, -1);
        self.wake(entity);
        self.set_credits(entity, 0);
        let mut credit = self.credit.get();
        let pcpu = credit.vcpu(Entity(entity)).pcpu;
        credit.pcpus[pcpu.index()].queue.reprioritise(Entity(entity), Priority::Under);
    }

    /// Takes a waiting entity back to sleep, which only a test can.
    pub(super) fn put_to_sleep(&mut self, entity: u32) {
        self.credit.get().dequeue(Entity(entity));
        self.machine.forget_wake(Entity(entity));
    }

    pub(super) fn runs(&self) -> Option<u32> {
        self.machine.host().current(Pcpu(0)).map(|entity| entity.0)
    }

    pub(super) fn credits(&self, entity: u32) -> i64 {
        self.credit.get().vcpu(Entity(entity)).credit
    }

    pub(super) fn set_credits(&self, entity: u32, credits: i64) {
        let mut credit = self.credit.get();
        let vcpu = credit.vcpu(Entity(entity));
        vcpu.credit = credits;
        vcpu.stored = if credits < 0 { Priority::Over } else { Priority::Under };
    }

    pub(super) fn stored(&self, entity: u32) -> Priority {
        self.credit.get().vcpu(Entity(entity)).stored
    }

    pub(super) fn queue(&self) -> Vec<u32> {
        self.credit.get().pcpus[0].queue.iter().map(|(entity, _)| entity.0).collect()
    }
}

pub(super) fn exact() -> Config {
    Config { timer_slop: std::time::Duration::ZERO, ..Config::default() }
}
