//! What a daemon tells about itself: the schema of `frontdesk status --json`. Reservations are told in `reservation`.
//!
//! Times are in nanoseconds (`_ns`) of the host's monotonic clock, or in seconds (`_seconds`); fractions are between 0 and 1
//! (`_ratio`). Fields may be added; whatever else changes, changes [`SCHEMA`].

use crate::scx::Usage;
use frontdesk_engine::{
    Boost, Capabilities, Config, PortExplain, Recent, Standing, TaskExplain, TaskId, VcpuExplain, VmExplain,
};
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
    /// How it puts vCPUs first; "none" if it can't any more.
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
    pub decision_latency: Latency,
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
pub struct Latency {
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
    /// Its weight among the others.
    pub weight: u32,
    /// What the kernel has charged it with since frontdesk took control of it, where sched_ext is the mechanism. Debt and share then
    /// have no effect: there is nothing to take back.
    pub charged: Option<Usage>,
    /// The fraction of its weight that it has at the moment, lowered while it repays, in permille.
    pub share_permille: u32,
    /// CPU time it got beyond its fair share and has not repaid; negative if it is owed.
    pub debt_ns: i64,
    /// Whether it is paused.
    pub paused: bool,
    /// Whether it is acted on, only observed, or scheduled by its reservation.
    pub standing: Standing,
    /// What is wrong with it, for people.
    pub trouble: Option<String>,
    /// How its guest tasks are told apart; absent if they are not, and then nothing is boosted.
    pub identity: Option<Identity>,
    /// The fraction of the CPU time of its vCPUs that they may use boosted (`PBratio`); 0 if it is not to be boosted.
    pub pb_allowed_ratio: f64,
    /// The fraction that they used boosted lately.
    pub pb_used_ratio: f64,
    /// CPU time that a boosted vCPU is given to answer an event, as learnt so far.
    pub patience_ns: u64,
    /// CPU time its emulator threads used.
    pub emulator_ran_ns: u64,
    /// Events of this VM alone that were lost.
    pub lost_events: u64,
    /// Memory the daemon's engine holds for it.
    pub memory_bytes: usize,
    /// Its vCPUs, by index.
    pub vcpus: Vec<VcpuStatus>,
    /// Guest tasks remembered.
    pub task_count: usize,
    /// Of these, I/O-bound ones.
    pub io_bound_count: usize,
    /// Guest tasks, most recently seen first: ten, or all if the VM was asked for by name.
    pub tasks: Vec<TaskStatus>,
    /// Ports whose packets woke an I/O-bound task, by number: the first few, or all that are worth a look if the VM was asked for by
    /// name.
    pub ports: Vec<PortExplain>,
    /// The decisions of the last seconds.
    pub recent: Recent,
}

/// How guest tasks are told apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Who tells, for people.
    pub source: String,
    /// Whether every switch is seen; if not, samples of what runs.
    pub exact: bool,
}

/// A vCPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VcpuStatus {
    /// Its index.
    pub index: u16,
    /// The guest task on it; absent if it is halted or not known yet.
    pub current: Option<TaskId>,
    /// Whether it is boosted now.
    pub boosted: bool,
    /// CPU time it used.
    pub ran_ns: u64,
    /// Time it was runnable, but did not run.
    pub stolen_ns: u64,
    /// CPU time it used boosted.
    pub boosted_ns: u64,
    /// Boosts.
    pub boosts: u64,
    /// Of those that ended, those in which an I/O-bound task ran.
    pub hits: u64,
    /// Boosts that ended only by time.
    pub expired: u64,
}

/// A guest task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Its identity: an address space, or whatever the source tells.
    pub id: TaskId,
    /// Its process id in the guest, where the guest tells.
    pub pid: Option<u32>,
    /// Its name, where the guest tells; as the guest wrote it.
    pub name: Option<String>,
    /// Degree of belief that it is I/O-bound.
    pub belief: i32,
    /// Whether that is above the threshold.
    pub io_bound: bool,
    /// CPU time it used.
    pub ran_ns: u64,
    /// Times it was dispatched.
    pub dispatches: u64,
    /// When it was dispatched last.
    pub last_seen_ns: u64,
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
    pub(crate) fn new(
        facts: VmFacts<'_>,
        explain: VmExplain,
        recent: Recent,
        memory_bytes: usize,
    ) -> VmStatus {
        VmStatus {
            name: facts.name.to_owned(),
            pid: facts.pid,
            weight: explain.weight,
            charged: None,
            share_permille: explain.share_permille,
            debt_ns: explain.debt_ns,
            paused: explain.paused,
            standing: explain.standing,
            trouble: facts.trouble,
            identity: facts.identity,
            pb_allowed_ratio: explain.pb_ratio,
            pb_used_ratio: explain.pb_used,
            patience_ns: explain.patience_ns,
            emulator_ran_ns: explain.emulator_ran_ns,
            lost_events: explain.lost,
            memory_bytes,
            vcpus: (0..).zip(explain.vcpus).map(|(index, vcpu)| VcpuStatus::new(index, vcpu)).collect(),
            task_count: explain.task_count,
            io_bound_count: explain.io_bound_count,
            tasks: explain.tasks.into_iter().map(TaskStatus::new).collect(),
            ports: explain.ports,
            recent,
        }
    }

    /// CPU time of all its threads.
    #[must_use]
    pub fn ran_ns(&self) -> u64 {
        self.sum(|vcpu| vcpu.ran_ns).saturating_add(self.emulator_ran_ns)
    }

    /// Boosts of all its vCPUs.
    #[must_use]
    pub fn boosts(&self) -> u64 {
        self.sum(|vcpu| vcpu.boosts)
    }

    /// A sum over its vCPUs.
    #[must_use]
    pub fn sum(&self, of: impl Fn(&VcpuStatus) -> u64) -> u64 {
        self.vcpus.iter().map(of).fold(0, u64::saturating_add)
    }
}

/// What the daemon knows of a VM besides what its engine knows.
pub(crate) struct VmFacts<'a> {
    pub(crate) name: &'a str,
    pub(crate) pid: i32,
    pub(crate) trouble: Option<String>,
    pub(crate) identity: Option<Identity>,
}

impl VcpuStatus {
    fn new(index: u16, explain: VcpuExplain) -> VcpuStatus {
        VcpuStatus {
            index,
            current: explain.current,
            boosted: explain.boost != Boost::None,
            ran_ns: explain.ran_ns,
            stolen_ns: explain.stolen_ns,
            boosted_ns: explain.boosted_ns,
            boosts: explain.boosts,
            hits: explain.hits,
            expired: explain.expired,
        }
    }
}

impl TaskStatus {
    fn new(explain: TaskExplain) -> TaskStatus {
        TaskStatus {
            id: explain.task,
            pid: None,
            name: None,
            belief: explain.belief,
            io_bound: explain.io_bound,
            ran_ns: explain.ran_ns,
            dispatches: explain.dispatches,
            last_seen_ns: explain.last_seen.0,
        }
    }
}
