//! The ways to run the VMs.

use super::{ArmDisk, Host, VmSpec, Workload};
use crate::allowed::{Violation, one_of, quoted, range, require, validate_policy};
use crate::sim::Sim;
use crate::study::{PeriodSlice, validate_reservation};
use frontdesk_engine::Config;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// One way to run the same VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Whether the daemon runs, and whether it acts.
    #[serde(default)]
    pub daemon: Daemon,
    /// How the daemon puts vCPUs first. Absent: as it does without being told. Only where the daemon acts;
    /// the simulator has no such choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<Mechanism>,
    /// How the daemon knows the tasks of guests. Absent: as well as the host allows. Only where a daemon runs
    /// on a `machine` that is emulated: elsewhere the plugin tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<SeenAt>,
    /// What looks after tasks inside the VMs that are followed. Absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// Workloads that are stopped in this arm, as "VM/WORKLOAD" with the name of a VM entry.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Nice values of the vCPUs of VMs in this arm, by the name of a VM entry, one for each vCPU, as an
    /// operator would set them by hand: before frontdesk starts. -20 to 19.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub nice: IndexMap<String, Vec<i8>>,
    /// Reservations of VMs in this arm, by the name of a VM entry, each as `["5ms", "1ms"]`. Only where the
    /// daemon acts.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub reserve: IndexMap<String, PeriodSlice>,
    /// How the disk of `disk_model` is shared in this arm. Absent: as QEMU and the kernel do without a
    /// scheduler. The simulator's is in `sim.disk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<ArmDisk>,
    /// Parameters of the engine in this arm. In the file: those that differ from the scenario's `policy`.
    pub policy: Option<Config>,
    /// The modelled machine in this arm. In the file: what differs from the scenario's `sim`.
    pub sim: Option<Sim>,
}

impl Arm {
    /// Whether a workload of a VM entry is stopped in this arm.
    #[must_use]
    pub fn stops(&self, vm: &VmSpec, workload: &Workload) -> bool {
        self.stop.iter().any(|stop| stop.split_once('/') == Some((&vm.name, &workload.name)))
    }

    /// Checks it; `own` is its dotted key in the scenario, `vms` and `host` are the scenario's.
    pub(crate) fn validate(&self, own: &str, vms: &[VmSpec], host: &Host) -> Result<(), Violation> {
        if let Some(policy) = &self.policy {
            let key = format!("{own}.policy");
            let allowed = "only in an arm with daemon = \"observe\" or \"act\"";
            require(self.daemon != Daemon::Off, key.as_str(), "given", allowed)?;
            validate_policy(&key, policy)?;
        }
        if self.mechanism.is_some() {
            let allowed = "only in an arm with daemon = \"act\"";
            require(self.daemon == Daemon::Act, format!("{own}.mechanism"), "given", allowed)?;
        }
        if self.identity.is_some() {
            let allowed = "only in an arm with daemon = \"observe\" or \"act\"";
            require(self.daemon != Daemon::Off, format!("{own}.identity"), "given", allowed)?;
        }
        for (vm, values) in &self.nice {
            let key = format!("{own}.nice.{vm}");
            let entries = vms.iter().map(|vm| vm.name.as_str());
            let Some(entry) = vms.iter().find(|entry| entry.name == *vm) else {
                return require(false, key, quoted(vm), one_of(entries));
            };
            let one_each = values.len() == usize::from(entry.vcpus);
            let allowed = format!("one value for each vCPU, of which {vm} has {}", entry.vcpus);
            require(one_each, key.as_str(), format!("{values:?}"), allowed)?;
            for (vcpu, nice) in values.iter().enumerate() {
                range(format!("{key}.{vcpu}"), *nice, -20..=19)?;
            }
        }
        for (vm, of) in &self.reserve {
            let key = format!("{own}.reserve.{vm}");
            let entries = vms.iter().map(|vm| vm.name.as_str());
            require(vms.iter().any(|entry| entry.name == *vm), key.as_str(), quoted(vm), one_of(entries))?;
            let allowed = "only in an arm with daemon = \"act\"";
            require(self.daemon == Daemon::Act, key.as_str(), of, allowed)?;
            validate_reservation(&key, *of)?;
        }
        if let Some(disk) = &self.disk {
            disk.validate(&format!("{own}.disk"), vms)?;
        }
        if let Some(sim) = &self.sim {
            sim.validate(&format!("{own}.sim"), vms, host)?;
        }
        for (index, stop) in self.stop.iter().enumerate() {
            let known = vms.iter().flat_map(|vm| {
                vm.workloads.iter().map(move |workload| format!("{}/{}", vm.name, workload.name))
            });
            let known: Vec<_> = known.collect();
            let key = format!("{own}.stop.{index}");
            require(known.contains(stop), key, quoted(stop), one_of(&known))?;
        }
        Ok(())
    }
}

/// How a daemon puts vCPUs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Real-time priority.
    RealTime,
    /// frontdesk's scheduler.
    SchedExt,
    /// The same, which boosts by itself for packets to ports that are known.
    SchedExtFastPath,
}

/// When a daemon looks which task a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeenAt {
    /// When the thread of a vCPU loses its CPU, and not at exits of the guest.
    ThreadSwitches,
}

/// What runs inside VMs to make them more responsive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agent {
    /// frontdesk's reporter, which tells tasks. Only on a `machine` that is emulated: elsewhere the plugin
    /// tells.
    Reporter,
    /// The reporter with `--isolate`, which keeps background work on vCPUs of its own (vAMP §3.3).
    Extension,
    /// No program: all workloads have nice value 10, as a careful user gives background work.
    Nice,
    /// What lowers the priority of a process that uses more than a quarter of a CPU, for a minute.
    SpikeProtection,
}

impl Agent {
    /// Whether it is frontdesk's own.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Agent::Reporter | Agent::Extension)
    }
}

/// What the daemon does in an arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Daemon {
    /// It does not run: the kernel's own scheduler, equal shares, nothing else.
    #[default]
    Off,
    /// It watches and infers, but changes nothing.
    Observe,
    /// It watches and acts.
    Act,
}
