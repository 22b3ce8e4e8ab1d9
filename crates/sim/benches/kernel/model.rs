//! The model's side: vCPUs in groups under the eevdf model.

use super::case::{Case, Costs, Latency, Measured, Sleeps, WARM_UP_MS, Work};
use anyhow::Result;
use frontdesk_sim::{
    Entity, EntitySpec, Flow, GroupSpec, Machine, NEVER, Nanos, Pcpu, PcpuSet, Timer, Work as MachineWork,
    eevdf,
};

struct Process {
    work: Work,
    sleeps: Option<Sleeps>,
    timer: Timer,
    /// When it was to wake, until it runs.
    woken: Option<Nanos>,
    /// What is left to compute.
    left: Nanos,
    latency_us: Vec<f64>,
}

struct Processes {
    all: Vec<Process>,
    wake_up: Nanos,
}

impl MachineWork for Processes {
    fn ran(&mut self, entity: Entity, time: Nanos) {
        let left = &mut self.all[entity.index()].left;
        *left = left.saturating_sub(time);
    }

    fn next(&mut self, entity: Entity) -> Nanos {
        let process = &self.all[entity.index()];
        match process.work {
            Work::Hog => NEVER,
            Work::Sleeper { .. } => process.left,
        }
    }

    fn reached(&mut self, machine: &mut Machine, entity: Entity) -> Flow {
        let process = &mut self.all[entity.index()];
        if let Some(sleeps) = &mut process.sleeps {
            machine.arm(process.timer, machine.now() + sleeps.next());
        }
        Flow::Block
    }

    fn timer(&mut self, machine: &mut Machine, token: u32) {
        let process = &mut self.all[token as usize];
        if let Work::Sleeper { compute_us, .. } = process.work {
            process.left = compute_us * 1000;
            process.woken = Some(machine.now());
        }
        machine.wake(Entity(token));
    }

    fn dispatched(&mut self, machine: &mut Machine, entity: Entity, _: Pcpu) {
        let wake_up = self.wake_up;
        let process = &mut self.all[entity.index()];
        if let Some(woken) = process.woken.take()
            && woken >= WARM_UP_MS * 1_000_000
        {
            process.latency_us.push((machine.now() - woken + wake_up) as f64 / 1000.0);
        }
    }
}

/// Runs a case on a machine with so many CPUs, of which it uses the first.
pub fn run(case: &Case, cpus: u16, costs: Costs) -> Result<Measured> {
    let mut machine = Machine::new(cpus, eevdf(), costs.switch_ns);
    let mut processes = Processes { all: Vec::new(), wake_up: costs.wake_up_ns };
    let groups: Result<Vec<_>, _> =
        case.groups.iter().map(|group| machine.add_group(GroupSpec::of_weight(group.shares))).collect();
    let mut entities = Vec::new();
    for (group, spec) in groups?.into_iter().zip(&case.groups) {
        entities.push(Vec::new());
        for process in &spec.processes {
            let affinity =
                process.cpu.map_or(PcpuSet::first(case.cpus), |cpu| [Pcpu(cpu)].into_iter().collect());
            let entity =
                machine.add_entity(EntitySpec { group, affinity, nice: process.nice, emulator: false })?;
            let sleeps = match process.work {
                Work::Hog => None,
                Work::Sleeper { sleep_us, seed, .. } => Some(Sleeps::new(sleep_us, seed)),
            };
            let timer = machine.add_timer(entity.0);
            let process =
                Process { work: process.work, sleeps, timer, woken: None, left: 0, latency_us: Vec::new() };
            processes.all.push(process);
            entities.last_mut().expect("a group").push(entity);
        }
    }
    machine.start();
    for entity in entities.iter().flatten() {
        let process = &mut processes.all[entity.index()];
        match &mut process.sleeps {
            Some(sleeps) => machine.arm(process.timer, sleeps.next()),
            None => assert!(machine.wake(*entity)),
        }
    }
    let times = |machine: &Machine| -> Vec<Vec<Nanos>> {
        entities
            .iter()
            .map(|group| group.iter().map(|entity| machine.host().ran(*entity)).collect())
            .collect()
    };
    machine.run_until(&mut processes, WARM_UP_MS * 1_000_000)?;
    let before = times(&machine);
    machine.run_until(&mut processes, (WARM_UP_MS + case.measured_ms) * 1_000_000)?;
    let fraction =
        |(after, before): (Nanos, Nanos)| (after - before) as f64 / (case.measured_ms * 1_000_000) as f64;
    let cpu = times(&machine)
        .into_iter()
        .zip(before)
        .map(|(after, before)| after.into_iter().zip(before).map(fraction).collect())
        .collect();
    let mut latencies = processes.all.into_iter().map(|process| Latency::of(process.latency_us));
    let latency = entities.iter().map(|group| latencies.by_ref().take(group.len()).collect()).collect();
    Ok(Measured { cpu, latency })
}
