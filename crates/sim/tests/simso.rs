//! Against SimSo, a simulator of real-time scheduling by others: the same periodic task sets, the same misses
//! and response times.
//!
//! `tools/setup.sh sim` installs it in target/simso. Without it these tests say so and do nothing.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod periodic;
mod simso_process;

use frontdesk_sim::Rng;
use periodic::{Policy, TaskSet};

/// Task sets for each of the policies.
const SETS: u64 = 60;
/// Simulated time, in microseconds.
const DURATION: u64 = 1_000_000;

fn compare(policy: Policy, name: &'static str) {
    let Some(python) = simso_process::python() else { return };
    let sets: Vec<TaskSet> = (0..SETS).map(|set| TaskSet::random(&mut Rng::new(6, set), DURATION)).collect();
    let (mut jobs, mut missed, mut overloaded) = (0, 0, 0);
    for (set, theirs) in sets.iter().zip(simso_process::ask(&python, name, DURATION, &sets)) {
        let ours = set.run(policy, DURATION);
        for (index, (ours, theirs)) in ours.iter().zip(&theirs.jobs).enumerate() {
            let different = ours.iter().zip(theirs).find(|(ours, theirs)| ours != theirs);
            assert_eq!(different, None, "task {index} of {:?} under {name}", set.tasks);
            assert_eq!(ours.len(), theirs.len(), "task {index} of {:?} under {name}", set.tasks);
            jobs += ours.len();
            missed += ours.iter().filter(|job| job.aborted).count();
        }
        overloaded += u32::from(set.utilisation() > 1.0);
    }
    eprintln!(
        "{name}: {SETS} task sets ({overloaded} overloaded), {jobs} jobs, {missed} deadlines missed by both"
    );
    assert!(missed > 0 && overloaded > 0 && u64::from(overloaded) < SETS, "the task sets show nothing");
}

#[test]
fn earliest_deadline_first_does_what_simso_does() {
    compare(Policy::EarliestDeadlineFirst, "EDF");
}

#[test]
fn rate_monotonic_does_what_simso_does() {
    compare(Policy::RateMonotonic, "RM");
}
