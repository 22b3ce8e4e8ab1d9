//! The host of the VMs.

use crate::allowed::{Violation, range, require};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Which physical CPUs do what. A CPU is in a list at most once; it may be in several lists, as on a machine
/// that has no more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The VMs run on these. At least one.
    pub vm_cpus: Vec<u16>,
    /// The load from outside and the daemon run on these. At least one.
    pub client_cpus: Vec<u16>,
    /// Each of these gets a CPU-bound host process, so that it is busy in every arm.
    #[serde(default)]
    pub busy_cpus: Vec<u16>,
    /// Which machine is the host.
    #[serde(default, skip_serializing_if = "crate::allowed::is_default")]
    pub machine: Machine,
    /// Kernel of an emulated host: a Debian package series.
    #[serde(default = "host_kernel")]
    pub kernel: String,
    /// How many times longer everything takes on an emulated host than on a real one: durations of the load,
    /// of the engine and of the host's scheduler are multiplied by it. 1 to 100; only with a `machine` that
    /// is emulated.
    #[serde(default = "undilated")]
    pub dilation: f64,
    /// Busy loops on the machine that emulates the host, one on each of its CPUs in turn, while arms run: the
    /// host's CPUs lose time, as on an overcommitted host. 0 to 64; only with a `machine` that is emulated.
    #[serde(default, skip_serializing_if = "crate::allowed::is_default")]
    pub disturb: u16,
    /// Whether the host's kernel carries the VMs' packets (vhost-net), not QEMU. Only with a `machine` that
    /// is emulated.
    #[serde(default, skip_serializing_if = "crate::allowed::is_default")]
    pub vhost: bool,
    /// Whether the processor translates the guests' addresses by itself. If not, KVM loads CR3 for them, and
    /// tells each switch of tasks. Only with a `machine` that is emulated.
    #[serde(default = "yes")]
    pub nested_paging: bool,
}

/// The machine that is the host of the VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// This one, whose QEMU emulates the VMs' CPUs.
    #[default]
    This,
    /// An emulated one, made for the run, with an AMD processor that can run VMs: its guests run under KVM.
    Kvm,
}

impl Host {
    /// Number of CPUs of an emulated host that has all those that the scenario names.
    #[must_use]
    pub fn cpus(&self) -> u16 {
        let all = [&self.vm_cpus, &self.client_cpus, &self.busy_cpus].into_iter().flatten();
        all.max().map_or(1, |highest| highest.saturating_add(1))
    }

    pub(crate) fn validate(&self) -> Result<(), Violation> {
        for (key, cpus, may_be_empty) in [
            ("host.vm_cpus", &self.vm_cpus, false),
            ("host.client_cpus", &self.client_cpus, false),
            ("host.busy_cpus", &self.busy_cpus, true),
        ] {
            require(may_be_empty || !cpus.is_empty(), key, "[]", "at least one CPU")?;
            let mut seen = HashSet::new();
            let unique = cpus.iter().all(|cpu| seen.insert(cpu));
            require(unique, key, format!("{cpus:?}"), "each CPU once")?;
        }
        range("host.dilation", self.dilation, 1.0..=100.0)?;
        let real = self.machine == Machine::This;
        #[allow(clippy::float_cmp)] // Exactly what is there if nothing was given.
        let dilated = self.dilation != 1.0;
        let allowed = "1, unless machine = \"kvm\": only emulated hosts are slow";
        require(!(real && dilated), "host.dilation", self.dilation, allowed)?;
        range("host.disturb", self.disturb, 0..=64)?;
        let allowed = "0, unless machine = \"kvm\": what else runs on this machine is not the lab's";
        require(!(real && self.disturb > 0), "host.disturb", self.disturb, allowed)?;
        let allowed = "false, unless machine = \"kvm\": this machine may have no vhost-net";
        require(!(real && self.vhost), "host.vhost", self.vhost, allowed)?;
        let allowed = "true, unless machine = \"kvm\": here QEMU emulates the guests' processors";
        require(self.nested_paging || !real, "host.nested_paging", self.nested_paging, allowed)
    }
}

fn host_kernel() -> String {
    "6.12-plain".to_owned()
}

fn yes() -> bool {
    true
}

fn undilated() -> f64 {
    1.0
}
