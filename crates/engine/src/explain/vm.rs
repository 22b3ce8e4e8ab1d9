//! What the engine knows about a VM.

use super::decision::Decision;
use crate::action::Boost;
use crate::capabilities::Standing;
use crate::event::{Protocol, TaskId, Time, VmId};
use serde::{Deserialize, Serialize};

/// Everything the engine knows about a VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmExplain {
    /// The VM.
    pub vm: VmId,
    /// Its weight among the others.
    pub weight: u32,
    /// Its vCPUs, by index.
    pub vcpus: Vec<VcpuExplain>,
    /// Guest tasks remembered.
    pub task_count: usize,
    /// Of these, I/O-bound ones.
    pub io_bound_count: usize,
    /// Guest tasks, most recently seen first.
    pub tasks: Vec<TaskExplain>,
    /// Nanoseconds of run time that a boosted vCPU is given for an answer to an event, as learnt so far.
    pub patience_ns: u64,
    /// Ports whose correlation counter is not zero, by number.
    pub ports: Vec<PortExplain>,
    /// Nanoseconds of CPU the VM got beyond its fair share and has not repaid (negative: it is owed).
    pub debt_ns: i64,
    /// The fraction of its weight it has at the moment, in permille.
    pub share_permille: u32,
    /// The fraction of the CPU time of its vCPUs that they may use boosted; 0 if it is not to be boosted.
    pub pb_ratio: f64,
    /// The fraction that they used boosted in the last periods.
    pub pb_used: f64,
    /// Whether it is paused.
    pub paused: bool,
    /// How it stands.
    pub standing: Standing,
    /// Nanoseconds its emulator threads ran.
    pub emulator_ran_ns: u64,
    /// Events of this VM alone that sources reported as lost.
    pub lost: u64,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
