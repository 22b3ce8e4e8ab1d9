//! The run of a scenario, from nothing to the outcome.

use super::boot::Boot;
use super::{Lab, LabConfig, LabError, Progress, make_run_dir};
use crate::daemon::DaemonProcessError;
use crate::data_disk::data_disk;
use crate::debian::{Release, debian, desktop};
use crate::load::LoadError;
use crate::{Kernel, add_to_initramfs, machine, net, plugin_cost};
use frontdesk_guardian::Guardian;
use frontdesk_scenario::{Extra, HostInfo, Outcome, Repeat, Scenario, Timeline};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Attempts at a repeat that counts for nothing, at most.
const ATTEMPTS: usize = 3;

/// A repeat of an arm, and what else is known of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Made {
    arm: String,
    repeat: Repeat,
    timeline: Option<Timeline>,
    /// Events per second of the engine, replayed.
    speed: Option<f64>,
}

/// Runs a scenario on this machine. The calling thread is in a network namespace of the run's own afterwards,
/// and must live as long as the run. Repeats that were `made` already, the first ones, are not made again;
/// `keep` is told each that is made, and its number, from 0.
///
/// # Errors
/// The run could not be made; nothing that it started is left.
pub(crate) fn run(
    scenario: &Scenario,
    config: &LabConfig,
    made: Vec<Made>,
    keep: &dyn Fn(usize, &Made) -> Result<(), LabError>,
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
    let report = |done: u32, doing: String| progress(&Progress { done, total, doing, measuring: false });
    let measuring = |done: u32, doing: String| progress(&Progress { done, total, doing, measuring: true });
    report(0, "fetching the guests' kernel".to_owned());
    let kernel = Kernel::resolve(&scenario.guest.kernel, scenario.guest.modules.as_deref())?;
    let has_disks = scenario.vms.iter().any(|vm| vm.disk.is_some() || vm.debian);
    let initrd = run_dir.join("initrd");
    crate::write_initramfs(&kernel, &config.guest, &initrd, has_disks)?;
    let desktop_initrd = run_dir.join("initrd-desktop");
    let mut desktop_system = None;
    if scenario.vms.iter().any(|vm| vm.desktop) {
        crate::write_desktop_initramfs(&kernel, &config.guest, &desktop_initrd)?;
        let more = scenario.guest.debian.clone().unwrap_or_default();
        desktop_system = Some(desktop(&more.packages, &more.sources, &|doing| report(0, doing))?);
    }
    if let Some(reporter) = &config.reporter {
        for initrd in [&initrd, &desktop_initrd].into_iter().filter(|initrd| initrd.exists()) {
            add_to_initramfs(initrd, &BTreeSet::from([reporter.clone()]))?;
        }
    }
    let system = scenario.guest.debian.as_ref().filter(|_| scenario.vms.iter().any(|vm| vm.debian));
    let system = system
        .map(|of| debian(Release::Bookworm, &of.packages, &of.sources, &|doing| report(0, doing)))
        .transpose()?;
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
    let boot = Boot {
        kernel: &kernel,
        initrd: &initrd,
        desktop_initrd: &desktop_initrd,
        debian: system,
        desktop: desktop_system,
        images,
    };
    let mut lab = Lab::boot(scenario, config, guardian, run_dir, boot)?;
    let result = lab.run_arms(made, keep, &measuring).and_then(|(arms, timelines, mut extra)| {
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
                screenshots: std::mem::take(&mut lab.screenshots),
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
        made: Vec<Made>,
        keep: &dyn Fn(usize, &Made) -> Result<(), LabError>,
        report: &dyn Fn(u32, String),
    ) -> Result<(IndexMap<String, frontdesk_scenario::ArmResult>, Vec<Timeline>, Extra), LabError> {
        let mut repeats: IndexMap<String, Vec<Repeat>> = IndexMap::new();
        let mut timelines = Vec::new();
        let mut extra = Extra::default();
        let numbers = 1..=self.scenario.repeats;
        let all = numbers.flat_map(|number| self.scenario.arms.keys().map(move |name| (number, name)));
        let mut before = made.into_iter();
        for (done, (number, name)) in (0..).zip(all) {
            let made = match before.next() {
                Some(made) => made,
                None => {
                    report(done, format!("repeat {number}/{}: {name}", self.scenario.repeats));
                    let (repeat, timeline, speed) = self.repeat_arm(name, number)?;
                    // One repeat of each arm is enough to look at.
                    let timeline = timeline.filter(|_| number == 1);
                    let made = Made { arm: name.clone(), repeat, timeline, speed };
                    keep(usize::try_from(done).unwrap_or(usize::MAX), &made)?;
                    made
                }
            };
            extra.engine_speed.extend(made.speed.filter(|_| made.arm == "frontdesk"));
            repeats.entry(made.arm).or_default().push(made.repeat);
            timelines.extend(made.timeline);
        }
        let arms = repeats.into_iter().map(|(name, repeats)| (name, frontdesk_scenario::summarise(repeats)));
        Ok((arms.collect(), timelines, extra))
    }

    /// Makes a repeat, and makes it again in VMs booted anew if one died in it, did not come up, or was not
    /// followed, or a desktop did not show what it was to show.
    fn repeat_arm(
        &mut self,
        name: &str,
        number: u32,
    ) -> Result<(Repeat, Option<Timeline>, Option<f64>), LabError> {
        let mut voided = Vec::new();
        loop {
            let booted = if voided.is_empty() { Ok(()) } else { self.reboot() };
            let error = match booted.and_then(|()| self.run_arm(name, number)) {
                Ok((repeat, timeline, speed)) => return Ok((Repeat { voided, ..repeat }, timeline, speed)),
                Err(error) => self.blame_dead_vm(error),
            };
            let again = match error {
                LabError::LateDisk { .. } => true,
                ref error if error.is_of_lost_vm() => true,
                // What somebody waits for may be lost in a guest that has too little of the CPU.
                LabError::Load(LoadError::Desktop { .. }) => true,
                // On an emulated host, QEMU may not answer the daemon in time.
                LabError::Daemon(DaemonProcessError::Incomplete { .. }) => self.config.plugin.is_none(),
                _ => false,
            };
            if !again || voided.len() + 1 >= ATTEMPTS {
                return Err(error);
            }
            tracing::warn!("repeat {number} of {name} counts for nothing and is made again: {error}");
            voided.push(error.to_string());
        }
    }

    fn host_info(&self) -> HostInfo {
        HostInfo { qemu: self.qemu.clone(), guest_kernel: self.guest_kernel.clone(), ..machine::host_info() }
    }

    /// Ends the VMs; the guardian removes what is left.
    fn tear_down(mut self) -> Result<(), LabError> {
        self.vms.clear();
        self.shared = None;
        let report = self.guardian.finish()?;
        if report.failed.is_empty() { Ok(()) } else { Err(LabError::Left(report.failed.join("; "))) }
    }
}
