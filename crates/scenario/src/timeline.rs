//! What happened during one repeat, for the report's plots and for Perfetto.

use serde::{Deserialize, Serialize};

/// What happened during one repeat of an arm. All times are nanoseconds since its start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Timeline {
    /// The arm.
    pub arm: String,
    /// Number of the repeat, from 1.
    pub repeat: u32,
    /// Names of the VMs; the other records hold an index into it.
    pub vms: Vec<String>,
    /// Host threads of VMs on physical CPUs.
    pub runs: Vec<RunSlice>,
    /// Guest tasks on vCPUs.
    pub tasks: Vec<TaskSlice>,
    /// Boosts.
    pub boosts: Vec<BoostSlice>,
    /// Packets towards VMs.
    pub packets: Vec<PacketMark>,
    /// Blocks that VMs read from their disks.
    #[serde(default)]
    pub reads: Vec<BlockMark>,
    /// Degree of belief of guest tasks, sampled.
    pub beliefs: Vec<BeliefPoint>,
    /// A task whose degree of belief is above this counts as I/O-bound (`policy.tavs.belief_threshold`).
    pub belief_threshold: i32,
}

/// A host thread of a VM on a physical CPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunSlice {
    /// Index of the VM.
    pub vm: usize,
    /// "vCPU 0", "emulator 0".
    pub thread: String,
    /// The physical CPU.
    pub pcpu: u16,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// A guest task on a vCPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskSlice {
    /// Index of the VM.
    pub vm: usize,
    /// Index of the vCPU.
    pub vcpu: u16,
    /// The task as shown to people: its address-space root in hexadecimal, or "idle".
    pub task: String,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// A boost of a vCPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BoostSlice {
    /// Index of the VM.
    pub vm: usize,
    /// Index of the vCPU.
    pub vcpu: u16,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
    /// Whether an I/O-bound task ran in it.
    pub hit: bool,
}

/// A packet towards a VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PacketMark {
    /// Index of the VM.
    pub vm: usize,
    /// "tcp" or "udp".
    pub protocol: String,
    /// Destination port.
    pub port: u16,
    /// When it was queued towards the VM.
    pub at: u64,
    /// Time until the guest switched to another task after it, if it did before the next packet.
    pub task_delay: Option<u64>,
    /// What the engine decided about it, in words.
    pub decision: String,
}

/// A block that a VM reads from its disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BlockMark {
    /// Index of the VM.
    pub vm: usize,
    /// When it was requested.
    pub at: u64,
    /// When it was there, if it was before the repeat ended.
    pub done: Option<u64>,
    /// What the engine decided about it, in words.
    pub decision: String,
}

/// The degree of belief of a guest task at one time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BeliefPoint {
    /// Index of the VM.
    pub vm: usize,
    /// The task as shown to people.
    pub task: String,
    /// When.
    pub at: u64,
    /// The degree of belief.
    pub belief: i32,
}
