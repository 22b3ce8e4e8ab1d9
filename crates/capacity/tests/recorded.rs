//! Profiles from recordings: what they say is near what was recorded, and the model takes them.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_capacity::{CapacityError, Derived, Limit, Observed, Profile, capacity, observe};
use frontdesk_engine::{Config, Event, EventKind, Protocol, TaskId, Thread, Time, VmId};
use frontdesk_record::{Record, Recorder, Recording};
use frontdesk_scenario::Overrides;
use std::path::Path;

const MS: u64 = 1_000_000;
const VCPU: Thread = Thread::Vcpu(0);

/// What a recording of these events tells, and the recording.
fn recorded(names: &[&str], events: &[(u64, EventKind)]) -> Result<Observed, CapacityError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.fdsk");
    let mut recorder = Recorder::create(&file).unwrap();
    recorder.push(&Record::Config(Config::default()));
    for (number, name) in (0..).zip(names) {
        recorder.push(&Record::Vm { vm: VmId(number), name: (*name).to_owned() });
    }
    for (at, kind) in events {
        recorder.push(&Record::Event(Event { at: Time(*at), kind: *kind }));
    }
    recorder.finish().unwrap();
    observe(&mut Recording::open(&file).unwrap())
}

fn added(vm: u32) -> (u64, EventKind) {
    (0, EventKind::VmAdded { vm: VmId(vm), vcpus: 1, weight: 1024 })
}

/// For ten seconds, a request each 100 ms: 2 ms of the task that answers, after 1 ms of one that does
/// something else as well. On another CPU a VM computes.
fn desk_and_build() -> Vec<(u64, EventKind)> {
    let [desk, build] = [VmId(0), VmId(1)];
    let mut events = vec![added(0), added(1)];
    events.push((0, EventKind::Run { vm: build, thread: VCPU, pcpu: 1 }));
    let (protocol, port) = (Protocol::Tcp, 22);
    for begin in (0..100).map(|request| MS + request * 100 * MS) {
        let switch = |task| EventKind::TaskSwitch { vm: desk, vcpu: 0, task: TaskId(task) };
        events.extend([
            (begin, EventKind::Packet { vm: desk, protocol, port }),
            (begin, EventKind::Wake { vm: desk, thread: VCPU, by: None }),
            (begin, EventKind::Run { vm: desk, thread: VCPU, pcpu: 0 }),
            (begin, switch(8)),
            (begin + MS, switch(7)),
            (begin + 3 * MS, EventKind::Reply { vm: desk, protocol, port }),
            // It computes longer for itself than who answers does.
            (begin + 3 * MS, switch(8)),
            (begin + 8 * MS, EventKind::Stop { vm: desk, thread: VCPU, runnable: false }),
        ]);
    }
    events
}

#[test]
fn requests_costs_and_work_are_those_of_the_recording() {
    let observed = recorded(&["desk-1", "<build>"], &desk_and_build()).unwrap();
    let [desk, build] = &observed.vms[..] else { panic!("{observed:?}") };
    let near = |value: f64, wanted: f64| (value - wanted).abs() <= 0.02 * wanted;
    assert!(near(observed.seconds, 9.909) && observed.pcpus == 2, "{observed:?}");
    let [asked] = &desk.asked[..] else { panic!("{desk:?}") };
    assert_eq!((asked.protocol, asked.port, asked.requests), (Protocol::Tcp, 22, 100));
    assert!(near(asked.think_s.0, 0.097) && asked.think_s.1 < 0.001, "{asked:?}");
    assert!(near(asked.cost_s.unwrap(), 0.002), "{asked:?}");
    assert!(near(desk.cpu, 0.8 / 9.909) && desk.wanted[0] < 0.1, "{desk:?}");
    assert!(build.asked.is_empty() && build.wanted[0] > 0.99 && near(build.cpu, 1.0), "{build:?}");

    let folder = tempfile::tempdir().unwrap();
    let derived = Derived::of(&observed, "r.fdsk").unwrap();
    let profile = derived.write(folder.path()).unwrap();
    let error = derived.write(folder.path()).unwrap_err();
    assert!(matches!(error, CapacityError::InTheWay { .. }), "{error}");
    let short =
        Overrides { set: vec!["duration=4s".to_owned(), "warmup=1s".to_owned()], ..Overrides::default() };
    let profile = Profile::load(&profile, &short).unwrap();
    assert_eq!(profile.mix.keys().collect::<Vec<_>>(), ["desk1", "build"]);
    // What it did beside answers is there: 6 ms of each 100.
    let run = frontdesk_sim::run(&profile.scenario(2), "stock", 1, 1, false).unwrap().repeat;
    let answers = run.samples_ms["desk1"].len();
    assert!((36..=41).contains(&answers), "{answers}: 4 s, an answer each 100 ms");
    let limit: Limit = "p95 <= 20 ms".parse().unwrap();
    let arms = capacity(&profile, &limit, 1, 2, &false.into(), &|_| {}).unwrap().unwrap();
    assert!(arms.iter().all(|arm| arm.held.desktops > 0), "{arms:?}");
}

