//! Asymmetric vCPUs: a person starts something in a VM that has work in the background (vAMP).

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_engine::{
    ActionKind, AsymmetricExplain, Capabilities, Config, Engine, EpisodeCause, Event, EventKind, MediaDevice,
    Protocol, Ratio, Standing, TaskId, Thread, Time, UserInput, VmId, VmPolicy,
};
use frontdesk_testing::pass;
use proptest::prelude::*;
use std::time::Duration;

const DESK: VmId = VmId(1);
const OTHER: VmId = VmId(2);
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const BUILD: TaskId = TaskId(0x1000);
const LAUNCH: TaskId = TaskId(0x2000);
const SERVER: TaskId = TaskId(0x3000);
const PLAYER: TaskId = TaskId(0x4000);
/// A slice of the world's scheduler, in nanoseconds.
const SLICE: u64 = MS;

/// A VM whose vCPU n runs on physical CPU n.
struct Desk {
    vm: VmId,
    /// What runs on each vCPU; `None`: it is halted.
    tasks: Vec<Option<TaskId>>,
    share: f64,
    weights: Vec<f64>,
    /// By physical CPU: what it got over its weight.
    virtual_times: Vec<f64>,
    ran: Vec<u64>,
}

/// Two VMs that share physical CPUs fairly by share and weight, as Linux's control groups do.
struct Host {
    engine: Engine,
    now: u64,
    desks: Vec<Desk>,
    /// Which of them has a physical CPU.
    running: Vec<usize>,
    decided: Vec<ActionKind>,
}

impl Host {
    /// Both have `BUILD` on all vCPUs.
    fn new(config: Config, vcpus: u16) -> Host {
        let all = usize::from(vcpus);
        let desk = |vm| Desk {
            vm,
            tasks: vec![Some(BUILD); all],
            share: 1.0,
            weights: vec![1.0; all],
            virtual_times: vec![0.0; all],
            ran: vec![0; all],
        };
        let engine = Engine::new(config).unwrap();
        let desks = vec![desk(DESK), desk(OTHER)];
        let mut host = Host { engine, now: MS, desks, running: vec![0; all], decided: Vec::new() };
        for vm in [DESK, OTHER] {
            host.feed(EventKind::VmAdded { vm, vcpus, weight: 1024 });
            for vcpu in 0..vcpus {
                let thread = Thread::Vcpu(vcpu);
                host.feed(EventKind::Run { vm, thread, pcpu: vcpu });
                host.feed(EventKind::TaskSwitch { vm, vcpu, task: BUILD });
                if vm == OTHER {
                    host.feed(EventKind::Stop { vm, thread, runnable: true });
                }
            }
        }
        host
    }

    fn feed(&mut self, kind: EventKind) {
        self.engine.on_event(&Event { at: Time(self.now), kind });
        self.apply();
    }

