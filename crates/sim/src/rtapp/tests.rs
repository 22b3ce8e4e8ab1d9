use super::tasks::Planned;
use super::*;
use crate::program::{SchedClass, Step};
use frontdesk_scenario::{Overrides, Scenario};

const GUEST: Conditions = Conditions { vcpus: 2, cost_scale: 1.0, copy_kib: 200 };

fn plan(text: &str) -> Plan {
    parse(text, "x.json".as_ref(), &GUEST).unwrap()
}

fn refusal(text: &str) -> String {
    parse(text, "x.json".as_ref(), &GUEST).unwrap_err().to_string()
}

fn only(plan: &Plan) -> &Planned {
    assert_eq!(plan.tasks.len(), 1);
    &plan.tasks[0]
}

const END: [Step; 2] = [Step::Repeat { from: 0, times: u32::MAX }, Step::End];

#[test]
fn a_task_without_phases_loops_for_ever() {
    let plan = plan(
        r#"{ "tasks": { "thread0": { "run": 1000, "sleep": 9000 } }, "global": { "duration": 2, "calibration": 50 } }"#,
    );
    let steps = [Step::Compute(1_000_000), Step::Sleep(9_000_000), Step::Done { bytes: 0 }];
    assert_eq!(only(&plan).program, [&steps[..], &END].concat());
}

#[test]
fn events_keep_their_order_and_may_have_the_same_name() {
    let plan = plan(r#"{ "tasks": { "t": { "run": 1, "sleep": 2, "run": 3, "sleep1": 4, "runtime": 5 } } }"#);
    let steps = [
        Step::Compute(1_000),
        Step::Sleep(2_000),
        Step::Compute(3_000),
        Step::Sleep(4_000),
        Step::Compute(5_000),
        Step::Done { bytes: 0 },
    ];
    assert_eq!(only(&plan).program, [&steps[..], &END].concat());
}

#[test]
fn phases_loop_inside_the_loops_of_their_task() {
    let text = r#"{ "tasks": { "t": { "delay": 50, "loop": 3, "phases": {
        "light": { "loop": 10, "run": 100, "timer": { "ref": "unique", "period": 30000 } },
        "heavy": { "run": 400, "timer": { "ref": "unique", "period": 30000, "mode": "absolute" } }
    } } } }"#;
    let plan = plan(text);
    assert_eq!(plan.timers, 1);
    let steps = [
        Step::Sleep(50_000),
        Step::Compute(100_000),
        Step::Timer { timer: 0, period: 30_000_000, absolute: false },
        Step::Done { bytes: 0 },
        Step::Repeat { from: 1, times: 9 },
        Step::Compute(400_000),
        Step::Timer { timer: 0, period: 30_000_000, absolute: true },
        Step::Done { bytes: 0 },
        Step::Repeat { from: 1, times: 2 },
        Step::End,
    ];
    assert_eq!(only(&plan).program, steps);
}

#[test]
fn instances_share_timers_unless_they_are_unique() {
    let shared = r#"{ "tasks": { "t": { "instance": 3, "timer": { "ref": "tick", "period": 10 } } } }"#;
    assert_eq!((plan(shared).tasks.len(), plan(shared).timers), (3, 1));
    assert_eq!(plan(&shared.replace("tick", "unique")).timers, 3);
}

#[test]
fn waiting_frees_the_mutex_and_takes_it_again() {
    let text = r#"{ "tasks": {
        "waiter": { "lock": "m", "wait": { "ref": "c", "mutex": "m" }, "unlock": "m" },
        "waker": { "lock": "m", "signal": "c", "unlock": "m", "sync": { "ref": "c", "mutex": "m" }, "broad": "c" }
    } }"#;
    let plan = plan(text);
    // A mutex is free at first; a condition has nothing.
    assert_eq!(plan.channels, [("mutex m".to_owned(), 1), ("condition c".to_owned(), 0)]);
    let lock = Step::Wait { channel: 0, messages: 1 };
    let unlock = Step::Send { channel: 0, messages: 1 };
    let wait = Step::WaitSignal { channel: 1, mutex: Some(0) };
    let signal = Step::Signal { channel: 1, all: false };
    let done = Step::Done { bytes: 0 };
    assert_eq!(plan.tasks[0].program, [&[lock, wait, lock, unlock, done][..], &END].concat());
    let broad = Step::Signal { channel: 1, all: true };
    let sync = [lock, signal, wait, lock, unlock];
    let waker = [&[lock, signal, unlock][..], &sync, &[broad, done], &END].concat();
    assert_eq!(plan.tasks[1].program, waker);
}

