//! A study from its beginning to its result.

use super::bsp::Bsp;
use super::change;
use super::delivered::{MeasuredProcess, numbers, stalls};
use super::enforce::Enforcement;
use super::findings::{Findings, distribution, histogram};
use super::random;
use super::study_lab::{StudyLab, count, of_worker, sample, utilisation};
use super::worker::WorkerKind;
use crate::LabError;
use crate::lab::{Progress, interrupted, make_run_dir};
use crate::{cpu, machine};
use frontdesk_control_protocol::{ClientError, RefusalKind};
use frontdesk_engine::nanos;
use frontdesk_guardian::Guardian;
use frontdesk_linux::monotonic_ns;
use frontdesk_linux::sched::{self, Attributes, Policy};
use frontdesk_scenario::{
    Enforcer, Figure, Mark, Outcome, PeriodSlice, Series, Study, StudyKind, StudyMeasure, duration_text,
};
use indexmap::IndexMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The first periods are a beginning.
const SETTLE: Duration = Duration::from_millis(200);
/// Reservations that are tried together.
struct Case {
    name: String,
    set: Vec<PeriodSlice>,
}

/// Runs a study. `frontdesk` is this program, which has to call [`super::work`] with what follows
/// [`super::WORKER_ARGUMENT`]. Ends early when `stop` is set.
///
/// # Errors
/// The study could not be made; nothing that it started is left.
pub fn study(
    study: &Study,
    frontdesk: &Path,
    stop: &AtomicBool,
    progress: &dyn Fn(&Progress),
) -> Result<Outcome, LabError> {
    let online = machine::online_cpus()
        .map_err(|source| LabError::Io { what: "examining the machine".to_owned(), source })?;
    study.fits(&online)?;
    let guardian = Guardian::start(frontdesk, frontdesk_guardian::GUARDIAN_ARGUMENT)?;
    let run_dir = make_run_dir(&guardian)?;
    let mut lab = StudyLab {
        study,
        program: frontdesk,
        stop,
        guardian: &guardian,
        online,
        findings: Findings::default(),
        samples: IndexMap::new(),
        misses: IndexMap::new(),
    };
    let outcome = lab.run(&run_dir, progress);
    let report = guardian.finish()?;
    if report.failed.is_empty() { outcome } else { Err(LabError::Left(report.failed.join("; "))) }
}

