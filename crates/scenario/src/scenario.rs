//! The scenario file: its types. [`Scenario::load`] is in `load`, the ranges are checked in `validate`.

use crate::outcome::Bar;
use frontdesk_engine::{Config, Protocol};
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
    /// Repeats of each arm, interleaved. 1 to 100.
    pub repeats: u32,
    /// Measured time of one repeat. 1 s to 1 h.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// Time before it that is not measured, in every arm alike: the inference starts knowing nothing. 0 s to 10 min.
    #[serde(with = "humantime_serde")]
    pub warmup: Duration,
    /// Think times are multiplied by this so that a run stays within minutes. 0.001 to 100.
    pub think_scale: f64,
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
    /// Bars to reach.
    #[serde(default)]
    pub checks: Checks,
}

impl Scenario {
    /// The names of all VMs, those of entries with a `count` above 1 spelled out.
    ///
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
    pub fn scaled_think(&self, load: &LoadProfile) -> [Duration; 2] {
        load.think.map(|think| think.mul_f64(self.think_scale))
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
}

/// Which physical CPUs do what. A CPU is in a list at most once.
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
}

fn one() -> u16 {
    1
}

fn default_memory() -> u32 {
    128
}

fn default_weight() -> u32 {
    1024
}

/// A program inside a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WorkloadEntry", into = "WorkloadEntry")]
pub struct Workload {
    /// Name inside its VM: letters, digits and `-`.
    pub name: String,
    /// What it does.
    pub kind: WorkloadKind,
}

/// What a program inside a VM does.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadKind {
    /// Uses all the CPU it gets.
    Hog,
    /// Answers each request with the same bytes.
    Echo {
        /// Transport protocol.
        protocol: Protocol,
        /// Port it listens on. 1 to 65535, one echo for each protocol and port of a VM.
        port: u16,
        /// CPU time it burns for each request, as the guest counts it. 0 to 10 s.
        cost: Duration,
    },
}

/// A [`Workload`] as the file has it: flat, because serde can not refuse unknown keys in a flattened enum.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadEntry {
    name: String,
    run: Run,
    #[serde(default, with = "optional_protocol", skip_serializing_if = "Option::is_none")]
    protocol: Option<Protocol>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    cost: Option<Duration>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Run {
    Hog,
    Echo,
}

impl TryFrom<WorkloadEntry> for Workload {
    type Error = &'static str;

    fn try_from(entry: WorkloadEntry) -> Result<Self, Self::Error> {
        let kind = match entry.run {
            Run::Hog if entry.protocol.is_some() || entry.port.is_some() || entry.cost.is_some() => {
                return Err("a workload with run = \"hog\" has `name` and `run` only");
            }
            Run::Hog => WorkloadKind::Hog,
            Run::Echo => match (entry.protocol, entry.port) {
                (Some(protocol), Some(port)) => {
                    WorkloadKind::Echo { protocol, port, cost: entry.cost.unwrap_or_default() }
                }
                _ => return Err("a workload with run = \"echo\" needs `protocol` and `port`"),
            },
        };
        Ok(Workload { name: entry.name, kind })
    }
}

impl From<Workload> for WorkloadEntry {
    fn from(workload: Workload) -> Self {
        let (run, protocol, port, cost) = match workload.kind {
            WorkloadKind::Hog => (Run::Hog, None, None, None),
            WorkloadKind::Echo { protocol, port, cost } => {
                (Run::Echo, Some(protocol), Some(port), Some(cost))
            }
        };
        WorkloadEntry { name: workload.name, run, protocol, port, cost }
    }
}

/// Load from outside: a client that sends requests and waits for each answer (TAVS §5.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadProfile {
    /// Name of the VM entry; each of its VMs gets a client.
    pub vm: String,
    /// Transport protocol.
    #[serde(with = "protocol")]
    pub protocol: Protocol,
    /// Port asked: an echo workload of the VM listens on it.
    pub port: u16,
    /// Bytes of a request. 1 to 1400.
    pub bytes: usize,
    /// Shortest and longest think time, uniformly distributed, before `think_scale`. 0 s to 1 h.
    #[serde(with = "durations")]
    pub think: [Duration; 2],
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

