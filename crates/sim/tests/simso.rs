//! Against SimSo, a simulator of real-time scheduling by others: the same periodic task sets, the same misses and response times.
//!
//! `tools/setup.sh sim` installs it in target/simso. Without it these tests say so and do nothing.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod periodic;

use frontdesk_sim::Rng;
use periodic::{Job, Policy, TaskSet};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Task sets for each of the policies.
const SETS: u64 = 60;
/// Simulated time, in microseconds.
const DURATION: u64 = 1_000_000;

#[derive(Serialize)]
struct Case<'a> {
    scheduler: &'static str,
    duration: u64,
    tasks: &'a [(u64, u64)],
}

#[derive(Deserialize)]
struct Answer {
    jobs: Vec<Vec<Job>>,
}

fn simso() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?.join("simso/bin/python");
    if !python.exists() {
        eprintln!("skipped: there is no SimSo at {}; tools/setup.sh sim installs it", python.display());
        return None;
    }
    Some(python)
}

fn ask(python: &Path, cases: &[Case<'_>]) -> Vec<Answer> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run_simso.py");
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = serde_json::to_vec(cases).unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "SimSo failed");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn compare(policy: Policy, name: &'static str) {
    let Some(python) = simso() else { return };
    let sets: Vec<TaskSet> = (0..SETS).map(|set| TaskSet::random(&mut Rng::new(6, set), DURATION)).collect();
    let cases: Vec<_> = sets
        .iter()
        .map(|set| Case { scheduler: name, duration: DURATION, tasks: &set.tasks })
        .collect();
    let (mut jobs, mut missed, mut overloaded) = (0, 0, 0);
    for (set, theirs) in sets.iter().zip(ask(&python, &cases)) {
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
    eprintln!("{name}: {SETS} task sets ({overloaded} overloaded), {jobs} jobs, {missed} deadlines missed by both");
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
