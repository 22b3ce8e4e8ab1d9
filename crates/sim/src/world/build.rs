//! From a scenario to a world on a machine.

use super::devices::{DriverVm, Gpu, GuestDaemon, Routes, Sound};
use super::{EntityRole, Measure, SimVm, TimerOwner, WATCH, World};
use crate::credit::Credit;
use crate::disk::DiskModel;
use crate::feed::{Feed, VmEntities, id};
use crate::guest::GuestKernel;
use crate::machine::{Fault, Machine};
use crate::network::{ClientKind, SimClient};
use crate::queue::{NEVER, Nanos};
use crate::rng::Rng;
use crate::rtapp::RtAppError;
use crate::scheduler::{EntitySpec, Group, GroupSpec, HostScheduler, Pcpu, PcpuSet, cfs_on, edf, eevdf_on};
use crate::workload;
use frontdesk_engine::reservation::{Reservation, ReservationError};
use frontdesk_engine::{ConfigError, Engine, Protocol, Standing, Time, nanos};
use frontdesk_scenario::{
    Arm, Daemon, GuestScheduler, IoPath, LoadKind, LoadProfile, Scenario, Scheduler, Sim, Storm, Tracer,
    VmSpec, WorkloadKind,
};

use std::collections::{HashSet, VecDeque};

/// Why a scenario cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// Somebody uses a desktop, of which there is no model but for films.
    #[error("load on vm.{vm}: only programs of real desktops are opened and read; run it in the lab")]
    Desktop {
        /// The VM.
        vm: String,
    },
    /// The machine cannot be made, or gets nowhere.
    #[error("arm {arm:?}, repeat {repeat}: {fault}{}", if concerned.is_empty() { String::new() } else { format!(" ({concerned})") })]
    Fault {
        /// The arm.
        arm: String,
        /// The repeat, from 1.
        repeat: u32,
        /// What is wrong.
        fault: Fault,
        /// Whose entity it is.
        concerned: String,
    },
    /// Tasks wait for each other.
    #[error(
        "arm {arm:?}, repeat {repeat}: at {at_s} s tasks began to wait for each other, for ever: {tasks}"
    )]
    Deadlock {
        /// The arm.
        arm: String,
        /// The repeat, from 1.
        repeat: u32,
        /// When the last of them began to wait.
        at_s: f64,
        /// The tasks and what they wait for.
        tasks: String,
    },
    /// A reservation makes no sense.
    #[error("arm {arm:?}: sim.reservations.{vm}: {source}")]
    Reservation {
        /// The arm.
        arm: String,
        /// The VM entry.
        vm: String,
        /// What is wrong with it.
        source: ReservationError,
    },
    /// The file of a workload cannot be used.
    #[error("workload {workload:?}: {source}")]
    RtApp {
        /// The workload.
        workload: String,
        /// What is wrong with its file.
        source: RtAppError,
    },
    /// A parameter of the engine is out of its range.
    #[error("arm {arm:?}: policy.{source}")]
    Policy {
        /// The arm.
        arm: String,
        /// Which.
        source: ConfigError,
    },
}

/// VMs are switched on within this, each at its own time: their phases are not to be alike.
const BOOT: Nanos = 100_000_000;
/// Streams of the generators.
const STREAM_BOOT: u64 = 1 << 32;
const STREAM_CLIENT: u64 = 2 << 32;
const STREAM_DISK: u64 = 3 << 32;
const STREAM_TICK: u64 = 4 << 32;
const STREAM_FILMS: u64 = 5 << 32;
const STREAM_PHASES: u64 = 6 << 32;
/// Between two packets of a storm.
const STORM_PAUSE: Nanos = 50_000;

fn scheduler(
    scenario: &Scenario,
    sim: &Sim,
    reservations: &[(Group, Reservation)],
    seed: u64,
) -> Box<dyn HostScheduler> {
    let host_cpus = host_cpus(scenario, sim);
    match sim.scheduler {
        Scheduler::Credit if reservations.is_empty() => {
            Box::new(Credit::new(&sim.credit, Rng::new(seed, STREAM_PHASES)))
        }
        Scheduler::Eevdf => eevdf_on(host_cpus, reservations),
        Scheduler::Cfs => cfs_on(host_cpus, reservations),
        Scheduler::Credit | Scheduler::Edf => edf(reservations),
    }
}