    fn apply(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            let desk = self.desks.iter_mut().find(|desk| desk.vm == action.kind.vm()).unwrap();
            match action.kind {
                ActionKind::Share { permille, .. } => desk.share = f64::from(permille) / 1000.0,
                ActionKind::Weight { vcpu, permille, .. } => {
                    desk.weights[usize::from(vcpu)] = f64::from(permille) / 1000.0;
                }
                ActionKind::Boost { .. } | ActionKind::Watch { .. } => {}
            }
            self.decided.push(action.kind);
        }
    }

    fn input(&mut self, input: UserInput) {
        self.feed(EventKind::Input { vm: DESK, input });
    }

    /// Another task runs on a vCPU.
    fn switch(&mut self, vcpu: u16, task: TaskId) {
        let of = &mut self.desks[0].tasks[usize::from(vcpu)];
        if *of != Some(task) {
            *of = Some(task);
            self.feed(EventKind::TaskSwitch { vm: DESK, vcpu, task });
        }
    }

    /// What a desk's runnable vCPU has of its physical CPU, over one of the other's.
    fn weight(&self, desk: usize, pcpu: usize) -> f64 {
        let Desk { tasks, weights, share, .. } = &self.desks[desk];
        let awake = tasks.iter().zip(weights).filter(|(task, _)| task.is_some());
        share * weights[pcpu] / awake.map(|(_, weight)| weight).sum::<f64>()
    }

    /// Lets slices pass.
    fn pass(&mut self, nanos: u64) {
        for _ in 0..nanos / SLICE {
            for pcpu in 0..self.running.len() {
                let wants = |desk: &usize| self.desks[*desk].tasks[pcpu].is_some();
                let least = |one: &usize, other: &usize| {
                    let [one, other] = [one, other].map(|desk| self.desks[*desk].virtual_times[pcpu]);
                    one.total_cmp(&other)
                };
                let Some(next) = (0..2).filter(wants).min_by(least) else { continue };
                let before = std::mem::replace(&mut self.running[pcpu], next);
                let thread = Thread::Vcpu(u16::try_from(pcpu).unwrap());
                if before != next {
                    let (vm, runnable) = (self.desks[before].vm, self.desks[before].tasks[pcpu].is_some());
                    self.feed(EventKind::Stop { vm, thread, runnable });
                    let vm = self.desks[next].vm;
                    self.feed(EventKind::Run { vm, thread, pcpu: u16::try_from(pcpu).unwrap() });
                }
                let weight = self.weight(next, pcpu);
                self.desks[next].virtual_times[pcpu] += 1.0 / weight;
                self.desks[next].ran[pcpu] += SLICE;
            }
            self.now += SLICE;
            pass(&mut self.engine, Time(self.now));
            self.apply();
        }
    }

    fn total(&self) -> u64 {
        self.desks[0].ran.iter().sum()
    }

    fn explain(&self) -> AsymmetricExplain {
        self.engine.explain(DESK).unwrap().asymmetric.unwrap()
    }

    fn slow(&self) -> Vec<u16> {
        self.explain().episode.map_or(vec![], |episode| episode.slow)
    }

    /// Somebody types, so that it is known what runs, and a while later presses Enter.
    fn launch(&mut self) {
        self.input(UserInput::Key);
        self.pass(1200 * MS);
        self.input(UserInput::Enter);
    }
}

fn config(ratio: Ratio) -> Config {
    let mut config = Config::default();
    config.asymmetric.ratio = ratio;
    config
}

fn weights(decided: &[ActionKind]) -> Vec<(u16, u32)> {
    let weight = |kind: &ActionKind| match *kind {
        ActionKind::Weight { vcpu, permille, .. } => Some((vcpu, permille)),
        _ => None,
    };
    decided.iter().filter_map(weight).collect()
}

/// Figure 2: at an input the build is tagged, a vCPU is slow while it runs the build, and fast when another
/// task arrives.
#[test]
fn vcpus_are_slow_while_they_run_background_work_after_an_input() {
    let mut host = Host::new(Config::default(), 2);
    host.launch();
    assert_eq!(weights(&host.decided), [(0, 333), (1, 333)]);
    let explain = host.explain();
    let episode = explain.episode.unwrap();
    assert_eq!((episode.cause, episode.until.0), (EpisodeCause::Enter, host.now + 5 * SECOND));
    assert!(episode.acts);
    assert_eq!((explain.background.len(), explain.background[0].task), (1, BUILD));
    assert!(explain.background[0].load_permille.abs_diff(2000) < 60, "{:?}", explain.background);
    host.pass(100 * MS);
    host.switch(0, LAUNCH);
    assert_eq!((weights(&host.decided).last(), host.slow()), (Some(&(0, 1000)), vec![1]));
    host.pass(100 * MS);
    host.switch(0, BUILD);
    host.pass(10 * MS);
    assert_eq!((weights(&host.decided).last(), host.slow()), (Some(&(0, 333)), vec![0, 1]));
    // Since when it is background, over two inputs.
    let since = explain.background[0].since;
    host.pass(SECOND);
    host.input(UserInput::Button);
    assert_eq!(host.explain().background[0].since, since);
    assert_eq!(host.explain().episode.unwrap().cause, EpisodeCause::Button);
    host.decided.clear();
    host.pass(6 * SECOND);
    assert_eq!(weights(&host.decided), [(0, 1000), (1, 1000)], "it ends by time");
    assert_eq!(host.explain().episode, None);
}

