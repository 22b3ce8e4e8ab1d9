//! Small recordings of every version of the format that this release is to read, and what they replay to.
//!
//! A recording in the corpus is never written anew. When the minor version counts up, some of the new one are
//! added under its number:
//!
//! ```text
//! cargo test --release -p frontdesk-replay --test corpus -- --ignored write_the_corpus
//! ```
//!
//! The recording that the tests of other crates replay is decided again when the engine is to decide
//! otherwise:
//!
//! ```text
//! cargo test --release -p frontdesk-replay --test corpus -- --ignored decide_the_recording
//! ```

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod recorded;

use frontdesk_engine::reservation::{self, Dispatch, Dispatcher, Member, Reading, Reservation, TargetId};
use frontdesk_engine::{
    Action, Capabilities, Config, Engine, Event, EventKind, MediaDevice, Protocol, Region, Standing, TaskId,
    Thread, Time, UserInput, VmId, VmPolicy,
};
use frontdesk_record::{Ending, Record};
use frontdesk_replay::{Rerun, verify};
use recorded::{recording, records, written};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../record/tests/corpus");
const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../frontdesk/tests/data/echo-mixed.fdsk");
/// How long an action took, in nanoseconds, that was not taken on the host of a recording.
const LATENCY: u64 = 100_000;
/// The version that this release writes.
const VERSION: &str = "5.11";

/// The names of the recordings in the corpus.
fn names() -> Vec<String> {
    let files = fs::read_dir(CORPUS).unwrap().map(|entry| entry.unwrap().path());
    let recordings = files.filter(|path| path.extension().is_some_and(|extension| extension == "fdsk"));
    let mut names: Vec<String> =
        recordings.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn file(name: &str, extension: &str) -> PathBuf {
    Path::new(CORPUS).join(format!("{name}.{extension}"))
}

/// What a recording holds and what it replays to, in words.
fn told(bytes: &[u8]) -> String {
    let mut text = String::new();
    recording(bytes).for_each(|record| writeln!(text, "{}", line(&record.unwrap())).unwrap());
    let mut again = recording(bytes);
    let verified = verify(&mut again).unwrap();
    assert!(verified.is_same(), "{verified:?}");
    assert_eq!((again.ending(), again.left_out()), (Some(Ending::Complete), 0));
    writeln!(text, "{} events, {} actions, all the same", verified.events, verified.actions).unwrap();
    if let Some(of) = verified.reservations {
        let (decisions, dispatches, lost) = (of.decisions, of.dispatches, of.lost);
        writeln!(text, "{decisions} decisions, {dispatches} dispatches, {lost} lost, all the same").unwrap();
    }
    text
}

/// A record as JSON, with the names that it has in the format; of a state, what can be asked of it.
fn line(record: &Record) -> String {
    match record {
        Record::State(engine) => state(engine),
        Record::Dispatcher { cpu, state } => {
            let of = |member| {
                let account = state.account(member).unwrap();
                let (periods, missed) = (account.periods, account.missed);
                format!(" {}.{}: {periods} periods, {missed} missed;", member.target.0, member.index)
            };
            format!("dispatcher of CPU {cpu}:{}", state.members().map(of).collect::<String>())
        }
        record => serde_json::to_string(record).unwrap(),
    }
}

fn state(engine: &Engine) -> String {
    let mut text = format!("engine, {:?}:", engine.troubles());
    for (id, vm) in engine.vms().map(|id| (id.0, engine.explain(id).unwrap())) {
        let (weight, debt, share) = (vm.weight, vm.debt_ns, vm.share_permille);
        let vcpus: Vec<_> = vm.vcpus.iter().map(|vcpu| (vcpu.ran_ns, vcpu.boosts, vcpu.hits)).collect();
        let tasks: Vec<_> = vm.tasks.iter().map(|task| (task.id.0, task.belief, task.ran_ns)).collect();
        let ports: Vec<_> = vm.ports.iter().map(|port| (port.port, port.counter)).collect();
        let learnt = format!("vCPUs {vcpus:?}, tasks {tasks:?}, ports {ports:?}");
        write!(text, "\n  VM {id} of weight {weight}, debt {debt}, share {share}, {learnt}").unwrap();
        for player in vm.multimedia.into_iter().flat_map(|multimedia| multimedia.players) {
            let (task, rate, share) = (player.task.0, player.frame_rate, player.share_permille);
            write!(text, ", task {task} shows {rate:.3} frames/s with {share}").unwrap();
        }
        for tag in vm.asymmetric.into_iter().flat_map(|asymmetric| asymmetric.background) {
            let (task, since, load) = (tag.task.0, tag.since.0, tag.load_permille);
            write!(text, ", task {task} is background since {since} with {load}").unwrap();
        }
    }
    text
}

#[test]
fn every_recording_of_the_corpus_says_what_it_said_and_replays_to_the_same() {
    let names = names();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let bytes = fs::read(file(&name, "fdsk")).unwrap();
        let (told, expected) = (told(&bytes), fs::read_to_string(file(&name, "txt")).unwrap());
        let differs = told.lines().zip(expected.lines()).find(|(told, expected)| !says(told, expected));
        assert_eq!(differs, None, "{name}");
        assert_eq!(told.lines().count(), expected.lines().count(), "{name}");
    }
}

