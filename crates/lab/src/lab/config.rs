//! What the lab is told, what it tells, and where it works.

use super::LabError;
use frontdesk_guardian::{Guardian, Undo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the lab needs beside the scenario.
#[derive(Debug)]
pub struct LabConfig {
    /// The lab-guest program, statically linked.
    pub guest: PathBuf,
    /// frontdesk's reporter, statically linked, for arms with it as agent.
    pub reporter: Option<PathBuf>,
    /// The TCG plugin. Without it, guests run under KVM.
    pub plugin: Option<PathBuf>,
    /// The frontdesk program: the daemon and the guardian.
    pub frontdesk: PathBuf,
    /// Where the daemon's recordings are kept, by arm and number of the repeat, and its logs beside them
    /// (`.log` is added to the name); others go with the run.
    pub recordings: BTreeMap<(String, u32), PathBuf>,
    /// Set to end the run early.
    pub stop: Arc<AtomicBool>,
    /// How many times as long as usual everything takes here, for the guests' scheduler; 1 unless in an
    /// emulated host.
    pub dilation: f64,
}

/// How far a run is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Steps that are done.
    pub done: u32,
    /// All steps; each takes about as long.
    pub total: u32,
    /// What is being done.
    pub doing: String,
    /// Whether that is an arm that runs, rather than what is before and after.
    pub measuring: bool,
}

pub(crate) fn interrupted(stop: &AtomicBool) -> Result<(), LabError> {
    if stop.load(Ordering::Relaxed) { Err(LabError::Interrupted) } else { Ok(()) }
}

pub(crate) fn make_run_dir(guardian: &Guardian) -> Result<PathBuf, LabError> {
    // Short, because the addresses of the sockets in it have at most 107 bytes.
    let failed = |source| LabError::Io { what: "making a folder for the run".to_owned(), source };
    let folder = tempfile::Builder::new().prefix("frontdesk-").tempdir().map_err(failed)?;
    let path = folder.keep();
    // The name begins as the guardian wants it.
    let undo = Undo::tree(&path).map_err(|error| failed(std::io::Error::other(error)))?;
    guardian.record(undo)?;
    Ok(path)
}