/// §3.3: a guest that keeps its background work on a vCPU has that one slow and the others fast, whatever
/// runs there and whoever is interrupted, until it says otherwise, or the episode ends.
#[test]
fn weights_follow_the_vcpus_that_a_guest_keeps_for_background_work() {
    let mut host = Host::new(config(Ratio::High), 2);
    host.launch();
    assert_eq!(host.slow(), [0, 1]);
    host.decided.clear();
    host.feed(EventKind::Isolated { vm: DESK, slow: 0b10 });
    assert_eq!((weights(&host.decided), host.slow()), (vec![(0, 1000)], vec![1]));
    for round in 0..100 {
        host.switch(0, [BUILD, LAUNCH][round % 2]);
        host.switch(1, [LAUNCH, BUILD][round % 2]);
        host.feed(EventKind::Ipi { vm: DESK, vcpu: 0, to: 2, vector: 0xfd });
        host.feed(EventKind::Interrupt { vm: DESK, vcpu: 1, vector: 0x21 });
        host.pass(10 * MS);
    }
    assert_eq!(weights(&host.decided).len(), 1);
    // No vCPU, all of them, or such as it has not: what runs there tells again.
    for nonsense in [0, 0b11, u64::MAX, 0b1100] {
        host.input(UserInput::Enter);
        host.feed(EventKind::Isolated { vm: DESK, slow: 0b10 });
        host.switch(1, SERVER);
        assert_eq!(host.slow(), [1]);
        host.feed(EventKind::Isolated { vm: DESK, slow: nonsense });
        assert!(!host.slow().contains(&1), "{nonsense:b}: {:?}", host.slow());
    }
    // Another episode does not begin with what a guest did in the one before.
    host.feed(EventKind::Isolated { vm: DESK, slow: 0b10 });
    host.input(UserInput::Key);
    assert!(host.slow().is_empty());
    host.launch();
    host.switch(1, PLAYER);
    host.pass(100 * MS);
    assert!(!host.slow().contains(&1), "{:?}", host.slow());
}

#[test]
fn another_key_ends_an_episode() {
    let mut host = Host::new(Config::default(), 2);
    host.launch();
    host.decided.clear();
    host.pass(500 * MS);
    host.input(UserInput::Key);
    assert_eq!(weights(&host.decided), [(0, 1000), (1, 1000)]);
    assert_eq!(host.explain().episode, None);
    host.pass(SECOND);
    assert_eq!(weights(&host.decided).len(), 2);
}

/// The faster vCPU gets nearly a physical CPU with the highest ratio, and the VM what it is due in any second
/// of it, and before, and after.
#[test]
fn a_fast_vcpu_gets_more_and_the_vm_as_much_as_ever() {
    let mut before = 0.55;
    for ratio in [Ratio::Low, Ratio::Medium, Ratio::High, Ratio::Most] {
        for (vcpus, turns) in [(2u16, 0), (2, 7), (2, 150), (4, 0), (4, 60)] {
            let mut host = Host::new(config(ratio), vcpus);
            host.input(UserInput::Key);
            let (mut totals, mut fast) = (Vec::new(), 0);
            for step in 0..9000u64 {
                // Between 2 s and 6 s the launch has the first vCPU, or by turns with the build.
                let launches = (2000..6000).contains(&step) && (turns == 0 || step / turns % 2 == 0);
                if step == 2000 {
                    host.input(UserInput::Enter);
                }
                host.switch(0, if launches { LAUNCH } else { BUILD });
                let ran = host.desks[0].ran[0];
                host.pass(SLICE);
                fast += if launches { host.desks[0].ran[0] - ran } else { 0 };
                totals.push(host.total());
            }
            let due = u64::from(vcpus) * SECOND / 2;
            let errors = totals.windows(1000).map(|of| (of[999] - of[0]).abs_diff(due));
            let most = errors.max().unwrap();
            assert!(most * 50 <= due, "{ratio:?}, {vcpus} vCPUs, turns of {turns} ms: {most} ns in a second");
            if turns == 0 && vcpus == 2 {
                #[allow(clippy::cast_precision_loss)]
                let part = fast as f64 / (4 * SECOND) as f64;
                assert!(part > before + 0.04, "{ratio:?}: {part} of a CPU");
                before = part;
            }
        }
    }
    assert!(before > 0.87, "{before} of a CPU");
}

