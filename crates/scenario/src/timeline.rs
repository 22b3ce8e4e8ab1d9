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
    /// What a disk did for VMs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk_work: Vec<DiskSlice>,
    /// What VMs draw on their displays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<DisplayMark>,
    /// Accesses of VMs to their sound cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sounds: Vec<SoundMark>,
    /// Times in which a person waited, probably, for what they had just started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub episodes: Vec<EpisodeSlice>,
    /// Times in which vCPUs had another weight than usual.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<WeightSlice>,
    /// Frame rates of guest tasks that play, sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frame_rates: Vec<FrameRatePoint>,
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

/// An episode of a VM, in which background work is slow (vAMP).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EpisodeSlice {
    /// Index of the VM.
    pub vm: usize,
    /// What it began with, in words.
    pub cause: String,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// A vCPU with another weight than usual.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WeightSlice {
    /// Index of the VM.
    pub vm: usize,
    /// Index of the vCPU.
    pub vcpu: u16,
    /// The weight, in permille of the usual one.
    pub permille: u32,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
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

/// A piece of work that a disk did for a VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskSlice {
    /// Index of the VM.
    pub vm: usize,
    /// "read", "write", "flush" or "discard".
    pub operation: String,
    /// How much, in bytes.
    pub bytes: u64,
    /// "high", "common" or "low" (vSIP).
    pub class: String,
    /// Why it has this class, in words.
    pub why: String,
    /// The guest task that asked, as shown to people, if that is known.
    pub task: Option<String>,
    /// When it was asked for,
    pub start: u64,
    /// given to the disk,
    pub begun: u64,
    /// and done.
    pub end: u64,
}

/// What a VM drew on its display.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DisplayMark {
    /// Index of the VM.
    pub vm: usize,
    /// When.
    pub at: u64,
    /// Where, as "640x354+192+397" (width, height, left and upper edge), or "all".
    pub region: String,
}

/// An access of a VM to its sound card.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SoundMark {
    /// Index of the VM.
    pub vm: usize,
    /// When.
    pub at: u64,
    /// Index of the vCPU.
    pub vcpu: u16,
    /// The task on it as shown to people; `None` in the handler of an interrupt.
    pub task: Option<String>,
}

/// The frame rate of a guest task that plays at one time, as the engine estimates it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FrameRatePoint {
    /// Index of the VM.
    pub vm: usize,
    /// The task as shown to people.
    pub task: String,
    /// When.
    pub at: u64,
    /// Frames a second.
    pub rate: f64,
    /// Frames a second that it seems to want.
    pub desired: f64,
    /// What the share of its VM is raised to for it, in permille of the VM's weight.
    pub share_permille: u32,
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
