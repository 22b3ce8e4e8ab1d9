//! From when processes ran to what they got in each period, and which deadlines were missed.

use frontdesk_scenario::{float, quantile};

/// A gap at least this long in which the process was charged for CPU time is a stall: the machine under us
/// ran something else.
const STALL_NS: u64 = 150_000;
/// A deadline is missed if more than this part of the slice is missing, and more than [`MISS_NS`].
const MISS_PART: f64 = 0.01;
const MISS_NS: u64 = 20_000;

/// A stretch of time in which a process ran, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunInterval {
    pub(super) from: u64,
    pub(super) to: u64,
    /// What the kernel charged it for between this and the next: it had the CPU, and did not get on.
    pub(super) stalled: u64,
}

/// A process and its reservation.
#[derive(Clone, Debug)]
pub(super) struct MeasuredProcess {
    pub(super) runs: Vec<RunInterval>,
    /// A beginning of a period, from which on is measured.
    pub(super) begin: u64,
    pub(super) period: u64,
    pub(super) slice: u64,
}

/// What a process got in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Got {
    /// CPU time that the kernel charged it for: interrupts count, and stalls.
    pub(super) charged: u64,
    /// Whether the machine stalled in the period.
    pub(super) stall: bool,
}

/// What was found of some processes, in percent of their slices or of their deadlines.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Numbers {
    pub(super) periods: usize,
    pub(super) median_error: f64,
    pub(super) shortfall: f64,
    pub(super) overrun: f64,
    pub(super) miss_rate: f64,
    pub(super) stall_rate: f64,
    /// What was missing at each missed deadline, in milliseconds, without stalls.
    pub(super) miss_ms: Vec<f64>,
    /// The most of that, in percent of the slice.
    pub(super) miss_time: f64,
    /// What it was charged for in each period, in percent of the slice, ascending.
    pub(super) delivered: Vec<f64>,
}

/// CPU time in each whole period from `begin` to `end`.
fn per_period(runs: &[RunInterval], begin: u64, end: u64, period: u64) -> Vec<u64> {
    let count = usize::try_from(end.saturating_sub(begin) / period).unwrap_or(0);
    let mut periods = vec![0; count];
    for run in runs {
        let mut at = run.from.max(begin);
        while at < run.to {
            let index = (at - begin) / period;
            let Some(sum) = usize::try_from(index).ok().and_then(|index| periods.get_mut(index)) else {
                break;
            };
            let until = run.to.min(begin + (index + 1) * period);
            *sum += until - at;
            at = until;
        }
    }
    periods
}

/// The runs with what the process was charged for after each: interrupts, and stalls.
fn charged(runs: &[RunInterval]) -> Vec<RunInterval> {
    let next = runs.iter().skip(1).map(|run| run.from).chain([u64::MAX]);
    let longer = runs.iter().zip(next).map(|(run, next)| {
        let to = run.to.saturating_add(run.stalled).min(next);
        RunInterval { to, ..*run }
    });
    longer.collect()
}

fn is_charged(run: &RunInterval, next: &RunInterval) -> bool {
    run.stalled * 2 > next.from.saturating_sub(run.to)
}

/// Gaps in which a process had the CPU for long and did not get on.
pub(super) fn stalls(runs: &[RunInterval]) -> Vec<(u64, u64)> {
    let gaps = runs.windows(2).filter(|pair| is_charged(&pair[0], &pair[1]));
    gaps.map(|pair| (pair[0].to, pair[1].from)).filter(|(from, to)| to - from >= STALL_NS).collect()
}

impl MeasuredProcess {
    /// What it got in each whole period before `end`. `stalls` are those of all processes, in any order.
    pub(super) fn got(&self, end: u64, stalls: &[(u64, u64)]) -> Vec<Got> {
        let charged = per_period(&charged(&self.runs), self.begin, end, self.period);
        let mut got: Vec<Got> = charged.into_iter().map(|charged| Got { charged, stall: false }).collect();
        for (from, to) in stalls.iter().filter(|(_, to)| *to >= self.begin) {
            let first = usize::try_from(from.saturating_sub(self.begin) / self.period).unwrap_or(usize::MAX);
            let last = usize::try_from((to - self.begin) / self.period).unwrap_or(usize::MAX);
            got.iter_mut().take(last.saturating_add(1)).skip(first).for_each(|got| got.stall = true);
        }
        got
    }
}