/// Whether a line says all that it is to say. What a later minor version adds is there with its default.
fn says(told: &str, expected: &str) -> bool {
    let [told_value, expected_value] = [told, expected].map(serde_json::from_str::<Value>);
    match (told_value, expected_value) {
        (Ok(told), Ok(expected)) => holds(&told, &expected),
        _ => told == expected,
    }
}

fn holds(told: &Value, expected: &Value) -> bool {
    let (Some(fields), Some(of)) = (expected.as_object(), told.as_object()) else { return told == expected };
    fields.iter().all(|(name, expected)| of.get(name).is_some_and(|told| holds(told, expected)))
}

/// Makes the corpus of this version.
#[test]
#[ignore = "writes files"]
fn write_the_corpus() {
    fs::create_dir_all(CORPUS).unwrap();
    let kinds = kinds();
    for (name, records) in [
        ("kinds", kinds.clone()),
        // A packet has been delivered to a vCPU that is boosted for it, and not been judged.
        ("kinds-middle", from_the_middle(&kinds, 154, usize::MAX)),
        // A film plays.
        ("film-middle", from_the_middle(&kinds, 460, usize::MAX)),
        // A person waits for what they have started.
        ("launch-middle", from_the_middle(&kinds, launched(&kinds), usize::MAX)),
        ("echo-mixed", from_the_middle(&records(), 18_000, 200)),
        ("reservations", reservations()),
    ] {
        let name = format!("{VERSION}-{name}");
        let bytes = written(&records);
        assert!(!file(&name, "fdsk").exists(), "{name} is there already, and stays as it is");
        fs::write(file(&name, "txt"), told(&bytes)).unwrap();
        fs::write(file(&name, "fdsk"), bytes).unwrap();
    }
}

/// How many events there are until something is started.
fn launched(records: &[Record]) -> usize {
    let mut events = records.iter().filter_map(|record| match record {
        Record::Event(event) => Some(event.kind),
        _ => None,
    });
    let starts = |kind| matches!(kind, EventKind::Input { input: UserInput::Enter, .. });
    events.position(starts).unwrap() + 3
}

/// Writes the recording of the repository with what the engine decides now: after a change that is to decide
/// otherwise, whose commit says why.
#[test]
#[ignore = "writes a file"]
fn decide_the_recording_of_the_repository_again() {
    let recorded = records();
    let latency = |action: &Action| {
        let same = recorded.iter().find_map(|record| match record {
            Record::Applied { action: before, latency_ns } if before == action => Some(*latency_ns),
            _ => None,
        });
        same.unwrap_or(LATENCY)
    };
    let mut rerun = Rerun::new();
    let mut again: Vec<Record> = Vec::new();
    for record in recorded.iter().cloned() {
        match record {
            Record::Applied { .. } | Record::Discarded(_) => {}
            record => {
                rerun.tell(&record).unwrap();
                again.push(record);
                let decided = std::iter::from_fn(|| rerun.poll_action());
                again.extend(decided.map(|action| Record::Applied { action, latency_ns: latency(&action) }));
            }
        }
    }
    fs::write(RECORDING, written(&again)).unwrap();
}

