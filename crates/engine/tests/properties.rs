//! What holds for any sequence of events, since guests are untrusted and sources lose things.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_engine::{
    Action, ActionKind, Boost, BoostTarget, Config, Engine, Event, EventKind, Protocol, TaskId, Thread, Time,
    VmId,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const TASKS: usize = 16;
const VMS: u32 = 3;

fn thread() -> impl Strategy<Value = Thread> {
    prop_oneof![(0..4u16).prop_map(Thread::Vcpu), any::<u16>().prop_map(Thread::Emulator)]
}

fn kind() -> impl Strategy<Value = EventKind> {
    let vm = || (0..VMS).prop_map(VmId);
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let vcpu = || 0..4u16;
    prop_oneof![
        1 => (vm(), any::<u16>(), any::<u32>())
            .prop_map(|(vm, vcpus, weight)| EventKind::VmAdded { vm, vcpus: vcpus % 4, weight }),
        1 => vm().prop_map(|vm| EventKind::VmRemoved { vm }),
        8 => (vm(), thread(), any::<u16>()).prop_map(|(vm, thread, pcpu)| EventKind::Run { vm, thread, pcpu }),
        8 => (vm(), thread(), any::<bool>())
            .prop_map(|(vm, thread, runnable)| EventKind::Stop { vm, thread, runnable }),
        4 => (vm(), thread(), prop::option::of(vcpu()))
            .prop_map(|(vm, thread, by)| EventKind::Wake { vm, thread, by }),
        16 => (vm(), vcpu(), 0..40u64)
            .prop_map(|(vm, vcpu, task)| EventKind::TaskSwitch { vm, vcpu, task: TaskId(task) }),
        4 => (vm(), vcpu()).prop_map(|(vm, vcpu)| EventKind::Halt { vm, vcpu }),
        4 => (vm(), vcpu()).prop_map(|(vm, vcpu)| EventKind::Resume { vm, vcpu }),
        1 => (vm(), vcpu(), any::<u64>(), any::<u8>())
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
        8 => (vm(), vcpu(), 0..6u64).prop_map(|(vm, vcpu, task)| EventKind::TaskSeen { vm, vcpu, task: TaskId(task) }),
        1 => (vm(), vcpu(), any::<u8>()).prop_map(|(vm, vcpu, vector)| EventKind::Interrupt { vm, vcpu, vector }),
        1 => (vm(), vcpu()).prop_map(|(vm, vcpu)| EventKind::IpiTaken { vm, vcpu }),
    ]
}

/// Events mostly a little apart, now and then far apart, late, or at the end of time.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![
        20 => (0..400_000u64).prop_map(|ns| (ns, false)),
        2 => (0..100_000_000u64).prop_map(|ns| (ns, false)),
        1 => (0..100_000_000u64).prop_map(|ns| (ns, true)),
    ];
    prop::collection::vec((step, kind()), 0..600).prop_map(|steps| {
        let mut now = 0u64;
        let mut events: Vec<Event> = (0..VMS)
            .map(|vm| EventKind::VmAdded { vm: VmId(vm), vcpus: 2, weight: 1024 })
            .map(|kind| Event { at: Time(0), kind })
            .collect();
        for ((nanos, back), kind) in steps {
            let at = if back { now.saturating_sub(nanos) } else { now + nanos };
            now = now.max(at);
            events.push(Event { at: Time(at), kind });
        }
        events
    })
}

/// A belief low enough to be reached, so that boosts do happen.
fn config() -> Config {
    let mut config = Config::default();
    config.tavs.belief_threshold = 4;
    config.tavs.counter_bits = 1;
    config.tavs.tasks_per_vcpu = TASKS;
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
        while let Some(deadline) = engine.next_deadline().filter(|deadline| *deadline <= event.at) {
            engine.on_deadline(deadline);
        }
        engine.on_event(event);
        actions.extend(std::iter::from_fn(|| engine.poll_action()));
    }
    actions
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

    /// A state with some bytes changed is refused, or an engine like any other: it takes all events, and its boosts end.
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
        let (mut engine, mut actions) = run(&events);
        let end = events.iter().map(|event| event.at).max().unwrap_or_default();
        while let Some(deadline) = engine.next_deadline().filter(|deadline| *deadline <= end.plus(1_100_000_000)) {
            engine.on_deadline(deadline);
        }
        actions.extend(std::iter::from_fn(|| engine.poll_action()));
        let mut since = BTreeMap::new();
        let mut watched = BTreeSet::new();
        for Action { at, kind } in actions {
            match kind {
                ActionKind::Boost { vm, target, level: Boost::Io } => {
                    prop_assert_eq!(since.insert((vm, target), at), None, "boosted twice");
                    prop_assert!(since.contains_key(&(vm, BoostTarget::Emulators)), "a vCPU ahead of its emulator threads");
                }
                ActionKind::Boost { vm, target, level: Boost::None } => {
                    let begun = since.remove(&(vm, target));
                    // Emulator threads may have the last answer in their hands.
                    let most = if target == BoostTarget::Emulators { u64::MAX } else { 40_000_000 };
                    prop_assert!(begun.is_some_and(|begun| at.since(begun) <= most), "begun {begun:?}, ended {at:?}");
                    let emulators = since.contains_key(&(vm, BoostTarget::Emulators));
                    prop_assert!(emulators || since.keys().all(|(of, _)| *of != vm), "a vCPU ahead of its emulator threads");
                }
                ActionKind::Share { permille, .. } => prop_assert!((1..=1000).contains(&permille)),
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
