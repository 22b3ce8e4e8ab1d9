//! What a scenario must be beyond its types: ranges, names, references.

use crate::allowed::{Violation, name, period, quoted, range, require, seconds, validate_policy};
use crate::scenario::Scenario;
use std::collections::HashSet;
use std::time::Duration;

/// Memory that QEMU itself takes for each VM beside the guest's, in MiB (measured: 75 to 110 under TCG).
const QEMU_MIB: u64 = 110;

impl Scenario {
    /// Checks every value against its documented range and against the others. [`Scenario::load`] has done
    /// so; a scenario that was changed afterwards is checked here.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn validate(&self) -> Result<(), Violation> {
        name("name", &self.name)?;
        range("repeats", self.repeats, 1..=1000)?;
        period("duration", self.duration, seconds(1)..=seconds(24 * 3600))?;
        period("warmup", self.warmup, Duration::ZERO..=seconds(600))?;
        range("think_scale", self.think_scale, 0.001..=100.0)?;
        range("cost_scale", self.cost_scale, 0.001..=100.0)?;
        self.guest.validate()?;
        self.host.validate()?;
        self.validate_vms()?;
        if let Some(model) = self.disk_model {
            model.validate()?;
        }
        self.validate_emulated()?;
        for (index, load) in self.loads.iter().enumerate() {
            load.validate(&format!("load.{index}"), &self.vms)?;
            let before = &self.loads[..index];
            let taken = before.iter().any(|other| other.vm == load.vm && other.kind.is_on_desktop());
            let free = !load.kind.is_on_desktop() || !taken;
            let allowed = "a desktop in front of which nobody else is";
            require(free, format!("load.{index}.vm"), quoted(&load.vm), allowed)?;
        }
        validate_policy("policy", &self.policy)?;
        self.sim.validate("sim", &self.vms, &self.host)?;
        require(!self.arms.is_empty(), "arms", "{}", "at least one arm")?;
        for (arm_name, arm) in &self.arms {
            let own = format!("arms.{arm_name}");
            name(&own, arm_name)?;
            arm.validate(&own, &self.vms, &self.host)?;
            let modelled = self.disk_model.is_some() || arm.disk.is_none();
            require(modelled, format!("{own}.disk"), "given", "only beside a `disk_model`")?;
        }
        self.validate_checks()
    }

    /// VMs are told apart by their names, also those of entries with a `count`.
    fn validate_vms(&self) -> Result<(), Violation> {
        require(!self.vms.is_empty(), "vm", "[]", "at least one VM")?;
        let mut entries = HashSet::new();
        let mut vms = HashSet::new();
        for (index, vm) in self.vms.iter().enumerate() {
            let own = format!("vm.{index}.name");
            name(&own, &vm.name)?;
            require(entries.insert(&vm.name), own.as_str(), quoted(&vm.name), "a name no other entry has")?;
            range(format!("vm.{}.count", vm.name), vm.count, 1..=64)?;
            for name in vm.names() {
                let allowed = format!("a name from which no VM gets the name {name:?} of another");
                require(vms.insert(name), own.as_str(), quoted(&vm.name), allowed)?;
            }
            vm.validate(self.guest.debian.is_some())?;
            let one = self.disk_model.is_none() || vm.disk.is_none() || !(vm.debian || vm.desktop);
            let allowed = "a VM with a Debian system has no other disk, if there is a `disk_model`";
            require(one, format!("vm.{}.disk", vm.name), "given", allowed)?;
            for workload in vm.workloads.iter().filter(|workload| workload.kind.writes_disk()) {
                let key = format!("vm.{}.workloads.{}.run", vm.name, workload.name);
                let allowed =
                    "what writes nothing, unless there is a `disk_model`: other disks stay as they are";
                require(self.disk_model.is_some(), key, "a workload that writes", allowed)?;
            }
            let kernel = &self.guest.kernel;
            let allowed =
                "a kernel with drivers for a screen, such as \"6.1-plain\", beside `desktop = true`";
            let fits = !vm.desktop || !kernel.ends_with("-cloud");
            require(fits, "guest.kernel", quoted(kernel), allowed)?;
        }
        Ok(())
    }

    /// Memory that the VMs need with what QEMU takes for each, in MiB.
    #[must_use]
    pub fn memory_mib(&self) -> u64 {
        self.vms.iter().map(|vm| (u64::from(vm.memory_mib) + QEMU_MIB) * u64::from(vm.count)).sum()
    }

    /// Whether a machine can hold the VMs: `cpus_online` are the numbers of its CPUs that are online,
    /// `mem_available_mib` what it could give to new processes without swapping (`MemAvailable`), in MiB.
    ///
    /// # Errors
    /// The CPU that is missing, or the entry whose VMs no longer fit in memory.
    pub fn fits(&self, cpus_online: &[u16], mem_available_mib: u64) -> Result<(), Violation> {
        let host = &self.host;
        for (key, cpus) in [
            ("host.vm_cpus", &host.vm_cpus),
            ("host.client_cpus", &host.client_cpus),
            ("host.busy_cpus", &host.busy_cpus),
        ] {
            let here = cpus.iter().all(|cpu| cpus_online.contains(cpu));
            require(here, key, format!("{cpus:?}"), format!("the CPUs of this machine, {cpus_online:?}"))?;
        }
        for vm in &self.vms {
            for workload in &vm.workloads {
                let key = format!("vm.{}.workloads.{}.run", vm.name, workload.name);
                let modelled = workload.kind.only_modelled();
                let allowed = "what the lab's guests have a program for; this only the simulator runs";
                require(modelled.is_none(), key, quoted(modelled.unwrap_or_default()), allowed)?;
            }
        }
        let mut left = mem_available_mib;
        for vm in &self.vms {
            let each = u64::from(vm.memory_mib) + QEMU_MIB;
            let needed = each * u64::from(vm.count);
            let allowed = format!(
                "what fits in {left} MiB (of {mem_available_mib} MiB available): {} x ({} MiB + {QEMU_MIB} MiB for \
                 QEMU) = {needed} MiB does not",
                vm.count, vm.memory_mib
            );
            require(needed <= left, format!("vm.{}.memory_mib", vm.name), vm.memory_mib, allowed)?;
            left -= needed;
        }
        Ok(())
    }
}