#[test]
fn without_others_who_want_the_cpus_nothing_is_done() {
    let mut config = config(Ratio::High);
    // The vCPUs that are not told of any more seem to wait.
    config.ledger.longest_wait = Duration::ZERO;
    let mut host = Host::new(config, 2);
    host.desks[1].tasks.fill(None);
    for vcpu in 0..2 {
        host.feed(EventKind::Halt { vm: OTHER, vcpu });
    }
    host.pass(2 * SECOND);
    host.launch();
    host.pass(2 * SECOND);
    assert_eq!(host.decided, []);
    assert_eq!(host.explain().episode.map(|episode| episode.acts), Some(false));
    // When they come in an episode, it is seen.
    host.desks[1].tasks.fill(Some(BUILD));
    host.desks[1].virtual_times = host.desks[0].virtual_times.clone();
    for vcpu in 0..2 {
        host.feed(EventKind::Wake { vm: OTHER, thread: Thread::Vcpu(vcpu), by: None });
        host.feed(EventKind::Resume { vm: OTHER, vcpu });
    }
    host.pass(400 * MS);
    assert_eq!(host.slow(), [0, 1]);
    host.pass(4 * SECOND);
    assert!(host.slow().is_empty());
}

#[test]
fn a_vm_with_one_vcpu_and_one_that_is_not_to_be_acted_on_is_left_alone() {
    let acted = |mut host: Host| {
        host.launch();
        host.pass(SECOND);
        !weights(&host.decided).is_empty()
    };
    assert!(!acted(Host::new(config(Ratio::High), 1)));
    assert!(!acted(Host::new(config(Ratio::None), 2)));
    for standing in [Standing::Observed, Standing::Reserved] {
        let mut host = Host::new(config(Ratio::High), 2);
        host.feed(EventKind::Standing { vm: DESK, standing });
        assert!(!acted(host));
    }
    let mut host = Host::new(config(Ratio::High), 2);
    host.engine.configure_vm(DESK, VmPolicy { off: true, pb_ratio: None }).unwrap();
    assert!(!acted(host));
    let mut host = Host::new(config(Ratio::High), 2);
    host.feed(EventKind::World(Capabilities { acts: false, ..Capabilities::default() }));
    assert!(!acted(host));
    assert!(acted(Host::new(config(Ratio::High), 2)));
}

#[test]
fn all_weights_end_when_it_is_over_for_the_vm() {
    for over in [
        EventKind::VmPaused { vm: DESK },
        EventKind::VmReset { vm: DESK },
        EventKind::Standing { vm: DESK, standing: Standing::Reserved },
        EventKind::World(Capabilities { acts: false, ..Capabilities::default() }),
        EventKind::VmRemoved { vm: DESK },
    ] {
        let mut host = Host::new(config(Ratio::Most), 3);
        host.launch();
        host.switch(0, LAUNCH);
        host.pass(300 * MS);
        assert!(host.desks[0].share > 2.0, "{}", host.desks[0].share);
        host.feed(over);
        let Desk { weights, share, .. } = &host.desks[0];
        assert!(
            weights.iter().all(|weight| *weight == 1.0) && (0.7..1.3).contains(share),
            "{over:?}: {weights:?}, {share}"
        );
    }
    let mut host = Host::new(config(Ratio::High), 3);
    host.launch();
    host.feed(EventKind::VcpuRemoved { vm: DESK, vcpu: 1 });
    host.feed(EventKind::VcpuAdded { vm: DESK, vcpu: 1 });
    assert_eq!((host.desks[0].weights[1], host.slow()), (1.0, vec![0, 2]), "plugged out and in");
}

/// Beyond the paper: what a person waits for may have to be answered by a slow vCPU, or to be woken there.
#[test]
fn a_slow_vcpu_that_is_interrupted_is_fast_until_it_goes_on_with_the_build() {
    let ipi = |from, to: u16| EventKind::Ipi { vm: DESK, vcpu: from, to: 1 << to, vector: 0xfd };
    for restore in [true, false] {
        let mut config = config(Ratio::High);
        config.asymmetric.restore = restore;
        let mut host = Host::new(config, 3);
        host.launch();
        host.pass(50 * MS);
        host.switch(0, LAUNCH);
        host.decided.clear();
        host.feed(ipi(1, 2));
        assert_eq!(weights(&host.decided), [], "the build interrupts itself");
        host.feed(ipi(0, 2));
        host.feed(EventKind::Interrupt { vm: DESK, vcpu: 1, vector: 0x22 });
        if !restore {
            assert_eq!(weights(&host.decided), []);
            continue;
        }
        assert_eq!(weights(&host.decided), [(2, 1000), (1, 1000)]);
        // They go on with the build, without a switch of tasks.
        host.pass(90 * MS);
        let mut again = weights(&host.decided).split_off(2);
        again.sort_unstable();
        assert_eq!((again, host.slow()), (vec![(1, 56), (2, 56)], vec![1, 2]));
        assert_eq!(host.explain().restored, 2);
    }
}

