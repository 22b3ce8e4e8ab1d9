//! How much faster than SimSo the simulator runs the same task sets under earliest deadline first and rate-monotonic.
//!
//! Prints both wall times, without start-up, and their ratio; fails if that is below its bar. `tools/setup.sh sim` installs SimSo.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a program, not a library")]

#[path = "../tests/periodic/mod.rs"]
mod periodic;
#[path = "../tests/simso_process/mod.rs"]
mod simso_process;

use frontdesk_sim::Rng;
use periodic::{Policy, TaskSet};
use std::process::ExitCode;
use std::time::Instant;

/// So many times faster.
const BAR: f64 = 100.0;
const SETS: u64 = 20;
const DURATION: u64 = 1_000_000;

fn main() -> ExitCode {
    let Some(python) = simso_process::python() else { return ExitCode::from(2) };
    let sets: Vec<TaskSet> = (0..SETS).map(|set| TaskSet::random(&mut Rng::new(7, set), DURATION)).collect();
    let mut kept = true;
    for (policy, name) in [(Policy::EarliestDeadlineFirst, "EDF"), (Policy::RateMonotonic, "RM")] {
        let begun = Instant::now();
        let jobs: usize = sets.iter().flat_map(|set| set.run(policy, DURATION)).map(|jobs| jobs.len()).sum();
        let ours = begun.elapsed().as_secs_f64();
        let theirs: f64 =
            simso_process::ask(&python, name, DURATION, &sets).iter().map(|answer| answer.seconds).sum();
        let ratio = theirs / ours;
        kept &= ratio >= BAR;
        println!(
            "{name}: {SETS} task sets, {jobs} jobs: SimSo {:.0} ms, frontdesk {:.1} ms, {ratio:.0} x (bar: {BAR:.0} x) {}",
            theirs * 1000.0,
            ours * 1000.0,
            if ratio >= BAR { "ok" } else { "MISSED" }
        );
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
