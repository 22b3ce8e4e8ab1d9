//! Nice values of vCPUs, as an operator sets them by hand.

use super::{Lab, LabError};
use rustix::process::{Pid, setpriority_process};
use std::io;

impl Lab<'_> {
    /// Gives the vCPUs of all VMs the nice values of the arm, and takes those of another back.
    pub(super) fn set_nice(&self, arm: &str) -> Result<(), LabError> {
        let of_arm = &self.scenario.arms[arm].nice;
        // Who never sets any leaves the threads alone.
        let set = self
            .scenario
            .vms
            .iter()
            .filter(|entry| self.scenario.arms.values().any(|arm| arm.nice.contains_key(&entry.name)));
        for entry in set {
            let values = of_arm.get(&entry.name);
            for vm in entry.names().iter().filter_map(|name| self.vms.get(name)) {
                let failed = |source| LabError::Io {
                    what: format!("setting nice values of {}", vm.vm.name()),
                    source,
                };
                let threads = vcpu_threads(vm.vm.pid()).map_err(failed)?;
                for (vcpu, thread) in threads {
                    let nice = values.and_then(|values| values.get(vcpu)).copied().unwrap_or(0);
                    setpriority_process(Pid::from_raw(thread), nice.into())
                        .map_err(|error| failed(error.into()))?;
                }
            }
        }
        Ok(())
    }
}

/// The vCPU threads of a QEMU process, which their names tell: index and id.
fn vcpu_threads(pid: i32) -> io::Result<Vec<(usize, i32)>> {
    let mut threads = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        let name = std::fs::read_to_string(entry.path().join("comm"))?;
        let vcpu = name.strip_prefix("CPU ").and_then(|rest| rest.split_once('/')?.0.parse().ok());
        let thread = entry.file_name().to_str().and_then(|thread| thread.parse().ok());
        threads.extend(vcpu.zip(thread));
    }
    Ok(threads)
}
