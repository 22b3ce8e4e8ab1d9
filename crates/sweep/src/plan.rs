//! How long a sweep will take: some of its runs are made, and tell.

use crate::design::Sweep;
use crate::error::SweepError;
use crate::made::rows;
use crate::row::Layout;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Runs that are made at least: one would tell nothing of the others.
const FEWEST: usize = 3;

/// How long a sweep will take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All its runs.
    pub runs: usize,
    /// Simulated time of all of them, with what comes before the measured part.
    pub simulated: Duration,
    /// Runs that were made to tell.
    pub made: usize,
    /// Time on a CPU like that of this machine that all runs will take.
    pub cpu: Duration,
}

impl Plan {
    /// How long it will take on so many CPUs like that of this machine, if nothing else is to be waited for.
    #[must_use]
    pub fn on(&self, cpus: u32) -> Duration {
        self.cpu / cpus.max(1)
    }
}

/// Makes runs from all over a sweep, one after another, for so long, and three at least; their rows are not
/// kept. `None` if it was stopped before that.
///
/// # Errors
/// The scenario refuses parameters, which would have been said when it was loaded.
pub fn plan(sweep: &Sweep, patience: Duration, stop: &AtomicBool) -> Result<Option<Plan>, SweepError> {
    let (layout, runs) = (Layout::of(sweep), sweep.runs());
    let (mut made, begin) = (0, Instant::now());
    while made < runs && (made < FEWEST || begin.elapsed() < patience) {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        // A step that shares no factor with the number of runs comes to all of them.
        rows(sweep, &layout, spread(made, runs));
        made += 1;
    }
    let each = begin.elapsed() / u32::try_from(made.max(1)).unwrap_or(u32::MAX);
    let all = u32::try_from(runs).unwrap_or(u32::MAX);
    let simulated = match sweep.run(0) {
        Some(run) => {
            let scenario = sweep.scenario_of(run)?;
            scenario.warmup.saturating_add(scenario.duration).saturating_mul(all)
        }
        None => Duration::ZERO,
    };
    Ok(Some(Plan { runs, simulated, made, cpu: each.saturating_mul(all) }))
}

/// These, in an order in which any first few are from all over.
pub(crate) fn from_all_over<T: Clone>(those: &[T]) -> impl Iterator<Item = T> {
    (0..those.len()).map(|nth| those[spread(nth, those.len())].clone())
}

/// The `nth` of so many numbers, in an order in which any first few are from all over.
fn spread(nth: usize, runs: usize) -> usize {
    // The golden section of them, and on to where it shares no factor with their number.
    let golden = runs * 618 / 1000 + 1;
    let coprime = (golden..).find(|step| gcd(*step, runs) == 1).unwrap_or(1);
    nth * coprime % runs
}

fn gcd(one: usize, other: usize) -> usize {
    if other == 0 { one } else { gcd(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_comes_once_and_the_first_ones_are_from_all_over() {
        for runs in [1, 2, 3, 12, 1000, 10_032] {
            let mut all: Vec<usize> = (0..runs).map(|nth| spread(nth, runs)).collect();
            if runs >= 1000 {
                let mut first = all[..10].to_vec();
                first.sort_unstable();
                let gap = first.windows(2).map(|pair| pair[1] - pair[0]).max();
                assert!(gap < Some(runs / 4), "{first:?}");
            }
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..runs), "{runs}");
        }
    }

    #[test]
    fn twice_the_cpus_take_half_the_time() {
        let plan = Plan { runs: 1, simulated: Duration::ZERO, made: 1, cpu: Duration::from_secs(3600) };
        assert_eq!((plan.on(1), plan.on(60), plan.on(0)), (plan.cpu, Duration::from_secs(60), plan.cpu));
    }
}
