//! The VMs of a run, from nothing to ready.

use super::shared_disk::Maker;
use super::{Lab, LabConfig, LabError, LabVm, interrupted};
use crate::clock::HostClock;
use crate::debian::Debian;
use crate::machine::{self, Busy};
use crate::net;
use crate::web::WebServer;
use crate::{DiskConfig, DiskKind, Kernel, RunningVm, TapConfig, VmConfig};
use frontdesk_guardian::{Guardian, Undo};
use frontdesk_lab_guest::{self as guest, DILATION_PARAMETER};
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_linux::sched::process_start_time;
use frontdesk_scenario::{self as scenario, Scenario};
use indexmap::IndexMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A guest that is not up by then will not come up.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// Exchanges with each guest before anything runs, to find out where its clock is.
const CLOCK_EXCHANGES: u32 = 20;
/// Steps of the computing loop that its speed is measured with; some tens of milliseconds.
const CALIBRATION_STEPS: u64 = 5_000_000;

/// What VMs boot from.
pub(super) struct Boot<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) initrd: &'a Path,
    /// The initramfs of desktops.
    pub(super) desktop_initrd: &'a Path,
    pub(super) debian: Option<Debian>,
    /// The system of desktops.
    pub(super) desktop: Option<Debian>,
    /// Images of data disks, by VM entry.
    pub(super) images: IndexMap<String, PathBuf>,
}

impl Boot<'_> {
    fn initrd(&self, entry: &scenario::VmSpec) -> &Path {
        if entry.desktop { self.desktop_initrd } else { self.initrd }
    }

    fn disks(&self, entry: &scenario::VmSpec) -> Vec<DiskConfig> {
        let data = self.images.get(&entry.name).map(|image| (image, DiskKind::Data));
        let system = match (entry.desktop, entry.debian) {
            (true, _) => self.desktop.as_ref(),
            (false, true) => self.debian.as_ref(),
            (false, false) => None,
        };
        let system = system.map(|of| (&of.image, DiskKind::Debian));
        let disks = data.into_iter().chain(system);
        disks.map(|(image, kind)| DiskConfig { image: image.clone(), kind }).collect()
    }

    /// What of each VM entry is on the modelled disk, where it is its own: its data disk, or its system.
    fn modelled(&self, scenario: &Scenario) -> IndexMap<String, DiskConfig> {
        let own = |disk: DiskConfig| match disk.kind {
            DiskKind::Debian => DiskConfig { kind: DiskKind::OwnDebian, ..disk },
            _ => DiskConfig { kind: DiskKind::Own, ..disk },
        };
        let of = |vm: &scenario::VmSpec| self.disks(vm).pop().map(|disk| (vm.name.clone(), own(disk)));
        scenario.vms.iter().filter_map(of).collect()
    }
}