/// §3.1.2: "a packet with a well-known port number (e.g., 22 for ssh)"
#[test]
fn packets_to_configured_ports_are_inputs() {
    let mut config = Config::default();
    config.asymmetric.ports = vec![22];
    let mut host = Host::new(config, 2);
    let packet = |protocol, port| EventKind::Packet { vm: DESK, protocol, port };
    host.feed(packet(Protocol::Tcp, 22));
    host.pass(1200 * MS);
    host.input(UserInput::Key);
    host.feed(packet(Protocol::Tcp, 80));
    host.feed(packet(Protocol::Udp, 22));
    assert_eq!(host.explain().episode, None);
    host.feed(packet(Protocol::Tcp, 22));
    assert_eq!(host.explain().episode.unwrap().cause, EpisodeCause::Port(22));
    assert_eq!(host.slow(), [0, 1]);
}

/// A film: a player that uses most of a vCPU, and a sound server that it wakes on another one. The build on
/// both wakes the server by chance.
fn film(host: &mut Host, seconds: u64) {
    let switch = |host: &mut Host, vcpu, task| host.switch(vcpu, task);
    let poke = |host: &mut Host, from: u16, to: u16| {
        host.feed(EventKind::Ipi { vm: DESK, vcpu: from, to: 1 << to, vector: 0xfd });
        host.feed(EventKind::IpiTaken { vm: DESK, vcpu: to });
    };
    for n in 0..seconds * 25 {
        switch(host, 0, PLAYER);
        host.pass(28 * MS);
        poke(host, 0, 1);
        switch(host, 1, SERVER);
        let (vcpu, device, in_interrupt) = (1, MediaDevice::Sound, false);
        host.feed(EventKind::DeviceAccess { vm: DESK, vcpu, device, in_interrupt });
        host.pass(MS);
        switch(host, 1, BUILD);
        switch(host, 0, BUILD);
        host.pass(11 * MS);
        if n % 8 == 0 {
            poke(host, 0, 1);
            switch(host, 1, SERVER);
            host.feed(EventKind::DeviceAccess { vm: DESK, vcpu, device, in_interrupt });
            switch(host, 1, BUILD);
        }
    }
}

/// §3.1.3 and Figure 8: without multimedia identification the player is taken for background work.
#[test]
fn who_plays_is_no_background_work() {
    for identify in [true, false] {
        let mut config = Config::default();
        config.asymmetric.identify_players = identify;
        let mut host = Host::new(config, 2);
        film(&mut host, 12);
        let explain = host.explain();
        let background: Vec<TaskId> = explain.background.iter().map(|of| of.task).collect();
        assert_eq!(explain.episode.unwrap().cause, EpisodeCause::Sound);
        assert_eq!((explain.sound_client, background.contains(&BUILD)), (Some(PLAYER), true));
        assert_eq!(background.contains(&PLAYER), !identify, "{background:?}");
    }
}

/// A person who types and clicks by the thousand: who is background is looked at now and then, and each
/// vCPU's weight changes no more than it can be of use.
#[test]
fn inputs_by_the_thousand_are_survived() {
    let mut host = Host::new(config(Ratio::High), 4);
    host.launch();
    host.decided.clear();
    for n in 0..10_000u64 {
        host.input(if n % 2 == 0 { UserInput::Enter } else { UserInput::Button });
        if n % 20 == 0 {
            host.pass(SLICE);
        }
    }
    assert!(weights(&host.decided).len() < 8, "{}", weights(&host.decided).len());
    assert!(host.engine.memory(DESK).unwrap() <= 4 * 64 * 1024);
    host.pass(6 * SECOND);
    assert!(host.slow().is_empty());
}