#[test]
fn a_task_that_suspends_without_a_name_waits_for_its_own() {
    let plan = plan(r#"{ "tasks": { "a": { "suspend": "" }, "b": { "resume": "a" } } }"#);
    assert_eq!(plan.tasks[0].program[0], Step::WaitSignal { channel: 0, mutex: None });
    assert_eq!(plan.tasks[1].program[0], Step::Signal { channel: 0, all: true });
}

#[test]
fn policies_priorities_and_cpus_are_those_of_tasks() {
    let text = r#"{ "global": { "default_policy": "SCHED_FIFO" }, "tasks": {
        "a": { "run": 1 },
        "b": { "policy": "SCHED_RR", "priority": 30, "run": 1 },
        "c": { "policy": "SCHED_OTHER", "priority": -5, "cpus": [1], "mem": 2048, "iorun": 100 }
    } }"#;
    let tasks = plan(text).tasks;
    let classes: Vec<SchedClass> = tasks.iter().map(|task| task.class).collect();
    let expected = [
        SchedClass::Fifo { priority: 10 },
        SchedClass::RoundRobin { priority: 30 },
        SchedClass::Fair { nice: -5 },
    ];
    assert_eq!(classes, expected);
    assert!(tasks[0].affinity.contains(0) && tasks[2].affinity.contains(1) && !tasks[2].affinity.contains(0));
    assert_eq!(tasks[2].program[..2], [Step::Compute(400), Step::Write { bytes: 100, sync: false }]);
}