/// Bars to reach; each that is given becomes a check. A bar is a number, not below 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checks {
    /// Ratios of response times.
    pub response: Vec<ResponseCheck>,
    /// CPU time of each VM that wants its share against that share, frontdesk arm, relative deviation: at most.
    pub share_error: Option<f64>,
    /// Fraction of boosts in which an I/O-bound task really ran, frontdesk arm: at least.
    pub pbhr: Option<f64>,
    /// From a packet in the kernel to the boost applied, frontdesk arm, 99th percentile in microseconds: at most.
    pub decision_p99_us: Option<f64>,
    /// CPU time of the daemon over wall-clock time, frontdesk arm: at most.
    pub daemon_cpu: Option<f64>,
    /// Slowdown of CPU-bound guest work by the plugin, relative: at most.
    pub plugin_cpu_slowdown: Option<f64>,
    /// Slowdown of fork-heavy guest work by the plugin, relative: at most.
    pub plugin_fork_slowdown: Option<f64>,
    /// Events per second of the engine on one core, over the events of this run: at least.
    pub engine_events_per_s: Option<f64>,
}

/// A bar for the ratio of two response times of the same repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResponseCheck {
    /// What it says, for a reader.
    pub name: String,
    /// Which number of the response times.
    pub measure: Measure,
    /// The response times above the line.
    pub of: Responses,
    /// Those below it.
    pub over: Responses,
    /// The ratio must not be above this. Either this or `at_least`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// The ratio must not be below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
}

impl ResponseCheck {
    /// Its bar; `None` if there is none, or two.
    #[must_use]
    pub fn bar(&self) -> Option<Bar> {
        match (self.at_most, self.at_least) {
            (Some(limit), None) => Some(Bar::AtMost(limit)),
            (None, Some(limit)) => Some(Bar::AtLeast(limit)),
            _ => None,
        }
    }
}

/// A number of a set of response times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Arithmetic mean.
    Mean,
    /// Median.
    P50,
    /// 95th percentile.
    P95,
    /// 99th percentile.
    P99,
}

/// Response times of an arm, of several VMs together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Responses {
    /// The arm.
    pub arm: String,
    /// Name of a VM entry under load; without it, all VMs under load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
}

/// A key of [`Checks`] with a single bar, and the arms it needs.
pub(crate) struct CheckKey<'a> {
    pub(crate) key: &'static str,
    pub(crate) bar: &'a mut Option<f64>,
    pub(crate) arms: &'static [&'static str],
}

impl Checks {
    /// All checks but those of response times. What needs no arm is measured apart from them.
    pub(crate) fn keys(&mut self) -> [CheckKey<'_>; 7] {
        let key = |key, bar, arms| CheckKey { key, bar, arms };
        let frontdesk: &[&str] = &["frontdesk"];
        [
            key("share_error", &mut self.share_error, frontdesk),
            key("pbhr", &mut self.pbhr, frontdesk),
            key("decision_p99_us", &mut self.decision_p99_us, frontdesk),
            key("daemon_cpu", &mut self.daemon_cpu, frontdesk),
            key("plugin_cpu_slowdown", &mut self.plugin_cpu_slowdown, &[]),
            key("plugin_fork_slowdown", &mut self.plugin_fork_slowdown, &[]),
            key("engine_events_per_s", &mut self.engine_events_per_s, frontdesk),
        ]
    }
}

/// A [`Protocol`] as "tcp" or "udp".
pub(crate) mod protocol {
    use super::Protocol;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn name(protocol: Protocol) -> &'static str {
        match protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }

    pub(super) fn serialize<S: Serializer>(protocol: &Protocol, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name(*protocol))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protocol, D::Error> {
        let name = String::deserialize(deserializer)?;
        match name.as_str() {
            "tcp" => Ok(Protocol::Tcp),
            "udp" => Ok(Protocol::Udp),
            _ => Err(D::Error::unknown_variant(&name, &["tcp", "udp"])),
        }
    }
}

/// An optional [`Protocol`].
mod optional_protocol {
    use super::{Protocol, protocol};
    use serde::{Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        protocol: &Option<Protocol>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        protocol.map(protocol::name).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Protocol>, D::Error> {
        protocol::deserialize(deserializer).map(Some)
    }
}

/// Two durations in an array.
mod durations {
    use humantime_serde::Serde;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(pair: &[Duration; 2], serializer: S) -> Result<S::Ok, S::Error> {
        pair.map(Serde::from).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[Duration; 2], D::Error> {
        <[Serde<Duration>; 2]>::deserialize(deserializer).map(|pair| pair.map(Serde::into_inner))
    }
}
