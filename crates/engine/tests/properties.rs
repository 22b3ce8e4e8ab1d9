//! What holds for any sequence of events, since guests are untrusted and sources lose things.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_engine::{
    Action, ActionKind, Boost, BoostTarget, Capabilities, Config, Engine, Event, EventKind, Protocol,
    Standing, TaskId, Thread, Time, VmId,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};

const TASKS: usize = 16;
const VMS: u32 = 3;
/// Deadlines between two events, at most; those of a ledger with the shortest period are fewer.
const MOST_DEADLINES: usize = 10_000;

fn thread() -> impl Strategy<Value = Thread> {
    prop_oneof![vcpu().prop_map(Thread::Vcpu), any::<u16>().prop_map(Thread::Emulator)]
}

// Few VMs, vCPUs and tasks have most of the events: else hardly any task would be believed in, and nothing boosted.

fn vm() -> impl Strategy<Value = VmId> {
    prop_oneof![2 => Just(VmId(0)), 1 => (0..VMS).prop_map(VmId)]
}

fn vcpu() -> impl Strategy<Value = u16> {
    prop_oneof![3 => 0..2u16, 1 => 0..4u16]
}

/// One that an interrupt names: it may be any.
fn any_vcpu() -> impl Strategy<Value = u16> {
    prop_oneof![3 => vcpu(), 1 => any::<u16>()]
}

fn task() -> impl Strategy<Value = TaskId> {
    prop_oneof![3 => 0..3u64, 1 => 0..40u64].prop_map(TaskId)
}

fn world() -> impl Strategy<Value = Capabilities> {
    (prop::bool::weighted(0.95), any::<bool>(), any::<u32>(), any::<u64>()).prop_map(
        |(acts, charges_boosts, realtime_permille, slice_ns)| Capabilities {
            acts,
            charges_boosts,
            realtime_permille,
            slice_ns,
        },
    )
}

fn kind() -> impl Strategy<Value = EventKind> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let standing = prop_oneof![8 => Just(Standing::Acting), 1 => Just(Standing::Observed), 1 => Just(Standing::Reserved)];
    prop_oneof![
        1 => (vm(), any::<u16>(), any::<u32>())
            .prop_map(|(vm, vcpus, weight)| EventKind::VmAdded { vm, vcpus: vcpus % 4, weight }),
        1 => vm().prop_map(|vm| EventKind::VmRemoved { vm }),
        8 => (vm(), thread(), any::<u16>()).prop_map(|(vm, thread, pcpu)| EventKind::Run { vm, thread, pcpu }),
        8 => (vm(), thread(), any::<bool>())
            .prop_map(|(vm, thread, runnable)| EventKind::Stop { vm, thread, runnable }),
        4 => (vm(), thread(), prop::option::of(vcpu()))
            .prop_map(|(vm, thread, by)| EventKind::Wake { vm, thread, by }),
        16 => (vm(), vcpu(), task()).prop_map(|(vm, vcpu, task)| EventKind::TaskSwitch { vm, vcpu, task }),
        4 => (vm(), vcpu()).prop_map(|(vm, vcpu)| EventKind::Halt { vm, vcpu }),
        4 => (vm(), vcpu()).prop_map(|(vm, vcpu)| EventKind::Resume { vm, vcpu }),
        4 => (vm(), any_vcpu(), targets(), any::<u8>())
            .prop_map(|(vm, vcpu, to, vector)| EventKind::Ipi { vm, vcpu, to, vector }),
        16 => (vm(), protocol, 0..4u16)
            .prop_map(|(vm, protocol, port)| EventKind::Packet { vm, protocol, port }),
        4 => (vm(), 0..8u64).prop_map(|(vm, request)| EventKind::BlockRead { vm, request }),
        4 => vm().prop_map(|vm| EventKind::BlockPending { vm }),
        4 => (vm(), 0..8u64).prop_map(|(vm, request)| EventKind::BlockDone { vm, request }),
        1 => (prop::option::of(vm()), any::<u64>()).prop_map(|(vm, count)| EventKind::Lost { vm, count }),
        1 => vm().prop_map(|vm| EventKind::VmReset { vm }),
        1 => vm().prop_map(|vm| EventKind::VmPaused { vm }),
        2 => vm().prop_map(|vm| EventKind::VmResumed { vm }),
        1 => (vm(), any::<u16>()).prop_map(|(vm, vcpu)| EventKind::VcpuAdded { vm, vcpu: vcpu % 600 }),
        1 => (vm(), vcpu()).prop_map(|(vm, vcpu)| EventKind::VcpuRemoved { vm, vcpu }),
        1 => (vm(), any::<u32>()).prop_map(|(vm, weight)| EventKind::Weight { vm, weight }),
        8 => (vm(), vcpu(), task()).prop_map(|(vm, vcpu, task)| EventKind::TaskSeen { vm, vcpu, task }),
        4 => (vm(), any_vcpu(), any::<u8>()).prop_map(|(vm, vcpu, vector)| EventKind::Interrupt { vm, vcpu, vector }),
        4 => (vm(), any_vcpu()).prop_map(|(vm, vcpu)| EventKind::IpiTaken { vm, vcpu }),
        1 => world().prop_map(EventKind::World),
        1 => (vm(), standing).prop_map(|(vm, standing)| EventKind::Standing { vm, standing }),
        1 => (vm(), any_vcpu(), 1..4000u32).prop_map(|(vm, vcpu, permille)| EventKind::VcpuWeight { vm, vcpu, permille }),
    ]
}

