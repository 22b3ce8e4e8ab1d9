use super::*;
use crate::infer::TaskDispatch;

const MS: u64 = 1_000_000;

/// A guest with one vCPU.
struct One(Guest);

impl One {
    fn new(config: &Tavs) -> One {
        One(Guest::new(1, config))
    }

    fn account(&mut self, now: u64, config: &Tavs) {
        self.0.account_vcpu(0, Time(now), config);
    }

    fn dispatch(&mut self, task: u64, now: u64, config: &Tavs) {
        self.0.switch(0, TaskId(task), true, Time(now), config);
    }

    fn event_pending(&mut self, judge: bool, config: &Tavs) {
        let vcpu = &mut self.0.vcpus[0];
        let _ = vcpu.observer.event_pending(judge, &vcpu.seen, &mut self.0.tasks, config);
    }

    fn run(&mut self, config: &Tavs) {
        self.0.run(Thread::Vcpu(0), 0, false, config);
    }

    fn preempt(&mut self) {
        self.0.stop(Thread::Vcpu(0), true, &Tavs::default());
    }

    fn is_io_bound(&self, task: u64) -> bool {
        self.0.tasks.is_io_bound(TaskId(task))
    }
}

fn belief(guest: &One, task: u64) -> i32 {
    guest.0.tasks.belief(TaskId(task)).unwrap_or(0)
}

/// Runs the tasks one after the other, each for so many microseconds, after an event.
fn after_event(vcpu: &mut One, config: &Tavs, start: u64, tasks: &[(u64, u64)]) {
    let mut now = start;
    vcpu.dispatch(tasks[0].0, now, config);
    vcpu.preempt();
    vcpu.event_pending(false, config);
    vcpu.account(now, config);
    vcpu.run(config);
    for pair in tasks.windows(2) {
        now += pair[0].1 * 1000;
        vcpu.account(now, config);
        vcpu.dispatch(pair[1].0, now, config);
    }
    now += tasks[tasks.len() - 1].1 * 1000;
    vcpu.account(now, config);
    vcpu.dispatch(99, now, config);
}

/// TAVS Figure 2: after one event T2 and T3 give positive evidence, T4 and T6 negative, T1 and T5 none.
#[test]
fn figure_2() {
    let config = Tavs::default();
    let mut vcpu = One::new(&config);
    after_event(&mut vcpu, &config, MS, &[(1, 100), (2, 300), (3, 400), (4, 2000), (5, 200), (6, 900)]);
    let beliefs: Vec<i32> = (1..=6).map(|task| belief(&vcpu, task)).collect();
    assert_eq!(beliefs, [0, 5, 5, -20, 0, -20]);
}

#[test]
fn five_observations_make_a_task_io_bound_and_one_long_run_undoes_four() {
    let config = Tavs::default();
    let mut vcpu = One::new(&config);
    for round in 1..=4 {
        after_event(&mut vcpu, &config, round * 100 * MS, &[(1, 100), (2, 300)]);
    }
    assert!(!vcpu.is_io_bound(2), "20 is not above the threshold");
    after_event(&mut vcpu, &config, 500 * MS, &[(1, 100), (2, 300)]);
    assert!(vcpu.is_io_bound(2));
    after_event(&mut vcpu, &config, 600 * MS, &[(1, 100), (2, 700)]);
    assert!(!vcpu.is_io_bound(2));
}

#[test]
fn belief_stays_in_its_range() {
    let config = Tavs::default();
    let mut vcpu = One::new(&config);
    for round in 1..=100 {
        after_event(&mut vcpu, &config, round * 100 * MS, &[(1, 100), (2, 300), (3, 5000)]);
    }
    assert_eq!((belief(&vcpu, 2), belief(&vcpu, 3)), (300, -100));
}

/// Events that come so fast that each cuts short the run of the CPU-bound task.
#[test]
fn a_run_cut_short_by_the_next_event_says_nothing() {
    let config = Tavs::default();
    let mut vcpu = One::new(&config);
    vcpu.dispatch(1, 0, &config);
    vcpu.run(&config);
    for round in 0..20 {
        let start = round * MS;
        vcpu.account(start, &config);
        vcpu.event_pending(false, &config);
        for (after, task) in [(50_000, 2), (150_000, 1)] {
            vcpu.account(start + after, &config);
            vcpu.dispatch(task, start + after, &config);
        }
        // The next event finds task 1 after 0.15 ms, and task 2 preempts it.
        vcpu.account(start + 300_000, &config);
        vcpu.event_pending(false, &config);
        vcpu.dispatch(2, start + 300_000, &config);
        vcpu.account(start + 400_000, &config);
        vcpu.dispatch(1, start + 400_000, &config);
    }
    assert!(belief(&vcpu, 1) <= 0, "{}", belief(&vcpu, 1));
    assert!(vcpu.is_io_bound(2));
}