/// The daemon's recording of `echo-mixed`, ten seconds of it: a VM that answers and computes beside five that
/// compute, on one CPU.
#[test]
fn a_recording_of_real_vms_comes_back_on_the_model() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../frontdesk/tests/data/echo-mixed.fdsk");
    let observed = observe(&mut Recording::open(&path).unwrap()).unwrap();
    let mixed = observed.vms.iter().find(|vm| vm.name == "mixed").unwrap();
    let [asked] = &mixed.asked[..] else { panic!("{mixed:?}") };
    assert_eq!(observed.vms.len(), 6, "{observed:?}");
    assert!(observed.vms.iter().all(|vm| vm.wanted[0] > 0.95), "{observed:?}");
    assert!(observed.vms.iter().filter(|vm| vm.name != "mixed").all(|vm| vm.asked.is_empty()));

    let folder = tempfile::tempdir().unwrap();
    let profile = Derived::of(&observed, "echo-mixed.fdsk").unwrap().write(folder.path()).unwrap();
    let profile = Profile::load(&profile, &Overrides::default()).unwrap();
    let run = frontdesk_sim::run(&profile.scenario(6), "frontdesk", 1, 1, false).unwrap().repeat;
    let modelled = run.samples_ms["mixed"].len() as f64 / 20.0;
    let recorded = asked.requests as f64 / observed.seconds;
    assert!((modelled / recorded - 1.0).abs() < 0.25, "{modelled} and {recorded} a second");
}

/// A recording that begins in the middle of a film.
#[test]
fn a_film_that_the_engine_knows_is_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../record/tests/corpus/5.5-film-middle.fdsk");
    let observed = observe(&mut Recording::open(&path).unwrap()).unwrap();
    let film = observed.vms[0].film.unwrap();
    assert!((10.0..40.0).contains(&film.rate) && film.cost_s > 0.0, "{film:?}");
    assert!(observed.vms[1..].iter().all(|vm| vm.film.is_none()), "{observed:?}");
}

#[test]
fn what_tells_nothing_is_refused_in_words() {
    let refused = |names: &[&str], events: &[(u64, EventKind)]| {
        let derived = recorded(names, events).and_then(|observed| Derived::of(&observed, "r.fdsk"));
        derived.unwrap_err().to_string()
    };
    let told = refused(&[], &[]);
    assert!(told.contains("no VM was there") && told.contains("frontdesk record"), "{told}");
    let told = refused(&["a"], &[added(0), (MS, EventKind::Halt { vm: VmId(0), vcpu: 0 })]);
    assert!(told.contains("0.0 s long"), "{told}");
    let told = refused(&["a"], &[added(0), (5000 * MS, EventKind::Halt { vm: VmId(0), vcpu: 0 })]);
    assert!(told.contains("nobody asked a VM for anything"), "{told}");
}