/// Where an inter-processor interrupt goes: to one vCPU, to none, to all that could be, or to any.
fn targets() -> impl Strategy<Value = u64> {
    prop_oneof![3 => (0..4u32).prop_map(|vcpu| 1 << vcpu), 1 => Just(0), 1 => Just(u64::MAX), 1 => any::<u64>()]
}

/// What a source tells of a request: a packet is delivered, the first vCPU takes the interrupt and tells the
/// one where a task waits, and that answers with a doorbell, or does not.
fn request() -> impl Strategy<Value = Vec<EventKind>> {
    (vm(), 0..2u16, 0..3u64, any::<bool>()).prop_map(|(vm, vcpu, task, rings)| {
        let (emulator, thread) = (Thread::Emulator(0), Thread::Vcpu(vcpu));
        let mut kinds = vec![
            EventKind::Packet { vm, protocol: Protocol::Tcp, port: u16::try_from(task).unwrap() },
            EventKind::Run { vm, thread: emulator, pcpu: 0 },
            EventKind::Stop { vm, thread: emulator, runnable: false },
            EventKind::Run { vm, thread: Thread::Vcpu(0), pcpu: 0 },
            EventKind::Interrupt { vm, vcpu: 0, vector: 0x21 },
        ];
        if vcpu > 0 {
            kinds.extend([
                EventKind::Ipi { vm, vcpu: 0, to: 1 << vcpu, vector: 0xfd },
                EventKind::Run { vm, thread, pcpu: 1 },
                EventKind::IpiTaken { vm, vcpu },
            ]);
        }
        kinds.push(EventKind::TaskSwitch { vm, vcpu, task: TaskId(task) });
        if rings {
            kinds.push(EventKind::Wake { vm, thread: emulator, by: Some(vcpu) });
        }
        kinds.push(EventKind::TaskSwitch { vm, vcpu, task: TaskId(39) });
        kinds
    })
}

/// Events mostly a little apart, now and then far apart, late, or at the end of time.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![
        40 => (0..100_000u64).prop_map(|ns| (ns, false)),
        2 => (0..100_000_000u64).prop_map(|ns| (ns, false)),
        1 => (0..100_000_000u64).prop_map(|ns| (ns, true)),
    ];
    let kinds = prop_oneof![7 => kind().prop_map(|kind| vec![kind]), 1 => request()];
    prop::collection::vec((step, kinds), 0..400).prop_map(|steps| {
        let mut now = 0u64;
        let mut events: Vec<Event> = (0..VMS)
            .map(|vm| EventKind::VmAdded { vm: VmId(vm), vcpus: 2, weight: 1024 })
            .map(|kind| Event { at: Time(0), kind })
            .collect();
        for ((nanos, back), kinds) in steps {
            let mut at = if back { now.saturating_sub(nanos) } else { now + nanos };
            for kind in kinds {
                events.push(Event { at: Time(at), kind });
                now = now.max(at);
                at += 20_000;
            }
        }
        events
    })
}

/// A belief low enough to be reached, so that boosts do happen.
fn config() -> Config {
    let mut config = Config::default();
    config.tavs.belief_threshold = 4;
    config.tavs.negative_evidence = 1;
    config.tavs.counter_bits = 1;
    config.tavs.tasks_per_vcpu = TASKS;
    config.tavs.pb_ratio = 0.5;
    config
}

