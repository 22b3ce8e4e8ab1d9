//! The disk policy in front of a device that serves so many requests at a time.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_engine::disk::{
    Asker, Beyond, Device, DiskClass, DiskConfig, DiskOperation, DiskPolicy, DiskRequest, Verdict,
};
use frontdesk_engine::{TaskId, Time, UserInput, VmId};
use frontdesk_testing::disk_calls::{Call, served_once};
use proptest::prelude::*;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// What a byte takes, in picoseconds: 100 MB/s.
const BYTE: u64 = 10_000;
/// What the policy takes a request for, beside its bytes, in nanoseconds: 64 KiB.
const BASE: u64 = (64 << 10) * BYTE / 1_000;

/// A policy and its device.
struct Bench {
    policy: DiskPolicy,
    now: Time,
    /// Before each request, in nanoseconds.
    access: u64,
    /// When each of those that serve is free.
    free: Vec<Time>,
    /// What is served: when it is done, and which it is.
    serving: BinaryHeap<std::cmp::Reverse<(Time, u64)>>,
    asked: BTreeMap<u64, DiskRequest>,
    next_id: u64,
}

struct Done {
    request: DiskRequest,
    class: DiskClass,
    boost: Option<u16>,
}

impl Bench {
    fn new(config: DiskConfig, device: Device, parallel: usize, access: u64) -> Bench {
        Bench {
            policy: DiskPolicy::new(config, device),
            now: Time(0),
            access,
            free: vec![Time(0); parallel],
            serving: BinaryHeap::new(),
            asked: BTreeMap::new(),
            next_id: 0,
        }
    }

    fn ask(&mut self, vm: u32, task: u64, operation: DiskOperation, bytes: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let asker = Some(Asker { vcpu: 3, task: Some(TaskId(task)) });
        let (vm, offset) = (VmId(vm), id << 32);
        let request = DiskRequest { id, vm, asker, operation, offset, bytes, at: self.now };
        assert!(self.policy.arrive(&request));
        self.asked.insert(id, request);
        id
    }

    fn read(&mut self, vm: u32, task: u64) -> u64 {
        self.ask(vm, task, DiskOperation::Read, 128 << 10)
    }

    fn submit(&mut self) -> Vec<(u64, DiskClass)> {
        let mut submitted = Vec::new();
        while let Some(submit) = self.policy.next(self.now) {
            let request = self.asked[&submit.id];
            assert_eq!(submit.vm, request.vm);
            let free = self.free.iter_mut().min().unwrap();
            let time = self.access + request.bytes * BYTE / 1_000;
            *free = self.now.max(*free).plus(time);
            self.serving.push(std::cmp::Reverse((*free, submit.id)));
            submitted.push((submit.id, submit.class));
        }
        submitted
    }

    /// Until the next request is done, or the policy has something to do, or so late.
    fn step(&mut self, until: Time) -> Option<Done> {
        self.submit();
        let done = self.serving.peek().map(|next| next.0.0);
        let at = done.into_iter().chain(self.policy.deadline()).chain([until]).min().unwrap();
        self.now = at.max(self.now);
        if done != Some(at) || at > until {
            return None;
        }
        let id = self.serving.pop().unwrap().0.1;
        let finished = self.policy.complete(id, self.now).unwrap();
        assert_eq!(self.policy.complete(id, self.now), None, "once");
        let request = self.asked.remove(&id).unwrap();
        Some(Done { request, class: finished.class, boost: finished.boost })
    }

    fn input(&mut self, vm: u32) {
        self.policy.input(VmId(vm), UserInput::Enter, self.now);
    }
}

fn flash() -> Bench {
    Bench::new(DiskConfig::default(), Device::Flash, 1, MS)
}

#[test]
fn what_a_person_waits_for_is_served_first_and_its_vcpu_is_told() {
    let mut bench = flash();
    for _ in 0..20 {
        bench.read(1, 1);
    }
    bench.submit();
    bench.now = Time(100);
    bench.input(2);
    let id = bench.read(2, 1);
    let why = bench.policy.why(id).unwrap();
    assert_eq!((why.verdict, why.class()), (Verdict::Follows, DiskClass::High));
    assert_eq!(why.to_string(), "of an application whose requests follow a person's inputs");
    let order: Vec<Done> = std::iter::from_fn(|| bench.step(Time(SECOND))).take(3).collect();
    let first: Vec<u32> = order.iter().map(|done| done.request.vm.0).collect();
    assert_eq!(first, [1, 2, 1], "only what was being served comes before");
    assert_eq!((order[1].class, order[1].boost), (DiskClass::High, Some(3)));
    assert_eq!((order[2].class, order[2].boost), (DiskClass::Common, None));
}