/// CPUs of the host that is modelled.
fn host_cpus(scenario: &Scenario, sim: &Sim) -> usize {
    let host = &scenario.host;
    let named: HashSet<u16> =
        [&host.vm_cpus, &host.client_cpus, &host.busy_cpus].into_iter().flatten().copied().collect();
    sim.host_cpus.or(sim.pcpus).map_or(named.len(), usize::from)
}

/// The reservations of the VMs' groups: those of the arm, and else those of the machine, if its scheduler is
/// one for that. A driver domain is the group before them.
fn reservations(scenario: &Scenario, arm: &Arm, sim: &Sim) -> Result<Vec<(Group, Reservation)>, BuildError> {
    let first = u32::from(has_driver(sim));
    let entries = scenario.vms.iter().flat_map(|entry| std::iter::repeat_n(entry, usize::from(entry.count)));
    let mut reservations = Vec::new();
    for (group, entry) in (first..).map(Group).zip(entries) {
        let of_arm = arm.reserve.get(&entry.name).filter(|_| arm.daemon == Daemon::Act);
        let of_arm = of_arm.map(|asked| (asked.period, asked.slice, false));
        let of_machine = || {
            let asked = sim.reservations.get(&entry.name).filter(|_| sim.scheduler == Scheduler::Edf)?;
            Some((asked.period, asked.slice, asked.hard))
        };
        let Some((period, slice, hard)) = of_arm.or_else(of_machine) else { continue };
        let reservation =
            Reservation { period_ns: nanos(period), slice_ns: nanos(slice), hard, phase_ns: None };
        reservation.validate().map_err(|error| BuildError::Reservation(entry.name.clone(), error))?;
        // frontdesk gives long slices in turns; the machine's own scheduler does not.
        reservations.push((group, if of_arm.is_some() { reservation.in_turns() } else { reservation }));
    }
    Ok(reservations)
}

/// Whether there is a driver domain that is no VM.
fn has_driver(sim: &Sim) -> bool {
    sim.io_path == IoPath::DriverDomain && sim.driver_vm.is_none()
}

/// Whether threads have nice values: those of Linux have.
fn has_nice(sim: &Sim) -> bool {
    matches!(sim.scheduler, Scheduler::Eevdf | Scheduler::Cfs)
}

/// The driver domain's name where one is needed.
const DRIVER: &str = "driver domain";

