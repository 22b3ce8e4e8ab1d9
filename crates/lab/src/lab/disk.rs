//! The modelled disk of a run: the VMs that are on it, and how an arm has it shared.

use super::{Lab, LabError};
use crate::back_end::BackEnd;
use crate::{DiskConfig, DiskKind, SlowDisk, VmConfig, command};
use frontdesk_guardian::{Guardian, Undo};
use frontdesk_lab_guest::DATA_PARAMETER;
use frontdesk_linux::sched::process_start_time;
use frontdesk_scenario::{ArmDisk, DiskServed, Scenario, VmSpec};
use indexmap::IndexMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The host's control groups for block devices: those of version 1.
const BLKIO: &str = "/sys/fs/cgroup/blkio";
/// Weight of a VM that has none.
const WEIGHT: u16 = 100;
/// A repeat in which the disk answered later than this, 99th percentile, counts for nothing.
const MOST_LATE_MS: f64 = 1.0;

/// A slow disk with the images of VMs.
#[derive(Debug)]
pub(super) struct Shared {
    disk: SlowDisk,
    /// Where each VM's image is.
    images: IndexMap<String, PathBuf>,
    /// How it is shared.
    arm: ArmDisk,
    back_end: Option<BackEnd>,
}

impl Shared {
    /// Starts the disk of a scenario, if it has one. `images` are those of VM entries.
    pub(super) fn start(
        scenario: &Scenario,
        images: &IndexMap<String, PathBuf>,
        frontdesk: &Path,
        folder: &Path,
        guardian: &Guardian,
    ) -> Result<Option<Shared>, LabError> {
        let Some(model) = scenario.disk_model else { return Ok(None) };
        let entries = scenario.vms.iter().flat_map(|vm| vm.names().into_iter().map(move |name| (name, vm)));
        let (names, images): (Vec<String>, Vec<PathBuf>) =
            entries.filter_map(|(name, vm)| Some((name, images.get(&vm.name)?.clone()))).unzip();
        let disk = SlowDisk::start(frontdesk, model, &images, folder, &scenario.host.client_cpus)?;
        record(guardian, disk.pid())?;
        let images = names.into_iter().zip(disk.partitions().iter().cloned()).collect();
        Ok(Some(Shared { disk, images, arm: ArmDisk::default(), back_end: None }))
    }

    /// Makes the disk what an arm says. No VM may run.
    pub(super) fn prepare(
        &mut self,
        arm: ArmDisk,
        scenario: &Scenario,
        frontdesk: &Path,
        folder: &Path,
        guardian: &Guardian,
    ) -> Result<(), LabError> {
        self.back_end = None;
        self.disk.schedule(&arm)?;
        for vm in self.images.keys().filter(|_| !arm.weights.is_empty()) {
            let entry = scenario.vms.iter().find(|entry| entry.names().contains(vm));
            let weight = entry.and_then(|entry| arm.weights.get(&entry.name)).unwrap_or(&WEIGHT);
            let path = group_of(vm);
            guardian.record(Undo::ControlGroup { path: path.clone() })?;
            // It may be there from an arm before.
            let made = std::fs::create_dir_all(&path);
            let file = path.join("blkio.bfq.weight");
            made.and_then(|()| std::fs::write(&file, weight.to_string())).map_err(|source| LabError::Io {
                what: format!("setting {}, which needs control groups of version 1 and bfq", file.display()),
                source,
            })?;
        }
        if arm.back_end {
            let has_arm = scenario.disk_model.is_some_and(|model| model.has_arm());
            let back_end = BackEnd::start(frontdesk, folder, self.images.iter(), has_arm && arm.arm, &scenario.host.vm_cpus)?;
            record(guardian, back_end.pid())?;
            self.back_end = Some(back_end);
        }
        self.arm = arm;
        Ok(())
    }

