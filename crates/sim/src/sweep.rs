//! Several scenarios at once, on several threads.

use crate::run::{Run, outcome, run};
use crate::world::SimError;
use frontdesk_scenario::{Arm, Daemon, Outcome, Repeat, Scenario, Timeline};
use indexmap::IndexMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What simulating a scenario gave.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The result, as the lab gives it.
    pub outcome: Outcome,
    /// What happened in the first repeat of each arm that ran the daemon, or of each if none did.
    pub timelines: Vec<Timeline>,
    /// What only the model knows, by arm and repeat.
    pub runs: IndexMap<String, Vec<Run>>,
}

/// One run to make: the scenario, the arm and the repeat.
type SweepJob<'a> = (usize, &'a str, u32);

/// Runs all arms and repeats of the scenarios on so many threads. What comes out does not depend on how many.
/// `progress` is told how many runs are done, and of how many.
///
/// # Errors
/// The first run, in order, that is not possible, with the number of its scenario.
pub fn simulate(
    scenarios: &[Scenario],
    seed: u64,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Simulated>, (usize, SimError)> {
    let jobs: Vec<SweepJob<'_>> = scenarios
        .iter()
        .enumerate()
        .flat_map(|(index, scenario)| {
            let repeats = 1..=scenario.repeats;
            repeats.flat_map(move |repeat| scenario.arms.keys().map(move |arm| (index, arm.as_str(), repeat)))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Run, SimError>>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while let Some(number) =
            Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < jobs.len())
        {
            let (index, arm, repeat) = jobs[number];
            let scenario = &scenarios[index];
            let runs_daemon = |arm: &Arm| arm.daemon != Daemon::Off;
            let traced = runs_daemon(&scenario.arms[arm]) || !scenario.arms.values().any(runs_daemon);
            let trace = repeat == 1 && traced;
            let result = run(scenario, arm, repeat, seed, trace);
            if let Ok(mut place) = results[number].lock() {
                *place = Some(result);
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
        }
    };
    std::thread::scope(|scope| {
        (1..threads.min(jobs.len())).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut all: Vec<IndexMap<String, Vec<Run>>> = scenarios.iter().map(|_| IndexMap::new()).collect();
    for ((index, arm, _), result) in jobs.iter().zip(results) {
        let result = result.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(result) = result else { continue };
        let run = result.map_err(|error| (*index, error))?;
        all[*index].entry((*arm).to_owned()).or_default().push(run);
    }
    let simulated = scenarios.iter().zip(all).map(|(scenario, mut runs)| {
        let timelines = runs.values_mut().flatten().filter_map(|run| run.timeline.take()).collect();
        let repeats = runs.iter().map(|(arm, runs)| {
            (arm.clone(), runs.iter().map(|run| run.repeat.clone()).collect::<Vec<Repeat>>())
        });
        Simulated { outcome: outcome(scenario, repeats.collect()), timelines, runs }
    });
    Ok(simulated.collect())
}
