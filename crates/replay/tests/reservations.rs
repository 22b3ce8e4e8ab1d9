//! Recordings of a dispatcher of reservations, gone through again. The dispatcher keeps two processes on a
//! CPU of a small model.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod recorded;

use frontdesk_engine::reservation::{
    Dispatch, DispatchKind, Dispatcher, Member, Meter, Reading, Reservation, ReservationEvent,
    ReservationEventKind, TargetId,
};
use frontdesk_engine::{Config, Time};
use frontdesk_record::{Ending, Record};
use frontdesk_replay::{Redecided, Verified, verify};
use recorded::{recording, records, written};
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;

fn replayed(records: &[Record]) -> Verified {
    let bytes = written(records);
    let mut recording = recording(&bytes);
    let verified = verify(&mut recording).unwrap();
    assert_eq!(recording.ending(), Some(Ending::Complete));
    verified
}

fn redecided(records: &[Record]) -> Redecided {
    replayed(records).reservations.unwrap()
}

fn member(target: u32) -> Member {
    Member { target: TargetId(target), index: 0 }
}

/// One CPU with members that always want it: the one with the highest level has it.
struct World {
    now: u64,
    members: BTreeMap<Member, (u64, DispatchKind)>,
    dispatcher: Dispatcher,
    records: Vec<Record>,
}

impl Meter for World {
    fn read(&self, member: Member) -> Reading {
        let ran_ns = self.members.get(&member).map_or(0, |(ran, _)| *ran);
        Reading { ran_ns, ready: true, woken: Time(0) }
    }
}

impl World {
    fn new() -> World {
        let dispatcher = Dispatcher::new(3 * MS);
        let name = |target: u32| Record::Target { target: TargetId(target), name: format!("pid:{target}00") };
        let begun = Record::Dispatcher { cpu: 0, state: Box::new(dispatcher.clone()) };
        let records = vec![Record::Config(Config::default()), begun, name(1), name(2)];
        World { now: 0, members: BTreeMap::new(), dispatcher, records }
    }

    fn tell(&mut self, kind: ReservationEventKind) {
        let mut event = ReservationEvent { at: Time(self.now), kind, ..ReservationEvent::default() };
        self.dispatcher.read(&mut event, self);
        self.dispatcher.on_event(&event);
        let dispatches: Vec<Dispatch> = std::iter::from_fn(|| self.dispatcher.poll_action()).collect();
        for dispatch in &dispatches {
            self.members.entry(dispatch.member).or_insert((0, dispatch.kind)).1 = dispatch.kind;
        }
        self.records.push(Record::Decision { cpu: 0, event, dispatches });
    }

    fn set(&mut self, target: u32, period_ms: u64, slice_ms: u64) {
        let (period_ns, slice_ns) = (period_ms * MS, slice_ms * MS);
        let reservation = Reservation { period_ns, slice_ns, hard: target == 1, phase_ns: Some(0) };
        self.tell(ReservationEventKind::Set { member: member(target), cpu: 0, reservation, since: None });
    }

    fn pause(&mut self, target: u32, paused: bool) {
        self.tell(ReservationEventKind::Pause { member: member(target), paused });
    }

    fn run_until(&mut self, end_ms: u64) {
        while self.now < end_ms * MS {
            let due =
                self.dispatcher.next_due().map_or(u64::MAX, |due| due.at.0).clamp(self.now, end_ms * MS);
            let rank = |kind: DispatchKind| match kind {
                DispatchKind::Run { level } => Some(level),
                DispatchKind::Leftover => Some(0),
                DispatchKind::Stop => None,
            };
            let first = self.members.values_mut().filter(|(_, kind)| rank(*kind).is_some());
            if let Some((ran, _)) = first.max_by_key(|(_, kind)| rank(*kind)) {
                *ran += due - self.now;
            }
            self.now = due;
            self.tell(ReservationEventKind::Decide { tolerance_ns: 0 });
        }
    }
}

/// A second in which reservations are made, do not fit for a while, are changed, paused and released.
fn life() -> World {
    let mut world = World::new();
    world.set(1, 10, 4);
    world.set(2, 20, 10);
    world.run_until(200);
    world.set(2, 20, 19);
    world.run_until(400);
    world.set(2, 40, 10);
    world.pause(1, true);
    world.run_until(600);
    world.tell(ReservationEventKind::Align { wall_offset_ns: 5 * MS });
    world.pause(1, false);
    world.run_until(800);
    world.tell(ReservationEventKind::Remove { member: member(1) });
    world.members.remove(&member(1));
    world.run_until(1000);
    world
}

/// Where decisions are among the records, with or without dispatches.
fn decisions(records: &[Record], dispatches: bool) -> Vec<usize> {
    let is_one = |at: &usize| matches!(&records[*at], Record::Decision { dispatches: some, .. } if some.is_empty() != dispatches);
    (0..records.len()).filter(is_one).collect()
}

/// A dispatcher that was told the first of these records.
fn after(records: &[Record]) -> Box<Dispatcher> {
    let mut dispatcher = Dispatcher::default();
    for record in records {
        match record {
            Record::Dispatcher { state, .. } => dispatcher = state.as_ref().clone(),
            Record::Decision { event, .. } => {
                dispatcher.on_event(event);
                while dispatcher.poll_action().is_some() {}
            }
            _ => {}
        }
    }
    Box::new(dispatcher)
}

