//! Runs a scenario: every arm and repeat on a machine of its own.

use crate::feed::FeedEntry;
use crate::machine::{Fault, Machine};
use crate::queue::Nanos;
use crate::world::{
    BuildError, Measured, SecondSample, SimError, TaskTimes, ThreadTime, WindowFrames, World, build,
    entity_names, tracer,
};
use frontdesk_engine::{Action, Time, nanos};
use frontdesk_scenario::{
    Arm, Daemon, Extra, Frames, HostInfo, IoPath, Latency, Modelled, Outcome, Rate, Repeat, Scenario,
    Summary, ThreadUse, Timeline, Unit, checks, cpu_shares, float, summarise, wanting_vms,
};
use indexmap::IndexMap;

const SECOND: Nanos = 1_000_000_000;
/// Tasks of a deadlock that are named.
const MOST_STUCK: usize = 8;

/// One run of one arm.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// What the scenario's result model has of it.
    pub repeat: Repeat,
    /// What happened, if it was asked for.
    pub timeline: Option<Timeline>,
    /// What each workload showed, second by second, as VM/WORKLOAD, of those that show frames.
    pub frames: IndexMap<String, Vec<FrameSecond>>,
    /// Periods in which the sound card had nothing to play, by VM, of those in which that happened.
    pub underruns: IndexMap<String, u64>,
    /// CPU time of each VM in each second, in CPUs, if films, games or a person's programs run.
    pub cpu_seconds: IndexMap<String, Vec<f64>>,
}

/// A second of a film or a game.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FrameSecond {
    /// Frames that were to be seen.
    pub shown: u64,
    /// CPU time of its VM, as a fraction of a CPU.
    pub cpu: f64,
    /// What the engine knew of its player, if it knew of it: frames a second,
    pub estimated: Option<f64>,
    /// those that it seems to want,
    pub desired: Option<f64>,
    /// and what the share of its VM was raised to, in permille.
    pub share_permille: Option<u32>,
    /// Whether it took the player for who a sound server plays for.
    pub sound_client: Option<bool>,
}

/// Runs one repeat of an arm. The same scenario, arm, repeat and seed give the same result, bit for bit.
///
/// # Errors
/// The machine cannot be made or gets nowhere, or tasks wait for each other.
pub fn run(scenario: &Scenario, name: &str, repeat: u32, seed: u64, trace: bool) -> Result<Run, SimError> {
    let arm = &scenario.arms[name];
    let (mut machine, mut world) = start(scenario, name, repeat, seed)?;
    let fault = |fault| failed(scenario, arm, name, repeat, BuildError::Fault(fault));
    let from = nanos(scenario.warmup);
    let to = from.saturating_add(nanos(scenario.duration));
    world.trace = trace.then(|| tracer(scenario, arm, from, to));
    machine.run_until(&mut world, from).map_err(fault)?;
    deadlock(scenario, &world, name, repeat)?;
    world.begin(&machine);
    let mut at = from;
    while at < to {
        at = if world.is_interactive() { at.saturating_add(SECOND).min(to) } else { to };
        machine.run_until(&mut world, at).map_err(fault)?;
        world.sample(&machine);
    }
    deadlock(scenario, &world, name, repeat)?;
    let (measured, tracer) = world.finish(&machine);
    let mut run = result(scenario, name, &measured);
    run.timeline = tracer.map(|tracer| Timeline {
        arm: name.to_owned(),
        repeat,
        ..tracer.finish(Time(to), scenario.policy_of(arm).tavs.belief_threshold)
    });
    Ok(run)
}

/// What the engine decides in one repeat of an arm, warm-up included, whether it is done or not.
///
/// # Errors
/// As [`run`], but for tasks that wait for each other.
pub fn decisions(scenario: &Scenario, name: &str, repeat: u32, seed: u64) -> Result<Vec<Action>, SimError> {
    let decided = |entry| match entry {
        FeedEntry::Action(action) => Some(action),
        FeedEntry::Event(_) => None,
    };
    Ok(recorded(scenario, name, repeat, seed, false)?.into_iter().filter_map(decided).collect())
}

/// What the engine is told in one repeat of an arm, warm-up included, and what it decides about that, in
/// order.
///
/// # Errors
/// As [`decisions`].
pub fn feed_entries(
    scenario: &Scenario,
    name: &str,
    repeat: u32,
    seed: u64,
) -> Result<Vec<FeedEntry>, SimError> {
    recorded(scenario, name, repeat, seed, true)
}

