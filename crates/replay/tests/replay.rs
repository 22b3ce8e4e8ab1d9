//! The recorded stream of the repository, gone through again: a run of `scenarios/echo-mixed.toml` on six
//! real VMs.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod recorded;

use frontdesk_engine::{
    Action, ActionKind, Boost, BoostTarget, Config, Engine, Event, EventKind, Reason, TaskId, Thread, Time,
};
use frontdesk_record::{Ending, Record};
use frontdesk_replay::{Rerun, Side, TimelineBuilder, compare, sample, verify};
use recorded::{ECHO_MIXED, recording, records, written};

fn recorded_config() -> Config {
    let config = records().into_iter().find_map(|record| match record {
        Record::Config(config) => Some(config),
        _ => None,
    });
    config.unwrap()
}

#[test]
fn the_recorded_run_gives_the_same_actions_again() {
    let mut recording = recording(ECHO_MIXED);
    let verified = verify(&mut recording).unwrap();
    assert!(verified.mismatch.is_none(), "{:?}", verified.mismatch);
    assert!(verified.events > 20_000 && verified.actions > 100, "{verified:?}");
    assert_eq!(recording.ending(), Some(Ending::Complete));
}

#[test]
fn a_recording_begun_in_the_middle_gives_the_same_actions() {
    let records = records();
    let actions = |record: &&Record| matches!(record, Record::Applied { .. });
    // Two thirds into it, between two events, when boosts have begun.
    let middle = (records.len() * 2 / 3..).find(|at| matches!(records[*at], Record::Event(_))).unwrap();
    let (before, after) = records.split_at(middle);
    let mut rerun = Rerun::new();
    for record in before {
        rerun.tell(record).unwrap();
        while rerun.poll_action().is_some() {}
    }
    let state = Record::State(Box::new(rerun.engine().unwrap().clone()));
    let verified = verify(&mut recording(&written(std::iter::once(&state).chain(after)))).unwrap();
    assert!(verified.mismatch.is_none(), "{:?}", verified.mismatch);
    let expected = after.iter().filter(actions).count() as u64;
    assert_eq!(verified.actions, expected);
    assert!(expected > 30);
}

#[test]
fn the_first_action_that_differs_is_reported() {
    let mut records = records();
    let is_applied = |at: &usize| matches!(records[*at], Record::Applied { .. });
    let applied: Vec<usize> = (0..records.len()).filter(is_applied).collect();
    // The last of those that one event led to.
    let missing = applied[40..].iter().copied().find(|at| !is_applied(&(at + 1))).unwrap();
    let changed = applied[20];
    let without: Vec<&Record> =
        records.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, record)| record).collect();
    let mismatch = verify(&mut recording(&written(without))).unwrap().mismatch.unwrap();
    assert_eq!((mismatch.record, mismatch.recorded), (missing as u64 + 1, None));
    assert!(mismatch.decided.is_some());
    let Record::Applied { action, .. } = &mut records[changed] else { panic!() };
    action.at = Time(action.at.0 + 1);
    let recorded = *action;
    let mismatch = verify(&mut recording(&written(&records))).unwrap().mismatch.unwrap();
    assert_eq!((mismatch.record, mismatch.recorded), (changed as u64 + 1, Some(recorded)));
}

#[test]
fn equal_parameters_do_not_differ() {
    let mut differences = 0;
    let comparison = compare(&mut recording(ECHO_MIXED), &recorded_config(), |_| differences += 1).unwrap();
    assert_eq!(differences, 0);
    let mixed = &comparison.vms[0];
    assert_eq!((mixed.vm.as_str(), mixed.a, mixed.only_a), ("mixed", mixed.b, 0));
    assert!(mixed.both > 20 && mixed.a.boosts == mixed.both && mixed.a.share < 1.0);
}

#[test]
fn a_difference_is_told_with_the_reason() {
    let mut config = recorded_config();
    config.tavs.pb_ratio = 0.0;
    let mut reasons = Vec::new();
    let comparison = compare(&mut recording(ECHO_MIXED), &config, |difference| {
        assert_eq!((difference.vm.as_str(), difference.only), ("mixed", Side::A));
        reasons.push(difference.reason);
    });
    let mixed = &comparison.unwrap().vms[0];
    assert_eq!(reasons, vec![Reason::Off; reasons.len()]);
    assert_eq!((mixed.only_a, mixed.b.boosts, mixed.b.share), (mixed.a.boosts, 0, 1.0));
    assert_eq!(reasons.len() as u64, mixed.a.boosts);
}

#[test]
fn sampled_tasks_agree_mostly_and_false_boosts_are_bounded() {
    let agreement = sample(&mut recording(ECHO_MIXED)).unwrap();
    let mixed = &agreement.vms[0];
    assert!(mixed.agreed > 10 * mixed.false_boosts && mixed.agreed > mixed.missed, "{mixed:?}");
    assert!(agreement.bounded());
    assert!(agreement.seen < agreement.switches && agreement.seen > 0);
}

