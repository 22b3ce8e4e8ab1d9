//! The scenario file: its types. [`Scenario::load`] is in `load`, the ranges are checked in `validate`.

use crate::outcome::Bar;
use crate::sim::Sim;
use frontdesk_engine::{Config, Protocol};
use humantime_serde::Serde;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
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
        /// Port it listens on. 1 to 65535, one server for each protocol and port of a VM.
        port: u16,
        /// CPU time it burns for each request, before `cost_scale`. 0 to 10 s.
        cost: Duration,
    },
    /// Changes its character: answers UDP requests for a period, computes for the next, and so on.
    Shift {
        /// UDP port it listens on, as for an echo.
        port: u16,
        /// Length of a period. 100 ms to 10 min.
        period: Duration,
    },
    /// Reads the files of the VM's disk one after the other, again and again (TAVS §5.1).
    ReadFiles,
    /// Reads a block of the VM's disk and burns CPU time, again and again (TAVS §5.2).
    ReadBurn {
        /// CPU time after each block, before `cost_scale`. 0 to 10 s.
        cost: Duration,
    },
    /// Takes what clients send over TCP and throws it away.
    Sink {
        /// Port it listens on, as for an echo.
        port: u16,
    },
    /// Tasks that message each other, as those of hackbench do (TAVS §5.4), again and again.
    Messages {
        /// Number of tasks: a multiple of 40, up to 2000.
        tasks: u32,
        /// Messages of each of the 20 senders of a group to each of its 20 receivers in a run. 1 to 10000.
        rounds: u32,
    },
    /// Starts a task that soon ends, waits for it, and again.
    Churn,
    /// A program of the Debian system.
    Program {
        /// The program, found in `PATH`, and its arguments. `{host}` in them becomes the address of a web server on the host, which
        /// answers http://{host}/BYTES with so many bytes.
        command: Vec<String>,
        /// Whether it is run again and again, and how long it takes is measured. Otherwise it is a server, which must not end.
        repeat: bool,
        /// Whether the guest's page cache is dropped before each run. Only with `repeat`.
        cold: bool,
    },
    /// What a guest does that wants to harm the host or its neighbours.
    Storm {
        /// Of what.
        of: Storm,
    },
}

/// What a storm is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storm {
    /// Packets from the host to every port of the guest, which the guest provokes.
    Packets,
    /// Tasks that are created without end.
    Tasks,
    /// Switches between two tasks that wake each other.
    Switches,
}

impl WorkloadKind {
    /// Whether it has operations that take a measured time.
    pub(crate) fn is_timed(&self) -> bool {
        matches!(self, WorkloadKind::Messages { .. } | WorkloadKind::Program { repeat: true, .. })
    }

    /// Protocol and port on which it listens.
    pub(crate) fn listens(&self) -> Option<(Protocol, u16)> {
        match *self {
            WorkloadKind::Echo { protocol, port, .. } => Some((protocol, port)),
            WorkloadKind::Shift { port, .. } => Some((Protocol::Udp, port)),
            WorkloadKind::Sink { port } => Some((Protocol::Tcp, port)),
            _ => None,
        }
    }

    /// Whether it is an ssh server.
    fn is_sshd(&self) -> bool {
        let WorkloadKind::Program { command, .. } = self else { return false };
        let program = command.first().map(Path::new);
        program.and_then(Path::file_name).is_some_and(|name| name == "sshd")
    }
}

/// A [`Workload`] as the file has it: flat, because serde can not refuse unknown keys in a flattened enum.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadEntry {
    name: String,
    run: Run,
    #[serde(default, with = "protocol", skip_serializing_if = "Option::is_none")]
    protocol: Option<Protocol>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    cost: Option<Duration>,
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    period: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tasks: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rounds: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    repeat: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cold: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<Storm>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Run {
    #[default]
    Hog,
    Echo,
    Shift,
    ReadFiles,
    ReadBurn,
    Sink,
    Messages,
    Churn,
    Program,
    Storm,
}

impl Run {
    fn keys(self) -> Keys {
        let (run, needed, optional): (_, &[_], &[_]) = match self {
            Run::Hog => ("hog", &[], &[]),
            Run::Echo => ("echo", &["protocol", "port"], &["cost"]),
            Run::Shift => ("shift", &["port", "period"], &[]),
            Run::ReadFiles => ("read-files", &[], &[]),
            Run::ReadBurn => ("read-burn", &[], &["cost"]),
            Run::Sink => ("sink", &["port"], &[]),
            Run::Messages => ("messages", &["tasks", "rounds"], &[]),
            Run::Churn => ("churn", &[], &[]),
            Run::Program => ("program", &["command"], &["repeat", "cold"]),
            Run::Storm => ("storm", &["of"], &[]),
        };
        Keys { entry: "workload", run, always: &["name", "run"], needed, optional }
    }
}