impl StudyLab<'_> {
    fn run(&mut self, run_dir: &Path, progress: &dyn Fn(&Progress)) -> Result<Outcome, LabError> {
        let arms = u32::try_from(self.study.arms.len()).unwrap_or(u32::MAX);
        let total = arms.saturating_mul(self.study.repeats);
        let turns =
            (1..=self.study.repeats).flat_map(|repeat| self.study.arms.iter().map(move |arm| (repeat, arm)));
        for (done, (repeat, (name, arm))) in (0..).zip(turns) {
            let doing = format!("repeat {repeat}/{}: {name}", self.study.repeats);
            progress(&Progress { done, total, doing, measuring: true });
            let mut enforcement =
                Enforcement::start(*arm, &self.study.cpus, self.program, run_dir, self.guardian)?;
            self.run_arm(name, &mut enforcement)?;
            enforcement.finish()?;
        }
        Ok(self.outcome())
    }

    fn run_arm(&mut self, arm: &str, by: &mut Enforcement) -> Result<(), LabError> {
        match &self.study.study {
            StudyKind::Delivered { .. } | StudyKind::Sweep { .. } | StudyKind::Random { .. } => {
                self.cases().iter().try_for_each(|case| self.run_case(arm, by, case))
            }
            StudyKind::Change { between } => change::run(self, arm, by, *between),
            StudyKind::Load { targets, each } => self.run_load(arm, by, *targets, *each),
            StudyKind::Bsp { workers, compute, bytes, cases, contention } => {
                let bsp = Bsp {
                    workers: usize::from(*workers),
                    compute: compute.into_inner(),
                    bytes: usize::try_from(*bytes).unwrap_or(usize::MAX),
                    cases,
                    contention,
                };
                bsp.run(self, arm, by)
            }
        }
    }

    fn cases(&self) -> Vec<Case> {
        let one = |of: PeriodSlice| Case { name: of.to_string(), set: vec![of] };
        match &self.study.study {
            StudyKind::Delivered { cases } => cases.iter().copied().map(one).collect(),
            StudyKind::Sweep { periods, utilisations } => {
                let grid =
                    periods.iter().flat_map(|period| utilisations.iter().map(|part| (**period, *part)));
                grid.map(|(period, part)| one(cell(period, part))).collect()
            }
            StudyKind::Random { cases, targets, periods, utilisation, seed } => {
                let periods = periods.map(|period| period.into_inner());
                let sets = random::sets(*cases, *targets, periods, *utilisation, *seed);
                let named = (1..).zip(sets).map(|(number, set)| Case { name: set_name(number, &set), set });
                named.collect()
            }
            StudyKind::Change { .. } | StudyKind::Load { .. } | StudyKind::Bsp { .. } => Vec::new(),
        }
    }

    /// What the processes of a case get in each period, beside a process that computes on every CPU.
    fn run_case(&mut self, arm: &str, by: &mut Enforcement, case: &Case) -> Result<(), LabError> {
        let total: f64 = case.set.iter().map(|of| utilisation(*of)).sum();
        let hogs = self.hogs()?;
        hogs.iter().try_for_each(|hog| by.leave(hog.pid(), 1.0 - total, self.guardian))?;
        let mut workers = Vec::new();
        for of in &case.set {
            let worker = self.start(WorkerKind::Compute)?;
            if self.study.arms.get(arm).is_some_and(|arm| arm.by == Enforcer::Weights) {
                sched::set_affinity(worker.pid(), &self.study.cpus)?;
            }
            match by.reserve(worker.pid(), *of, self.guardian) {
                Ok((begin, _)) => workers.push((worker, *of, begin)),
                // Together they are more than the arm grants.
                Err(error) if is_infeasible(&error) => {
                    workers.iter().try_for_each(|(worker, ..)| by.release(worker.pid()))?;
                    self.findings.add(arm, &case.name, "refused", 1.0);
                    return by.clear();
                }
                Err(error) => return Err(error),
            }
        }
        let settled = monotonic_ns() + nanos(SETTLE);
        self.pass(SETTLE + self.study.duration)?;
        let end = monotonic_ns();
        workers.iter().try_for_each(|(worker, ..)| by.release(worker.pid()))?;
        let mut targets = Vec::new();
        for (worker, of, begin) in workers {
            let (period, slice) = (nanos(of.period), nanos(of.slice));
            let begin = begin + settled.saturating_sub(begin).div_ceil(period) * period;
            targets.push(MeasuredProcess { runs: worker.runs().map_err(of_worker)?, begin, period, slice });
        }
        let mut stalled: Vec<_> = targets.iter().flat_map(|target| stalls(&target.runs)).collect();
        for hog in hogs {
            stalled.extend(stalls(&hog.runs().map_err(of_worker)?));
        }
        by.clear()?;
        stalled.retain(|(from, _)| *from >= settled && *from < end);
        let Some(found) = numbers(&targets, end, &stalled) else { return Ok(()) };
        let name = &case.name;
        for (measure, value) in [
            (StudyMeasure::MedianError, found.median_error),
            (StudyMeasure::Shortfall, found.shortfall),
            (StudyMeasure::Overrun, found.overrun),
            (StudyMeasure::MissRate, found.miss_rate),
            (StudyMeasure::MissTime, found.miss_time),
            (StudyMeasure::StallRate, found.stall_rate),
        ] {
            self.findings.measured(arm, name, measure, value);
        }
        self.findings.add(arm, name, "periods", count(found.periods));
        self.findings.add(arm, name, "stalls", count(stalled.len()));
        let longest = stalled.iter().map(|(from, to)| to - from).max().unwrap_or(0);
        self.findings.add(arm, name, "longest, ms", Duration::from_nanos(longest).as_secs_f64() * 1e3);
        sample(&mut self.samples, name, arm).extend(found.delivered);
        sample(&mut self.misses, name, arm).extend(found.miss_ms);
        Ok(())
    }

    /// What the daemon costs while it keeps many reservations.
    fn run_load(
        &mut self,
        arm: &str,
        by: &mut Enforcement,
        targets: u16,
        each: PeriodSlice,
    ) -> Result<(), LabError> {
        let workers = (0..targets).map(|_| self.start(WorkerKind::Compute)).collect::<Result<Vec<_>, _>>()?;
        for worker in &workers {
            by.reserve(worker.pid(), each, self.guardian)?;
        }
        self.pass(SETTLE)?;
        let Some(daemon) = by.daemon_pid() else { return Ok(()) };
        let used = || {
            cpu::process_ns(daemon)
                .map_err(|source| LabError::Io { what: format!("CPU time of process {daemon}"), source })
        };
        let (before, begun) = (used()?, Instant::now());
        self.pass(self.study.duration)?;
        let used = Duration::from_nanos(used()?.saturating_sub(before));
        let part = used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
        let case = format!("{targets} x {each}");
        self.findings.measured(arm, &case, StudyMeasure::DaemonCpu, part);
        workers.iter().try_for_each(|worker| by.release(worker.pid()))?;
        // What no dispatcher that wakes up for each slice can do without.
        let bare = self.wake_ups(each.period / u32::from(targets))?;
        self.findings.add(arm, &case, "as many bare wake-ups, % of a CPU", bare);
        Ok(())
    }

    /// CPU time of a real-time thread that only wakes up, beside what computes now: in % of a CPU.
    fn wake_ups(&self, every: Duration) -> Result<f64, LabError> {
        let refused = |error: sched::SchedError| LabError::Io {
            what: "making a thread real-time".to_owned(),
            source: std::io::Error::other(error),
        };
        let used = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::try_from(time).unwrap_or_default()
        };
        let ordinary = Attributes { policy: Policy::Other { nice: 0, slice_ns: 0 }, reset_on_fork: false };
        sched::set(0, Attributes::fifo(98)).map_err(refused)?;
        let (begun, before) = (Instant::now(), used());
        let mut next = begun;
        let passed = loop {
            next += every;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let stopped = interrupted(self.stop);
            if stopped.is_err() || begun.elapsed() >= self.study.duration {
                break stopped;
            }
        };
        let part = (used() - before).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
        sched::set(0, ordinary).map_err(refused)?;
        passed.map(|()| part)
    }

    fn outcome(&self) -> Outcome {
        let study = self.study;
        Outcome {
            scenario: study.name.clone(),
            host: machine::host_info(),
            arms: IndexMap::new(),
            checks: self.findings.checks(study),
            tables: vec![self.findings.table(&self.title())],
            figures: self.figures(),
            screenshots: Vec::new(),
        }
    }

    fn title(&self) -> String {
        match self.study.study {
            StudyKind::Delivered { .. } | StudyKind::Sweep { .. } | StudyKind::Random { .. } => format!(
                "{}; error of the median, short and over in the worst 1 % of periods, and the worst miss in % of the slice",
                self.study.description
            ),
            _ => self.study.description.clone(),
        }
    }

    fn figures(&self) -> Vec<Figure> {
        match &self.study.study {
            StudyKind::Delivered { .. } => {
                let of_case = |(case, arms): (&String, &IndexMap<String, Vec<f64>>)| {
                    let title = format!("CPU time in a period, {case}");
                    distribution(title, "CPU time in a period, % of the slice", false, arms)
                };
                let missed = self.misses.iter().filter_map(|(case, arms)| {
                    histogram(format!("Missing at a missed deadline, {case}"), "missing, ms", arms)
                });
                self.samples.iter().map(of_case).chain(missed).collect()
            }
            StudyKind::Sweep { periods, utilisations } => {
                let map = |arm: &String| Figure::Map {
                    title: format!("Missed deadlines, %: {arm}"),
                    x: "period".to_owned(),
                    y: "slice, part of the period".to_owned(),
                    columns: periods.iter().map(|period| duration_text(**period)).collect(),
                    rows: utilisations.iter().map(ToString::to_string).collect(),
                    cells: utilisations
                        .iter()
                        .map(|part| {
                            let of = |period: Duration| {
                                let case = cell(period, *part).to_string();
                                let missed =
                                    |measure: StudyMeasure| self.findings.median(arm, &case, measure.key());
                                Some(missed(StudyMeasure::MissRate)? + missed(StudyMeasure::StallRate)?)
                            };
                            periods.iter().map(|period| of(**period)).collect()
                        })
                        .collect(),
                };
                self.study.arms.keys().map(map).collect()
            }
            StudyKind::Random { .. } => {
                let cases = self.cases();
                let of_arm = |arm: &String| {
                    let points = cases.iter().filter_map(|case| {
                        let total: f64 = case.set.iter().map(|of| utilisation(*of)).sum();
                        Some((total, self.findings.median(arm, &case.name, StudyMeasure::MissRate.key())?))
                    });
                    Series { name: arm.clone(), points: points.collect() }
                };
                vec![Figure::Chart {
                    title: "Missed deadlines of random sets".to_owned(),
                    x: "total utilisation".to_owned(),
                    log_x: false,
                    y: "missed deadlines, %".to_owned(),
                    mark: Mark::Dot,
                    series: self.study.arms.keys().map(of_arm).collect(),
                }]
            }
            StudyKind::Change { .. } => {
                let all = self.samples.iter();
                all.map(|(what, arms)| distribution(what.clone(), "ms", true, arms)).collect()
            }
            StudyKind::Load { .. } => Vec::new(),
            StudyKind::Bsp { cases, contention, .. } => super::bsp::figures(self, cases, contention),
        }
    }
}

fn is_infeasible(error: &LabError) -> bool {
    matches!(error, LabError::Control(ClientError::Refused(refusal)) if refusal.kind == RefusalKind::Infeasible)
}

fn cell(period: Duration, part: f64) -> PeriodSlice {
    let slice = Duration::from_micros(u64::try_from(period.mul_f64(part).as_micros()).unwrap_or(u64::MAX));
    PeriodSlice { period, slice }
}

fn set_name(number: u32, set: &[PeriodSlice]) -> String {
    let total: f64 = set.iter().map(|of| utilisation(*of)).sum();
    format!("{number}: {} at {total:.2}", set.len())
}