/// What was found of some processes that ran until `end`; `None` if no period is over.
pub(super) fn numbers(targets: &[MeasuredProcess], end: u64, stalls: &[(u64, u64)]) -> Option<Numbers> {
    let mut of = Numbers::default();
    let (mut missed, mut stalled) = (0, 0);
    for target in targets {
        for got in target.got(end, stalls) {
            of.delivered.push(percent(got.charged, target.slice));
            let missing = target.slice.saturating_sub(got.charged);
            if missing > MISS_NS && percent(missing, target.slice) > MISS_PART * 100.0 {
                if got.stall {
                    stalled += 1;
                } else {
                    missed += 1;
                    of.miss_ms.push(float(missing) / 1e6);
                    of.miss_time = of.miss_time.max(percent(missing, target.slice));
                }
            }
        }
    }
    of.periods = of.delivered.len();
    of.delivered.sort_by(f64::total_cmp);
    let [low, median, high] = [1, 50, 99].map(|percent| quantile(&of.delivered, percent));
    of.median_error = (median? - 100.0).abs();
    of.shortfall = (100.0 - low?).max(0.0);
    of.overrun = (high? - 100.0).max(0.0);
    let all = u64::try_from(of.periods).unwrap_or(u64::MAX);
    (of.miss_rate, of.stall_rate) = (percent(missed, all), percent(stalled, all));
    Some(of)
}

fn percent(part: u64, whole: u64) -> f64 {
    float(part) / float(whole.max(1)) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    fn run(from_us: u64, to_us: u64) -> RunInterval {
        RunInterval { from: from_us * US, to: to_us * US, stalled: 0 }
    }

    fn target(runs: Vec<RunInterval>) -> MeasuredProcess {
        MeasuredProcess { runs, begin: 1_000 * US, period: 1_000 * US, slice: 500 * US }
    }

    #[test]
    fn a_run_over_a_boundary_counts_in_both_periods() {
        let runs = [run(0, 1_200), run(1_900, 2_300), run(2_500, 2_600), run(3_500, 9_000)];
        assert_eq!(
            per_period(&runs, 1_000 * US, 3_999 * US, 1_000 * US),
            [300 * US, 400 * US],
            "whole periods only"
        );
        assert_eq!(per_period(&runs, 5_000 * US, 4_000 * US, 1_000 * US), [0; 0]);
    }

    #[test]
    fn the_missing_is_missed_and_what_nearly_came_is_not() {
        // 500, 485, 400 and 700 us.
        let runs = vec![run(1_000, 1_500), run(2_000, 2_485), run(3_000, 3_400), run(4_000, 4_700)];
        let found = numbers(&[target(runs)], 5_000 * US, &[]).unwrap();
        assert_eq!((found.periods, found.miss_rate, found.stall_rate), (4, 25.0, 0.0));
        assert_eq!((found.miss_ms, found.miss_time), (vec![0.1], 20.0));
        assert_eq!((found.shortfall, found.overrun), (20.0, 40.0));
        assert_eq!(found.delivered, [80.0, 97.0, 100.0, 140.0]);
        assert_eq!(numbers(&[target(vec![])], 1_500 * US, &[]), None, "no period is over");
    }

    #[test]
    fn time_charged_without_progress_is_a_stall_and_no_miss() {
        let stalled = RunInterval { stalled: 190 * US, ..run(1_000, 1_100) };
        let runs = vec![stalled, run(1_300, 1_500)];
        assert_eq!(stalls(&runs), [(1_100 * US, 1_300 * US)]);
        let got = target(runs.clone()).got(2_000 * US, &[]);
        assert_eq!(got, [Got { charged: 490 * US, stall: false }]);
        let found = numbers(&[target(runs)], 2_000 * US, &[]).unwrap();
        assert_eq!((found.miss_rate, found.shortfall), (0.0, 2.0));
        let short = RunInterval { stalled: 9 * US, ..run(1_000, 1_100) };
        assert_eq!(stalls(&[short, run(1_110, 1_500)]), [], "an interrupt");
        assert_eq!(stalls(&[run(1_000, 1_100), run(1_300, 1_500)]), [], "another process ran");
    }

    #[test]
    fn a_miss_during_a_stall_of_anybody_is_named_so() {
        let runs = vec![run(1_000, 1_100), run(2_000, 2_500), run(3_000, 3_300)];
        let found = numbers(&[target(runs)], 4_000 * US, &[(1_900 * US, 2_050 * US)]).unwrap();
        assert!((found.miss_rate - 100.0 / 3.0).abs() < 1e-9 && found.miss_rate == found.stall_rate);
        assert_eq!(found.miss_time, 40.0, "that of the stall is not counted");
    }
}