    /// Gives a VM its part of the disk.
    pub(super) fn attach(&self, config: &mut VmConfig) {
        let Some(image) = self.images.get(&config.name) else { return };
        config.cgroup_procs.retain(|procs| !procs.starts_with(BLKIO));
        config.cgroup_procs.extend((!self.arm.weights.is_empty()).then(|| group_of(&config.name).join("cgroup.procs")));
        config.disks.retain(|disk| disk.kind != DiskKind::Data);
        config.parameters.clear();
        config.arguments.clear();
        if self.back_end.is_none() {
            config.disks.insert(0, DiskConfig { image: image.clone(), kind: DiskKind::Data });
            return;
        }
        // It comes after the others.
        let letter = char::from(b'a' + u8::try_from(config.disks.len()).unwrap_or_default());
        config.parameters.push(format!("{DATA_PARAMETER}=vd{letter}"));
        let socket = config.run_dir.join(format!("{}.sock", config.name));
        let options = [
            ("object", format!("memory-backend-memfd,id=memory,size={}M,share=on", config.memory_mib)),
            ("machine", "memory-backend=memory".to_owned()),
            ("chardev", format!("socket,id=shared,path={},reconnect=1", socket.display())),
            ("device", format!("vhost-user-blk-pci,chardev=shared,num-queues={}", config.vcpus)),
        ];
        config.arguments.extend(options.into_iter().flat_map(|(option, value)| [format!("-{option}"), value]));
    }
}

/// The control group of a VM for block devices.
fn group_of(vm: &str) -> PathBuf {
    Path::new(BLKIO).join(format!("frontdesk-lab-{}-{vm}", std::process::id()))
}

impl Lab<'_> {
    /// Makes the modelled disk what an arm says. Whoever was served otherwise boots once more.
    pub(super) fn set_disk(&mut self, arm: &str) -> Result<(), LabError> {
        let wanted = self.scenario.disk_of(&self.scenario.arms[arm]);
        if self.shared.as_ref().is_none_or(|shared| shared.arm == wanted) {
            return Ok(());
        }
        self.vms.values_mut().for_each(|vm| vm.vm.kill());
        if let Some(shared) = &mut self.shared {
            let (frontdesk, folder) = (&self.config.frontdesk, &self.run_dir);
            shared.prepare(wanted, self.scenario, frontdesk, folder, &self.guardian)?;
            self.vms.values_mut().for_each(|vm| shared.attach(&mut vm.config));
        }
        self.reboot()
    }

    /// Gives whole VMs the place that an operator would give them by hand.
    pub(super) fn set_disk_classes(&self) -> Result<(), LabError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let first = |vm: &&VmSpec| shared.arm.first.contains(&vm.name);
        for name in self.scenario.vms.iter().filter(first).flat_map(VmSpec::names) {
            let Some(vm) = self.vms.get(&name) else { continue };
            // All threads of QEMU, which is a process group of its own.
            let mut ionice = Command::new("ionice");
            ionice.args(["--class", "realtime", "--classdata", "4", "--pgid"]).arg(vm.vm.pid().to_string());
            command::run(&mut ionice, |_| ())?;
        }
        Ok(())
    }

    /// What the modelled disk did since this was asked before.
    pub(super) fn disk_served(&self) -> Result<Option<DiskServed>, LabError> {
        Ok(self.shared.as_ref().map(|shared| shared.disk.report()).transpose()?)
    }
}

/// Refuses a repeat in which the disk was slower than its model.
pub(super) fn in_time(served: &DiskServed) -> Result<(), LabError> {
    let late = served.late_p99_ms;
    if late > MOST_LATE_MS { Err(LabError::LateDisk { late_ms: late }) } else { Ok(()) }
}

/// If the lab dies, its processes must not stay.
fn record(guardian: &Guardian, pid: i32) -> Result<(), LabError> {
    if let Some(started) = process_start_time(pid) {
        guardian.record(Undo::Process { pid, started })?;
    }
    Ok(())
}