#[test]
fn a_preempted_task_goes_on_with_its_run() {
    let config = Tavs::default();
    let mut vcpu = One::new(&config);
    // Task 1 computes for 0.4 ms before and 0.4 ms after the event's task has run.
    after_event(&mut vcpu, &config, MS, &[(1, 400), (2, 100), (1, 400)]);
    assert_eq!((belief(&vcpu, 1), belief(&vcpu, 2)), (-20, 5));
    // In the next observation it begins again.
    after_event(&mut vcpu, &config, 100 * MS, &[(3, 100), (1, 400)]);
    assert_eq!(belief(&vcpu, 1), -15);
}

#[test]
fn without_an_event_nothing_is_learnt() {
    let config = Tavs::default();
    let mut vcpu = One::new(&config);
    vcpu.run(&config);
    for i in 0..100 {
        vcpu.account(i * 100_000, &config);
        vcpu.dispatch(i % 2, i * 100_000, &config);
    }
    assert_eq!((belief(&vcpu, 0), belief(&vcpu, 1)), (0, 0));
}

/// The emulator thread takes the CPU in the middle of the task's run to send its reply.
#[test]
fn preempted_time_does_not_count_as_the_tasks() {
    let config = Tavs::default();
    let mut vcpu = One::new(&config);
    vcpu.dispatch(1, 0, &config);
    vcpu.event_pending(false, &config);
    vcpu.run(&config);
    vcpu.account(MS / 10, &config);
    vcpu.dispatch(2, MS / 10, &config);
    vcpu.account(MS / 5, &config);
    vcpu.preempt();
    vcpu.account(50 * MS, &config);
    vcpu.run(&config);
    vcpu.account(50 * MS + MS / 10, &config);
    vcpu.dispatch(1, 50 * MS + MS / 10, &config);
    assert_eq!(belief(&vcpu, 2), 5);
}

/// A VM with nothing else to do keeps the server's address space while it idles.
#[test]
fn a_task_that_wakes_from_idle_gives_positive_evidence() {
    let config = Tavs::default();
    let mut vcpu = One::new(&config);
    vcpu.dispatch(2, 0, &config);
    vcpu.0.halt(0, &config);
    vcpu.event_pending(true, &config);
    vcpu.account(MS, &config);
    vcpu.run(&config);
    vcpu.account(MS + 1000, &config);
    let resumed = vcpu.0.resume(0, Time(MS + 1000), &config);
    assert_eq!(resumed, Some(TaskDispatch { io_bound: false, fell_asleep: false, again: false }));
    vcpu.account(MS + 200_000, &config);
    vcpu.0.halt(0, &config);
    assert_eq!(belief(&vcpu, 2), 5);
}

/// An I/O-bound task that begins to compute, and whose VM runs nothing else: no other task ever follows it.
#[test]
fn an_only_runner_that_computes_is_not_believed_for_ever() {
    let config = Tavs::default();
    let mut vcpu = One::new(&config);
    for round in 1..=5 {
        after_event(&mut vcpu, &config, round * 100 * MS, &[(1, 100), (2, 300)]);
    }
    assert!(vcpu.is_io_bound(2));
    vcpu.dispatch(2, 600 * MS, &config);
    for round in 6..=7 {
        vcpu.account(round * 100 * MS, &config);
        vcpu.event_pending(false, &config);
        vcpu.account(round * 100 * MS + 40 * MS, &config);
    }
    assert!(!vcpu.is_io_bound(2), "{}", belief(&vcpu, 2));
}

/// Since Linux 6.6 a guest may let the task before finish its tick.
#[test]
fn who_is_dispatched_at_the_next_tick_is_dispatched_at_once() {
    let config = Tavs::default();
    let mut vcpu = One::new(&config);
    after_event(&mut vcpu, &config, MS, &[(1, 3900), (2, 300)]);
    assert_eq!((belief(&vcpu, 1), belief(&vcpu, 2)), (-20, 5));
    after_event(&mut vcpu, &config, 100 * MS, &[(1, 6100), (3, 300)]);
    assert_eq!(belief(&vcpu, 3), 0, "too late to be for the event");
}