fn run(events: &[Event]) -> (Engine, Vec<Action>) {
    let mut engine = Engine::new(config()).unwrap();
    let actions = go_on(&mut engine, events);
    (engine, actions)
}

fn go_on(engine: &mut Engine, events: &[Event]) -> Vec<Action> {
    let mut actions = Vec::new();
    for event in events {
        pass(engine, event.at);
        engine.on_event(event);
        actions.extend(std::iter::from_fn(|| engine.poll_action()));
    }
    actions
}

/// Lets the time pass.
///
/// # Panics
/// The engine wants to be told it without end.
fn pass(engine: &mut Engine, to: Time) {
    for _ in 0..MOST_DEADLINES {
        let Some(deadline) = engine.next_deadline().filter(|deadline| *deadline <= to) else { return };
        engine.on_deadline(deadline);
    }
    panic!("the engine wants to be told the time again and again before {to:?}");
}

/// Lets the time of the last boost pass, and looks at what was decided.
fn all_ends(mut engine: Engine, mut actions: Vec<Action>, events: &[Event]) -> Result<(), TestCaseError> {
    let end = events.iter().map(|event| event.at).max().unwrap_or_default();
    pass(&mut engine, end.plus(1_100_000_000));
    actions.extend(std::iter::from_fn(|| engine.poll_action()));
    let mut since = BTreeMap::new();
    let mut watched = BTreeSet::new();
    for Action { at, kind } in actions {
        match kind {
            ActionKind::Boost { vm, target, level: Boost::Io } => {
                prop_assert_eq!(since.insert((vm, target), at), None, "boosted twice");
                prop_assert!(
                    since.contains_key(&(vm, BoostTarget::Emulators)),
                    "a vCPU ahead of its emulator threads"
                );
            }
            ActionKind::Boost { vm, target, level: Boost::None } => {
                let begun = since.remove(&(vm, target));
                // Emulator threads may have the last answer in their hands.
                let most = if target == BoostTarget::Emulators { u64::MAX } else { 40_000_000 };
                prop_assert!(
                    begun.is_some_and(|begun| at.since(begun) <= most),
                    "begun {begun:?}, ended {at:?}"
                );
                let emulators = since.contains_key(&(vm, BoostTarget::Emulators));
                prop_assert!(
                    emulators || since.keys().all(|(of, _)| *of != vm),
                    "a vCPU ahead of its emulator threads"
                );
            }
            ActionKind::Share { permille, .. } => prop_assert!((1..=16_000).contains(&permille)),
            ActionKind::Watch { vm, vcpu, on } => {
                let changed = if on { watched.insert((vm, vcpu)) } else { watched.remove(&(vm, vcpu)) };
                prop_assert!(changed, "watched twice, or not");
            }
            ActionKind::Boost { level: Boost::Multimedia, .. } | ActionKind::Weight { .. } => {
                prop_assert!(false, "nobody decides {:?} yet", kind);
            }
        }
    }
    prop_assert_eq!(since, BTreeMap::new());
    prop_assert_eq!(watched, BTreeSet::new());
    Ok(())
}

/// Whether an action takes something back, or is about a VM that can be acted on.
fn may_ask(kind: ActionKind, world: Capabilities, standings: &BTreeMap<VmId, Standing>) -> bool {
    let acts = |vm| world.acts && standings.get(&vm) == Some(&Standing::Acting);
    match kind {
        ActionKind::Boost { level: Boost::None, .. } | ActionKind::Share { permille: 1000, .. } => true,
        ActionKind::Boost { vm, .. } => acts(vm),
        ActionKind::Share { vm, .. } => acts(vm) && !world.charges_boosts,
        ActionKind::Weight { vm, .. } => acts(vm),
        ActionKind::Watch { vm, on, .. } => acts(vm) || !on,
    }
}

