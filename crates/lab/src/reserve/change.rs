//! How soon a changed reservation holds.

use super::delivered::RunInterval;
use super::enforce::Enforcement;
use super::study_lab::{StudyLab, count, sample};
use super::worker::WorkerKind;
use crate::LabError;
use frontdesk_engine::nanos;
use frontdesk_linux::monotonic_ns;
use frontdesk_scenario::{PeriodSlice, StudyMeasure, float, quantile};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::time::Instant;

/// A run that is shorter than this part of the slice is not one of the slice.
const PART: u64 = 10;

/// A change that was asked for.
struct SliceChange {
    sent: u64,
    answered: u64,
    slice: u64,
}

/// Changes the reservation of a process to and fro beside processes that compute, each time when its slice is
/// over.
pub(super) fn run(
    lab: &mut StudyLab<'_>,
    arm: &str,
    by: &mut Enforcement,
    between: [PeriodSlice; 2],
) -> Result<(), LabError> {
    let hogs = lab.hogs()?;
    let worker = lab.start(WorkerKind::Compute)?;
    by.reserve(worker.pid(), between[0], lab.guardian)?;
    lab.pass(between[0].period * 2)?;
    let shortest = between[0].period.min(between[1].period);
    // The same moments in every arm.
    let mut random = SmallRng::seed_from_u64(1);
    let end = Instant::now() + lab.study.duration;
    let mut all = Vec::new();
    by.change(worker.pid(), between[0])?;
    for of in between.into_iter().rev().cycle() {
        lab.pass(shortest.mul_f64(random.random_range(0.3..0.7)))?;
        if Instant::now() > end {
            break;
        }
        let sent = monotonic_ns();
        by.change(worker.pid(), of)?;
        all.push(SliceChange { sent, answered: monotonic_ns(), slice: nanos(of.slice) });
    }
    lab.pass(shortest)?;
    by.release(worker.pid())?;
    let runs = worker.runs().map_err(super::study_lab::of_worker)?;
    drop(hogs);
    by.clear()?;
    let mut reactions = reactions(&all, &runs);
    reactions.sort_by(f64::total_cmp);
    let case = format!("{} and {}", between[0], between[1]);
    if let (Some(median), Some(worst)) = (quantile(&reactions, 50), quantile(&reactions, 99)) {
        lab.findings.add(arm, &case, "changes", count(reactions.len()));
        lab.findings.add(arm, &case, "p50, ms", median);
        lab.findings.measured(arm, &case, StudyMeasure::Reaction, worst);
    }
    sample(&mut lab.samples, "From the request to the first run under it", arm).extend(reactions);
    let answers = all.iter().map(|asked| millis(asked.answered - asked.sent));
    sample(&mut lab.samples, "From the request to the answer", arm).extend(answers);
    Ok(())
}

/// Milliseconds from each request to the first run after it, interrupts aside. One without a run before the
/// next request counts as long as it waited for one.
fn reactions(all: &[SliceChange], runs: &[RunInterval]) -> Vec<f64> {
    let begins = |asked: &SliceChange| {
        let after = runs.iter().filter(|run| run.to > asked.sent);
        let first = after.into_iter().find(|run| run.to - run.from.max(asked.sent) >= asked.slice / PART);
        first.map(|run| run.from.max(asked.sent))
    };
    all.iter().filter_map(|asked| Some(millis(begins(asked)? - asked.sent))).collect()
}

fn millis(nanos: u64) -> f64 {
    float(nanos) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_run_of_a_slice_counts() {
        const MS: u64 = 1_000_000;
        let run = |from, to| RunInterval { from, to, stalled: 0 };
        // A crumb right after the request is none of the slice of 2 ms.
        let runs =
            [run(0, 2 * MS), run(50 * MS, 50 * MS + 5_000), run(51 * MS, 53 * MS), run(151 * MS, 153 * MS)];
        let asked = |sent| SliceChange { sent, answered: sent, slice: 2 * MS };
        assert_eq!(reactions(&[asked(50 * MS), asked(100 * MS), asked(200 * MS)], &runs), [1.0, 51.0]);
    }
}