#[test]
fn a_request_passes_if_nothing_else_wants_the_disk() {
    for device in [Device::Flash, Device::Arm] {
        let mut bench = Bench::new(DiskConfig::default(), device, 1, MS);
        for _ in 0..10 {
            let id = bench.read(1, 1);
            assert_eq!(bench.submit(), [(id, DiskClass::Common)], "{device:?}");
            assert!(bench.step(Time(u64::MAX)).is_some());
            bench.now = bench.now.plus(20 * MS);
        }
    }
}

#[test]
fn an_id_that_is_in_use_and_one_that_was_not_submitted_are_refused() {
    let mut bench = flash();
    let id = bench.read(1, 1);
    assert!(!bench.policy.arrive(&bench.asked[&id]));
    assert_eq!(bench.policy.complete(id, bench.now), None);
    assert_eq!(bench.policy.complete(id + 1, bench.now), None);
    bench.submit();
    assert!(!bench.policy.arrive(&bench.asked[&id]));
}

#[test]
fn what_a_vm_asks_for_that_is_gone_is_not_submitted() {
    let mut bench = flash();
    let [served, waits] = [bench.read(1, 1), bench.read(1, 1)];
    assert_eq!(bench.submit(), [(served, DiskClass::Common)]);
    bench.policy.forget(VmId(1));
    assert_eq!((bench.policy.why(waits), bench.policy.deadline()), (None, None));
    assert!(bench.step(Time(SECOND)).is_some());
    let other = bench.read(2, 1);
    assert_eq!(bench.submit(), [(other, DiskClass::Common)]);
}

#[test]
fn a_flush_nobody_waits_for_is_held_for_a_while_and_a_save_is_not() {
    let mut bench = Bench::new(DiskConfig::default(), Device::Flash, 4, MS);
    // The device can serve four, and the policy knows.
    for _ in 0..100 {
        (0..4).for_each(|_| _ = bench.read(3, 1));
        while bench.step(bench.now.plus(100 * MS)).is_some() {}
    }
    bench.input(2);
    let began = bench.now;
    let flush = bench.ask(1, 1, DiskOperation::Flush, 0);
    let mut flushed = None;
    let mut high = 0;
    while bench.now.since(began) < 100 * MS {
        if bench.asked.values().filter(|request| request.vm == VmId(2)).count() == 0 {
            bench.read(2, 1);
        }
        let done = bench.step(began.plus(100 * MS));
        match done {
            Some(done) if done.request.id == flush => flushed = Some(bench.now.since(began)),
            Some(done) => high += u32::from(done.class == DiskClass::High),
            None => {}
        }
    }
    let flushed = flushed.unwrap();
    assert!((50 * MS..54 * MS).contains(&flushed), "after {flushed} ns");
    assert!(high > 40, "{high}");
    let save = bench.ask(2, 1, DiskOperation::Flush, 0);
    assert_eq!(bench.submit().last(), Some(&(save, DiskClass::High)));
}

/// Two that read so many bytes at a time, and come back some time after each answer, in front of an arm:
/// what of 2,000 requests was another VM's than the one before, and the time that each VM had, its pauses
/// included.
fn two_that_read(bytes: [u64; 2], pause: u64) -> (u32, [u64; 2]) {
    let mut bench = Bench::new(DiskConfig::default(), Device::Arm, 1, 0);
    let (mut last, mut switches, mut times) = (VmId(0), 0, [0; 2]);
    let mut back: Vec<(Time, u32)> = vec![(Time(0), 1), (Time(0), 2)];
    let mut served = 0;
    while served < 2_000 {
        back.sort_unstable();
        if let Some((_, vm)) = back.first().copied().filter(|(at, _)| *at <= bench.now) {
            back.remove(0);
            bench.ask(vm, 1, DiskOperation::Read, bytes[vm as usize - 1]);
            continue;
        }
        let until = back.first().map_or(Time(u64::MAX), |(at, _)| *at);
        let Some(done) = bench.step(until) else { continue };
        served += 1;
        switches += u32::from(done.request.vm != last);
        last = done.request.vm;
        times[last.0 as usize - 1] += done.request.bytes * BYTE / 1_000 + pause;
        back.push((bench.now.plus(pause), last.0));
    }
    (switches, times)
}

