//! What an arm makes of the modelled disk.

use super::shared_disk::Maker;
use super::{Lab, LabError};
use crate::command;
use frontdesk_scenario::{DiskServed, VmSpec};
use std::process::Command;

/// A repeat in which the disk answered later than this, 99th percentile, counts for nothing.
const MOST_LATE_MS: f64 = 1.0;

impl Lab<'_> {
    fn maker(&self) -> Maker<'_> {
        Maker {
            scenario: self.scenario,
            frontdesk: &self.config.frontdesk,
            folder: &self.run_dir,
            guardian: &self.guardian,
            disks: &self.modelled,
        }
    }

    /// Makes the modelled disk what an arm says, as new. Whoever was served otherwise boots once more.
    pub(super) fn set_disk(&mut self, arm: &str) -> Result<(), LabError> {
        let wanted = self.scenario.disk_of(&self.scenario.arms[arm]);
        if self.shared.as_ref().is_none_or(|shared| shared.arm == wanted) {
            return Ok(());
        }
        self.vms.values_mut().for_each(|vm| vm.vm.kill());
        // What it has of memory and devices goes before the next comes.
        self.shared = None;
        self.shared = self.maker().make(wanted)?;
        if let Some(shared) = &self.shared {
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
