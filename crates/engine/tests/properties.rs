//! What holds for any sequence of events, since guests are untrusted and sources lose things.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod anything;

use anything::{events, kind, targets};
use frontdesk_engine::{
    Action, ActionKind, Boost, BoostTarget, Capabilities, Config, Engine, Event, EventKind, MediaDevice,
    Protocol, Region, Standing, TaskId, Time, UserInput, VmId,
};
use frontdesk_testing::all_ends::{TASKS, all_ends, config, go_on, run, without_turns};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether an action takes something back, or is about a VM that can be acted on.
fn may_ask(kind: ActionKind, world: Capabilities, standings: &BTreeMap<VmId, Standing>) -> bool {
    let acts = |vm| world.acts && standings.get(&vm) == Some(&Standing::Acting);
    match kind {
        ActionKind::Boost { level: Boost::None, .. }
        | ActionKind::Share { permille: 1000, .. }
        | ActionKind::Weight { permille: 1000, .. } => true,
        ActionKind::Boost { vm, .. } => acts(vm),
        ActionKind::Share { vm, permille } => acts(vm) && (!world.charges_boosts || permille > 1000),
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
        without_turns(&mut engine);
        engine.on_deadline(Time(u64::MAX));
        let boosted = engine.vms().filter_map(|vm| engine.explain(vm)).flat_map(|vm| vm.vcpus);
        prop_assert!(boosted.into_iter().all(|vcpu| !vcpu.boosted));
    }

    #[test]
    fn every_boost_ends_within_its_time(events in events()) {
        let (engine, actions) = run(&events);
        all_ends(engine, actions, &events);
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
        all_ends(engine, actions, &events);
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
            without_turns(&mut flooded);
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
            prop_assert!(vcpus.iter().all(|vcpu| !vcpu.boosted), "{:?} since {:?}", vcpus, now);
        }
    }

    #[test]
    fn only_vcpus_that_are_there_are_boosted(events in events()) {
        let mut engine = Engine::new(config()).unwrap();
        let vcpus = |engine: &Engine, vm| engine.explain(vm).map_or(0, |explain| explain.vcpus.len());
        for event in &events {
            // One whose time is over just when its VM goes may be followed by another, which then ends as
            // well.
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

    /// A world that does not act, and a VM that cannot be acted on, are asked for nothing but to take back.
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

/// Sequences of events without end, each other ones: FRONTDESK_EVENTS of them in all, in millions, or ten.
/// Says how many there were.
#[test]
#[ignore = "takes as long as one likes: FRONTDESK_EVENTS=1000 cargo test --release -p frontdesk-engine --test properties -- --ignored"]
fn many_millions_of_events_do_no_harm() {
    let wanted = std::env::var("FRONTDESK_EVENTS").ok().and_then(|millions| millions.parse().ok());
    let wanted = wanted.unwrap_or(10_u64) * 1_000_000;
    let (told, seeds) = (AtomicU64::new(0), AtomicU64::new(1));
    let work = || {
        while told.load(Ordering::Relaxed) < wanted {
            let mut seed = [0; 32];
            seed[..8].copy_from_slice(&seeds.fetch_add(1, Ordering::Relaxed).to_le_bytes());
            let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
            let config =
                ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
            let mut runner = TestRunner::new_with_rng(config, rng);
            let tried = runner.run(&events(), |events| {
                let (engine, actions) = run(&events);
                all_ends(engine, actions, &events);
                told.fetch_add(events.len() as u64, Ordering::Relaxed);
                Ok(())
            });
            // Says the shortest sequence that fails, too.
            tried.unwrap();
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    println!("{} events in {} seeds", told.into_inner(), seeds.into_inner() - 1);
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

/// The same for players: nobody would be one in most sequences.
#[test]
fn many_events_lead_to_films() {
    let mut runner = TestRunner::deterministic();
    let begins = |action: &Action| matches!(action.kind, ActionKind::Boost { level: Boost::Multimedia, .. });
    let raises = |action: &Action| matches!(action.kind, ActionKind::Share { permille: 1500.., .. });
    let actions: Vec<Vec<Action>> =
        (0..64).map(|_| run(&events().new_tree(&mut runner).unwrap().current()).1).collect();
    let count = |of: fn(&Action) -> bool| actions.iter().filter(|actions| actions.iter().any(of)).count();
    let (boosted, raised) = (count(begins), count(raises));
    assert!(boosted >= 16 && raised >= 4, "{boosted} boosted, {raised} raised");
}

/// The same for launches.
#[test]
fn many_events_lead_to_slow_vcpus() {
    let mut runner = TestRunner::deterministic();
    let slow = |action: &Action| matches!(action.kind, ActionKind::Weight { permille: ..1000, .. });
    let counts: Vec<usize> = (0..64)
        .map(|_| run(&events().new_tree(&mut runner).unwrap().current()).1)
        .map(|actions| actions.iter().filter(|action| slow(action)).count())
        .collect();
    let some = counts.iter().filter(|count| **count >= 2).count();
    assert!(some >= 8, "slow vCPUs of 64 sequences: {counts:?}");
}

/// A VM, and what tells the engine of an event of its every so many nanoseconds.
fn flooded(vm: VmId, vcpus: u16, every: u64) -> (Engine, impl FnMut(&mut Engine, EventKind)) {
    let mut engine = Engine::new(Config::default()).unwrap();
    let mut at = 0;
    let mut feed = move |engine: &mut Engine, kind| {
        at += every;
        engine.on_event(&Event { at: Time(at), kind });
    };
    feed(&mut engine, EventKind::VmAdded { vm, vcpus, weight: 1024 });
    (engine, feed)
}

/// The bar is 64 KiB for each vCPU of a VM with four, whatever its guest and its clients do.
#[test]
fn memory_is_bounded() {
    let vm = VmId(0);
    let (mut engine, mut feed) = flooded(vm, 4, 100_000);
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
        let device = if i % 2 == 0 { MediaDevice::Sound } else { MediaDevice::Display };
        feed(&mut engine, EventKind::DeviceAccess { vm, vcpu, device, in_interrupt: false });
        let [x, y] = [i % 1000, i / 1000 % 700].map(|at| u16::try_from(at).unwrap());
        let region = Some(Region { x, y, width: 64, height: 64 }).filter(|_| i % 7 > 0);
        feed(&mut engine, EventKind::DisplayUpdate { vm, region });
        feed(&mut engine, EventKind::GpuDone { vm });
        let input = if i % 3 == 0 { UserInput::Key } else { UserInput::Enter };
        feed(&mut engine, EventKind::Input { vm, input });
    }
    let full = engine.memory(vm).unwrap();
    assert!(fresh < full && full <= 4 * 64 * 1024, "{fresh} bytes grew to {full}");
    assert_eq!(engine.memory(VmId(1)), None);
}

/// A guest that creates tasks without end, and one that is sent packets to every port.
#[test]
fn floods_are_bounded() {
    let vm = VmId(0);
    let (mut engine, mut feed) = flooded(vm, 1, 1000);
    for i in 0..200_000u64 {
        feed(&mut engine, EventKind::TaskSwitch { vm, vcpu: 0, task: TaskId(i) });
        let port = u16::try_from(i % 65_536).unwrap();
        feed(&mut engine, EventKind::Packet { vm, protocol: Protocol::Udp, port });
        feed(&mut engine, EventKind::BlockRead { vm, request: i });
    }
    let explain = engine.explain(vm).unwrap();
    assert_eq!(explain.tasks.len(), Config::default().tavs.tasks_per_vcpu);
    let ids: BTreeSet<TaskId> = explain.tasks.iter().map(|task| task.id).collect();
    assert!(ids.contains(&TaskId(199_999)));
    assert!(engine.poll_action().is_none());
}

/// A guest whose vCPUs do nothing but interrupt each other, whatever vectors, and vCPUs that are not there:
/// what names one is counted, and the flood is no reason to boost anything.
#[test]
fn floods_of_interrupts_are_bounded_and_counted() {
    const ROUNDS: u64 = 100_000;
    let vm = VmId(0);
    let (mut engine, mut feed) = flooded(vm, 4, 1000);
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
