use super::*;

const MS: u64 = 1_000_000;

fn belief(vcpu: &Vcpu, task: u64) -> i32 {
    vcpu.tasks.iter().find(|(id, _)| *id == TaskId(task)).map_or(0, |(_, task)| task.belief)
}

/// Runs the tasks one after the other, each for so many microseconds, after an event.
fn after_event(vcpu: &mut Vcpu, config: &Tavs, start: u64, tasks: &[(u64, u64)]) {
    let mut now = start;
    vcpu.dispatch(TaskId(tasks[0].0), Time(now), config);
    vcpu.thread.stop(true);
    vcpu.event_pending(false, config);
    vcpu.account(Time(now), config);
    vcpu.run(0, config);
    for pair in tasks.windows(2) {
        now += pair[0].1 * 1000;
        vcpu.account(Time(now), config);
        vcpu.dispatch(TaskId(pair[1].0), Time(now), config);
    }
    now += tasks[tasks.len() - 1].1 * 1000;
    vcpu.account(Time(now), config);
    vcpu.dispatch(TaskId(99), Time(now), config);
}

/// TAVS Figure 2: after one event T2 and T3 give positive evidence, T4 and T6 negative, T1 and T5 none.
#[test]
fn figure_2() {
    let config = Tavs::default();
    let mut vcpu = Vcpu::new(&config);
    after_event(&mut vcpu, &config, MS, &[(1, 100), (2, 300), (3, 400), (4, 2000), (5, 200), (6, 900)]);
    let beliefs: Vec<i32> = (1..=6).map(|task| belief(&vcpu, task)).collect();
    assert_eq!(beliefs, [0, 5, 5, -20, 0, -20]);
}

#[test]
fn five_observations_make_a_task_io_bound_and_one_long_run_undoes_four() {
    let config = Tavs::default();
    let mut vcpu = Vcpu::new(&config);
    for round in 1..=4 {
        after_event(&mut vcpu, &config, round * 100 * MS, &[(1, 100), (2, 300)]);
    }
    assert!(!vcpu.tasks.is_io_bound(TaskId(2), &config), "20 is not above the threshold");
    after_event(&mut vcpu, &config, 500 * MS, &[(1, 100), (2, 300)]);
    assert!(vcpu.tasks.is_io_bound(TaskId(2), &config));
    after_event(&mut vcpu, &config, 600 * MS, &[(1, 100), (2, 700)]);
    assert!(!vcpu.tasks.is_io_bound(TaskId(2), &config));
}

#[test]
fn belief_stays_in_its_range() {
    let config = Tavs::default();
    let mut vcpu = Vcpu::new(&config);
    for round in 1..=100 {
        after_event(&mut vcpu, &config, round * 100 * MS, &[(1, 100), (2, 300), (3, 5000)]);
    }
    assert_eq!((belief(&vcpu, 2), belief(&vcpu, 3)), (300, -100));
}

/// Events that come so fast that each cuts short the run of the CPU-bound task.
#[test]
fn a_run_cut_short_by_the_next_event_says_nothing() {
    let config = Tavs::default();
    let mut vcpu = Vcpu::new(&config);
    vcpu.dispatch(TaskId(1), Time(0), &config);
    vcpu.run(0, &config);
    for round in 0..20 {
        let start = round * MS;
        vcpu.account(Time(start), &config);
        vcpu.event_pending(false, &config);
        for (after, task) in [(50_000, 2), (150_000, 1)] {
            vcpu.account(Time(start + after), &config);
            vcpu.dispatch(TaskId(task), Time(start + after), &config);
        }
        // The next event finds task 1 after 0.15 ms, and task 2 preempts it.
        vcpu.account(Time(start + 300_000), &config);
        vcpu.event_pending(false, &config);
        vcpu.dispatch(TaskId(2), Time(start + 300_000), &config);
        vcpu.account(Time(start + 400_000), &config);
        vcpu.dispatch(TaskId(1), Time(start + 400_000), &config);
    }
    assert!(belief(&vcpu, 1) <= 0, "{}", belief(&vcpu, 1));
    assert!(vcpu.tasks.is_io_bound(TaskId(2), &config));
}

#[test]
fn a_preempted_task_goes_on_with_its_run() {
    let config = Tavs::default();
    let mut vcpu = Vcpu::new(&config);
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
    let mut vcpu = Vcpu::new(&config);
    vcpu.thread.run(0);
    for i in 0..100 {
        vcpu.account(Time(i * 100_000), &config);
        vcpu.dispatch(TaskId(i % 2), Time(i * 100_000), &config);
    }
    assert_eq!((belief(&vcpu, 0), belief(&vcpu, 1)), (0, 0));
}

/// The emulator thread takes the CPU in the middle of the task's run to send its reply.
#[test]
fn preempted_time_does_not_count_as_the_tasks() {
    let config = Tavs::default();
    let mut vcpu = Vcpu::new(&config);
    vcpu.dispatch(TaskId(1), Time(0), &config);
    vcpu.event_pending(false, &config);
    vcpu.run(0, &config);
    vcpu.account(Time(MS / 10), &config);
    vcpu.dispatch(TaskId(2), Time(MS / 10), &config);
    vcpu.account(Time(MS / 5), &config);
    vcpu.thread.stop(true);
    vcpu.account(Time(50 * MS), &config);
    vcpu.run(0, &config);
    vcpu.account(Time(50 * MS + MS / 10), &config);
    vcpu.dispatch(TaskId(1), Time(50 * MS + MS / 10), &config);
    assert_eq!(belief(&vcpu, 2), 5);
}

/// A VM with nothing else to do keeps the server's address space while it idles.
#[test]
fn a_task_that_wakes_from_idle_gives_positive_evidence() {
    let config = Tavs::default();
    let mut vcpu = Vcpu::new(&config);
    vcpu.dispatch(TaskId(2), Time(0), &config);
    vcpu.halt(&config);
    vcpu.event_pending(true, &config);
    vcpu.account(Time(MS), &config);
    vcpu.run(0, &config);
    vcpu.account(Time(MS + 1000), &config);
    assert_eq!(vcpu.resume(Time(MS + 1000), &config), Some((false, Some(Verdict::NotIoBound))));
    vcpu.account(Time(MS + 200_000), &config);
    vcpu.halt(&config);
    assert_eq!(belief(&vcpu, 2), 5);
}

#[test]
fn a_full_table_forgets_the_least_recently_seen() {
    let config = Tavs { tasks_per_vcpu: 8, ..Tavs::default() };
    let mut vcpu = Vcpu::new(&config);
    for round in 1..=5 {
        after_event(&mut vcpu, &config, round * 100 * MS, &[(1, 100), (2, 300)]);
    }
    assert!(vcpu.tasks.any_io_bound());
    for task in 1000..1008 {
        vcpu.dispatch(TaskId(task), Time(900 * MS), &config);
    }
    assert!(!vcpu.tasks.any_io_bound());
    assert_eq!(vcpu.tasks.iter().count(), 8);
}