/// The state after so many events, and so many of the next.
fn from_the_middle(records: &[Record], skip: usize, take: usize) -> Vec<Record> {
    let is_event = |at: &usize| matches!(records[*at], Record::Event(_));
    let mut events = (0..records.len()).filter(is_event);
    let (first, last) = (events.nth(skip).unwrap(), events.nth(take).unwrap_or(records.len()));
    let mut rerun = Rerun::new();
    for record in &records[..first] {
        rerun.tell(record).unwrap();
        while rerun.poll_action().is_some() {}
    }
    let state = Record::State(Box::new(rerun.engine().unwrap().clone()));
    let names = records[..first].iter().filter(|record| matches!(record, Record::Vm { .. }));
    std::iter::once(&state).chain(names).chain(&records[first..last]).cloned().collect()
}

/// A daemon's life as its recording has it.
#[derive(Default)]
struct Script {
    now: u64,
    rerun: Rerun,
    records: Vec<Record>,
}

impl Script {
    fn tell(&mut self, record: Record) {
        self.rerun.tell(&record).unwrap();
        self.records.push(record);
        while let Some(action) = self.rerun.poll_action() {
            let discarded = self.records.len().is_multiple_of(5);
            let applied = Record::Applied { action, latency_ns: 20_000 };
            self.records.push(if discarded { Record::Discarded(action) } else { applied });
        }
    }

    /// So many microseconds later.
    fn after(&mut self, micros: u64, kind: EventKind) {
        self.now += micros * 1000;
        let now = Time(self.now);
        if self.rerun.engine().and_then(Engine::next_deadline).is_some_and(|deadline| deadline <= now) {
            self.tell(Record::Deadline(now));
        }
        self.tell(Record::Event(Event { at: now, kind }));
    }

    /// An echo task on a vCPU answers a request, and a task that computes goes on.
    fn echo(&mut self, vm: VmId, vcpu: u16) {
        let (emulator, thread) = (Thread::Emulator(0), Thread::Vcpu(vcpu));
        let (echo, hog, protocol, port) = (TaskId(0x2000), TaskId(0x1000), Protocol::Tcp, 7);
        self.after(5000, EventKind::Stop { vm, thread, runnable: true });
        self.after(3000, EventKind::Packet { vm, protocol, port });
        self.after(1, EventKind::Wake { vm, thread: emulator, by: None });
        self.after(5, EventKind::Run { vm, thread: emulator, pcpu: 1 });
        self.after(20, EventKind::Stop { vm, thread: emulator, runnable: false });
        self.after(30, EventKind::Run { vm, thread, pcpu: 0 });
        self.after(5, EventKind::Interrupt { vm, vcpu, vector: 41 });
        self.after(20, EventKind::TaskSwitch { vm, vcpu, task: echo });
        self.after(10, EventKind::BlockRead { vm, request: self.now });
        self.after(90, EventKind::Wake { vm, thread: emulator, by: Some(vcpu) });
        self.after(10, EventKind::Reply { vm, protocol, port });
        self.after(20, EventKind::TaskSwitch { vm, vcpu, task: hog });
    }

    /// A film on a vCPU whose frames are mostly missed, until its share is raised.
    fn film(&mut self, vm: VmId, vcpu: u16) {
        let (film, hog, thread) = (TaskId(0x3000), TaskId(0x1000), Thread::Vcpu(vcpu));
        let access = |device| EventKind::DeviceAccess { vm, vcpu, device, in_interrupt: false };
        self.after(100, EventKind::Stop { vm, thread, runnable: true });
        self.after(59_000, EventKind::Timer { vm, vcpu });
        self.after(1000, EventKind::Run { vm, thread, pcpu: 0 });
        self.after(20, EventKind::TaskSwitch { vm, vcpu, task: film });
        self.after(500, access(MediaDevice::Sound));
        self.after(900, access(MediaDevice::Display));
        let region = Region { x: 100, y: 80, width: 640, height: 354 };
        self.after(60, EventKind::DisplayUpdate { vm, region: Some(region) });
        self.after(40, EventKind::GpuDone { vm });
        self.after(20, EventKind::TaskSwitch { vm, vcpu, task: hog });
    }
}