impl TryFrom<WorkloadEntry> for Workload {
    type Error = String;

    fn try_from(entry: WorkloadEntry) -> Result<Self, Self::Error> {
        let set = [
            ("protocol", entry.protocol.is_some()),
            ("port", entry.port.is_some()),
            ("cost", entry.cost.is_some()),
            ("period", entry.period.is_some()),
            ("tasks", entry.tasks.is_some()),
            ("rounds", entry.rounds.is_some()),
            ("command", entry.command.is_some()),
            ("repeat", entry.repeat.is_some()),
            ("cold", entry.cold.is_some()),
            ("of", entry.of.is_some()),
        ];
        entry.run.keys().refuse_others(&set)?;
        let cost = entry.cost.unwrap_or_default();
        let kind = || {
            Some(match entry.run {
                Run::Hog => WorkloadKind::Hog,
                Run::Echo => WorkloadKind::Echo { protocol: entry.protocol?, port: entry.port?, cost },
                Run::Shift => WorkloadKind::Shift { port: entry.port?, period: entry.period? },
                Run::ReadFiles => WorkloadKind::ReadFiles,
                Run::ReadBurn => WorkloadKind::ReadBurn { cost },
                Run::Sink => WorkloadKind::Sink { port: entry.port? },
                Run::Messages => WorkloadKind::Messages { tasks: entry.tasks?, rounds: entry.rounds? },
                Run::Churn => WorkloadKind::Churn,
                Run::Program => WorkloadKind::Program {
                    command: entry.command?,
                    repeat: entry.repeat.unwrap_or_default(),
                    cold: entry.cold.unwrap_or_default(),
                },
                Run::Storm => WorkloadKind::Storm { of: entry.of? },
            })
        };
        Ok(Workload { name: entry.name, kind: kind().ok_or_else(|| entry.run.keys().lacks())? })
    }
}

impl From<Workload> for WorkloadEntry {
    fn from(workload: Workload) -> Self {
        let mut entry = WorkloadEntry { name: workload.name, ..WorkloadEntry::default() };
        entry.run = match workload.kind {
            WorkloadKind::Hog => Run::Hog,
            WorkloadKind::Echo { protocol, port, cost } => {
                (entry.protocol, entry.port, entry.cost) = (Some(protocol), Some(port), Some(cost));
                Run::Echo
            }
            WorkloadKind::Shift { port, period } => {
                (entry.port, entry.period) = (Some(port), Some(period));
                Run::Shift
            }
            WorkloadKind::ReadFiles => Run::ReadFiles,
            WorkloadKind::ReadBurn { cost } => {
                entry.cost = Some(cost);
                Run::ReadBurn
            }
            WorkloadKind::Sink { port } => {
                entry.port = Some(port);
                Run::Sink
            }
            WorkloadKind::Messages { tasks, rounds } => {
                (entry.tasks, entry.rounds) = (Some(tasks), Some(rounds));
                Run::Messages
            }
            WorkloadKind::Churn => Run::Churn,
            WorkloadKind::Program { command, repeat, cold } => {
                (entry.command, entry.repeat, entry.cold) = (Some(command), Some(repeat), Some(cold));
                Run::Program
            }
            WorkloadKind::Storm { of } => {
                entry.of = Some(of);
                Run::Storm
            }
        };
        entry
    }
}

/// The keys that a flat entry has, which depend on its `run`.
struct Keys {
    /// What the entry is.
    entry: &'static str,
    run: &'static str,
    always: &'static [&'static str],
    needed: &'static [&'static str],
    optional: &'static [&'static str],
}

impl Keys {
    /// Refuses a key that is set and that the entry does not have.
    fn refuse_others(&self, set: &[(&'static str, bool)]) -> Result<(), String> {
        let own = || self.always.iter().chain(self.needed).chain(self.optional);
        let other = set.iter().find(|(key, set)| *set && !own().any(|own| own == key));
        other.map_or(Ok(()), |(key, _)| {
            Err(format!("a {} with run = {:?} has {} only, not `{key}`", self.entry, self.run, listed(own())))
        })
    }

    /// That one is missing which it needs.
    fn lacks(&self) -> String {
        format!("a {} with run = {:?} needs {}", self.entry, self.run, listed(self.needed))
    }
}

/// "`a`, `b` and `c`".
fn listed<'a>(keys: impl IntoIterator<Item = &'a &'static str>) -> String {
    let keys: Vec<_> = keys.into_iter().map(|key| format!("`{key}`")).collect();
    match keys.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Load from outside: a client of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "LoadEntry", into = "LoadEntry")]