/// Makes the machine of an arm and what runs on it, at time 0.
pub(crate) fn build(scenario: &Scenario, arm: &Arm, seed: u64) -> Result<(Machine, World), BuildError> {
    let uses = |load: &&LoadProfile| match load.kind {
        LoadKind::Launch { .. } => app_of(load, scenario).is_none(),
        LoadKind::Page { .. } => true,
        _ => false,
    };
    if let Some(load) = scenario.loads.iter().find(uses) {
        return Err(BuildError::Desktop(load.vm.clone()));
    }
    let sim = scenario.sim_of(arm);
    let pcpus = sim.pcpus(&scenario.host);
    let reservations = reservations(scenario, arm, sim)?;
    let mut machine =
        Machine::new(pcpus, scheduler(scenario, sim, &reservations, seed), nanos(sim.costs.switch));
    let everywhere = PcpuSet::first(pcpus);
    let mut sources = Vec::new();
    let mut timer = |machine: &mut Machine, source: TimerOwner| {
        sources.push(source);
        machine.add_timer(u32::try_from(sources.len() - 1).unwrap_or(u32::MAX))
    };
    let policy = scenario.policy_of(arm);
    let engine = match arm.daemon {
        Daemon::Off => None,
        Daemon::Observe | Daemon::Act => Some(Engine::new(policy.clone()).map_err(BuildError::Policy)?),
    };
    let decision = timer(&mut machine, TimerOwner::Decision);
    let deadline = timer(&mut machine, TimerOwner::Engine);
    let feed =
        Feed::new(engine, arm.daemon == Daemon::Act, nanos(sim.decision_latency), [decision, deadline]);
    let watch = timer(&mut machine, TimerOwner::Watch);
    let gpu = Gpu::new(timer(&mut machine, TimerOwner::Gpu));
    let slots =
        (0..sim.disk.parallel as usize).map(|slot| timer(&mut machine, TimerOwner::Disk { slot })).collect();
    let vm_count = scenario.vm_names().len();
    let names = scenario.vms.iter().flat_map(|entry| {
        let names: Vec<String> = entry.workloads.iter().map(|workload| workload.name.clone()).collect();
        std::iter::repeat_n(names, usize::from(entry.count))
    });
    let disk = DiskModel::new(&sim.disk, names.collect(), slots, Rng::new(seed, STREAM_DISK));
    let disk_wakes = timer(&mut machine, TimerOwner::DiskWakes);
    let first = scenario.vms.iter().flat_map(|entry| {
        std::iter::repeat_n(sim.disk.first.contains(&entry.name), usize::from(entry.count))
    });
    let timed = scenario.vms.iter().flat_map(|entry| {
        let timed: Vec<bool> = entry.workloads.iter().map(|workload| workload.kind.is_timed()).collect();
        std::iter::repeat_n(timed, usize::from(entry.count))
    });
    let mut world = World {
        roles: Vec::new(),
        sources: Vec::new(),
        vms: Vec::new(),
        threads: Vec::new(),
        driver_vm: sim.driver_vm.as_ref().and_then(|name| {
            let vm = scenario.vm_names().iter().position(|vm| vm == name)?;
            Some(DriverVm { vm, costs: sim.costs.clone(), jobs: VecDeque::new() })
        }),
        disk,
        disk_wakes,
        disk_first: first.collect(),
        gpu,
        clients: Vec::new(),
        tick: nanos(sim.guest.tick),
        spread: sim.costs.spread,
        requests: 0,
        io_path: sim.io_path,
        forwarded: Vec::new(),
        feed,
        measure: Measure::new(vm_count, timed.collect()),
        trace: None,
        effects: Vec::new(),
        watch,
    };
    if has_driver(sim) {
        let spec = GroupSpec { driver: true, ..GroupSpec::of_weight(sim.driver_weight) };
        let group = machine.add_group(spec).map_err(BuildError::Fault)?;
        let spec = EntitySpec { group, affinity: everywhere, nice: 0, emulator: true };
        let entity = machine.add_entity(spec).map_err(BuildError::Fault)?;
        world.add_thread(entity, None, &sim.costs);
    }
    let mut targets = Vec::new();
    for entry in &scenario.vms {
        for _ in 0..entry.count {
            let vm = world.vms.len();
            let cap = sim.cap.get(&entry.name).copied();
            let spec = GroupSpec { cap, ..GroupSpec::of_weight(entry.weight) };
            let group = machine.add_group(spec).map_err(BuildError::Fault)?;
            let spec = EntitySpec { group, affinity: everywhere, nice: 0, emulator: false };
            let (mut entities, mut nices) = (Vec::new(), Vec::new());
            let by_hand = arm.nice.get(&entry.name).filter(|_| has_nice(sim));
            for vcpu in 0..usize::from(entry.vcpus) {
                let nice = by_hand.and_then(|values| values.get(vcpu)).copied().unwrap_or(0);
                let pinned = sim.pin.get(&entry.name).and_then(|vcpus| vcpus.get(vcpu));
                let affinity = pinned.map_or(everywhere, |pcpus| pcpus.iter().copied().map(Pcpu).collect());
                let spec = EntitySpec { nice, affinity, ..spec };
                entities.push(machine.add_entity(spec).map_err(BuildError::Fault)?);
                nices.push(nice);
                world.roles.push(EntityRole::Vcpu { vm, vcpu });
            }
            let mut own = entities.clone();
            let (io, emulator) = if world.io_path == IoPath::Emulator {
                let spec = EntitySpec { emulator: true, ..spec };
                let entity = machine.add_entity(spec).map_err(BuildError::Fault)?;
                own.push(entity);
                (Some(world.add_thread(entity, Some(vm), &sim.costs)), Some(entity))
            } else {
                // That of a driver domain which is no VM is the only one.
                (has_driver(sim).then_some(0), None)
            };
            world.measure.entities.push(own);
            world.measure.knows_wakes.push(workload::knows_wakes(arm, entry));
            let reserved = reservations.iter().any(|(of, _)| *of == group);
            targets.push(VmEntities {
                group,
                standing: if reserved { Standing::Reserved } else { Standing::Acting },
                vcpus: entities.clone(),
                nices,
                emulator,
                tracked: entry.tracked,
                weight: entry.weight,
            });
            let films = Rng::new(seed, STREAM_FILMS + u64::from(id(vm).0));
            let guest = guest(scenario, arm, sim, entry, films)?;
            let timers =
                (0..guest.tasks.len()).map(|task| timer(&mut machine, TimerOwner::Task { vm, task }));
            let timers = timers.collect();
            let sound_timer = timer(&mut machine, TimerOwner::Sound { vm });
            let vcpus = entities.len();
            let ticks: Vec<_> =
                (0..vcpus).map(|vcpu| timer(&mut machine, TimerOwner::Tick { vm, vcpu })).collect();
            if world.io_path != IoPath::DriverDomain && world.tick > 0 {
                // Each vCPU's clock has a phase of its own.
                let mut rng = Rng::new(seed, STREAM_TICK + u64::from(id(vm).0));
                for tick in &ticks {
                    machine.arm(*tick, rng.uniform(1, world.tick));
                }
            }
            world.measure.add_windows(guest.windows.iter().map(|window| window.workload));
            world.vms.push(SimVm {
                guest,
                entities,
                io,
                timers,
                waiting: vec![NEVER; vcpus],
                sound: Sound::default(),
                sound_timer,
                ticks,
                ticking: vec![false; vcpus],
                asked: None,
                routes: Routes::new(sim.interrupts, vcpus),
                daemon: None,
                slept: vec![(0, 0); vcpus],
            });
            if let (Some(extension), true) = (sim.extension, vcpus > 1) {
                let timer = timer(&mut machine, TimerOwner::Daemon { vm });
                let slept = vec![0; vcpus];
                let daemon = GuestDaemon { extension, timer, fast: 0, slept, looked: 0 };
                world.vms[vm].daemon = Some(daemon);
            }
            let boot = timer(&mut machine, TimerOwner::Boot { vm });
            let stream = STREAM_BOOT + u64::from(id(vm).0);
            machine.arm(boot, Rng::new(seed, stream).uniform(0, BOOT));
        }
    }
    for (place, kind, vm) in clients(scenario, arm, sim) {
        let number = world.clients.len();
        let timer = timer(&mut machine, TimerOwner::Client(number));
        let rng = Rng::new(seed, STREAM_CLIENT + u64::try_from(number).unwrap_or(0));
        let delays = (nanos(sim.network.latency), sim.network.delayed_ack.map(nanos));
        let mut client = SimClient::new(vm, place, kind, delays, timer, rng);
        machine.arm(timer, client.start(BOOT));
        world.clients.push(client);
    }
    let asked = scenario.clients().zip(&world.clients).map(|((_, load), client)| {
        let server = load.target(scenario.vms.iter().find(|entry| entry.name == load.vm)?)?;
        (server.kind.is_io_bound() && world.measure.knows_wakes[client.vm]).then_some(client.vm)
    });
    world.measure.asks = asked.collect();
    if world.vms.iter().any(|vm| vm.guest.can_deadlock()) {
        machine.arm(watch, WATCH);
    }
    world.sources = sources;
    machine.start();
    world.feed.introduce(targets, &machine);
    Ok((machine, world))
}