#[test]
fn an_arm_waits_for_who_comes_back_soon_and_not_for_who_thinks_for_long() {
    // A hundred milliseconds of 2.3 each.
    let (soon, _) = two_that_read([128 << 10; 2], MS);
    assert!((40..=80).contains(&soon), "{soon}");
    let (late, _) = two_that_read([128 << 10; 2], 30 * MS);
    assert!(late > 1_900, "{late}");
}

/// A program reads a hundred times after an input, most times a millisecond after the answer and each tenth
/// time, or always, later, beside a VM that always wants to read, for a person or not: for how many pauses of
/// the program the arm left it.
fn left(later: u64, always: bool, for_a_person: bool) -> u32 {
    left_by("program", later, always, for_a_person)
}

fn left_by(name: &str, later: u64, always: bool, for_a_person: bool) -> u32 {
    let mut bench = Bench::new(DiskConfig::default(), Device::Arm, 1, 0);
    bench.policy.named(VmId(1), TaskId(1), name);
    bench.input(1);
    if for_a_person {
        bench.input(2);
    }
    bench.read(2, 1);
    let (mut next, mut answered, mut left, mut is_left) = (Some(Time(0)), 0, 0, false);
    while answered < 100 {
        if next.is_some_and(|at| at <= bench.now) {
            next = None;
            is_left = false;
            bench.read(1, 1);
        }
        let Some(done) = bench.step(next.unwrap_or(Time(u64::MAX))) else { continue };
        if done.request.vm == VmId(2) {
            // In the program's pause.
            left += u32::from(next.is_some() && !std::mem::replace(&mut is_left, true));
            bench.read(2, 1);
            continue;
        }
        answered += 1;
        let pause = if always || answered % 10 == 0 { later } else { MS };
        next = Some(bench.now.plus(pause));
    }
    left
}

#[test]
fn an_arm_waits_longer_for_a_person_who_mostly_comes_back_soon() {
    assert!(left(20 * MS, false, false) <= 1, "{}", left(20 * MS, false, false));
    assert!(left(40 * MS, false, false) >= 9, "only so long");
    assert!(left(20 * MS, true, false) > 90, "not if it is always late");
    assert!(left(20 * MS, false, true) >= 9, "and nobody else's person waits for that");
    assert!(left_by("mpv", 20 * MS, false, false) >= 9, "nor for a player");
}

#[test]
fn who_reads_here_and_there_has_its_share_of_an_arm() {
    // One with 1.3 ms for each answer, and one with 13, as if it were a seek away.
    let (_, [on, scattered]) = two_that_read([128 << 10, 1_280 << 10], MS);
    let part = scattered as f64 / (on + scattered) as f64;
    assert!((0.45..0.55).contains(&part), "{part}");
}

/// Who keeps asking for how much, with how many requests at once.
#[derive(Clone, Debug)]
struct Load {
    at_once: usize,
    bytes: u64,
    operation: DiskOperation,
    /// Time between inputs; 0: none.
    inputs: u64,
    player: bool,
}

fn load() -> impl Strategy<Value = Load> {
    let operation = prop_oneof![
        3 => Just(DiskOperation::Read),
        1 => Just(DiskOperation::Write),
    ];
    let inputs = prop_oneof![Just(0), 10 * MS..8 * SECOND];
    (5..10_usize, 12..20_u32, operation, inputs, any::<bool>()).prop_map(
        |(at_once, bytes, operation, inputs, player)| Load {
            at_once,
            bytes: 1 << bytes,
            operation,
            inputs,
            player,
        },
    )
}