pub struct LoadProfile {
    /// Name of the VM entry; each of its VMs gets a client.
    pub vm: String,
    /// What the client does.
    pub kind: LoadKind,
}

/// What a client does.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadKind {
    /// Sends a request, waits for the answer, thinks, and again (TAVS §5.1).
    Ask {
        /// Transport protocol.
        protocol: Protocol,
        /// Port asked: an echo or shift of the VM listens on it.
        port: u16,
        /// Bytes of a request. 1 to 1400.
        bytes: usize,
        /// Shortest and longest think time, uniformly distributed, before `think_scale`. 0 s to 1 h.
        think: [Duration; 2],
    },
    /// Sends over TCP without pause, as if over the paper's network of 100 Mbit/s (TAVS §5.1), six times slower.
    Bulk {
        /// Port sent to: a sink of the VM listens on it.
        port: u16,
    },
    /// Types into a text editor that runs in the Debian system, over ssh, and waits for each letter to appear (TAVS §5.3).
    Edit {
        /// Shortest and longest time between letters, as for `Ask`.
        think: [Duration; 2],
    },
}

impl LoadKind {
    /// Whether it waits for answers, so that there are response times.
    #[must_use]
    pub fn waits(&self) -> bool {
        !matches!(self, LoadKind::Bulk { .. })
    }

    /// Whether a workload is what it is for.
    pub(crate) fn is_for(&self, workload: &WorkloadKind) -> bool {
        let sink = matches!(workload, WorkloadKind::Sink { .. });
        match *self {
            LoadKind::Ask { protocol, port, .. } => !sink && workload.listens() == Some((protocol, port)),
            LoadKind::Bulk { port } => sink && workload.listens() == Some((Protocol::Tcp, port)),
            LoadKind::Edit { .. } => workload.is_sshd(),
        }
    }
}

/// A [`LoadProfile`] as the file has it; flat, like a [`WorkloadEntry`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadEntry {
    vm: String,
    #[serde(default)]
    run: LoadRun,
    #[serde(default, with = "protocol", skip_serializing_if = "Option::is_none")]
    protocol: Option<Protocol>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    think: Option<[Serde<Duration>; 2]>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LoadRun {
    #[default]
    Ask,
    Bulk,
    Edit,
}

impl LoadRun {
    fn keys(self) -> Keys {
        let (run, needed): (_, &[_]) = match self {
            LoadRun::Ask => ("ask", &["protocol", "port", "bytes", "think"]),
            LoadRun::Bulk => ("bulk", &["port"]),
            LoadRun::Edit => ("edit", &["think"]),
        };
        Keys { entry: "load", run, always: &["vm", "run"], needed, optional: &[] }
    }
}

impl TryFrom<LoadEntry> for LoadProfile {
    type Error = String;

    fn try_from(entry: LoadEntry) -> Result<Self, Self::Error> {
        let set = [
            ("protocol", entry.protocol.is_some()),
            ("port", entry.port.is_some()),
            ("bytes", entry.bytes.is_some()),
            ("think", entry.think.is_some()),
        ];
        entry.run.keys().refuse_others(&set)?;
        let think = entry.think.map(|think| think.map(Serde::into_inner));
        let kind = || {
            Some(match entry.run {
                LoadRun::Ask => LoadKind::Ask {
                    protocol: entry.protocol?,
                    port: entry.port?,
                    bytes: entry.bytes?,
                    think: think?,
                },
                LoadRun::Bulk => LoadKind::Bulk { port: entry.port? },
                LoadRun::Edit => LoadKind::Edit { think: think? },
            })
        };
        Ok(LoadProfile { vm: entry.vm, kind: kind().ok_or_else(|| entry.run.keys().lacks())? })
    }
}

impl From<LoadProfile> for LoadEntry {
    fn from(load: LoadProfile) -> Self {
        let (run, protocol, port, bytes, think) = match load.kind {
            LoadKind::Ask { protocol, port, bytes, think } => {
                (LoadRun::Ask, Some(protocol), Some(port), Some(bytes), Some(think))
            }
            LoadKind::Bulk { port } => (LoadRun::Bulk, None, Some(port), None, None),
            LoadKind::Edit { think } => (LoadRun::Edit, None, None, None, Some(think)),
        };
        let think = think.map(|think| think.map(Serde::from));
        LoadEntry { vm: load.vm, run, protocol, port, bytes, think }
    }
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

/// Bars to reach; each that is given becomes a check. A bar is a number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checks {
    /// Numbers of an arm, alone or against those of another.
    pub compare: Vec<Compare>,
    /// What one VM gains against what others lose.
    pub gain: Vec<Gain>,
    /// CPU time of each VM that wants its share against that share, in every arm in which the daemon acts, relative deviation: at
    /// most.
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

/// A bar for a number of an arm, or for two of the same repeat against each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// What it says, for a reader.
    pub name: String,
    /// Which number.
    pub measure: Measure,
    /// The number that is judged.
    pub of: Subject,
    /// It is divided by this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Subject>,
    /// This one is subtracted from it. At most one of this and `over`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minus: Option<Subject>,
    /// The result must not be above this. Either this or `at_least`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// The result must not be below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
}

