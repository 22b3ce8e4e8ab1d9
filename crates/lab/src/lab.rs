//! A scenario on real VMs: boots them, runs the arms interleaved, measures.

mod arm;
mod boot;
mod error;
mod nice;
mod readings;

pub use error::LabError;

use crate::data_disk::data_disk;
use crate::debian::{Debian, debian};
use crate::machine::{self, Busy};
use crate::net::{self, Link};
use crate::web::WebServer;
use crate::{Kernel, Vm, plugin_cost};
use boot::Boot;
use frontdesk_engine::Time;
use frontdesk_guardian::{Guardian, Undo};
use frontdesk_scenario::{Extra, HostInfo, Outcome, Repeat, Scenario, Timeline};
use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the lab needs beside the scenario.
#[derive(Debug)]
pub struct LabConfig {
    /// The lab-guest program, statically linked.
    pub guest: PathBuf,
    /// The TCG plugin.
    pub plugin: PathBuf,
    /// The frontdesk program: the daemon and the guardian.
    pub frontdesk: PathBuf,
    /// Where the daemon's recordings are kept, by arm and number of the repeat; others go with the run.
    pub recordings: BTreeMap<(String, u32), PathBuf>,
    /// Set to end the run early.
    pub stop: Arc<AtomicBool>,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Steps that are done.
    pub done: u32,
    /// All steps; each takes about as long.
    pub total: u32,
    /// What is being done.
    pub doing: String,
}

/// Everything that a run makes, in the order in which it must go.
struct Lab<'a> {
    scenario: &'a Scenario,
    config: &'a LabConfig,
    vms: IndexMap<String, LabVm>,
    run_dir: PathBuf,
    qemu: String,
    guest_kernel: String,
    debian: Option<Debian>,
    /// Steps of a guest's computing loop in a second of CPU time.
    steps_per_s: f64,
    /// A reading of the host's clocks when the run began.
    began: (u64, Time),
    _busy: Busy,
    guardian: Guardian,
}

struct LabVm {
    vm: Vm,
    link: Link,
    weight: u32,
    /// What its programs download from, if it has a Debian system.
    _web: Option<WebServer>,
    /// Whether the daemon follows it.
    tracked: bool,
    /// Names of the workloads that run.
    running: Vec<String>,
}

/// Runs a scenario. The calling thread is in a network namespace of the run's own afterwards, and must live
/// as long as the run.
///
/// # Errors
/// The run could not be made; nothing that it started is left.
pub fn run(
    scenario: &Scenario,
    config: &LabConfig,
    progress: &dyn Fn(&Progress),
) -> Result<(Outcome, Vec<Timeline>), LabError> {
    let unknown = |source| LabError::Io { what: "examining the machine".to_owned(), source };
    let cpus = machine::online_cpus().map_err(unknown)?;
    scenario.fits(&cpus, machine::mem_available_mib().map_err(unknown)?)?;
    let guardian = Guardian::start(&config.frontdesk, frontdesk_guardian::GUARDIAN_ARGUMENT)?;
    let run_dir = make_run_dir(&guardian)?;
    let measures_plugin =
        scenario.checks.plugin_cpu_slowdown.or(scenario.checks.plugin_fork_slowdown).is_some();
    let runs = u32::try_from(scenario.arms.len()).unwrap_or(u32::MAX).saturating_mul(scenario.repeats);
    let total = runs.saturating_add(u32::from(measures_plugin));
    let report = |done: u32, doing: String| progress(&Progress { done, total, doing });
    report(0, "fetching the guests' kernel".to_owned());
    let kernel = Kernel::resolve(&scenario.guest.kernel, scenario.guest.modules.as_deref())?;
    let has_disks = scenario.vms.iter().any(|vm| vm.disk.is_some() || vm.debian);
    let initrd = run_dir.join("initrd");
    crate::write_initramfs(&kernel, &config.guest, &initrd, has_disks)?;
    let system = scenario.guest.debian.as_ref().filter(|_| scenario.vms.iter().any(|vm| vm.debian));
    let system = system.map(|of| debian(&of.packages, &of.sources, &|doing| report(0, doing))).transpose()?;
    let mut images = IndexMap::new();
    for vm in &scenario.vms {
        if let Some(disk) = vm.disk {
            report(0, format!("making a disk with {} files of {} KiB", disk.files, disk.file_kib));
            images.insert(vm.name.clone(), data_disk(disk.files, disk.file_kib)?);
        }
    }
    // What had to be fetched is there.
    net::enter_namespace()?;
    report(0, format!("booting {} VMs", scenario.vm_names().len()));
    let boot = Boot { kernel: &kernel, initrd: &initrd, debian: system, images };
    let mut lab = Lab::boot(scenario, config, guardian, run_dir, boot)?;
    let result = lab.run_arms(&report).and_then(|(arms, timelines, mut extra)| {
        lab.vms.clear();
        if measures_plugin {
            report(runs, "measuring the plugin's cost".to_owned());
            plugin_cost::measure(scenario, config, &kernel, &initrd, &lab.run_dir, &mut extra)?;
        }
        let checks = frontdesk_scenario::checks(scenario, &arms, &extra);
        let host = lab.host_info();
        Ok((
            Outcome {
                scenario: scenario.name.clone(),
                host,
                arms,
                checks,
                tables: Vec::new(),
                figures: Vec::new(),
            },
            timelines,
        ))
    });
    lab.tear_down()?;
    result
}

impl<'a> Lab<'a> {
    #[allow(clippy::type_complexity)] // Named once, taken apart once.
    fn run_arms(
        &mut self,
        report: &dyn Fn(u32, String),
    ) -> Result<(IndexMap<String, frontdesk_scenario::ArmResult>, Vec<Timeline>, Extra), LabError> {
        let mut repeats: IndexMap<String, Vec<Repeat>> = IndexMap::new();
        let mut timelines = Vec::new();
        let mut extra = Extra::default();
        let mut done = 0;
        for number in 1..=self.scenario.repeats {
            for name in self.scenario.arms.keys() {
                report(done, format!("repeat {number}/{}: {name}", self.scenario.repeats));
                let (repeat, timeline, speed) =
                    self.run_arm(name, number).map_err(|error| self.blame_dead_vm(error))?;
                repeats.entry(name.clone()).or_default().push(repeat);
                // One repeat of each arm is enough to look at.
                timelines.extend(timeline.filter(|_| number == 1));
                extra.engine_speed.extend(speed.filter(|_| name == "frontdesk"));
                done += 1;
            }
        }
        let arms = repeats.into_iter().map(|(name, repeats)| (name, frontdesk_scenario::summarise(repeats)));
        Ok((arms.collect(), timelines, extra))
    }

    fn host_info(&self) -> HostInfo {
        HostInfo { qemu: self.qemu.clone(), guest_kernel: self.guest_kernel.clone(), ..machine::host_info() }
    }

    /// Ends the VMs; the guardian removes what is left.
    fn tear_down(mut self) -> Result<(), LabError> {
        self.vms.clear();
        let report = self.guardian.finish()?;
        if report.failed.is_empty() { Ok(()) } else { Err(LabError::Left(report.failed.join("; "))) }
    }
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