impl Script {
    /// A person starts a program on a VM with two vCPUs, both of which build something, and one of which has
    /// to share its physical CPU with another VM.
    fn launch(&mut self, vm: VmId, other: VmId) {
        let (program, build, thread) = (TaskId(0x4000), TaskId(0x1000), Thread::Vcpu(0));
        self.after(100, EventKind::Input { vm, input: UserInput::Key });
        self.after(10, EventKind::Run { vm, thread: Thread::Vcpu(1), pcpu: 1 });
        self.after(10, EventKind::TaskSwitch { vm, vcpu: 1, task: build });
        self.after(10, EventKind::TaskSwitch { vm, vcpu: 0, task: build });
        for _ in 0..20 {
            self.after(30_000, EventKind::Stop { vm, thread, runnable: true });
            self.after(1, EventKind::Run { vm: other, thread, pcpu: 0 });
            self.after(30_000, EventKind::Stop { vm: other, thread, runnable: true });
            self.after(1, EventKind::Run { vm, thread, pcpu: 0 });
        }
        self.after(1000, EventKind::Input { vm, input: UserInput::Enter });
        self.after(20, EventKind::TaskSwitch { vm, vcpu: 0, task: program });
        self.after(9000, EventKind::Ipi { vm, vcpu: 0, to: 2, vector: 253 });
        self.after(5, EventKind::IpiTaken { vm, vcpu: 1 });
        self.after(8000, EventKind::TaskSwitch { vm, vcpu: 0, task: build });
        self.after(30_000, EventKind::Isolated { vm, slow: 2 });
        self.after(30_000, EventKind::Isolated { vm, slow: 0 });
        self.after(30_000, EventKind::Input { vm, input: UserInput::Button });
        self.after(90_000, EventKind::Input { vm, input: UserInput::Key });
    }
}

