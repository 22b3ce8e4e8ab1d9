//! The state behind the engine's decisions, for people.

use crate::action::Boost;
use crate::event::{Protocol, TaskId, Time, VmId};
use serde::Serialize;

/// Everything the engine knows about a VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmExplain {
    /// The VM.
    pub vm: VmId,
    /// Its vCPUs, by index.
    pub vcpus: Vec<VcpuExplain>,
    /// Ports whose correlation counter is not zero.
    pub ports: Vec<PortExplain>,
    /// Nanoseconds of CPU the VM got beyond its fair share and has not repaid (negative: it is owed).
    pub debt_ns: i64,
    /// The fraction of its weight it has at the moment, in permille.
    pub share_permille: u16,
    /// Nanoseconds its emulator threads ran.
    pub emulator_ran_ns: u64,
    /// The latest decision about an event.
    pub decision: Option<Decision>,
}

/// What the engine knows about a vCPU.
#[derive(Clone, Debug, Serialize)]
pub struct VcpuExplain {
    /// The task on it; `None` if it is halted or not known yet.
    pub current: Option<TaskId>,
    /// Dispatch preference.
    pub boost: Boost,
    /// Nanoseconds it ran.
    pub ran_ns: u64,
    /// Stolen time: nanoseconds it was runnable but did not run.
    pub stolen_ns: u64,
    /// Nanoseconds it ran boosted.
    pub boosted_ns: u64,
    /// Boosts so far.
    pub boosts: u64,
    /// Boosts so far in which an I/O-bound task ran. Their fraction is the paper's PBHR (TAVS §5.2).
    pub hits: u64,
    /// Boosts so far that ended only by time.
    pub expired: u64,
    /// Boosted CPU time over all CPU time in the last periods; to compare with `pb_ratio`.
    pub pb_used: f64,
    /// Guest tasks remembered, most recently seen first.
    pub tasks: Vec<TaskExplain>,
}

/// What the engine knows about a guest task.
#[derive(Clone, Debug, Serialize)]
pub struct TaskExplain {
    /// The task.
    pub task: TaskId,
    /// Degree of belief that it is I/O-bound.
    pub belief: i32,
    /// Whether that is above the threshold.
    pub io_bound: bool,
    /// Nanoseconds it ran.
    pub ran_ns: u64,
    /// Times it was dispatched.
    pub dispatches: u64,
    /// When it was dispatched last.
    pub last_seen: Time,
}

/// The correlation of a port (TAVS §3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PortExplain {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Destination port.
    pub port: u16,
    /// The saturating counter.
    pub counter: u64,
    /// Whether a packet to it boosts.
    pub boosts: bool,
}

/// A decision about an event, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// When.
    pub at: Time,
    /// The outcome.
    pub verdict: Reason,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Reason::Boosted => "boosted",
            Reason::AlreadyBoosted => "boosted already",
            Reason::NotCorrelated => "not correlated with an I/O-bound task",
            Reason::NoIoBoundTask => "no I/O-bound task",
            Reason::BudgetSpent => "pb_ratio is used up",
            Reason::LimitReached => "boost_limit is used up",
            Reason::Off => "boosting is off",
            Reason::Paused => "the VM is paused",
        })
    }
}

/// Why an event boosted a vCPU, or did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It boosted.
    Boosted,
    /// A vCPU of the VM was boosted already.
    AlreadyBoosted,
    /// The correlation does not say that an I/O-bound task waits for such an event.
    NotCorrelated,
    /// No guest task of the VM is I/O-bound.
    NoIoBoundTask,
    /// The vCPU has used up `pb_ratio`.
    BudgetSpent,
    /// The VM has used up `boost_limit`.
    LimitReached,
    /// Boosting is turned off, for all (`pb_ratio` is 0) or for this VM.
    Off,
    /// The VM is paused.
    Paused,
}