fn recorded(
    scenario: &Scenario,
    name: &str,
    repeat: u32,
    seed: u64,
    events: bool,
) -> Result<Vec<FeedEntry>, SimError> {
    let (mut machine, mut world) = start(scenario, name, repeat, seed)?;
    world.feed.record(events);
    let end = nanos(scenario.warmup).saturating_add(nanos(scenario.duration));
    let fault = |fault| failed(scenario, &scenario.arms[name], name, repeat, BuildError::Fault(fault));
    machine.run_until(&mut world, end).map_err(fault)?;
    Ok(world.feed.recorded())
}

fn start(scenario: &Scenario, name: &str, repeat: u32, seed: u64) -> Result<(Machine, World), SimError> {
    let arm = &scenario.arms[name];
    // Every arm of a repeat gets the same load.
    let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(repeat));
    build(scenario, arm, seed).map_err(|error| failed(scenario, arm, name, repeat, error))
}

/// The outcome of a scenario whose arms were run.
#[must_use]
pub fn outcome(scenario: &Scenario, runs: IndexMap<String, Vec<Repeat>>) -> Outcome {
    let arms: IndexMap<_, _> = runs.into_iter().map(|(name, repeats)| (name, summarise(repeats))).collect();
    // A model has no daemon, plugin or engine whose cost could be measured.
    let mut modelled = scenario.clone();
    let bars = &mut modelled.checks;
    (bars.daemon_cpu, bars.engine_events_per_s, bars.decision_p99_us) = (None, None, None);
    (bars.plugin_cpu_slowdown, bars.plugin_fork_slowdown) = (None, None);
    let checks = checks(&modelled, &arms, &Extra::default());
    let sim = &scenario.sim;
    let cpus = usize::from(sim.pcpus(&scenario.host));
    let scheduler = format!("{:?}", sim.scheduler).to_lowercase();
    let path = match sim.io_path {
        IoPath::Emulator => "emulator threads",
        IoPath::DriverDomain => "driver domain",
        IoPath::Direct => "devices of the VMs' own",
    };
    let host = HostInfo {
        kernel: format!("simulated, {scheduler}"),
        cpu: "simulated".to_owned(),
        cpus,
        qemu: path.to_owned(),
        guest_kernel: "simulated".to_owned(),
        frontdesk: env!("CARGO_PKG_VERSION").to_owned(),
        ..HostInfo::default()
    };
    let scenario = scenario.name.clone();
    Outcome { scenario, host, arms, checks, tables: Vec::new(), figures: Vec::new(), screenshots: Vec::new() }
}

fn failed(scenario: &Scenario, arm: &Arm, name: &str, repeat: u32, error: BuildError) -> SimError {
    match error {
        BuildError::Desktop(vm) => SimError::Desktop { vm },
        BuildError::Policy(source) => SimError::Policy { arm: name.to_owned(), source },
        BuildError::Reservation(vm, source) => SimError::Reservation { arm: name.to_owned(), vm, source },
        BuildError::RtApp(workload, source) => SimError::RtApp { workload, source },
        BuildError::Fault(fault) => {
            let concerned = match fault {
                Fault::NoProgress { entity, .. } => entity,
                Fault::NowhereToRun { entity } => Some(entity),
                Fault::NoWeight { .. } => None,
            };
            let names = entity_names(scenario, arm);
            let concerned = concerned.and_then(|entity| names.into_iter().nth(entity.index()));
            let concerned = concerned.unwrap_or_default();
            SimError::Fault { arm: name.to_owned(), repeat, fault, concerned }
        }
    }
}

/// Tasks that will never go on are an error: the scenario does not do what it says.
fn deadlock(scenario: &Scenario, world: &World, name: &str, repeat: u32) -> Result<(), SimError> {
    let stuck: Vec<_> = world.deadlocked().collect();
    let Some(at) = stuck.iter().map(|(_, stuck)| stuck.since).max() else { return Ok(()) };
    let names = scenario.vm_names();
    let entries: Vec<_> =
        scenario.vms.iter().flat_map(|entry| std::iter::repeat_n(entry, usize::from(entry.count))).collect();
    let called = |vm: usize, task: usize| match &world.guest(vm).tasks[task].name {
        Some(name) => name.to_string(),
        None => format!("task {task}"),
    };
    let tasks = stuck.iter().take(MOST_STUCK).map(|(vm, stuck)| {
        let guest = world.guest(*vm);
        let task = called(*vm, stuck.task);
        let workload =
            entries.get(*vm).and_then(|entry| entry.workloads.get(guest.tasks[stuck.task].workload));
        let workload = workload.map_or("?", |workload| workload.name.as_str());
        let channel = match &guest.channels[stuck.channel].name {
            Some(name) => name.to_string(),
            None => format!("messages in channel {}", stuck.channel),
        };
        let by: Vec<_> = stuck.by.iter().take(MOST_STUCK).map(|by| called(*vm, *by)).collect();
        let by = if by.is_empty() {
            "nobody gives".to_owned()
        } else {
            format!("only {} could give", by.join(" or "))
        };
        let (vm, since) = (&names[*vm], seconds(stuck.since));
        format!("{task} of {vm}/{workload} waits for {channel} since {since} s, which {by}")
    });
    let mut tasks = tasks.collect::<Vec<_>>().join("; ");
    if stuck.len() > MOST_STUCK {
        tasks = format!("{tasks}; and {} more", stuck.len() - MOST_STUCK);
    }
    Err(SimError::Deadlock { arm: name.to_owned(), repeat, at_s: seconds(at), tasks })
}

