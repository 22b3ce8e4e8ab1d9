//! What every kind of study works with: its processes, its time, and what it finds.

use super::findings::Findings;
use super::worker::{Worker, WorkerKind};
use crate::LabError;
use crate::lab::interrupted;
use frontdesk_guardian::{Guardian, Undo};
use frontdesk_linux::sched::process_start_time;
use frontdesk_scenario::{PeriodSlice, Study};
use indexmap::IndexMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How often it is looked whether the study is to end.
const WATCH: Duration = Duration::from_millis(50);

/// Everything that a study makes.
pub(super) struct StudyLab<'a> {
    pub(super) study: &'a Study,
    /// This program.
    pub(super) program: &'a Path,
    pub(super) stop: &'a AtomicBool,
    pub(super) guardian: &'a Guardian,
    pub(super) online: Vec<u16>,
    pub(super) findings: Findings,
    /// Samples of each arm, by what they are of.
    pub(super) samples: IndexMap<String, IndexMap<String, Vec<f64>>>,
    pub(super) misses: IndexMap<String, IndexMap<String, Vec<f64>>>,
}

impl StudyLab<'_> {
    /// A process that computes on every CPU.
    pub(super) fn hogs(&self) -> Result<Vec<Worker>, LabError> {
        self.online.iter().map(|cpu| self.start(WorkerKind::Hog { cpu: *cpu, part: 1.0 })).collect()
    }

    /// Starts a worker, which is gone at the end however that comes.
    pub(super) fn start(&self, task: WorkerKind) -> Result<Worker, LabError> {
        let worker = Worker::start(self.program, task).map_err(of_worker)?;
        if let Some(started) = process_start_time(worker.pid()) {
            self.guardian.record(Undo::Process { pid: worker.pid(), started })?;
        }
        Ok(worker)
    }

    pub(super) fn pass(&self, time: Duration) -> Result<(), LabError> {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            interrupted(self.stop)?;
            std::thread::sleep(left.min(WATCH));
        }
        Ok(())
    }
}

/// Adds to what was sampled of an arm.
pub(super) fn sample<'a>(
    samples: &'a mut IndexMap<String, IndexMap<String, Vec<f64>>>,
    of: &str,
    arm: &str,
) -> &'a mut Vec<f64> {
    samples.entry(of.to_owned()).or_default().entry(arm.to_owned()).or_default()
}

pub(super) fn of_worker(source: std::io::Error) -> LabError {
    LabError::Io { what: "running a process to schedule".to_owned(), source }
}

pub(super) fn utilisation(of: PeriodSlice) -> f64 {
    of.slice.as_secs_f64() / of.period.as_secs_f64()
}

#[allow(clippy::cast_precision_loss)]
pub(super) fn count(count: usize) -> f64 {
    count as f64
}
