//! The scenario file: its types; workloads, loads and bars are in files of their own. [`Scenario::load`] is in `load`, the ranges are checked in `validate`.

mod bars;
mod keys;
mod profile;
pub(crate) mod protocol;
mod workload;

pub use bars::{Across, Checks, Compare, Gain, Loser, Measure, Subject};
pub use profile::{LoadKind, LoadProfile};
pub use workload::{Storm, Workload, WorkloadKind};

use crate::sim::Sim;
use crate::study::PeriodSlice;
use frontdesk_engine::Config;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
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
    /// Measured time of one repeat. 1 s to 1 h.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// Time before it that is not measured, in every arm alike: the inference starts knowing nothing. 0 s to 10 min.
    #[serde(with = "humantime_serde")]
    pub warmup: Duration,
    /// Think times are multiplied by this so that a run stays within minutes. 0.001 to 100.
    pub think_scale: f64,
    /// CPU costs of workloads are multiplied by this, because emulated guests are slower than real ones. 0.001 to 100.
    #[serde(default = "unscaled")]
    pub cost_scale: f64,
    /// The guests' kernel.
    pub guest: Guest,
    /// Which physical CPUs do what.
    pub host: Host,
    /// The VMs. At least one.
    #[serde(rename = "vm")]
    pub vms: Vec<Vm>,
    /// Load from outside.
    #[serde(rename = "load", default)]
    pub loads: Vec<LoadProfile>,
    /// The arms, in the order in which they run. At least one; names of letters, digits and `-`.
    pub arms: IndexMap<String, Arm>,
    /// Parameters of the engine in arms that run the daemon.
    #[serde(default)]
    pub policy: Config,
    /// The machine on which it is simulated.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sim: Sim,
    /// Bars to reach.
    #[serde(default)]
    pub checks: Checks,
}

impl Scenario {
    /// The names of all VMs, those of entries with a `count` above 1 spelled out.
    #[must_use]
    pub fn vm_names(&self) -> Vec<String> {
        self.vms.iter().flat_map(Vm::names).collect()
    }

    /// The clients that load the VMs from outside: the name of a VM and what its client does.
    pub fn clients(&self) -> impl Iterator<Item = (String, &LoadProfile)> {
        self.loads.iter().flat_map(|load| {
            let entries = self.vms.iter().filter(|vm| vm.name == load.vm);
            entries.flat_map(Vm::names).map(move |name| (name, load))
        })
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

    /// Under which key the response times of a load on the VM called `vm_name` are: the VM's name, or VM/WORKLOAD if several loads
    /// wait for answers of that VM.
    #[must_use]
    pub fn response_key(&self, vm_name: &str, load: &LoadProfile) -> String {
        let waiting = self.loads.iter().filter(|other| other.vm == load.vm && other.kind.waits());
        let several = waiting.count() > 1;
        let target = self.entry(&load.vm).and_then(|vm| vm.target(load));
        match target.filter(|_| several) {
            Some(workload) => format!("{vm_name}/{}", workload.name),
            None => vm_name.to_owned(),
        }
    }

    /// The VM entry with a name.
    pub(crate) fn entry(&self, name: &str) -> Option<&Vm> {
        self.vms.iter().find(|vm| vm.name == name)
    }
}

/// The guests' kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// A Debian package series ("6.1-cloud", "6.12-cloud"), or what contains a `/`: the path of a kernel image, with
    /// `modules`.
    pub kernel: String,
    /// Folder with the modules of a kernel given by path (`lib/modules/RELEASE`); only beside one.
    #[serde(default)]
    pub modules: Option<PathBuf>,
    /// Shortest time slice of the guests' scheduler; the kernel's own if left out. 100 us to 1 s.
    ///
    /// An emulated guest does not hear of the time in which it does not run. Its scheduler believes that a task has used up its slice
    /// when the VM comes back, and changes tasks each time the host changes VMs.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub time_slice: Option<Duration>,
    /// The Debian system that VMs with `debian = true` have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debian: Option<Debian>,
}

