//! What a run has.

use super::LabConfig;
use super::shared_disk::Shared;
use crate::debian::Debian;
use crate::machine::Busy;
use crate::net::Link;
use crate::web::WebServer;
use crate::{DiskConfig, RunningVm, VmConfig};
use frontdesk_engine::Time;
use frontdesk_guardian::Guardian;
use frontdesk_scenario::{Agent, Scenario, Screenshot};
use indexmap::IndexMap;
use std::path::PathBuf;

/// Everything that a run makes, in the order in which it must go.
pub(super) struct Lab<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) config: &'a LabConfig,
    pub(super) vms: IndexMap<String, LabVm>,
    /// The modelled disk that they are on.
    pub(super) shared: Option<Shared>,
    /// What is on the modelled disk, if there is one, by VM entry.
    pub(super) modelled: IndexMap<String, DiskConfig>,
    pub(super) run_dir: PathBuf,
    pub(super) qemu: String,
    pub(super) guest_kernel: String,
    pub(super) debian: Option<Debian>,
    /// What the desktops showed.
    pub(super) screenshots: Vec<Screenshot>,
    /// Steps of a guest's computing loop in a second of CPU time.
    pub(super) steps_per_s: f64,
    /// A reading of the host's clocks when the run began.
    pub(super) began: (u64, Time),
    pub(super) _busy: Busy,
    pub(super) guardian: Guardian,
}

pub(super) struct LabVm {
    pub(super) vm: RunningVm,
    /// What it is made of.
    pub(super) config: VmConfig,
    pub(super) link: Link,
    pub(super) weight: u32,
    /// What its programs download from, if it has a Debian system.
    pub(super) _web: Option<WebServer>,
    /// Whether the daemon follows it.
    pub(super) tracked: bool,
    /// Names of the workloads that run.
    pub(super) running: Vec<String>,
    /// What looks after its tasks.
    pub(super) agent: Option<Agent>,
}
