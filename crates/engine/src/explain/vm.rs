//! What the engine knows about a VM.

use crate::capabilities::Standing;
use crate::event::{Protocol, TaskId, Time};
use crate::infer::EpisodeCause;
use serde::{Deserialize, Serialize};

/// Everything the engine knows about a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmExplain {
    /// Its weight among the others.
    pub weight: u32,
    /// The fraction of its weight that it has at the moment, lowered while it repays, in permille.
    pub share_permille: u32,
    /// CPU time it got beyond its fair share and has not repaid; negative if it is owed.
    pub debt_ns: i64,
    /// Whether it is paused.
    pub paused: bool,
    /// Whether it is acted on, only observed, or scheduled by its reservation.
    pub standing: Standing,
    /// The fraction of the CPU time of its vCPUs that they may use boosted (`PBratio`); 0 if it is not to be
    /// boosted.
    pub pb_allowed_ratio: f64,
    /// The fraction that they used boosted in the last periods.
    pub pb_used_ratio: f64,
    /// CPU time that a boosted vCPU is given to answer an event, as learnt so far.
    pub patience_ns: u64,
    /// CPU time its emulator threads used, and what else its emulator ran.
    pub emulator_ran_ns: u64,
    /// Events of this VM alone that sources reported as lost.
    pub lost_events: u64,
    /// Its vCPUs, by index.
    pub vcpus: Vec<VcpuExplain>,
    /// Guest tasks remembered.
    pub task_count: usize,
    /// Of these, I/O-bound ones.
    pub io_bound_count: usize,
    /// Guest tasks, most recently seen first.
    pub tasks: Vec<TaskExplain>,
    /// Ports whose correlation counter is not zero, by number.
    pub ports: Vec<PortExplain>,
    /// What it plays; absent as long as it has never played anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multimedia: Option<MultimediaExplain>,
    /// What a person does with it; absent as long as nobody has done anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asymmetric: Option<AsymmetricExplain>,
    /// How its threads starved; absent as long as none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starvation: Option<StarvationExplain>,
}

/// How threads of a VM starved: the host's scheduler gave them no physical CPU for longer than turns take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StarvationExplain {
    /// Turns that they were given.
    pub turns: u64,
    /// The longest time that one wanted a physical CPU and got none by itself, as far as was looked.
    pub longest_wait_ns: u64,
    /// CPU time that they used in such turns alone.
    pub boosted_ns: u64,
}

/// What a person does with a VM, and what it gets for that (vAMP).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsymmetricExplain {
    /// The episode that goes on.
    pub episode: Option<EpisodeExplain>,
    /// Its background work, what used most first, as it was when it was looked at last.
    pub background: Vec<BackgroundExplain>,
    /// For whom a sound server plays, probably: that is no background work.
    pub sound_client: Option<TaskId>,
    /// How often a vCPU was made slow,
    pub slowed: u64,
    /// and how often one was made fast because it was interrupted.
    pub restored: u64,
}

/// A time in which a person waits, probably, for what is no background work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeExplain {
    /// What it began with.
    pub cause: EpisodeCause,
    /// When it began,
    #[serde(rename = "since_ns")]
    pub since: Time,
    /// and when it ends, unless something new begins before.
    #[serde(rename = "until_ns")]
    pub until: Time,
    /// Whether vCPUs that run background work are slow: others want the physical CPUs.
    pub acts: bool,
    /// Indices of the vCPUs that are slow.
    pub slow: Vec<u16>,
}

/// A guest task that is background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackgroundExplain {
    /// The task.
    pub task: TaskId,
    /// Since when it has been, each time that was looked at.
    #[serde(rename = "since_ns")]
    pub since: Time,
    /// What it used before that, with its part of stolen time, in permille of a CPU.
    pub load_permille: u64,
}

/// What a VM plays, and what it gets for that (MM).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MultimediaExplain {
    /// Its tasks that show frames and play sound.
    pub players: Vec<PlayerExplain>,
    /// What its share is raised to for them, in permille of its weight.
    pub share_permille: u32,
    /// Boosts so far.
    pub boosts: u64,
    /// Boosts that it was refused because it owed CPU time.
    pub in_debt: u64,
    /// Boosts that it was refused because `boost_limit` was used up.
    pub limited: u64,
    /// CPU time that its threads used boosted for multimedia alone.
    pub boosted_ns: u64,
}

/// A task that shows frames and plays sound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlayerExplain {
    /// The task.
    pub task: TaskId,
    /// Whether a graphics processor shows its frames, which are counted by what that completes.
    pub gpu: bool,
    /// Since when it has been playing.
    #[serde(rename = "since_ns")]
    pub since: Time,
    /// Frames that it shows a second, as an average of late.
    pub frame_rate: f64,
    /// Frames a second that it seems to want.
    pub desired_rate: f64,
    /// What the VM's share is raised to for it, in permille of the VM's weight.
    pub share_permille: u32,
}

/// What the engine knows about a vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuExplain {
    /// Its index.
    pub index: u16,
    /// The task on it; `None` if it is halted or not known yet.
    pub current: Option<TaskId>,
    /// Whether it is boosted now.
    pub boosted: bool,
    /// CPU time it used.
    pub ran_ns: u64,
    /// Stolen time: it was runnable but did not run.
    pub stolen_ns: u64,
    /// CPU time it used boosted.
    pub boosted_ns: u64,
    /// Boosts so far.
    pub boosts: u64,
    /// Of those that ended, those in which an I/O-bound task ran, or after which the whole VM slept again.
    /// Their fraction is the paper's PBHR (TAVS §5.2).
    pub hits: u64,
    /// Boosts so far that ended only by time.
    pub expired: u64,
}

/// What the engine knows about a guest task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskExplain {
    /// Its identity: an address space, or whatever the source tells.
    pub id: TaskId,
    /// Its process id in the guest. The engine does not know it: whoever asks may.
    pub pid: Option<u32>,
    /// Its name, as the guest wrote it. The engine does not know it: whoever asks may.
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
    #[serde(rename = "last_seen_ns")]
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
