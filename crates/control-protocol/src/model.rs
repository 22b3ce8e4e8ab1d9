//! What a daemon tells about itself: the schema of `frontdesk status --json`. Reservations are told in
//! `reservation`.
//!
//! Times are in nanoseconds (`_ns`) of the host's monotonic clock, or in seconds (`_seconds`); fractions are
//! between 0 and 1 (`_ratio`). Fields may be added; whatever else changes, changes [`SCHEMA`].

use frontdesk_disk_protocol::DiskReport;
use frontdesk_engine::{Capabilities, Config, Recent, VcpuExplain, VmExplain};
use serde::{Deserialize, Serialize};

/// The version of this schema.
pub const SCHEMA: u32 = 2;

/// A daemon and its VMs at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`SCHEMA`] of the daemon that wrote it.
    pub schema: u32,
    /// The moment.
    pub at_ns: u64,
    /// The daemon.
    pub daemon: DaemonStatus,
    /// The engine's parameters.
    pub policy: Config,
    /// The VMs followed, by name.
    pub vms: Vec<VmStatus>,
}

/// The daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// When it began to follow.
    pub since_ns: u64,
    /// Whether it acts; if not, it only watches and infers.
    pub acting: bool,
    /// What it can do on this host, as its engine was told.
    pub capabilities: Capabilities,
    /// How it puts vCPUs first; "none" if it cannot any more.
    pub mechanism: String,
    /// That the kernel has ejected frontdesk's sched_ext scheduler, why, and how it goes on, for people.
    pub ejection: Option<String>,
    /// Where it hears what happens, and what was found when they were probed.
    pub sources: Vec<SourceStatus>,
    /// Events handled.
    pub events: u64,
    /// Actions applied.
    pub actions: u64,
    /// Events lost on the way, because a buffer was full.
    pub lost_events: u64,
    /// Events older than one handled before.
    pub late_events: u64,
    /// Events about a VM or vCPU that is not followed.
    pub unknown_events: u64,
    /// From the event that causes a boost to its effect.
    pub decision_latency: DecisionLatency,
    /// CPU time the daemon's process used.
    pub cpu_seconds: f64,
}

/// Where a daemon hears what happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// What it is.
    pub name: String,
    /// Whether it is in use.
    pub in_use: bool,
    /// What was found.
    pub found: String,
}

/// The distribution of a latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionLatency {
    /// It covers the boosts of at least the last minute and at most the last two.
    pub count: u64,
    /// Median; 0 if there were none, as the others.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmStatus {
    /// Its name.
    pub name: String,
    /// Process id of its QEMU.
    pub pid: i32,
    /// What the kernel has charged it with since frontdesk took control of it, where sched_ext is the
    /// mechanism. Debt and share then have no effect: there is nothing to take back.
    pub charged: Option<Usage>,
    /// What is wrong with it, for people.
    pub trouble: Option<String>,
    /// Paths of its I/O of which nothing is heard, and what to use instead, for people.
    #[serde(default)]
    pub unheard: Vec<String>,
    /// How its guest tasks are told apart; absent if they are not, and then nothing is boosted.
    pub identity: Option<IdentityStatus>,
    /// What the extension in the guest does; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<ExtensionStatus>,
    /// Its disks that `frontdesk disk` serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskStatus>,
    /// Memory the daemon's engine holds for it.
    pub memory_bytes: usize,
    /// What its engine knows of it: of tasks and ports the first few, or all that are worth a look if the VM
    /// was asked for by name.
    #[serde(flatten)]
    pub engine: VmExplain,
    /// The decisions of the last minute.
    pub recent: Recent,
}

/// What the kernel has charged a VM with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of all its threads, in nanoseconds.
    pub consumed_ns: u64,
    /// The part of it in which they went first.
    pub boosted_ns: u64,
    /// How many times a thread of it got a CPU.
    pub runs: u64,
    /// The part of them in which it went first.
    pub boosted_runs: u64,
    /// Boosts that the kernel gave it by itself.
    #[serde(default)]
    pub gifts: u64,
    /// The part of them that the engine ordered as well; the others were taken back, or ended by themselves.
    #[serde(default)]
    pub gifts_taken_over: u64,
}

/// How guest tasks are told apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityStatus {
    /// Who tells, for people.
    pub source: String,
    /// Whether every switch is seen; if not, samples of what runs.
    pub exact: bool,
}

/// A disk of a VM that `frontdesk disk` serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its name.
    pub name: String,
    /// The thread that serves it.
    pub thread: i32,
    /// Why nobody comes first there, for people; absent if who asks is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// What it served since the VM was connected, as it said a second ago.
    pub report: DiskReport,
}

/// What the extension in a guest does about background work (vAMP §3.3), as it says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionStatus {
    /// The vCPUs that it keeps for background work; none outside an episode.
    pub slow: Vec<u16>,
    /// Threads that run there,
    pub background: u16,
    /// and on the others.
    pub others: u16,
    /// Why it can keep none, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl Status {
    /// Whether a VM needs the operator's attention.
    #[must_use]
    pub fn in_trouble(&self) -> bool {
        self.vms.iter().any(|vm| vm.trouble.is_some())
    }
}

impl VmStatus {
    /// What the engine knows of a VM, with what the daemon knows besides.
    #[must_use]
    pub fn new(facts: VmFacts<'_>, engine: VmExplain, recent: Recent, memory_bytes: usize) -> VmStatus {
        VmStatus {
            name: facts.name.to_owned(),
            pid: facts.pid,
            charged: None,
            trouble: facts.trouble,
            unheard: facts.unheard,
            identity: facts.identity,
            extension: facts.extension,
            disks: Vec::new(),
            memory_bytes,
            engine,
            recent,
        }
    }

    /// CPU time of all its threads.
    #[must_use]
    pub fn ran_ns(&self) -> u64 {
        self.sum(|vcpu| vcpu.ran_ns).saturating_add(self.engine.emulator_ran_ns)
    }

    /// Boosts of all its vCPUs.
    #[must_use]
    pub fn boosts(&self) -> u64 {
        self.sum(|vcpu| vcpu.boosts)
    }

    /// A sum over its vCPUs.
    #[must_use]
    pub fn sum(&self, of: impl Fn(&VcpuExplain) -> u64) -> u64 {
        self.engine.vcpus.iter().map(of).fold(0, u64::saturating_add)
    }
}

/// What the daemon knows of a VM besides what its engine knows.
pub struct VmFacts<'a> {
    /// Its name.
    pub name: &'a str,
    /// Process id of its QEMU.
    pub pid: i32,
    /// What is wrong with it, for people.
    pub trouble: Option<String>,
    /// Paths of its I/O of which nothing is heard, and what to use instead, for people.
    pub unheard: Vec<String>,
    /// How its guest tasks are told apart.
    pub identity: Option<IdentityStatus>,
    /// What the extension in the guest does.
    pub extension: Option<ExtensionStatus>,
}
