//! SimSo, if it is there.

use crate::periodic::{Job, TaskSet};
use frontdesk_testing::{Need, leave_out};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Serialize)]
struct Case<'a> {
    scheduler: &'static str,
    duration: u64,
    tasks: &'a [(u64, u64)],
}

/// What SimSo says about a task set.
#[derive(Deserialize)]
pub(crate) struct Answer {
    /// CPU time of the simulation.
    #[allow(dead_code, reason = "for the bench")]
    pub(crate) seconds: f64,
    /// The jobs of each task.
    #[allow(dead_code, reason = "for the test")]
    pub(crate) jobs: Vec<Vec<Job>>,
}

/// The interpreter that has it; if there is none, says so.
pub(crate) fn python() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?.join("simso/bin/python");
    if !python.exists() {
        let why = format!("it is not at {}; tools/setup.sh sim installs it", python.display());
        leave_out("the comparison with SimSo", Need::SimSo, why);
        return None;
    }
    Some(python)
}

/// Runs task sets through it, under its scheduler of this name.
pub(crate) fn ask(python: &Path, scheduler: &'static str, duration: u64, sets: &[TaskSet]) -> Vec<Answer> {
    let cases: Vec<_> = sets.iter().map(|set| Case { scheduler, duration, tasks: &set.tasks }).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simso_process/run.py");
    let mut child =
        Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input = serde_json::to_vec(&cases).unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "SimSo failed");
    serde_json::from_slice(&output.stdout).unwrap()
}
