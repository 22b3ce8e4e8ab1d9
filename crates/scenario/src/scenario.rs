//! The scenario file: its types, each with its ranges. [`Scenario::load`] is in `load`, what goes across them
//! is checked in `validate`.

mod arm;
mod bars;
mod disk_model;
mod guest;
mod host;
mod profile;
mod vm;

pub use arm::{Agent, Arm, Daemon, Mechanism, SeenAt};
pub use bars::{Across, Checks, Compare, Gain, Loser, Measure, Subject};
pub use disk_model::{ArmDisk, DiskModel, IoScheduler};
pub use guest::{Debian, Guest};
pub use host::{Host, Machine};
pub use profile::{LoadKind, LoadProfile};
pub use vm::{Disk, VmSpec, Workload};

use crate::sim::Sim;
use frontdesk_engine::Config;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An experiment: VMs, the work inside them, load from outside, the arms to compare and the bars to reach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name: letters, digits and `-`.
    pub name: String,
    /// What it shows, in a sentence.
    pub description: String,
    /// Repeats of each arm, interleaved. 1 to 1000.
    pub repeats: u32,
    /// Measured time of one repeat. 1 s to a day.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// Time before it that is not measured, in every arm alike: the inference starts knowing nothing. 0 s to
    /// 10 min.
    #[serde(with = "humantime_serde")]
    pub warmup: Duration,
    /// Think times are multiplied by this so that a run stays within minutes. 0.001 to 100.
    pub think_scale: f64,
    /// CPU costs of workloads are multiplied by this, because emulated guests are slower than real ones.
    /// 0.001 to 100.
    #[serde(default = "unscaled")]
    pub cost_scale: f64,
    /// The guests' kernel.
    pub guest: Guest,
    /// Which physical CPUs do what.
    pub host: Host,
    /// The disk that the VMs share, if it is not the machine's own. Only in the lab: the simulator's is in
    /// `sim.disk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_model: Option<DiskModel>,
    /// The VMs. At least one.
    #[serde(rename = "vm")]
    pub vms: Vec<VmSpec>,
    /// Load from outside.
    #[serde(rename = "load", default)]
    pub loads: Vec<LoadProfile>,
    /// The arms, in the order in which they run. At least one; names of letters, digits and `-`.
    pub arms: IndexMap<String, Arm>,
    /// Parameters of the engine in arms that run the daemon.
    #[serde(default)]
    pub policy: Config,
    /// The machine on which it is simulated.
    #[serde(default, skip_serializing_if = "crate::allowed::is_default")]
    pub sim: Sim,
    /// Bars to reach.
    #[serde(default)]
    pub checks: Checks,
}

impl Scenario {
    /// The names of all VMs, those of entries with a `count` above 1 spelled out.
    #[must_use]
    pub fn vm_names(&self) -> Vec<String> {
        self.vms.iter().flat_map(VmSpec::names).collect()
    }

    /// Takes a VM entry out, and what loads and arms say about it.
    pub fn remove_vm(&mut self, entry: &str) {
        self.vms.retain(|vm| vm.name != entry);
        self.loads.retain(|load| load.vm != entry);
        for arm in self.arms.values_mut() {
            arm.stop.retain(|stop| stop.split_once('/').is_none_or(|(vm, _)| vm != entry));
            arm.nice.shift_remove(entry);
            arm.reserve.shift_remove(entry);
        }
    }

    /// The clients that load the VMs from outside: the name of a VM and what its client does.
    pub fn clients(&self) -> impl Iterator<Item = (String, &LoadProfile)> {
        self.loads.iter().flat_map(|load| {
            let entries = self.vms.iter().filter(|vm| vm.name == load.vm);
            entries.flat_map(VmSpec::names).map(move |name| (name, load))
        })
    }

    /// Whether somebody uses the keyboard of the VMs of an entry.
    #[must_use]
    pub fn has_keyboard(&self, entry: &str) -> bool {
        let presses = |load: &LoadProfile| matches!(load.kind, LoadKind::Ask { enter: true, .. });
        self.loads.iter().any(|load| load.vm == entry && presses(load))
    }

    /// How the modelled disk is shared in an arm.
    #[must_use]
    pub fn disk_of(&self, arm: &Arm) -> ArmDisk {
        arm.disk.clone().unwrap_or_default()
    }

    /// Shortest and longest think time of a load, after `think_scale`.
    #[must_use]
    pub fn scaled_think(&self, think: [Duration; 2]) -> [Duration; 2] {
        think.map(|think| think.mul_f64(self.think_scale))
    }

    /// CPU time that a workload burns at a time, after `cost_scale`.
    #[must_use]
    pub fn scaled_cost(&self, cost: Duration) -> Duration {
        cost.mul_f64(self.cost_scale)
    }

    /// Parameters of the engine in an arm.
    #[must_use]
    pub fn policy_of<'a>(&'a self, arm: &'a Arm) -> &'a Config {
        arm.policy.as_ref().unwrap_or(&self.policy)
    }

    /// The modelled machine in an arm.
    #[must_use]
    pub fn sim_of<'a>(&'a self, arm: &'a Arm) -> &'a Sim {
        arm.sim.as_ref().unwrap_or(&self.sim)
    }

    /// Under which key the response times of a load on the VM called `vm_name` are: the VM's name, or
    /// VM/WORKLOAD if several loads wait for answers of that VM.
    #[must_use]
    pub fn response_key(&self, vm_name: &str, load: &LoadProfile) -> String {
        let waiting = self.loads.iter().filter(|other| other.vm == load.vm && other.kind.waits());
        let several = waiting.count() > 1;
        let target = self.entry(&load.vm).and_then(|vm| load.target(vm));
        match target {
            Some(workload) if several => format!("{vm_name}/{}", workload.name),
            None if several => format!("{vm_name}/desktop"),
            _ => vm_name.to_owned(),
        }
    }

    /// The VM entry with a name.
    pub(crate) fn entry(&self, name: &str) -> Option<&VmSpec> {
        self.vms.iter().find(|vm| vm.name == name)
    }
}

fn unscaled() -> f64 {
    1.0
}
