//! What a back end writes of each piece of work, for those who want to see it.

use frontdesk_engine::TaskId;
use serde::{Deserialize, Serialize};

/// A piece of work that the disk did: a request, or a part of a large one. A trace has a line of JSON for
/// each, in the order in which they were done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedWork {
    /// The name of the VM's disk.
    pub vm: String,
    /// "read", "write", "flush" or "discard".
    pub operation: String,
    /// Where it begins on the VM's disk, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub bytes: u64,
    /// "high", "common" or "low".
    pub class: String,
    /// Why it has this class, in words.
    pub why: String,
    /// The vCPU that asked, if that is known.
    pub vcpu: Option<u16>,
    /// The guest task that asked, if that is known.
    pub task: Option<TaskId>,
    /// When it was asked for, in nanoseconds of the monotonic clock,
    pub asked_ns: u64,
    /// given to the disk,
    pub begun_ns: u64,
    /// and done.
    pub done_ns: u64,
}