fn result(scenario: &Scenario, name: &str, measured: &Measured) -> Run {
    let arm = &scenario.arms[name];
    let vms = scenario.vm_names();
    let mut samples: IndexMap<String, Vec<f64>> = IndexMap::new();
    let waiting = scenario.clients().zip(&measured.responses).filter(|((_, load), _)| load.kind.waits());
    for ((vm, load), responses) in waiting.filter(|(_, responses)| !responses.is_empty()) {
        let key = scenario.response_key(&vm, load);
        samples.entry(key).or_default().extend(responses.iter().map(|response| millis(*response)));
    }
    let mut open: IndexMap<String, Vec<f64>> = IndexMap::new();
    for ((vm, load), waited) in
        scenario.clients().zip(&measured.open).filter(|((_, load), _)| load.kind.waits())
    {
        if let Some(waited) = waited {
            open.entry(scenario.response_key(&vm, load)).or_default().push(millis(*waited));
        }
    }
    let wanting = wanting_vms(scenario, name);
    let entries = scenario.vms.iter().flat_map(|entry| std::iter::repeat_n(entry, usize::from(entry.count)));
    let mut repeat = Repeat { seconds: seconds(measured.time), ..Repeat::default() };
    let mut shares = Vec::new();
    for ((vm, entry), (cpu, operations)) in
        vms.iter().zip(entries).zip(measured.cpu.iter().zip(&measured.operations))
    {
        shares.push((vm.clone(), *cpu, entry.weight, wanting.contains(vm)));
        repeat.cpu_ms.insert(vm.clone(), millis(*cpu));
        for (workload, operations) in entry.workloads.iter().zip(operations) {
            if operations.count == 0 {
                continue;
            }
            let key = format!("{vm}/{}", workload.name);
            let (unit, count) = match operations.bytes {
                0 => (Unit::Operations, operations.count),
                bytes => (Unit::Bytes, bytes),
            };
            let per_s = float(count) / seconds(measured.time);
            repeat.rates.insert(key.clone(), Rate { per_s, unit });
            if operations.timed {
                repeat.times_ms.insert(key, operations.times.iter().map(|time| millis(*time)).collect());
            }
        }
    }
    repeat.cpu_share = cpu_shares(&shares);
    repeat.response_ms =
        samples.iter().filter_map(|(vm, samples)| Some((vm.clone(), Summary::of(samples)?))).collect();
    repeat.samples_ms = samples;
    repeat.open_ms = open;
    (repeat.boosts, repeat.boost_hits) = (measured.boosts, measured.hits);
    (repeat.request_boosts, repeat.unanswered_boosts) =
        (measured.request_boosts.all, measured.request_boosts.unanswered);
    if arm.daemon != Daemon::Off && measured.boosts > 0 {
        let latency = float(nanos(scenario.sim_of(arm).decision_latency)) / 1_000.0;
        repeat.decision_us = Some(Latency { p50: latency, p99: latency, max: latency });
    }
    let entries = scenario.vms.iter().flat_map(|entry| std::iter::repeat_n(entry, usize::from(entry.count)));
    let mut frames = IndexMap::new();
    for ((vm, entry), windows) in vms.iter().zip(entries).zip(&measured.windows) {
        for window in windows {
            let Some(workload) = entry.workloads.get(window.workload) else { continue };
            if workload.kind.shows_frames() {
                let key = format!("{vm}/{}", workload.name);
                let seconds = frame_seconds(measured, window);
                repeat.frames.insert(key.clone(), frames_of(window, &seconds));
                frames.insert(key, seconds);
            }
        }
    }
    let entries = scenario.vms.iter().flat_map(|entry| std::iter::repeat_n(entry, usize::from(entry.count)));
    for ((vm, entry), tasks) in vms.iter().zip(entries).zip(&measured.responded) {
        for TaskTimes { workload, task, times } in tasks.iter().filter(|task| !task.times.is_empty()) {
            let (Some(workload), Some(task)) = (entry.workloads.get(*workload), task) else { continue };
            // The instances of a task are one.
            let task = task.rsplit_once('/').map_or(&**task, |(name, _)| name);
            let all = repeat.times_ms.entry(format!("{vm}/{}/{task}", workload.name)).or_default();
            all.extend(times.iter().map(|time| millis(*time)));
        }
    }
    repeat.model = Some(modelled(scenario, arm, measured));
    let underruns = vms.iter().zip(&measured.underruns).filter(|(_, count)| **count > 0);
    Run {
        repeat,
        timeline: None,
        frames,
        cpu_seconds: vms.iter().cloned().zip(measured.cpu_seconds.iter().cloned()).collect(),
        underruns: underruns.map(|(vm, count)| (vm.clone(), *count)).collect(),
    }
}

