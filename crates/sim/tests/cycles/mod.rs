//! Entities that compute and sleep in turn, or compute for good.

use frontdesk_sim::{
    Entity, EntitySpec, Flow, Group, GroupSpec, HostScheduler, Machine, NEVER, Nanos, PcpuSet, Rng, Timer,
    Work,
};

pub(crate) const MS: Nanos = 1_000_000;

/// How an entity computes and sleeps: between 0 and twice these times, or for good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cycle {
    pub(crate) compute: Nanos,
    pub(crate) sleep: Nanos,
}

/// Computes and never sleeps.
pub(crate) const HOG: Cycle = Cycle { compute: NEVER, sleep: 0 };

struct State {
    cycle: Cycle,
    rng: Rng,
    left: Nanos,
    timer: Timer,
}

/// The work of a machine.
pub(crate) struct Cycles(Vec<State>);

/// An entity to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) cycle: Cycle,
    pub(crate) nice: i8,
    pub(crate) affinity: PcpuSet,
    pub(crate) emulator: bool,
}

impl Spec {
    pub(crate) fn of(cycle: Cycle) -> Spec {
        Spec { cycle, nice: 0, affinity: PcpuSet::first(PcpuSet::MOST), emulator: false }
    }
}

impl Cycles {
    /// A machine with groups of these weights and entities; those that compute begin at once, in order.
    pub(crate) fn machine(
        pcpus: u16,
        scheduler: Box<dyn HostScheduler>,
        groups: &[(u32, Vec<Spec>)],
    ) -> (Machine, Cycles) {
        let mut machine = Machine::new(pcpus, scheduler, 0);
        let mut cycles = Cycles(Vec::new());
        let made: Vec<Group> = groups
            .iter()
            .map(|(weight, _)| machine.add_group(GroupSpec::of_weight(*weight)).unwrap())
            .collect();
        for (group, (_, entities)) in made.into_iter().zip(groups) {
            for spec in entities {
                let Spec { cycle, nice, affinity, emulator } = *spec;
                let affinity = affinity.and(PcpuSet::first(pcpus));
                let entity = machine.add_entity(EntitySpec { group, affinity, nice, emulator }).unwrap();
                let timer = machine.add_timer(entity.0);
                let rng = Rng::new(1, u64::from(entity.0));
                cycles.0.push(State { cycle, rng, left: cycle.compute, timer });
            }
        }
        machine.start();
        for (entity, state) in (0..).map(Entity).zip(&cycles.0) {
            if state.cycle.compute == NEVER {
                assert!(machine.wake(entity));
            } else {
                machine.arm(state.timer, state.cycle.sleep);
            }
        }
        (machine, cycles)
    }
}

impl Work for Cycles {
    fn ran(&mut self, entity: Entity, time: Nanos) {
        let left = &mut self.0[entity.index()].left;
        *left -= if *left == NEVER { 0 } else { time };
    }

    fn next(&mut self, entity: Entity) -> Nanos {
        self.0[entity.index()].left
    }

    fn reached(&mut self, machine: &mut Machine, entity: Entity) -> Flow {
        let state = &mut self.0[entity.index()];
        machine.arm(state.timer, machine.now() + 1 + state.rng.uniform(0, 2 * state.cycle.sleep));
        Flow::Block
    }

    fn timer(&mut self, machine: &mut Machine, token: u32) {
        let state = &mut self.0[token as usize];
        state.left = 1 + state.rng.uniform(0, 2 * state.cycle.compute);
        machine.wake(Entity(token));
    }
}

/// CPU time of an entity.
pub(crate) fn ran(machine: &Machine, entity: u32) -> Nanos {
    machine.host().ran(Entity(entity))
}
