//! The modelled disk of a run: the VMs that are on it, and how an arm has it shared.

use super::LabError;
use crate::back_end::BackEnd;
use crate::{DiskConfig, SlowDisk, VmConfig};
use frontdesk_disk_protocol::TracedWork;
use frontdesk_engine::Time;
use frontdesk_guardian::{Guardian, Undo};
use frontdesk_linux::sched::process_start_time;
use frontdesk_scenario::{ArmDisk, DiskSlice, Scenario, VmSpec, task_name};
use indexmap::IndexMap;
use std::path::{Path, PathBuf};

/// The host's control groups for block devices: those of version 1.
const BLKIO: &str = "/sys/fs/cgroup/blkio";
/// Weight of a VM that has none.
const WEIGHT: u16 = 100;

/// A slow disk with the images of VMs.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) disk: SlowDisk,
    /// What each VM has of it.
    parts: IndexMap<String, DiskConfig>,
    /// How it is shared.
    pub(super) arm: ArmDisk,
    back_end: Option<BackEnd>,
}

/// What a run has, from which a disk is made.
pub(super) struct Maker<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) frontdesk: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) guardian: &'a Guardian,
    /// What is on it, by VM entry.
    pub(super) disks: &'a IndexMap<String, DiskConfig>,
}

impl Maker<'_> {
    /// The disk of a scenario as an arm has it, if there is one. It holds what the images hold.
    pub(super) fn make(&self, arm: ArmDisk) -> Result<Option<Shared>, LabError> {
        let Some(model) = self.scenario.disk_model else { return Ok(None) };
        let host = &self.scenario.host;
        let entries =
            self.scenario.vms.iter().flat_map(|vm| vm.names().into_iter().map(move |name| (name, vm)));
        let on_it = entries.filter_map(|(name, vm)| Some((name, vm, self.disks.get(&vm.name)?.clone())));
        let on_it: Vec<(String, &VmSpec, DiskConfig)> = on_it.collect();
        let images: Vec<PathBuf> = on_it.iter().map(|(_, _, disk)| disk.image.clone()).collect();
        let disk = SlowDisk::start(self.frontdesk, model, &images, self.folder, &host.client_cpus)?;
        self.record(disk.pid())?;
        disk.schedule(&arm, self.guardian)?;
        for (name, vm, _) in on_it.iter().filter(|_| !arm.weights.is_empty()) {
            self.set_weight(name, *arm.weights.get(&vm.name).unwrap_or(&WEIGHT))?;
        }
        let part = |((name, _, of), image): ((_, _, DiskConfig), &PathBuf)| {
            (name, DiskConfig { image: image.clone(), kind: of.kind })
        };
        let parts: IndexMap<String, DiskConfig> =
            on_it.into_iter().zip(disk.partitions()).map(part).collect();
        let told = model.has_arm() && arm.arm;
        let serve = || {
            let images = parts.iter().map(|(vm, part)| (vm, &part.image));
            BackEnd::start(self.frontdesk, self.folder, images, told, &host.vm_cpus)
        };
        let back_end = arm.back_end.then(serve).transpose()?;
        back_end.as_ref().map_or(Ok(()), |back_end| self.record(back_end.pid()))?;
        Ok(Some(Shared { disk, parts, arm, back_end }))
    }

    /// Gives a VM a weight for block devices.
    fn set_weight(&self, vm: &str, weight: u16) -> Result<(), LabError> {
        let path = group_of(vm);
        self.guardian.record(Undo::ControlGroup { path: path.clone() })?;
        let file = path.join("blkio.bfq.weight");
        // It may be there from an arm before.
        let made = std::fs::create_dir_all(&path).and_then(|()| std::fs::write(&file, weight.to_string()));
        made.map_err(|source| LabError::Io {
            what: format!("setting {}, which needs control groups of version 1 and bfq", file.display()),
            source,
        })
    }

    /// If the lab dies, its processes must not stay.
    fn record(&self, pid: i32) -> Result<(), LabError> {
        if let Some(started) = process_start_time(pid) {
            self.guardian.record(Undo::Process { pid, started })?;
        }
        Ok(())
    }
}

impl Shared {
    /// What the back end did between two points in time, if there is one. Of VMs in this order.
    pub(super) fn work(&self, vms: &[String], from: Time, to: Time) -> Result<Vec<DiskSlice>, LabError> {
        let Some(back_end) = &self.back_end else { return Ok(Vec::new()) };
        let failed = |source| LabError::Io { what: "reading what the disk did".to_owned(), source };
        let slice = |work: TracedWork| {
            Some(DiskSlice {
                vm: vms.iter().position(|vm| *vm == work.vm)?,
                operation: work.operation,
                bytes: work.bytes,
                class: work.class,
                why: work.why,
                task: work.task.map(task_name),
                start: Time(work.asked_ns).since(from),
                begun: Time(work.begun_ns).since(from),
                end: Time(work.done_ns).since(from),
            })
        };
        Ok(back_end.work(from, to).map_err(failed)?.into_iter().filter_map(slice).collect())
    }

    /// Gives a VM its part of the disk.
    pub(super) fn attach(&self, config: &mut VmConfig) {
        let Some(part) = self.parts.get(&config.name) else { return };
        config.cgroup_procs.retain(|procs| !procs.starts_with(BLKIO));
        config
            .cgroup_procs
            .extend((!self.arm.weights.is_empty()).then(|| group_of(&config.name).join("cgroup.procs")));
        // Those are on it.
        config.disks.clear();
        config.parameters.clear();
        config.arguments.clear();
        if self.back_end.is_none() {
            config.disks.push(part.clone());
            return;
        }
        config.parameters.push(format!("{}=vda", part.kind.parameter()));
        let socket = config.run_dir.join(format!("{}.sock", config.name));
        let options = [
            ("object", format!("memory-backend-memfd,id=memory,size={}M,share=on", config.memory_mib)),
            ("machine", "memory-backend=memory".to_owned()),
            ("chardev", format!("socket,id=shared,path={},reconnect=1", socket.display())),
            ("device", format!("vhost-user-blk-pci,chardev=shared,num-queues={}", config.vcpus)),
        ];
        config
            .arguments
            .extend(options.into_iter().flat_map(|(option, value)| [format!("-{option}"), value]));
    }
}

/// The control group of a VM for block devices.
fn group_of(vm: &str) -> PathBuf {
    Path::new(BLKIO).join(format!("frontdesk-lab-{}-{vm}", std::process::id()))
}