/// What only the model knows of a repeat.
fn modelled(scenario: &Scenario, arm: &Arm, measured: &Measured) -> Modelled {
    let vms = scenario.vm_names();
    let delivery = vms.iter().zip(&measured.delivery).filter(|(_, samples)| !samples.is_empty());
    let delivery =
        delivery.map(|(vm, samples)| (vm.clone(), samples.iter().map(|sample| millis(*sample)).collect()));
    let threads = entity_names(scenario, arm).into_iter().zip(&measured.threads).map(|(name, thread)| {
        let ThreadTime { dispatches, cpu } = *thread;
        let utilisation = seconds(cpu) / seconds(measured.time);
        (name, ThreadUse { dispatches, cpu_ms: millis(cpu), utilisation })
    });
    Modelled {
        events: measured.happened,
        engine_events: measured.engine_events,
        delivery_ms: delivery.collect(),
        threads: threads.collect(),
    }
}

/// What was shown in a window, second by second.
fn frame_seconds(measured: &Measured, window: &WindowFrames) -> Vec<FrameSecond> {
    let (mut begun, mut seen, mut cpu_before) = (measured.begun, window.seen.as_slice(), window.cpu_before);
    let second = |sample: &SecondSample| {
        let (inside, after) = seen.split_at(seen.partition_point(|at| *at < sample.at));
        let length = seconds(sample.at - begun).max(f64::MIN_POSITIVE);
        let second = FrameSecond {
            shown: u64::try_from(inside.len()).unwrap_or(u64::MAX),
            cpu: seconds(sample.cpu - cpu_before) / length,
            estimated: sample.player.map(|(estimated, _, _)| estimated),
            desired: sample.player.map(|(_, desired, _)| desired),
            share_permille: sample.player.map(|(_, _, share)| share),
            sound_client: sample.sound_client,
        };
        (begun, seen, cpu_before) = (sample.at, after, sample.cpu);
        second
    };
    window.seconds.iter().map(second).collect()
}

fn frames_of(window: &WindowFrames, seconds: &[FrameSecond]) -> Frames {
    let shown: Vec<f64> = seconds.iter().map(|second| float(second.shown)).collect();
    let (per_s, deviation) = mean_and_deviation(&shown);
    let intervals: Vec<f64> = window.seen.windows(2).map(|pair| millis(pair[1] - pair[0])).collect();
    let (_, jitter_ms) = mean_and_deviation(&intervals);
    let seen = u64::try_from(window.seen.len()).unwrap_or(u64::MAX);
    let all = float(seen.saturating_add(window.dropped).max(1));
    let known = seconds.iter().filter_map(|second| Some((second.estimated?, float(second.shown))));
    let (estimated, real) = known.fold((0.0, 0.0), |sums, second| (sums.0 + second.0, sums.1 + second.1));
    Frames {
        per_s,
        deviation,
        dropped: float(window.dropped) / all,
        jitter_ms,
        estimate_error: (real > 0.0).then(|| (estimated / real - 1.0).abs()),
        recovery_s: None,
    }
}

/// Of numbers of which there may be none.
fn mean_and_deviation(of: &[f64]) -> (f64, f64) {
    let count = float(u64::try_from(of.len()).unwrap_or(u64::MAX).max(1));
    let mean = of.iter().sum::<f64>() / count;
    let variance = of.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

fn millis(time: Nanos) -> f64 {
    float(time) / 1e6
}

fn seconds(time: Nanos) -> f64 {
    float(time) / 1e9
}
