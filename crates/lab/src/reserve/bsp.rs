//! A parallel program: its processes compute, exchange data all with all, and begin again (VSched §6).

use super::enforce::Enforcement;
use super::study_lab::{StudyLab, count, of_worker, utilisation};
use super::worker::{Worker, WorkerKind};
use crate::LabError;
use frontdesk_engine::nanos;
use frontdesk_linux::{monotonic_ns, sched};
use frontdesk_scenario::{Enforcer, Figure, Mark, PeriodSlice, Series, StudyMeasure};
use std::time::Duration;

/// The column with the rate of the program.
const RATE: &str = "steps per s";
/// What of a step is computing, over what is exchanging.
const RATIO: &str = "compute / communicate";

/// The program and how it is tried.
pub(super) struct Bsp<'a> {
    pub(super) workers: usize,
    pub(super) compute: Duration,
    pub(super) bytes: usize,
    pub(super) cases: &'a [PeriodSlice],
    pub(super) contention: &'a [f64],
}

impl Bsp<'_> {
    pub(super) fn run(
        &self,
        lab: &mut StudyLab<'_>,
        arm: &str,
        by: &mut Enforcement,
    ) -> Result<(), LabError> {
        let reserves = lab.study.arms.get(arm).is_some_and(|arm| arm.by != Enforcer::Weights);
        let tried = self.cases.iter().filter(|_| reserves);
        for case in tried {
            self.run_once(lab, arm, by, Some(*case), 0.0, &case.to_string())?;
        }
        let mut rates = Vec::new();
        for contention in self.contention {
            let case = self.cases.first().copied().filter(|_| reserves);
            rates.push(self.run_once(lab, arm, by, case, *contention, &beside(*contention))?);
        }
        let lowest = rates.iter().copied().reduce(f64::min);
        if let (Some(alone), Some(lowest)) = (rates.first(), lowest) {
            lab.findings.measured(arm, "contention", StudyMeasure::Kept, lowest / alone);
        }
        Ok(())
    }

    /// The rate of the program with a reservation for each of its processes, beside processes on the CPU of
    /// the first.
    fn run_once(
        &self,
        lab: &mut StudyLab<'_>,
        arm: &str,
        by: &mut Enforcement,
        case: Option<PeriodSlice>,
        contention: f64,
        name: &str,
    ) -> Result<f64, LabError> {
        let (workers, bytes) = (self.workers, self.bytes);
        let compute_ns = nanos(self.compute);
        let mut all = (0..workers)
            .map(|index| lab.start(WorkerKind::Parallel { index, workers, compute_ns, bytes }))
            .collect::<Result<Vec<Worker>, _>>()?;
        let mut first_cpu = lab.study.cpus[0];
        let free = lab.study.arms.get(arm).is_none_or(|arm| arm.by == Enforcer::Frontdesk);
        for (index, worker) in all.iter().enumerate() {
            match case {
                Some(case) => {
                    let (_, cpu) = by.reserve(worker.pid(), case, lab.guardian)?;
                    first_cpu = cpu.filter(|_| index == 0).unwrap_or(first_cpu);
                }
                // As many on each CPU.
                None if !free => {
                    sched::set_affinity(worker.pid(), &[lab.study.cpus[index % lab.study.cpus.len()]])?;
                }
                None => {}
            }
        }
        let ports: Vec<&str> = all.iter().map(|worker| worker.said.trim()).collect();
        let line = ports.join(" ");
        all.iter_mut().try_for_each(|worker| worker.tell(&line)).map_err(of_worker)?;
        let hogs = hogs(lab, first_cpu, contention)?;
        lab.pass(Duration::from_millis(300))?;
        let begin = monotonic_ns();
        lab.pass(lab.study.duration)?;
        let end = monotonic_ns();
        if case.is_some() {
            all.iter().try_for_each(|worker| by.release(worker.pid()))?;
        }
        drop(hogs);
        // All, before the first is waited for: they wait for each other.
        all.iter().try_for_each(Worker::stop).map_err(of_worker)?;
        let steps = all.into_iter().map(Worker::numbers).collect::<Result<Vec<_>, _>>().map_err(of_worker)?;
        by.clear()?;
        let measured = steps.first().into_iter().flatten().filter(|[at, ..]| (begin..end).contains(at));
        let (mut done, mut computed, mut exchanged) = (0, 0, 0);
        for [_, compute, exchange] in measured {
            (done, computed, exchanged) = (done + 1, computed + compute, exchanged + exchange);
        }
        let rate = count(done) / Duration::from_nanos(end - begin).as_secs_f64();
        lab.findings.add(arm, name, RATE, rate);
        let [computed, exchanged] = [computed, exchanged].map(|ns| Duration::from_nanos(ns).as_secs_f64());
        lab.findings.add(arm, name, RATIO, computed / exchanged.max(f64::EPSILON));
        Ok(rate)
    }
}

/// Processes on a CPU of which so many compute on average.
fn hogs(lab: &StudyLab<'_>, cpu: u16, contention: f64) -> Result<Vec<Worker>, LabError> {
    let mut hogs = Vec::new();
    let mut left = contention;
    while left > 0.0 {
        hogs.push(lab.start(WorkerKind::Hog { cpu, part: left.min(1.0) })?);
        left -= 1.0;
    }
    Ok(hogs)
}

fn beside(contention: f64) -> String {
    format!("beside {contention}")
}

pub(super) fn figures(lab: &StudyLab<'_>, cases: &[PeriodSlice], contention: &[f64]) -> Vec<Figure> {
    let chart = |title: &str, x: &str, mark, series| Figure::Chart {
        title: title.to_owned(),
        x: x.to_owned(),
        log_x: false,
        y: RATE.to_owned(),
        mark,
        series,
    };
    let arms = || lab.study.arms.keys();
    let by_utilisation = arms().map(|arm| {
        let points = cases.iter().filter_map(|case| {
            Some((utilisation(*case), lab.findings.median(arm, &case.to_string(), RATE)?))
        });
        Series { name: arm.clone(), points: points.collect() }
    });
    let by_contention = arms().map(|arm| {
        let points =
            contention.iter().filter_map(|of| Some((*of, lab.findings.median(arm, &beside(*of), RATE)?)));
        Series { name: arm.clone(), points: points.collect() }
    });
    vec![
        chart("Rate of a parallel program", "utilisation", Mark::Dot, by_utilisation.collect()),
        chart(
            "Rate of a parallel program beside others",
            "processes that compute on the CPU of one of its own",
            Mark::Line,
            by_contention.collect(),
        ),
    ]
}
