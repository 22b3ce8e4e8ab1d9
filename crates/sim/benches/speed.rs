//! How fast the simulator is: events per second on one core for Table 1 of TAVS on the paper's machine, by
//! arm, which has a bar; and for the lab's `table1`, where the scheduler is Linux's and each VM has an
//! emulator thread.
//!
//! An event is a timer that fired and was handled: an entity got somewhere, a timer of the scheduler, of a
//! client, of the disk, of the engine. One that was moved or cancelled before is none, and neither is what
//! follows at the same time: a decision of the scheduler, what the engine is told.

#![allow(clippy::unwrap_used)] // A benchmark that panics fails.

use frontdesk_scenario::{Overrides, Scenario};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Events per second, in millions, that are to be reached.
const BAR: f64 = 5.0;
/// Runs of each arm, an hour of simulated time each; the median counts.
const RUNS: u32 = 9;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut slow = false;
    for (file, barred) in [("papers/tavs-table1.toml", true), ("tavs/table1.toml", false)] {
        let overrides = Overrides { set: vec!["duration=1h".to_owned()], ..Overrides::default() };
        let scenario = Scenario::load(&folder.join(file), &overrides).unwrap();
        for arm in scenario.arms.keys() {
            let mut speeds: Vec<(f64, u64)> =
                (1..=RUNS).map(|repeat| speed(&scenario, arm, repeat)).collect();
            speeds.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (median, events) = speeds[speeds.len() / 2];
            println!(
                "{file}, {arm}: {median:.1} million events per second (runs: {:.1} to {:.1}; {events} events)",
                speeds[0].0,
                speeds[speeds.len() - 1].0
            );
            slow |= barred && median < BAR;
        }
    }
    println!("bar for the first scenario: {BAR} million");
    if slow { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Millions of events per second in a run, and the events.
fn speed(scenario: &Scenario, arm: &str, repeat: u32) -> (f64, u64) {
    let begin = Instant::now();
    let happened = frontdesk_sim::run(scenario, arm, repeat, 1, false).unwrap().repeat.model.unwrap().events;
    #[allow(clippy::cast_precision_loss)]
    let speed = happened as f64 / begin.elapsed().as_secs_f64() / 1e6;
    (speed, happened)
}