/// A guest that plays silence, interrupts itself, and changes tasks all the time, so that its weights change
/// as often as they can: it gets no more than its share of any second.
#[test]
fn a_hostile_guest_gains_nothing() {
    for ratio in [Ratio::Low, Ratio::Most] {
        let mut config = config(ratio);
        config.asymmetric.min_fast = Duration::from_millis(1);
        let mut host = Host::new(config, 2);
        let mut totals = Vec::new();
        for step in 0..20_000u64 {
            let vcpu = u16::try_from(step / 3 % 2).unwrap();
            let running = host.running[usize::from(vcpu)] == 0;
            if running {
                let task = match step % 7 {
                    0..4 => BUILD,
                    4 | 5 => LAUNCH,
                    _ => TaskId(0x10_0000 + step),
                };
                host.switch(vcpu, task);
                let (device, in_interrupt) = (MediaDevice::Sound, task == BUILD);
                host.feed(EventKind::DeviceAccess { vm: DESK, vcpu, device, in_interrupt });
                host.feed(EventKind::Ipi { vm: DESK, vcpu, to: u64::MAX, vector: 0xfd });
                if step % 3 == 0 {
                    host.feed(EventKind::Interrupt { vm: DESK, vcpu, vector: 0x21 });
                }
            }
            host.pass(SLICE);
            totals.push(host.total());
        }
        let most = totals.windows(1000).map(|of| of[999] - of[0]).max().unwrap();
        assert!(most <= SECOND + SECOND / 50, "{ratio:?}: {most} ns in a second");
        assert!(host.explain().slowed > 100, "{:?}", host.explain());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever runs where, whoever interrupts whom, and whenever a person does something: the VM has what it
    /// is due of any second.
    #[test]
    fn the_vm_neither_gains_nor_loses(
        ratio in prop_oneof![Just(Ratio::Low), Just(Ratio::Medium), Just(Ratio::High), Just(Ratio::Most)],
        vcpus in 2..5u16,
        steps in prop::collection::vec((0..5u16, 0..3usize, 1..150u64, prop::bool::weighted(0.05), any::<bool>()), 80),
        // What its extension says, true or not: which vCPUs it keeps for background work.
        isolated in prop::collection::vec(prop::option::weighted(0.1, 0u64..32), 80),
    ) {
        let mut host = Host::new(config(ratio), vcpus);
        host.launch();
        let mut totals = Vec::new();
        for ((vcpu, task, millis, input, interrupts), isolated) in steps.into_iter().zip(isolated) {
            let vcpu = vcpu % vcpus;
            host.switch(vcpu, [BUILD, BUILD, LAUNCH][task]);
            if input {
                host.input(UserInput::Enter);
            }
            if let Some(slow) = isolated {
                host.feed(EventKind::Isolated { vm: DESK, slow });
            }
            if interrupts {
                host.feed(EventKind::Ipi { vm: DESK, vcpu, to: u64::MAX, vector: 0xfd });
            }
            for _ in 0..millis {
                host.pass(SLICE);
                totals.push(host.total());
            }
        }
        let due = u64::from(vcpus) * SECOND / 2;
        let most = totals.windows(1001).map(|of| (of[1000] - of[0]).abs_diff(due)).max().unwrap_or(0);
        prop_assert!(most * 33 <= due, "{ratio:?}, {vcpus} vCPUs: {most} ns in a second");
    }
}

/// Linux may leave each of two VMs a physical CPU of its own, so that no other VM wants theirs.
#[test]
fn vcpus_of_one_physical_cpu_are_slow_beside_each_other() {
    for pcpus in [1, 2] {
        let mut engine = Engine::new(config(Ratio::High)).unwrap();
        let mut now = MS;
        let mut feed = |engine: &mut Engine, kind| {
            pass(engine, Time(now));
            engine.on_event(&Event { at: Time(now), kind });
            now += MS / 2;
        };
        feed(&mut engine, EventKind::VmAdded { vm: DESK, vcpus: 2, weight: 1024 });
        for (vcpu, task) in [(0, BUILD), (1, SERVER)] {
            feed(&mut engine, EventKind::TaskSwitch { vm: DESK, vcpu, task });
        }
        feed(&mut engine, EventKind::Input { vm: DESK, input: UserInput::Key });
        // They take turns, on one physical CPU or each on its own.
        for turn in 0..2000 {
            let (vcpu, other) = (turn % 2, 1 - turn % 2);
            feed(&mut engine, EventKind::Stop { vm: DESK, thread: Thread::Vcpu(other), runnable: true });
            let pcpu = vcpu % pcpus;
            feed(&mut engine, EventKind::Run { vm: DESK, thread: Thread::Vcpu(vcpu), pcpu });
        }
        feed(&mut engine, EventKind::Input { vm: DESK, input: UserInput::Enter });
        let episode = engine.explain(DESK).unwrap().asymmetric.unwrap().episode.unwrap();
        let expected: &[u16] = if pcpus == 1 { &[0, 1] } else { &[] };
        assert_eq!((episode.acts, episode.slow.as_slice()), (pcpus == 1, expected));
    }
}