/// Device time that each load got, in its class, over this time.
fn run(bench: &mut Bench, loads: &[Load], time: u64) -> Vec<[u64; 3]> {
    let mut got = vec![[0; 3]; loads.len()];
    let mut inputs: Vec<u64> = loads.iter().map(|load| load.inputs).collect();
    for (vm, load) in (0_u32..).zip(loads) {
        if load.player {
            bench.policy.named(VmId(vm), TaskId(1), "mpv");
        }
        (0..load.at_once).for_each(|_| _ = bench.ask(vm, 1, load.operation, load.bytes));
    }
    while bench.now.0 < time {
        for (vm, load) in (0_u32..).zip(loads).filter(|(_, load)| load.inputs > 0) {
            let next = &mut inputs[vm as usize];
            if bench.now.0 >= *next {
                *next += load.inputs;
                bench.policy.input(VmId(vm), UserInput::Enter, bench.now);
            }
        }
        let Some(done) = bench.step(Time(time)) else { continue };
        let vm = done.request.vm.0;
        let took = bench.access + done.request.bytes * BYTE / 1_000;
        got[vm as usize][done.class as usize] += took;
        bench.ask(vm, 1, done.request.operation, done.request.bytes);
    }
    got
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A VM that always wants more gets its part, whatever it claims (§3.2.1): so do all, as each has more
    /// requests than the device is given.
    #[test]
    fn lying_gains_nothing(loads in prop::collection::vec(load(), 2..6), arm: bool) {
        let device = if arm { Device::Arm } else { Device::Flash };
        let config = DiskConfig { max_depth: 4, ..DiskConfig::default() };
        let mut bench = Bench::new(config, device, 1, BASE);
        let got = run(&mut bench, &loads, 100 * SECOND);
        let all: u64 = got.iter().flatten().sum();
        prop_assert!(all > 98 * SECOND, "the disk stands still: {all} ns of service");
        for (got, load) in got.iter().zip(&loads) {
            let share = got.iter().sum::<u64>() as f64 / all as f64;
            prop_assert!(share < 1.0 / loads.len() as f64 + 0.01, "{share} of {}: {load:?}", loads.len());
        }
    }

    /// The last class is served, even if others could use the whole disk.
    #[test]
    fn what_is_low_does_not_starve(interactive in 2..6_usize, at_once in 1..8_usize) {
        let load = |player| {
            Load { at_once, bytes: 1 << 16, operation: DiskOperation::Read, inputs: 0, player }
        };
        let mut loads = vec![load(true); interactive];
        loads.push(load(false));
        let mut bench = Bench::new(DiskConfig::default(), Device::Flash, 1, MS / 2);
        // The last one has no part of its own, and the others more than there is.
        let last = u32::try_from(interactive).unwrap();
        (0..last).for_each(|vm| bench.policy.set_limits(VmId(vm), 1_000, 1_000));
        bench.policy.set_limits(VmId(last), 0, 0);
        let got = run(&mut bench, &loads, 50 * SECOND);
        prop_assert_eq!(got[interactive][DiskClass::High as usize], 0);
        let low = got[interactive][DiskClass::Low as usize];
        let all: u64 = got.iter().flatten().sum();
        prop_assert!(low * 1_000 >= all * 9, "{low} of {all}");
    }
}

#[test]
fn without_limits_nothing_is_low_and_who_was_idle_is_due_no_more() {
    for (limited, wanted) in [(false, 45..=55), (true, 90..=100)] {
        let config = DiskConfig { carry: 1, ..DiskConfig::default() };
        let mut bench = Bench::new(config, Device::Flash, 1, MS);
        bench.policy.set_limited(limited);
        bench.read(1, 1);
        bench.step(Time(SECOND)).unwrap();
        for _ in 0..8 {
            bench.read(0, 1);
        }
        let mut low = 0;
        while bench.now < Time(5_700 * MS) {
            low += u32::from(bench.step(Time(u64::MAX)).unwrap().class == DiskClass::Low);
            bench.read(0, 1);
        }
        for _ in 0..8 {
            bench.read(1, 1);
        }
        let mut of_idle = 0;
        for _ in 0..100 {
            let done = bench.step(Time(u64::MAX)).unwrap();
            low += u32::from(done.class == DiskClass::Low);
            of_idle += u32::from(done.request.vm == VmId(1));
            bench.read(done.request.vm.0, 1);
        }
        assert!(wanted.contains(&of_idle), "{of_idle} of 100, limited: {limited}");
        assert_eq!(low > 0, limited, "{low}");
    }
}