/// Why there is no world.
#[derive(Debug)]
pub(crate) enum BuildError {
    Desktop(String),
    Fault(Fault),
    Reservation(String, ReservationError),
    Policy(ConfigError),
    RtApp(String, RtAppError),
}

fn guest(
    scenario: &Scenario,
    arm: &Arm,
    sim: &Sim,
    entry: &VmSpec,
    mut films: Rng,
) -> Result<GuestKernel, BuildError> {
    let mut costs = sim.guest.clone();
    let slice = scenario.guest.time_slice;
    costs.slice = slice.unwrap_or(costs.slice);
    let mut guest = GuestKernel::new(entry.vcpus, &costs);
    if sim.costs.block.is_zero() {
        guest = guest.in_one_step();
    }
    if sim.guest_scheduler(&scenario.guest) == GuestScheduler::Eevdf {
        guest = guest.with_eevdf(slice.map(nanos));
    }
    for (number, workload) in entry.workloads.iter().enumerate() {
        if !arm.stops(entry, workload) {
            workload::add(&mut guest, number, workload, scenario, sim, &mut films)
                .map_err(|error| BuildError::RtApp(workload.name.clone(), error))?;
        }
        if let Some(nice) = sim.nice.get(&format!("{}/{}", entry.name, workload.name)) {
            guest.set_nice(number, *nice);
        }
    }
    Ok(guest)
}