/// Every kind of event, and what a daemon decided about them.
fn kinds() -> Vec<Record> {
    let (vm, other, thread) = (VmId(1), VmId(2), Thread::Vcpu(0));
    let (mut script, mut config) = (Script::default(), Config::default());
    config.tavs.boost_limit = 0.9;
    script.tell(Record::Config(config.clone()));
    script.tell(Record::Vm { vm, name: "alice's desktop".to_owned() });
    let world = Capabilities {
        realtime_permille: 950,
        slice_ns: 3_000_000,
        silence_ns: 5_000_000,
        ..Capabilities::default()
    };
    script.after(1000, EventKind::World(world));
    script.after(10, EventKind::VmAdded { vm, vcpus: 2, weight: 1024 });
    script.after(10, EventKind::Standing { vm, standing: Standing::Acting });
    script.after(10, EventKind::VmAdded { vm: other, vcpus: 1, weight: 512 });
    script.after(10, EventKind::Wake { vm: other, thread, by: None });
    script.after(10, EventKind::Run { vm, thread, pcpu: 0 });
    script.after(10, EventKind::TaskSwitch { vm, vcpu: 0, task: TaskId(0x1000) });
    for _ in 0..12 {
        script.echo(vm, 0);
        script.after(900, EventKind::Stop { vm: other, thread, runnable: true });
        script.after(1, EventKind::Run { vm: other, thread, pcpu: 0 });
    }
    config.multimedia.max_share = Some(4.0);
    script.tell(Record::Config(config.clone()));
    for _ in 0..40 {
        script.film(vm, 0);
    }
    script.launch(vm, other);
    let device = MediaDevice::Sound;
    script.after(50, EventKind::DeviceAccess { vm, vcpu: 0, device, in_interrupt: true });
    script.after(50, EventKind::DisplayUpdate { vm, region: None });
    script.tell(Record::Policy { vm: other, policy: VmPolicy { off: true, pb_ratio: Some(0.25) } });
    script.tell(Record::Vm { vm: other, name: "bob".to_owned() });
    config.ledger.min_share = 0.1;
    script.tell(Record::Config(config));
    for kind in [
        EventKind::BlockRead { vm, request: 77 },
        EventKind::BlockPending { vm },
        EventKind::BlockDone { vm, request: 77 },
        EventKind::Ipi { vm, vcpu: 0, to: 2, vector: 253 },
        EventKind::IpiTaken { vm, vcpu: 1 },
        EventKind::Halt { vm, vcpu: 1 },
        EventKind::Resume { vm, vcpu: 1 },
        EventKind::TaskSeen { vm: other, vcpu: 0, task: TaskId(u64::MAX) },
        EventKind::Packet { vm: other, protocol: Protocol::Udp, port: 53 },
        EventKind::VcpuAdded { vm, vcpu: 2 },
        EventKind::VcpuWeight { vm, vcpu: 2, permille: 1277 },
        EventKind::Weight { vm: other, weight: 10_000 },
        EventKind::Standing { vm: other, standing: Standing::Observed },
        EventKind::Lost { vm: Some(other), count: 12 },
        EventKind::OthersRan { vm, pcpu: 1, ran_ns: 40_000, waited_ns: 30_000 },
        EventKind::Limited { vm: other, limited: true },
        EventKind::VmPaused { vm: other },
        EventKind::VmResumed { vm: other },
        EventKind::Standing { vm: other, standing: Standing::Reserved },
    ] {
        script.after(50, kind);
    }
    for _ in 0..8 {
        script.echo(vm, 0);
    }
    for kind in [
        EventKind::VcpuRemoved { vm, vcpu: 2 },
        EventKind::VmReset { vm: other },
        EventKind::Lost { vm: None, count: 3 },
        EventKind::VmRemoved { vm: other },
        EventKind::VmRemoved { vm: VmId(9) },
    ] {
        script.after(50, kind);
    }
    script.records
}

/// A dispatcher's life with two members, and with a loss.
fn reservations() -> Vec<Record> {
    let member = |target| Member { target: TargetId(target), index: 1 };
    let mut dispatcher = Dispatcher::new(1_700_000_000_000_000_000);
    let state = |dispatcher: &Dispatcher| Record::Dispatcher { cpu: 1, state: Box::new(dispatcher.clone()) };
    let mut records = vec![Record::Config(Config::default()), state(&dispatcher)];
    for (target, name) in [(3, "vm:alice"), (4, "pid:4711")] {
        records.push(Record::Target { target: TargetId(target), name: name.to_owned() });
    }
    for n in 0..60u64 {
        let member = member(if n % 4 == 1 { 4 } else { 3 });
        let phase_ns = (n == 0).then_some(9);
        let reservation = Reservation { period_ns: 10_000_000, slice_ns: 2_000_000, hard: n == 0, phase_ns };
        let reading = Reading { ran_ns: n * 600_000, ready: n % 3 > 0, woken: Time(n * 990_000) };
        let kind = match n {
            0 | 1 => reservation::ReservationEventKind::Set { member, cpu: 1, reservation, since: None },
            20 | 24 => reservation::ReservationEventKind::Pause { member, paused: n == 20 },
            40 => reservation::ReservationEventKind::Align { wall_offset_ns: n },
            57 => reservation::ReservationEventKind::Remove { member },
            _ => reservation::ReservationEventKind::Decide { tolerance_ns: n % 7 },
        };
        let event = reservation::ReservationEvent {
            at: Time(n * 1_000_000),
            readings: vec![(member, reading)],
            kind,
        };
        dispatcher.on_event(&event);
        let dispatches: Vec<Dispatch> = std::iter::from_fn(|| dispatcher.poll_action()).collect();
        match n {
            30..35 => {}
            35 => records.extend([Record::DecisionsLost { decisions: 6 }, state(&dispatcher)]),
            _ => records.push(Record::Decision { cpu: 1, event, dispatches }),
        }
    }
    records
}