impl Guest {
    /// Major and minor version of the kernel, if its name or that of its modules' folder begins with them.
    #[must_use]
    pub fn version(&self) -> Option<(u32, u32)> {
        let release = self.modules.as_deref().and_then(|folder| folder.file_name()?.to_str());
        let mut numbers = release.unwrap_or(&self.kernel).split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// A Debian 12 system, made once and kept in the user's cache folder. A VM's changes to it are gone when the VM is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Debian {
    /// Packages beside the essential ones.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Source packages, unpacked as /usr/src/NAME.
    #[serde(default)]
    pub sources: Vec<String>,
}

/// Which physical CPUs do what. A CPU is in a list at most once; it may be in several lists, as on a machine that has no more.
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
}

/// A VM, or several alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Name: letters, digits and `-`. With `count` above 1 the VMs are called NAME-1, NAME-2, ...
    pub name: String,
    /// How many. 1 to 64.
    #[serde(default = "one")]
    pub count: u16,
    /// vCPUs of each. 1 to 16.
    #[serde(default = "one")]
    pub vcpus: u16,
    /// Memory of each in MiB. 96 to 65536.
    #[serde(default = "default_memory")]
    pub memory_mib: u32,
    /// Weight of each among the VMs, as in cgroup v1 `cpu.shares`. 2 to 262144.
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// Its data disk, if any, which its workloads read. Each VM reads its own; it is on the host's disk, past the host's page cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// Whether it has the Debian system of `guest.debian`, for workloads with `run = "program"`.
    #[serde(default)]
    pub debian: bool,
    /// Whether frontdesk sees into it: the QEMU plugin is loaded and the daemon follows it.
    #[serde(default = "yes")]
    pub tracked: bool,
    /// Programs that run in it.
    #[serde(default)]
    pub workloads: Vec<Workload>,
}

impl Vm {
    /// The names of the VMs of this entry: its own, or NAME-1, NAME-2, ... if there are several.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match self.count {
            1 => vec![self.name.clone()],
            count => (1..=count).map(|number| format!("{}-{number}", self.name)).collect(),
        }
    }

    /// The workload that a load is for: the echo or shift that is asked, the sink that is filled, or the ssh server behind which the
    /// editor runs.
    #[must_use]
    pub fn target(&self, load: &LoadProfile) -> Option<&Workload> {
        self.workloads.iter().find(|workload| load.kind.is_for(&workload.kind))
    }
}

/// A disk with files of random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Number of files. 1 to 65536.
    pub files: u32,
    /// Size of each in KiB. 4 to 65536, and 16 GiB for all together.
    pub file_kib: u32,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn one() -> u16 {
    1
}

fn yes() -> bool {
    true
}

fn unscaled() -> f64 {
    1.0
}

fn default_memory() -> u32 {
    128
}

fn default_weight() -> u32 {
    1024
}

/// One way to run the same VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Whether the daemon runs, and whether it acts.
    #[serde(default)]
    pub daemon: Daemon,
    /// Workloads that are stopped in this arm, as "VM/WORKLOAD" with the name of a VM entry.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Nice values of the vCPUs of VMs in this arm, by the name of a VM entry, one for each vCPU, as an operator would set them by
    /// hand: before frontdesk starts. -20 to 19.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub nice: IndexMap<String, Vec<i8>>,
    /// Reservations of VMs in this arm, by the name of a VM entry, each as `["5ms", "1ms"]`. Only where the daemon acts.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub reserve: IndexMap<String, PeriodSlice>,
    /// Parameters of the engine in this arm. In the file: those that differ from the scenario's `policy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Config>,
    /// The modelled machine in this arm. In the file: what differs from the scenario's `sim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sim: Option<Sim>,
}

impl Arm {
    /// Whether a workload of a VM entry is stopped in this arm.
    #[must_use]
    pub fn stops(&self, vm: &Vm, workload: &Workload) -> bool {
        self.stop.iter().any(|stop| stop.split_once('/') == Some((&vm.name, &workload.name)))
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