/// Whom each client asks, what it does, and the number of its VM. The loads come first, in their order.
fn clients(scenario: &Scenario, arm: &Arm, sim: &Sim) -> Vec<((Option<Protocol>, u16), ClientKind, usize)> {
    let names = scenario.vm_names();
    let place = |name: &String| names.iter().position(|other| other == name).unwrap_or(0);
    let loads = scenario.clients().filter_map(|(name, load)| {
        let (target, kind) = client(load, scenario, sim)?;
        Some((target, kind, place(&name)))
    });
    let storms = scenario.vms.iter().flat_map(|entry| {
        let storms = entry.workloads.iter().filter(|workload| {
            matches!(workload.kind, WorkloadKind::Storm { of: Storm::Packets }) && !arm.stops(entry, workload)
        });
        storms.flat_map(|_| entry.names())
    });
    let storms =
        storms.map(|name| ((Some(Protocol::Udp), 1), ClientKind::Scan { pause: STORM_PAUSE }, place(&name)));
    loads.chain(storms).collect()
}

/// The program that a load starts, by its number in the guest.
fn app_of(load: &LoadProfile, scenario: &Scenario) -> Option<usize> {
    let entry = scenario.vms.iter().find(|entry| entry.name == load.vm)?;
    let target = load.target(entry)?;
    entry.workloads.iter().position(|workload| workload.name == target.name)
}

fn client(
    load: &LoadProfile,
    scenario: &Scenario,
    sim: &Sim,
) -> Option<((Option<Protocol>, u16), ClientKind)> {
    let think = |think| scenario.scaled_think(think).map(nanos);
    Some(match load.kind {
        LoadKind::Ask { protocol, port, bytes, think: between, .. } => {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            ((Some(workload::transport(protocol)), port), ClientKind::Ask { bytes, think: think(between) })
        }
        LoadKind::Bulk { port } => {
            let frame = SimClient::frame(sim.network.mbit_per_s);
            ((Some(Protocol::Tcp), port), ClientKind::Bulk { window: sim.network.window, frame })
        }
        LoadKind::Edit { think: between } => {
            ((Some(Protocol::Tcp), workload::SSH), ClientKind::Ask { bytes: 64, think: think(between) })
        }
        LoadKind::Launch { think: between, .. } => {
            let key = workload::key_of(app_of(load, scenario)?);
            ((None, key), ClientKind::Ask { bytes: 1, think: think(between) })
        }
        // Refused before.
        LoadKind::Page { .. } => return None,
    })
}

/// A tracer of what happens between two points in time.
pub(crate) fn tracer(scenario: &Scenario, arm: &Arm, from: Nanos, to: Nanos) -> Tracer {
    let mut tracer = Tracer::new(Time(from), Time(to));
    let mut names = scenario.vm_names();
    if has_driver(scenario.sim_of(arm)) {
        names.push(DRIVER.to_owned());
    }
    names.iter().enumerate().for_each(|(vm, name)| tracer.add_vm(id(vm), name));
    tracer
}

/// What the entities are called, in order: VM and thread.
pub(crate) fn entity_names(scenario: &Scenario, arm: &Arm) -> Vec<String> {
    let mut names = Vec::new();
    let sim = scenario.sim_of(arm);
    if has_driver(sim) {
        names.push(DRIVER.to_owned());
    }
    for entry in &scenario.vms {
        for name in entry.names() {
            names.extend((0..entry.vcpus).map(|vcpu| format!("{name}/vCPU {vcpu}")));
            if sim.io_path == IoPath::Emulator {
                names.push(format!("{name}/emulator"));
            }
        }
    }
    names
}