#[test]
fn a_flush_that_takes_long_does_not_make_the_device_get_less() {
    for (operation, depth) in [(DiskOperation::Flush, 32), (DiskOperation::Read, 24)] {
        let mut bench = Bench::new(DiskConfig::default(), Device::Flash, 64, 0);
        for _ in 0..2_000 {
            for _ in 0..2 {
                bench.read(0, 1);
            }
            bench.step(Time(u64::MAX)).unwrap();
        }
        while !bench.asked.is_empty() {
            bench.step(Time(u64::MAX)).unwrap();
        }
        bench.access = SECOND;
        bench.ask(1, 2, operation, 0);
        bench.step(Time(u64::MAX)).unwrap();
        for _ in 0..64 {
            bench.read(0, 1);
        }
        assert_eq!(bench.submit().len(), depth, "after a slow {operation:?}");
    }
}

fn call() -> impl Strategy<Value = Call> {
    let operation = prop_oneof![
        Just(DiskOperation::Read),
        Just(DiskOperation::Write),
        Just(DiskOperation::Flush),
        Just(DiskOperation::Discard),
    ];
    let input = prop_oneof![Just(UserInput::Enter), Just(UserInput::Button), Just(UserInput::Key)];
    prop_oneof![
        6 => (0..4_u32, prop::option::of(0..4_u64), operation, any::<u64>(), any::<u64>()).prop_map(
            |(vm, task, operation, bytes, offset)| Call::Ask { vm, task, operation, bytes, offset }
        ),
        6 => any::<prop::sample::Index>().prop_map(|index| Call::Complete(index.index(1 << 20))),
        1 => any::<u64>().prop_map(Call::CompleteUnknown),
        2 => (0..4_u32, input).prop_map(|(vm, input)| Call::Input(vm, input)),
        1 => (0..4_u32, 0..4_u64, "[a-z]{0,3}|mpv").prop_map(|(vm, task, name)| Call::Named(vm, task, name)),
        1 => (0..4_u32, any::<u32>(), any::<u32>()).prop_map(|(vm, w, c)| Call::Limits(vm, w, c)),
        4 => (0..100 * MS).prop_map(Call::Wait),
        1 => any::<u64>().prop_map(Call::Wait),
        1 => any::<u64>().prop_map(Call::Back),
    ]
}

proptest! {
    /// Whatever is called: no request is lost or submitted twice, and the device does not stand still while
    /// something could be served.
    #[test]
    fn fuzz_requests_are_served_once_and_the_disk_is_used(
        calls in prop::collection::vec(call(), 1..200),
        arm: bool,
        paper: bool,
        limited: bool,
    ) {
        served_once(calls, arm, paper, limited);
    }
}

#[test]
fn who_has_used_up_its_part_is_told_so() {
    let config = DiskConfig { carry: 1, ..DiskConfig::default() };
    let mut bench = Bench::new(config, Device::Flash, 1, MS);
    bench.policy.named(VmId(1), TaskId(1), "mpv");
    let mut classes = [0; 3];
    let mut why = BTreeMap::new();
    let load = |player| Load { at_once: 4, bytes: 4096, operation: DiskOperation::Read, inputs: 0, player };
    let got = run(&mut bench, &[load(false), load(true)], 20 * SECOND);
    for id in bench.asked.keys() {
        let told = bench.policy.why(*id).unwrap();
        why.insert(told.verdict == Verdict::Player, told);
        classes[told.class() as usize] += 1;
    }
    assert_eq!(classes.iter().sum::<u32>(), 8);
    assert_eq!(why[&false].verdict, Verdict::Ignores);
    assert!(why.values().all(|why| why.beyond != Some(Beyond::Weight) || why.verdict == Verdict::Player));
    // Half of its half comes first, the rest as anybody's.
    let share = got[1][DiskClass::High as usize] as f64 / (20 * SECOND) as f64;
    assert!((0.23..0.27).contains(&share), "{share}");
    let applications = bench.policy.applications(VmId(1));
    assert_eq!((applications[0].name.as_deref(), applications[0].verdict), (Some("mpv"), Verdict::Player));
    assert!(applications[0].served[0] > 1_000, "{applications:?}");
    assert_eq!(Duration::from_nanos(bench.now.0).as_secs(), 20);
}