proptest! {
    #[test]
    fn the_same_events_give_the_same_actions(events in events()) {
        prop_assert_eq!(run(&events).1, run(&events).1);
    }

    #[test]
    fn an_engine_saved_and_loaded_in_the_middle_goes_on_as_before(events in events(), at in any::<prop::sample::Index>()) {
        let (before, after) = events.split_at(at.index(events.len() + 1));
        let (mut engine, _) = run(before);
        let saved = postcard::to_stdvec(&engine).unwrap();
        let mut loaded: Engine = postcard::from_bytes(&saved).unwrap();
        prop_assert_eq!(go_on(&mut loaded, after), go_on(&mut engine, after));
        prop_assert_eq!(postcard::to_stdvec(&loaded).unwrap(), postcard::to_stdvec(&engine).unwrap());
    }

    /// A state with some bytes changed is refused, or an engine like any other: it takes all events, and its
    /// boosts end.
    #[test]
    fn fuzz_damaged_states(
        events in events(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        more in events(),
    ) {
        let mut saved = postcard::to_stdvec(&run(&events).0).unwrap();
        for (at, byte) in damage {
            *at.get_mut(&mut saved) = byte;
        }
        let Ok(mut engine) = postcard::from_bytes::<Engine>(&saved) else { return Ok(()) };
        go_on(&mut engine, &more);
        let vms: Vec<VmId> = engine.vms().collect();
        vms.into_iter().for_each(|vm| drop(engine.explain(vm)));
        engine.on_deadline(Time(u64::MAX));
        let boosted = engine.vms().filter_map(|vm| engine.explain(vm)).flat_map(|vm| vm.vcpus);
        prop_assert!(boosted.into_iter().all(|vcpu| vcpu.boost == Boost::None));
    }

    #[test]
    fn every_boost_ends_within_its_time(events in events()) {
        let (engine, actions) = run(&events);
        all_ends(engine, actions, &events)?;
    }

    /// A vCPU that is boosted interrupts all others, and is plugged in again, or out, or another is, or its
    /// VM is gone or comes afresh.
    #[test]
    fn boosts_end_whatever_is_plugged_meanwhile(events in events(), plugs in prop::collection::vec(0..6u8, 1..20)) {
        let mut engine = Engine::new(config()).unwrap();
        let mut plugs = plugs.iter().cycle();
        let mut actions = Vec::new();
        for event in &events {
            let decided = go_on(&mut engine, &[*event]);
            let boosted = decided.iter().find_map(|action| match action.kind {
                ActionKind::Boost { vm, target: BoostTarget::Vcpu(vcpu), level: Boost::Io } => Some((vm, vcpu)),
                _ => None,
            });
            actions.extend(decided);
            let Some((vm, vcpu)) = boosted else { continue };
            let ipi = EventKind::Ipi { vm, vcpu, to: u64::MAX, vector: 0xfd };
            let plug = match plugs.next() {
                Some(0) => EventKind::VcpuRemoved { vm, vcpu },
                Some(1) => EventKind::VcpuAdded { vm, vcpu },
                Some(2) => EventKind::VcpuAdded { vm, vcpu: vcpu + 1 },
                Some(3) => EventKind::VcpuRemoved { vm, vcpu: vcpu + 1 },
                Some(4) => EventKind::VmAdded { vm, vcpus: 2, weight: 1024 },
                _ => EventKind::IpiTaken { vm, vcpu: vcpu + 1 },
            };
            let at = event.at;
            actions.extend(go_on(&mut engine, &[ipi, plug].map(|kind| Event { at, kind })));
        }
        all_ends(engine, actions, &events)?;
    }

    /// A guest whose vCPUs interrupt each other without end while one of them is boosted, as if each handled
    /// the event and handed it on.
    #[test]
    fn no_flood_of_interrupts_makes_boosts_last(
        events in events(),
        flood in prop::collection::vec((0..4u16, targets(), any::<u8>()), 1..8),
    ) {
        const STEP: u64 = 20_000;
        let mut engine = Engine::new(config()).unwrap();
        let (mut now, mut floods) = (Time(0), 0);
        for event in &events {
            now = now.max(event.at);
            let boosted = go_on(&mut engine, &[*event]).into_iter().find_map(|action| match action.kind {
                ActionKind::Boost { vm, target: BoostTarget::Vcpu(_), level: Boost::Io } => Some(vm),
                _ => None,
            });
            let Some(vm) = boosted.filter(|_| floods < 3) else { continue };
            floods += 1;
            let mut flooded = engine.clone();
            // Longer than any boost.
            for (step, (vcpu, to, vector)) in (0..60_000_000 / STEP).zip(flood.iter().cycle()) {
                let (vcpu, to, vector) = (*vcpu, *to, *vector);
                let at = now.plus(step * STEP);
                let kinds = [
                    EventKind::Interrupt { vm, vcpu, vector },
                    EventKind::Ipi { vm, vcpu, to, vector },
                    EventKind::IpiTaken { vm, vcpu },
                ];
                go_on(&mut flooded, &kinds.map(|kind| Event { at, kind }));
            }
            // The event that boosted one may have been its last.
            let Some(vcpus) = flooded.explain(vm).map(|vm| vm.vcpus) else { continue };
            prop_assert!(vcpus.iter().all(|vcpu| vcpu.boost == Boost::None), "{:?} since {:?}", vcpus, now);
        }
    }

    #[test]
    fn only_vcpus_that_are_there_are_boosted(events in events()) {
        let mut engine = Engine::new(config()).unwrap();
        let vcpus = |engine: &Engine, vm| engine.explain(vm).map_or(0, |explain| explain.vcpus.len());
        for event in &events {
            // One whose time is over just when its VM goes may be followed by another, which then ends as well.
            let before = [0, 1, 2].map(|vm| vcpus(&engine, VmId(vm)));
            for action in go_on(&mut engine, &[*event]) {
                if let ActionKind::Boost { vm, target: BoostTarget::Vcpu(vcpu), level } = action.kind
                    && level > Boost::None
                {
                    let vcpus = vcpus(&engine, vm).max(before[vm.0 as usize]);
                    prop_assert!(usize::from(vcpu) < vcpus, "{action:?}, and {vm:?} has {vcpus} vCPUs");
                }
            }
        }
    }

    /// A world that does not act, and a VM that can't be acted on, are asked for nothing but to take back.
    #[test]
    fn only_what_can_be_acted_on_is(events in events()) {
        let mut engine = Engine::new(config()).unwrap();
        let (mut world, mut standings) = (Capabilities::default(), BTreeMap::new());
        for event in &events {
            while let Some(due) = engine.next_deadline().filter(|due| *due <= event.at) {
                engine.on_deadline(due);
            }
            let due: Vec<Action> = std::iter::from_fn(|| engine.poll_action()).collect();
            prop_assert!(due.iter().all(|action| may_ask(action.kind, world, &standings)), "{due:?}");
            match event.kind {
                EventKind::World(now) => world = now,
                EventKind::Standing { vm, standing } => drop(standings.insert(vm, standing)),
                EventKind::VmAdded { vm, .. } => drop(standings.insert(vm, Standing::Acting)),
                _ => {}
            }
            engine.on_event(event);
            let then: Vec<Action> = std::iter::from_fn(|| engine.poll_action()).collect();
            prop_assert!(then.iter().all(|action| may_ask(action.kind, world, &standings)), "{event:?}: {then:?}");
        }
    }

    #[test]
    fn tables_stay_bounded_and_beliefs_in_range(events in events()) {
        let (engine, _) = run(&events);
        for vm in engine.vms() {
            let explain = engine.explain(vm).unwrap();
            prop_assert!(explain.tasks.len() <= TASKS * explain.vcpus.len());
            prop_assert!(explain.tasks.iter().all(|task| (-100..=300).contains(&task.belief)));
            for vcpu in explain.vcpus {
                prop_assert!(vcpu.hits <= vcpu.boosts);
            }
        }
    }

    #[test]
    fn extreme_times_do_no_harm(times in prop::collection::vec(any::<u64>(), 1..50), kinds in prop::collection::vec(kind(), 50)) {
        let events: Vec<Event> =
            times.into_iter().zip(kinds).map(|(at, kind)| Event { at: Time(at), kind }).collect();
        let mut engine = Engine::new(config()).unwrap();
        for event in &events {
            engine.on_event(event);
            engine.on_deadline(event.at);
        }
    }
}

/// Without boosts most of the properties would hold of any engine.
#[test]
fn most_events_lead_to_boosts() {
    let mut runner = TestRunner::deterministic();
    let boosts = |events: &[Event]| {
        let begins = |action: &&Action| matches!(action.kind, ActionKind::Boost { level: Boost::Io, .. });
        run(events).1.iter().filter(begins).count()
    };
    let counts: Vec<usize> =
        (0..64).map(|_| boosts(&events().new_tree(&mut runner).unwrap().current())).collect();
    let most = counts.iter().filter(|count| **count >= 2).count();
    assert!(most >= 32, "boosts of 64 sequences: {counts:?}");
}

/// The bar is 64 KiB for each vCPU of a VM with four, whatever its guest and its clients do.
#[test]
fn memory_is_bounded() {
    let mut engine = Engine::new(Config::default()).unwrap();
    let vm = VmId(0);
    let mut at = 0;
    let mut feed = |engine: &mut Engine, kind| {
        at += 100_000;
        engine.on_event(&Event { at: Time(at), kind });
    };
    feed(&mut engine, EventKind::VmAdded { vm, vcpus: 4, weight: 1024 });
    let fresh = engine.memory(vm).unwrap();
    for i in 0..200_000u64 {
        let vcpu = u16::try_from(i % 4).unwrap();
        feed(&mut engine, EventKind::TaskSwitch { vm, vcpu, task: TaskId(i) });
        let protocol = if i % 2 == 0 { Protocol::Udp } else { Protocol::Tcp };
        feed(&mut engine, EventKind::Packet { vm, protocol, port: u16::try_from(i % 65_536).unwrap() });
        feed(&mut engine, EventKind::BlockRead { vm, request: i });
        let vector = u8::try_from(i / 4 % 256).unwrap();
        feed(&mut engine, EventKind::Interrupt { vm, vcpu, vector });
        feed(&mut engine, EventKind::Ipi { vm, vcpu, to: i, vector });
    }
    let full = engine.memory(vm).unwrap();
    assert!(fresh < full && full <= 4 * 64 * 1024, "{fresh} bytes grew to {full}");
    assert_eq!(engine.memory(VmId(1)), None);
}

/// A guest that creates tasks without end, and one that is sent packets to every port.
#[test]
fn floods_are_bounded() {
    let mut engine = Engine::new(Config::default()).unwrap();
    let vm = VmId(0);
    let mut at = 0;
    let mut feed = |engine: &mut Engine, kind| {
        at += 1000;
        engine.on_event(&Event { at: Time(at), kind });
    };
    feed(&mut engine, EventKind::VmAdded { vm, vcpus: 1, weight: 1024 });
    for i in 0..200_000u64 {
        feed(&mut engine, EventKind::TaskSwitch { vm, vcpu: 0, task: TaskId(i) });
        let port = u16::try_from(i % 65_536).unwrap();
        feed(&mut engine, EventKind::Packet { vm, protocol: Protocol::Udp, port });
        feed(&mut engine, EventKind::BlockRead { vm, request: i });
    }
    let explain = engine.explain(vm).unwrap();
    assert_eq!(explain.tasks.len(), Config::default().tavs.tasks_per_vcpu);
    let ids: BTreeSet<TaskId> = explain.tasks.iter().map(|task| task.task).collect();
    assert!(ids.contains(&TaskId(199_999)));
    assert!(engine.poll_action().is_none());
}

/// A guest whose vCPUs do nothing but interrupt each other, whatever vectors, and vCPUs that are not there:
/// what names one is counted, and the flood is no reason to boost anything.
#[test]
fn floods_of_interrupts_are_bounded_and_counted() {
    const ROUNDS: u64 = 100_000;
    let mut engine = Engine::new(Config::default()).unwrap();
    let vm = VmId(0);
    let mut at = 0;
    let mut feed = |engine: &mut Engine, kind| {
        at += 1000;
        engine.on_event(&Event { at: Time(at), kind });
    };
    feed(&mut engine, EventKind::VmAdded { vm, vcpus: 4, weight: 1024 });
    for i in 0..ROUNDS {
        let vcpu = u16::try_from(i % 4).unwrap();
        let missing = u16::try_from(4 + i % 60_000).unwrap();
        let vector = u8::try_from(i % 256).unwrap();
        feed(&mut engine, EventKind::Interrupt { vm, vcpu, vector });
        feed(&mut engine, EventKind::Ipi { vm, vcpu, to: i.wrapping_mul(0x9e37_79b9_7f4a_7c15), vector });
        feed(&mut engine, EventKind::IpiTaken { vm, vcpu });
        feed(&mut engine, EventKind::Interrupt { vm, vcpu: missing, vector });
        feed(&mut engine, EventKind::Ipi { vm, vcpu: missing, to: 1, vector });
        feed(&mut engine, EventKind::IpiTaken { vm, vcpu: missing });
    }
    assert_eq!(engine.troubles().unknown, 3 * ROUNDS);
    let bytes = engine.memory(vm).unwrap();
    assert!(bytes <= 4 * 64 * 1024, "{bytes} bytes");
    assert_eq!(engine.explain(vm).unwrap().vcpus.len(), 4);
    assert!(engine.poll_action().is_none());
}