impl<'a> Lab<'a> {
    pub(super) fn boot(
        scenario: &'a Scenario,
        config: &'a LabConfig,
        guardian: Guardian,
        run_dir: PathBuf,
        boot: Boot<'_>,
    ) -> Result<Lab<'a>, LabError> {
        let first = scenario.arms.values().next().map(|arm| scenario.disk_of(arm)).unwrap_or_default();
        let (frontdesk, folder) = (config.frontdesk.as_path(), run_dir.as_path());
        let modelled = boot.modelled(scenario);
        let maker = Maker { scenario, frontdesk, folder, guardian: &guardian, disks: &modelled };
        let shared = maker.make(first)?;
        let mut lab = Lab {
            scenario,
            config,
            vms: IndexMap::new(),
            shared,
            run_dir,
            qemu: machine::qemu_version(),
            guest_kernel: String::new(),
            modelled,
            debian: None,
            screenshots: Vec::new(),
            steps_per_s: 0.0,
            began: HostClock::read(),
            _busy: Busy::start(&scenario.host.busy_cpus),
            guardian,
        };
        let root = Hierarchy::detect()?.root_group();
        let parent = lab.guardian.create_group(&root, &format!("frontdesk-lab-{}", std::process::id()))?;
        let dilation = (config.dilation > 1.0).then(|| format!("{DILATION_PARAMETER}={}", config.dilation));
        let dilation = Vec::from_iter(dilation);
        let entries = scenario.vms.iter().flat_map(|vm| vm.names().into_iter().map(move |name| (name, vm)));
        for (index, (name, entry)) in entries.enumerate() {
            let group = lab.guardian.create_group(&parent, &name)?;
            group.set_weight(entry.weight)?;
            let link = net::add_link(index)?;
            let mut own = VmConfig {
                vcpus: entry.vcpus,
                memory_mib: entry.memory_mib,
                disks: boot.disks(entry),
                desktop: entry.desktop,
                reporter: entry.tracked && config.reporter.is_some(),
                time_slice: scenario.guest.time_slice,
                tap: Some(TapConfig {
                    ifname: link.ifname.clone(),
                    mac: link.mac.clone(),
                    guest_ip: link.guest,
                    prefix: link.prefix,
                    vhost: scenario.host.vhost,
                }),
                kvm: config.plugin.is_none(),
                plugin: config.plugin.clone().filter(|_| entry.tracked),
                cpus: scenario.host.vm_cpus.clone(),
                cgroup_procs: vec![group.procs_file()],
                parameters: dilation.clone(),
                ..VmConfig::new(&name, boot.kernel, boot.initrd(entry), &lab.run_dir)
            };
            own.keyboard = scenario.has_keyboard(&entry.name);
            if let Some(shared) = &lab.shared {
                shared.attach(&mut own);
            }
            let vm = lab.start(&own)?;
            let web = (entry.debian || entry.desktop).then(|| WebServer::start(link.host)).transpose();
            let web =
                web.map_err(|source| LabError::Io { what: format!("serving {}", link.host), source })?;
            let (weight, tracked) = (entry.weight, entry.tracked);
            let (running, agent) = (Vec::new(), None);
            let vm = LabVm { vm, config: own, link, weight, _web: web, tracked, running, agent };
            lab.vms.insert(name, vm);
        }
        lab.debian = boot.debian;
        lab.wait_ready()?;
        lab.calibrate()?;
        Ok(lab)
    }

    /// Boots all VMs once more, as new.
    pub(super) fn reboot(&mut self) -> Result<(), LabError> {
        for index in 0..self.vms.len() {
            self.vms[index].vm.kill();
            let vm = self.start(&self.vms[index].config)?;
            self.vms[index].vm = vm;
            self.vms[index].running.clear();
            self.vms[index].agent = None;
        }
        self.wait_ready()?;
        self.find_clocks()
    }

    fn start(&self, config: &VmConfig) -> Result<RunningVm, LabError> {
        let vm = RunningVm::boot(config)?;
        if let Some(started) = process_start_time(vm.pid()) {
            self.guardian.record(Undo::Process { pid: vm.pid(), started })?;
        }
        Ok(vm)
    }

    fn wait_ready(&mut self) -> Result<(), LabError> {
        for vm in self.vms.values_mut() {
            interrupted(&self.config.stop)?;
            self.guest_kernel = vm.vm.wait_ready(BOOT_TIMEOUT)?;
        }
        self.set_disk_classes()
    }

    /// Finds out where the guests' clocks are.
    fn find_clocks(&mut self) -> Result<(), LabError> {
        for _ in 0..CLOCK_EXCHANGES {
            for vm in self.vms.values_mut() {
                vm.vm.check()?;
            }
        }
        Ok(())
    }

    /// Finds out, while nothing runs, where the guests' clocks are and how fast guests compute.
    fn calibrate(&mut self) -> Result<(), LabError> {
        self.find_clocks()?;
        if let Some(vm) = self.vms.values_mut().next() {
            // The fastest of some: whatever else the machine does only makes it slower.
            for _ in 0..3 {
                let took = vm.vm.run(guest::Work::Spin { steps: CALIBRATION_STEPS }, BOOT_TIMEOUT)?.elapsed;
                #[allow(clippy::cast_precision_loss)]
                let speed = CALIBRATION_STEPS as f64 / took.as_secs_f64().max(f64::EPSILON);
                self.steps_per_s = self.steps_per_s.max(speed);
            }
        }
        Ok(())
    }
}
