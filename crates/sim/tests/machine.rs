//! The machine under the simplest scheduler there is.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use frontdesk_engine::Boost;
use frontdesk_sim::{
    Entity, EntitySpec, Fault, Flow, Group, GroupSpec, Host, HostScheduler, Machine, NEVER, Nanos, Pcpu,
    PcpuSet, SchedulerTimer, Timer, Work,
};
use std::collections::VecDeque;

const SLICE: Nanos = 10;

/// Round robin over one queue, for any number of physical CPUs.
#[derive(Debug, Default)]
struct RoundRobin {
    queue: VecDeque<Entity>,
    slices: Vec<Timer>,
}

impl HostScheduler for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }
    fn add_group(&mut self, _: Group, _: GroupSpec) {}
    fn add_entity(&mut self, _: Entity, _: EntitySpec) {}
    fn start(&mut self, host: &mut Host) {
        self.slices = host.pcpus().map(|pcpu| host.add_timer(SchedulerTimer(u32::from(pcpu.0)))).collect();
    }
    fn wake(&mut self, host: &mut Host, entity: Entity) {
        self.queue.push_back(entity);
        let idle: PcpuSet = host.pcpus().filter(|pcpu| host.current(*pcpu).is_none()).collect();
        idle.iter().for_each(|pcpu| host.reschedule(pcpu));
    }
    fn block(&mut self, _: &mut Host, _: Entity, _: Pcpu) {}
    fn pick(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity> {
        self.queue.extend(host.current(pcpu));
        let next = self.queue.pop_front();
        let end = if next.is_some() { host.now() + SLICE } else { NEVER };
        host.arm(self.slices[pcpu.index()], end);
        next
    }
    fn timer(&mut self, host: &mut Host, timer: SchedulerTimer) {
        host.reschedule(Pcpu(u16::try_from(timer.0).unwrap()));
    }
    fn boost(&mut self, _: &mut Host, _: Entity, _: Boost) {}
    fn share(&mut self, _: &mut Host, _: Group, _: u32) {}
}

/// Entities that compute for a time and sleep for another, again and again.
#[derive(Default)]
struct Cycles {
    compute: Vec<Nanos>,
    sleep: Vec<Nanos>,
    left: Vec<Nanos>,
    timers: Vec<Timer>,
    log: Vec<(Nanos, u32, bool)>,
}

impl Cycles {
    fn machine(pcpus: u16, cycles: &[(Nanos, Nanos)]) -> (Machine, Cycles) {
        let mut machine = Machine::new(pcpus, Box::<RoundRobin>::default(), 0);
        let mut work = Cycles::default();
        for (compute, sleep) in cycles {
            let group = machine.add_group(GroupSpec::of_weight(1024)).unwrap();
            let spec = EntitySpec { group, affinity: PcpuSet::first(pcpus), nice: 0, emulator: false };
            let entity = machine.add_entity(spec).unwrap();
            work.compute.push(*compute);
            work.sleep.push(*sleep);
            work.left.push(*compute);
            work.timers.push(machine.add_timer(entity.0));
        }
        machine.start();
        (0..cycles.len()).for_each(|entity| assert!(machine.wake(Entity(u32::try_from(entity).unwrap()))));
        (machine, work)
    }
}

impl Work for Cycles {
    fn ran(&mut self, entity: Entity, time: Nanos) {
        self.left[entity.index()] -= time;
    }
    fn next(&mut self, entity: Entity) -> Nanos {
        self.left[entity.index()]
    }
    fn reached(&mut self, machine: &mut Machine, entity: Entity) -> Flow {
        let index = entity.index();
        self.left[index] = self.compute[index];
        if self.sleep[index] == 0 {
            return Flow::Yield;
        }
        machine.arm(self.timers[index], machine.now() + self.sleep[index]);
        Flow::Block
    }
    fn timer(&mut self, machine: &mut Machine, token: u32) {
        machine.wake(Entity(token));
    }
    fn dispatched(&mut self, machine: &mut Machine, entity: Entity, _: Pcpu) {
        self.log.push((machine.now(), entity.0, true));
    }
    fn stopped(&mut self, machine: &mut Machine, entity: Entity, _: bool) {
        self.log.push((machine.now(), entity.0, false));
    }
}

#[test]
fn entities_take_turns_and_every_nanosecond_is_counted() {
    let (mut machine, mut work) = Cycles::machine(1, &[(1_000, 1), (1_000, 1), (1_000, 1)]);
    machine.run_until(&mut work, 905).unwrap();
    let ran: Vec<_> = (0..3).map(|entity| machine.host().ran(Entity(entity))).collect();
    assert_eq!(ran, [305, 300, 300]);
    assert_eq!(work.log[..4], [(0, 0, true), (10, 0, false), (10, 1, true), (20, 1, false)]);
}

#[test]
fn a_sleeper_wakes_on_an_idle_pcpu() {
    let (mut machine, mut work) = Cycles::machine(2, &[(NEVER, 1), (3, 7)]);
    machine.run_until(&mut work, 1_000).unwrap();
    assert_eq!(machine.host().ran(Entity(1)), 300);
    assert_eq!(machine.host().ran(Entity(0)), 1_000);
}

#[test]
fn a_program_that_gets_nowhere_is_a_fault() {
    let (mut machine, mut work) = Cycles::machine(1, &[(0, 0)]);
    let fault = machine.run_until(&mut work, 1_000).unwrap_err();
    assert_eq!(fault, Fault::NoProgress { at: 0, entity: Some(Entity(0)) });
}

#[test]
fn what_could_never_run_is_refused() {
    let mut machine = Machine::new(2, Box::<RoundRobin>::default(), 0);
    assert_eq!(machine.add_group(GroupSpec::of_weight(0)), Err(Fault::NoWeight { group: Group(0) }));
    let group = machine.add_group(GroupSpec::of_weight(1)).unwrap();
    let mut affinity = PcpuSet::default();
    affinity.insert(Pcpu(2));
    let fault = machine.add_entity(EntitySpec { group, affinity, nice: 0, emulator: false }).unwrap_err();
    assert_eq!(fault.to_string(), "Entity(0) may run on no physical CPU");
}