impl Compare {
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

/// A bar for relative gain over relative loss of throughput between two arms of the same repeat (TAVS §5.4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gain {
    /// What it says, for a reader.
    pub name: String,
    /// Whose throughput rises, and in which arm.
    pub of: Subject,
    /// The arm before.
    pub base: String,
    /// Whose throughput falls: a VM entry and a workload.
    pub loser: Loser,
    /// Gain over loss must not be below this. A loss of nothing counts as very small.
    pub at_least: f64,
}

/// Who pays for a [`Gain`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loser {
    /// Name of a VM entry.
    pub vm: String,
    /// Name of one of its workloads.
    pub workload: String,
}

/// A number of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Response times: arithmetic mean.
    Mean,
    /// Response times: median.
    P50,
    /// Response times: 95th percentile.
    P95,
    /// Response times: 99th percentile.
    P99,
    /// Throughput of a workload: bytes per second if it moves bytes, else operations per second.
    Rate,
    /// Mean time of a workload's operations.
    Time,
    /// Fraction of boosts in which an I/O-bound task really woke.
    Pbhr,
    /// Median time until the belief follows a change of a task's character, in milliseconds.
    Follow,
    /// Boosts of a task that is no longer I/O-bound, over all boosts.
    Wasted,
}

/// What a number is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// The arm.
    pub arm: String,
    /// Name of a VM entry; without it, all VMs that have such a number, together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// Name of a workload (`rate`, `time`: needed), or, of response times, of the workload asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
}

/// A key of [`Checks`] with a single bar.
pub(crate) struct CheckKey<'a> {
    pub(crate) key: &'static str,
    pub(crate) bar: &'a mut Option<f64>,
    needs: Needs,
}

/// What a check needs to be measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// No arm: it is measured apart from them.
    Nothing,
    /// An arm called "frontdesk".
    Frontdesk,
    /// An arm in which the daemon acts.
    Acting,
}

impl CheckKey<'_> {
    /// What it needs and some arms lack.
    pub(crate) fn lacks(&self, arms: &IndexMap<String, Arm>) -> Option<&'static str> {
        match self.needs {
            Needs::Frontdesk if !arms.contains_key("frontdesk") => Some("an arm called \"frontdesk\""),
            Needs::Acting if arms.values().all(|arm| arm.daemon != Daemon::Act) => {
                Some("an arm with daemon = \"act\"")
            }
            _ => None,
        }
    }
}

impl Checks {
    /// All checks with a single bar.
    pub(crate) fn keys(&mut self) -> [CheckKey<'_>; 7] {
        let key = |key, bar, needs| CheckKey { key, bar, needs };
        [
            key("share_error", &mut self.share_error, Needs::Acting),
            key("pbhr", &mut self.pbhr, Needs::Frontdesk),
            key("decision_p99_us", &mut self.decision_p99_us, Needs::Frontdesk),
            key("daemon_cpu", &mut self.daemon_cpu, Needs::Frontdesk),
            key("plugin_cpu_slowdown", &mut self.plugin_cpu_slowdown, Needs::Nothing),
            key("plugin_fork_slowdown", &mut self.plugin_fork_slowdown, Needs::Nothing),
            key("engine_events_per_s", &mut self.engine_events_per_s, Needs::Frontdesk),
        ]
    }
}

/// A [`Protocol`], if any, as "tcp" or "udp".
pub(crate) mod protocol {
    use super::Protocol;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn name(protocol: Protocol) -> &'static str {
        match protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }

    #[allow(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        protocol: &Option<Protocol>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        protocol.map(name).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Protocol>, D::Error> {
        let name = String::deserialize(deserializer)?;
        match name.as_str() {
            "tcp" => Ok(Some(Protocol::Tcp)),
            "udp" => Ok(Some(Protocol::Udp)),
            _ => Err(D::Error::unknown_variant(&name, &["tcp", "udp"])),
        }
    }
}