#[test]
fn recorded_decisions_are_made_again() {
    let world = life();
    let verified = replayed(&world.records);
    assert!(verified.is_same() && verified.mismatch.is_none());
    let told = verified.reservations.unwrap();
    assert_eq!((told.differences, told.lost), (0, 0));
    assert_eq!(told.decisions, world.records.len() as u64 - 4);
    assert!(told.dispatches > 150 && told.seconds == 1.0, "{told:?}");
    let [first, second] = &told.members[..] else { panic!("{:?}", told.members) };
    assert_eq!((first.target.as_str(), first.member, first.periods), ("pid:100", 0, 80));
    let account = world.dispatcher.account(member(2)).unwrap();
    assert_eq!((second.periods, second.missed), (account.periods, account.missed));
    // 10 periods of the second in which 27 of 20 ms were reserved.
    assert!(first.missed + second.missed >= 5 && second.stalled == 0, "{told:?}");
}

#[test]
fn a_recording_that_begins_in_the_middle_begins_with_the_state() {
    let world = life();
    let middle = world.records.len() / 2;
    // A recording that begins while another one runs hears of decisions before it hears of the state: they
    // are of no use.
    for heard_before in [0, 5] {
        let mut records = vec![Record::Config(Config::default())];
        records.extend_from_slice(&world.records[middle - heard_before..middle]);
        records.push(Record::Dispatcher { cpu: 0, state: after(&world.records[..middle]) });
        records.extend_from_slice(&world.records[middle..]);
        let told = redecided(&records);
        assert_eq!((told.differences, told.decisions), (0, (world.records.len() - middle) as u64));
        let second = told.members.iter().find(|member| member.target == "target 2").unwrap();
        let all = world.dispatcher.account(member(2)).unwrap().periods;
        let before = after(&world.records[..middle]).account(member(2)).unwrap().periods;
        assert!(before > 5 && second.periods == all - before, "{before} and {second:?} of {all}");
    }
}

#[test]
fn a_decision_that_differs_is_told() {
    let mut records = life().records;
    let changed = decisions(&records, true)[50];
    let Record::Decision { dispatches, .. } = &mut records[changed] else { panic!() };
    let recorded = dispatches.clone();
    dispatches.pop();
    let verified = replayed(&records);
    assert!(!verified.is_same() && verified.mismatch.is_none());
    let told = verified.reservations.unwrap();
    let first = told.first.unwrap();
    assert_eq!((told.differences, first.record, first.decided), (1, changed as u64 + 1, recorded));
    // What was not decided is a difference as well.
    let mut records = life().records;
    let silent = decisions(&records, false)[0];
    let dispatch = Dispatch { member: member(1), cpu: 0, kind: DispatchKind::Leftover };
    let Record::Decision { dispatches, .. } = &mut records[silent] else { panic!() };
    dispatches.push(dispatch);
    let first = redecided(&records).first.unwrap();
    assert_eq!((first.record, first.recorded, first.decided), (silent as u64 + 1, vec![dispatch], vec![]));
}

/// Every kind of event matters: without one of them, or with another reading, it is not the same.
#[test]
fn what_is_missing_or_changed_shows() {
    let whole = life().records;
    let kinds: [fn(&ReservationEventKind) -> bool; 4] = [
        |kind| matches!(kind, ReservationEventKind::Set { member, .. } if member.target == TargetId(2)),
        |kind| matches!(kind, ReservationEventKind::Pause { paused: true, .. }),
        |kind| matches!(kind, ReservationEventKind::Remove { .. }),
        |kind| matches!(kind, ReservationEventKind::Align { .. }),
    ];
    for (index, is_one) in kinds.into_iter().enumerate() {
        let mut records = whole.clone();
        records.retain(|record| !matches!(record, Record::Decision { event, .. } if is_one(&event.kind)));
        assert!(records.len() < whole.len() && redecided(&records).differences > 0, "kind {index}");
    }
    // Who has run less at the end of its slice is not stopped.
    let mut records = whole;
    let mut readings = records.iter_mut().flat_map(|record| match record {
        Record::Decision { event, .. } => event.readings.as_mut_slice(),
        _ => &mut [],
    });
    readings.find(|(of, reading)| *of == member(1) && reading.ran_ns > 40 * MS).unwrap().1.ran_ns -= MS;
    drop(readings);
    assert!(redecided(&records).differences > 0);
}

#[test]
fn lost_decisions_are_told_and_are_no_difference() {
    let whole = life().records;
    let (from, to) = (whole.len() / 3, whole.len() / 2);
    let mut records = whole[..from].to_vec();
    records.push(Record::DecisionsLost { decisions: (to - from) as u64 });
    let gap = records.len();
    records.push(Record::Dispatcher { cpu: 0, state: after(&whole[..to]) });
    records.extend_from_slice(&whole[to..]);
    let verified = replayed(&records);
    assert!(verified.is_same());
    let told = verified.reservations.unwrap();
    assert_eq!((told.lost, told.decisions), ((to - from) as u64, (whole.len() - 4 - (to - from)) as u64));
    // Without the state after them they would be one.
    records.remove(gap);
    assert!(redecided(&records).differences > 0);
}

#[test]
fn the_engines_part_and_that_of_reservations_are_apart() {
    let engine = records();
    let alone = replayed(&engine);
    assert!(alone.reservations.is_none() && alone.actions > 100);
    let world = life();
    let mut rest = world.records[1..].iter();
    let both: Vec<Record> =
        engine.iter().flat_map(|record| [Some(record), rest.next()]).flatten().cloned().collect();
    assert_eq!(rest.next().map(Record::is_about_reservations), None, "all of them are in it");
    let verified = replayed(&both);
    assert!(verified.is_same());
    assert_eq!((verified.events, verified.actions), (alone.events, alone.actions));
    assert_eq!(verified.reservations.unwrap().decisions, world.records.len() as u64 - 4);
}
