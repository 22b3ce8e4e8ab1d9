//! Requests, and what is said about them.

use crate::event::{TaskId, Time, VmId};
use std::fmt;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    /// Read.
    Read,
    /// Write, or write zeroes.
    Write,
    /// Make durable what was written.
    Flush,
    /// Give back room.
    Discard,
}

/// Who asked for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Index of the vCPU that notified the device: with a queue for each vCPU, that of the queue.
    pub vcpu: u16,
    /// The guest task that it ran then; `None` if it is not known, or no task but the guest's kernel.
    pub task: Option<TaskId>,
}

/// A request of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRequest {
    /// Identifies it among all that wait or are being served, of all VMs.
    pub id: u64,
    /// Whose it is.
    pub vm: VmId,
    /// Who asked, if that is known.
    pub asker: Option<Asker>,
    /// What for.
    pub operation: DiskOperation,
    /// Where it begins, in bytes from the begin of the VM's disk; of a flush nothing.
    pub offset: u64,
    /// How much, in bytes; of a flush nothing.
    pub bytes: u64,
    /// When it came.
    pub at: Time,
}

/// The class of a request (§3.2.1). A lower one is served when no higher one waits, and a little besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiskClass {
    /// Of an interactive application, within its VM's weight.
    High,
    /// Any other within its VM's cap.
    Common,
    /// Beyond its VM's cap: what the disk would else not be used for.
    Low,
}

impl DiskClass {
    /// The I/O priority for the scheduler below, as `ioprio_set(2)` takes it: real time for `High`, best
    /// effort for the others, of which `Low` has the last level. Not the idle class: that starves.
    #[must_use]
    pub const fn ioprio(self) -> u16 {
        const REAL_TIME: u16 = 1 << 13;
        const BEST_EFFORT: u16 = 2 << 13;
        match self {
            DiskClass::High => REAL_TIME | 4,
            DiskClass::Common => BEST_EFFORT | 4,
            DiskClass::Low => BEST_EFFORT | 7,
        }
    }
}

/// What is thought of the application that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its name is that of a media player (§3.2.2).
    Player,
    /// Its name is on the white list (§3.2.2).
    Listed,
    /// Its requests follow a person's inputs (§3.1.2).
    Follows,
    /// Its requests come whether or not there was an input.
    Ignores,
    /// Nobody is known to wait for it: it is the guest kernel's, as write-back is, or it is not known whose.
    Nobody,
}

impl Verdict {
    /// Whether the application is interactive.
    #[must_use]
    pub const fn interactive(self) -> bool {
        matches!(self, Verdict::Player | Verdict::Listed | Verdict::Follows)
    }
}

/// What a VM had used up of its limits (§3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// What may be `High`, W.
    Weight,
    /// What may be `High` or `Common`, C.
    Cap,
}

/// Why a request has its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Why {
    /// The application.
    pub verdict: Verdict,
    /// The limit that the VM is beyond, if that decides.
    pub beyond: Option<Beyond>,
}

impl Why {
    /// The class that follows.
    #[must_use]
    pub const fn class(self) -> DiskClass {
        match self.beyond {
            Some(Beyond::Cap) => DiskClass::Low,
            Some(Beyond::Weight) => DiskClass::Common,
            None if self.verdict.interactive() => DiskClass::High,
            None => DiskClass::Common,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.verdict {
            Verdict::Player => "of a media player",
            Verdict::Listed => "of an application on the white list",
            Verdict::Follows => "of an application whose requests follow a person's inputs",
            Verdict::Ignores => "of an application whose requests come without regard to inputs",
            Verdict::Nobody => "nobody is known to wait for it",
        })?;
        f.write_str(match self.beyond {
            None => "",
            Some(Beyond::Weight) => ", beyond what its VM may have first",
            Some(Beyond::Cap) => ", beyond what its VM is due",
        })
    }
}

/// A request to submit to the device now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submit {
    /// The request.
    pub id: u64,
    /// Whose.
    pub vm: VmId,
    /// Its class, whose [`ioprio`](DiskClass::ioprio) goes with it.
    pub class: DiskClass,
    /// Why that.
    pub why: Why,
}

/// A request that the device has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Whose.
    pub vm: VmId,
    /// The class it was served in.
    pub class: DiskClass,
    /// Device time it took, in nanoseconds: what passed while it was served, of which those served at the
    /// same time have parts by their bytes, and 64 KiB for each.
    pub cost_ns: u64,
    /// The vCPU to boost: that waits for what a person waits for, which was read just now.
    pub boost: Option<u16>,
}
