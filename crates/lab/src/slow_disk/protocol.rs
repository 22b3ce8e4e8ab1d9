//! What the lab and the process that is the disk tell each other.

use frontdesk_scenario::DiskModel;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Asks the process for what it served, a `DiskServed`; other lines, whether it is there.
pub(super) const REPORT: &str = "report";

/// What the process is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) model: DiskModel,
    /// What is on the disk, in turn.
    pub(super) images: Vec<PathBuf>,
    /// A folder that it may mount over, where only it sees that.
    pub(super) folder: PathBuf,
    /// The CPUs that it runs on.
    pub(super) cpus: Vec<u16>,
}

/// What the process says when it serves.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Serving {
    pub(super) device: PathBuf,
    pub(super) partitions: Vec<PathBuf>,
}
