//! Requests to the disk.

use frontdesk_engine::TaskId;

/// Class of a request: a higher one is served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoClass {
    /// Of a VM that was put first.
    High,
    /// Of any other.
    #[default]
    Common,
    /// Only when the disk has nothing else to do.
    Low,
}

/// A request of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRequest {
    /// Identifies it.
    pub id: u64,
    /// Whose process it is of.
    pub vm: usize,
    /// The vCPU that asked.
    pub vcpu: usize,
    /// The guest's task that asked.
    pub asker: usize,
    /// Its address space.
    pub space: TaskId,
    /// The number of its workload in the VM.
    pub workload: usize,
    /// The guest's task that waits for it, if any.
    pub task: Option<usize>,
    /// How much.
    pub bytes: u32,
    /// Whether it follows the one before of the same task.
    pub sequential: bool,
    /// Its class, where classes are given by hand.
    pub class: IoClass,
    /// Whether it is a write.
    pub write: bool,
}