#[test]
fn what_is_not_understood_is_named_with_its_path() {
    let task = |events: &str| refusal(&format!(r#"{{ "tasks": {{ "t": {{ {events} }} }} }}"#));
    let says = |text: String, parts: &[&str]| {
        assert!(text.starts_with("the rt-app file x.json"), "{text}");
        parts.iter().for_each(|part| assert!(text.contains(part), "{text} without {part}"));
    };
    says(task(r#""barrier": "b""#), &["tasks.t.barrier: barrier of rt-app is not modelled"]);
    says(task(r#""phases": { "p": { "fork": "x" } }"#), &["tasks.t.phases.p.fork: "]);
    says(task(r#""phases": { "p": { "cpus": [0] } }"#), &["tasks.t.phases.p.cpus: ", "whole tasks"]);
    says(task(r#""phases": {}, "run": 1"#), &["tasks.t.run: ", "beside `phases`"]);
    says(task(r#""rnu": 1"#), &["tasks.t.rnu: unknown", "runtime, run, sleep"]);
    says(task(r#""run": -1"#), &["tasks.t.run: -1: must be a whole number, 0 to"]);
    says(task(r#""run": "x""#), &[r#"tasks.t.run: "x""#]);
    says(task(r#""loop": 0"#), &["tasks.t.loop: 0", "-1 for without end"]);
    says(task(r#""cpus": [2]"#), &["tasks.t.cpus: 2: must be a whole number, 0 to 1"]);
    says(task(r#""policy": "SCHED_DEADLINE""#), &["tasks.t.policy: ", "SCHED_OTHER, SCHED_FIFO, SCHED_RR"]);
    says(task(r#""timer": { "ref": "x" }"#), &["tasks.t.timer.period: missing"]);
    says(task(r#""wait": { "ref": "c" }"#), &["tasks.t.wait.mutex: missing"]);
    says(refusal(r#"{ "global": { "colour": 1 }, "tasks": {} }"#), &["global.colour: allowed is duration"]);
    says(refusal("{}"), &["tasks: missing"]);
    says(refusal("{ /* x */ }"), &["is not JSON", "workgen"]);
}

/// A scenario whose only VM runs a file.
fn scenario(folder: &Path, vcpus: u16) -> Scenario {
    let text = format!(
        r#"
        name = "x"
        description = "x"
        repeats = 1
        duration = "2s"
        warmup = "0s"
        think_scale = 1.0
        guest = {{ kernel = "6.1-cloud" }}
        host = {{ vm_cpus = [0, 1], client_cpus = [2] }}
        vm = [{{ name = "a", vcpus = {vcpus}, workloads = [{{ name = "tasks", run = "rt-app", file = "x.json" }}] }}]
        arms.stock = {{}}
        "#
    );
    Scenario::parse(&text, &folder.join("x.toml"), &Overrides::default()).unwrap()
}

fn outcome(name: &str, vcpus: u16, file: &str) -> Result<crate::Run, crate::SimError> {
    let folder = std::env::temp_dir().join(format!("frontdesk-rtapp-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("x.json"), file).unwrap();
    let run = crate::run(&scenario(&folder, vcpus), "stock", 1, 1, false);
    std::fs::remove_dir_all(&folder).unwrap();
    run
}

/// CPU time in milliseconds and rounds per second of a file's tasks in two seconds.
fn measured(name: &str, vcpus: u16, file: &str) -> (f64, f64) {
    let repeat = outcome(name, vcpus, file).unwrap().repeat;
    (repeat.cpu_ms["a"], repeat.rates["a/tasks"].per_s)
}

#[test]
fn a_periodic_task_uses_its_part_of_a_cpu() {
    let file = r#"{ "tasks": { "t": { "run": 2000, "timer": { "ref": "unique", "period": 10000 } } } }"#;
    let (cpu_ms, per_s) = measured("periodic", 1, file);
    // The VM is switched on within the first 100 ms.
    assert!((375.0..410.0).contains(&cpu_ms), "{cpu_ms}");
    assert!((93.0..=101.0).contains(&per_s), "{per_s}");
}

#[test]
fn two_tasks_hand_over_to_each_other() {
    let file = r#"{ "tasks": {
        "ping": { "delay": 1000, "run": 1000, "resume": "pong", "suspend": "ping" },
        "pong": { "suspend": "pong", "run": 1000, "resume": "ping" }
    } }"#;
    let (cpu_ms, per_s) = measured("hand-over", 1, file);
    // One of the two always runs.
    assert!(cpu_ms > 1_850.0, "{cpu_ms}");
    assert!((900.0..=1_000.0).contains(&per_s), "{per_s}");
}

#[test]
fn a_mutex_keeps_two_cpus_from_running_at_once() {
    let file = |guarded: &str| format!(r#"{{ "tasks": {{ "t": {{ "instance": 2, {guarded} }} }} }}"#);
    let (free, _) = measured("free", 2, &file(r#""run": 1000"#));
    let (locked, _) = measured("locked", 2, &file(r#""lock": "m", "run": 1000, "unlock": "m""#));
    assert!(free > 3_700.0, "{free}");
    assert!(locked < 2_200.0, "{locked}");
}

#[test]
fn real_time_tasks_run_before_fair_ones() {
    let file = r#"{ "tasks": {
        "back": { "run": 1000 },
        "front": { "policy": "SCHED_FIFO", "priority": 5, "run": 1000 }
    } }"#;
    let (_, alone) = measured("fifo", 1, file);
    // Only the first, which never waits, does any rounds.
    assert!((930.0..=1_000.0).contains(&alone), "{alone}");
}

#[test]
fn a_cycle_of_waits_is_reported_when_it_closes_with_who_waits_for_what() {
    // Both take one mutex and want the other's; a third task goes on for ever.
    let file = r#"{ "tasks": {
        "left": { "lock": "a", "sleep": 10000, "lock": "b", "unlock": "b", "unlock": "a" },
        "right": { "lock": "b", "sleep": 10000, "lock": "a", "unlock": "a", "unlock": "b" },
        "busy": { "run": 1000 }
    } }"#;
    let error = outcome("cycle", 1, file).unwrap_err();
    let crate::SimError::Deadlock { at_s, ref tasks, .. } = error else { panic!("{error}") };
    assert!(at_s < 0.2, "within 100 ms the VM is on, and then it takes 10 ms: {at_s}");
    let says = |part: &str| assert!(tasks.contains(part), "{tasks} without {part}");
    says("left/0 of a/tasks waits for mutex b since 0.");
    says("right/0 of a/tasks waits for mutex a since 0.");
    says("which only right/0 could give");
}

#[test]
fn a_task_that_nobody_resumes_is_reported() {
    let file = r#"{ "tasks": { "t": { "run": 100, "suspend": "t" } } }"#;
    let error = outcome("forgotten", 1, file).unwrap_err().to_string();
    assert!(error.contains("t/0 of a/tasks waits for resumption of t since 0."), "{error}");
    assert!(error.contains("which nobody gives"), "{error}");
}

/// Response times of a file's tasks in milliseconds, by task.
fn responses(name: &str, file: &str) -> Vec<(String, Vec<f64>)> {
    let repeat = outcome(name, 1, file).unwrap().repeat;
    let key = |key: String| key.strip_prefix("a/tasks/").unwrap().to_owned();
    repeat.times_ms.into_iter().map(|(task, times)| (key(task), times)).collect()
}

#[test]
fn a_task_responds_from_when_its_timer_expires_until_it_waits_again() {
    let timer = r#""timer": { "ref": "unique", "period": 10000, "mode": "absolute" }"#;
    let alone = responses("alone", &format!(r#"{{ "tasks": {{ "t": {{ "run": 2000, {timer} }} }} }}"#));
    let [(task, times)] = &alone[..] else { panic!("{alone:?}") };
    assert_eq!(task, "t");
    assert!((190..=201).contains(&times.len()), "{}", times.len());
    assert!(times.iter().all(|time| (2.0..2.2).contains(time)), "{times:?}");
    // Every other time it waits for one that comes first, and runs for 3 ms.
    let file = format!(
        r#"{{ "tasks": {{
            "front": {{ "policy": "SCHED_FIFO", "delay": 5000, "run": 3000, "timer": {{ "ref": "unique", "period": 20000, "mode": "absolute" }} }},
            "back": {{ "run": 2000, {timer} }}
        }} }}"#
    );
    let beside = responses("beside", &file);
    let times = &beside.iter().find(|(task, _)| task == "back").unwrap().1;
    let late = times.iter().filter(|time| (4.9..5.2).contains(*time)).count();
    let prompt = times.iter().filter(|time| (2.0..2.2).contains(*time)).count();
    assert!(late > 90 && prompt > 90 && late + prompt == times.len(), "{times:?}");
}

#[test]
fn a_delay_is_no_response_and_who_is_resumed_responds_from_then() {
    let file = r#"{ "tasks": {
        "asks": { "delay": 50000, "run": 1000, "resume": "works", "sleep": 20000 },
        "works": { "suspend": "works", "run": 4000 }
    } }"#;
    let all = responses("resumed", file);
    let of = |task: &str| &all.iter().find(|(name, _)| name == task).unwrap().1;
    assert!((80..=92).contains(&of("works").len()), "{all:?}");
    assert!(of("asks").len().abs_diff(of("works").len()) <= 1, "{all:?}");
    assert!(of("works").iter().all(|time| (4.0..4.2).contains(time)), "{all:?}");
}

#[test]
fn an_event_takes_a_day_at_most() {
    let sleep = |micros: i64| format!(r#"{{ "tasks": {{ "t": {{ "sleep": {micros} }} }} }}"#);
    let day = 24 * 3_600_000_000;
    assert_eq!(only(&plan(&sleep(day))).program[0], Step::Sleep(24 * 3_600_000_000_000));
    let refused = refusal(&sleep(day + 1));
    assert!(
        refused.ends_with("tasks.t.sleep: 86400000001: must be a whole number, 0 to 86400000000"),
        "{refused}"
    );
}