/// A guest whose I/O-bound task runs only between two exits: a sampler never sees it.
#[test]
fn a_task_that_is_never_on_the_vcpu_at_an_exit_is_never_boosted() {
    let vm = frontdesk_engine::VmId(1);
    let mut records = vec![Record::Config(Config::default()), Record::Vm { vm, name: "hidden".to_owned() }];
    let mut now = 1_000_000;
    let mut push = |after: u64, kind| {
        now += after;
        records.push(Record::Event(Event { at: Time(now), kind }));
    };
    let (hog, echo) = (TaskId(0x1000), TaskId(0x2000));
    push(0, EventKind::VmAdded { vm, vcpus: 1, weight: 1024 });
    push(0, EventKind::TaskSwitch { vm, vcpu: 0, task: hog });
    push(0, EventKind::Run { vm, thread: Thread::Vcpu(0), pcpu: 0 });
    for _ in 0..20 {
        push(50_000_000, EventKind::Stop { vm, thread: Thread::Vcpu(0), runnable: true });
        push(0, EventKind::Packet { vm, protocol: frontdesk_engine::Protocol::Tcp, port: 7 });
        push(0, EventKind::Run { vm, thread: Thread::Vcpu(0), pcpu: 0 });
        push(50_000, EventKind::TaskSwitch { vm, vcpu: 0, task: echo });
        push(200_000, EventKind::TaskSwitch { vm, vcpu: 0, task: hog });
    }
    let agreement = sample(&mut recording(&written(&records))).unwrap();
    let hidden = &agreement.vms[0];
    assert!(hidden.missed > 5, "{hidden:?}");
    assert_eq!((hidden.agreed, hidden.false_boosts), (0, 0));
    // It is back to the hog each time when somebody looks.
    assert_eq!((agreement.seen, agreement.switches), (20, 41));
}

#[test]
fn the_timeline_shows_boosts_tasks_and_runs_of_its_interval() {
    let first = records().iter().find_map(|record| match record {
        Record::Event(event) => Some(event.at),
        _ => None,
    });
    let from = first.unwrap().plus(6_000_000_000);
    let mut builder = TimelineBuilder::new(from, from.plus(1_000_000_000));
    records().iter().for_each(|record| builder.add(record).unwrap());
    let timeline = builder.finish().timeline;
    assert_eq!((timeline.vms.len(), timeline.vms[0].as_str()), (6, "mixed"));
    assert!(!timeline.boosts.is_empty() && !timeline.packets.is_empty() && !timeline.beliefs.is_empty());
    assert!(timeline.boosts.iter().all(|boost| boost.vm == 0));
    assert!(timeline.runs.iter().all(|run| run.start < run.end && run.end <= 1_000_000_000));
    // One core: the VMs' threads cannot have run for longer than the second.
    let ran: u64 = timeline.runs.iter().map(|run| run.end - run.start).sum();
    assert!((100_000_000..=1_000_100_000).contains(&ran), "{ran}");
}

/// Forged times and shares: a replay ends, and soon.
#[test]
fn a_recording_that_jumps_to_the_end_of_time_is_gone_through() {
    let mut rerun = Rerun::new();
    for record in records() {
        rerun.tell(&record).unwrap();
        while rerun.poll_action().is_some() {}
    }
    let engine: &Engine = rerun.engine().unwrap();
    let vm = engine.vms().next().unwrap();
    let jump = |at| Record::Event(Event { at: Time(at), kind: EventKind::VmReset { vm } });
    let records =
        [Record::State(Box::new(engine.clone())), jump(u64::MAX / 2), jump(u64::MAX), jump(u64::MAX)];
    let bytes = written(&records);
    assert_eq!(compare(&mut recording(&bytes), &Config::default(), |_| ()).unwrap().events, 3);
    assert_eq!(sample(&mut recording(&bytes)).unwrap().events, 3);
    let mut builder = TimelineBuilder::new(Time(0), Time(u64::MAX));
    records.iter().for_each(|record| builder.add(record).unwrap());
    assert!(builder.marks() < 10_000);
}

#[test]
fn a_recording_without_a_beginning_is_refused() {
    let event = Event { at: Time(1), kind: EventKind::VmRemoved { vm: frontdesk_engine::VmId(0) } };
    let error = verify(&mut recording(&written(&[Record::Event(event)]))).unwrap_err();
    assert!(error.to_string().contains("does not begin"), "{error}");
    let kind =
        ActionKind::Boost { vm: frontdesk_engine::VmId(0), target: BoostTarget::Vcpu(0), level: Boost::Io };
    let action = Action { at: Time(1), kind };
    let mismatch = verify(&mut recording(&written(&[Record::Discarded(action)]))).unwrap().mismatch.unwrap();
    assert_eq!((mismatch.record, mismatch.recorded), (1, Some(action)));
}
