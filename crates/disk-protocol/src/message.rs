//! The messages.

use crate::askers::Layout;
use frontdesk_engine::{TaskId, UserInput};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where the daemon listens for back ends, if nothing else is configured: beside its control socket.
pub const DEFAULT_SOCKET: &str = "/run/frontdesk/control.disk";

/// Most disks of a back end.
pub const MAX_DISKS: u16 = 256;

/// Longest name of a disk, in bytes.
pub const MAX_NAME: usize = 64;

/// Most applications of a VM that are reported.
pub const MAX_APPLICATIONS: usize = 8;

/// Most queues of a disk, each with an eventfd by which its guest notifies it.
pub const MAX_NOTIFIERS: usize = 64;

/// Reads of which a back end tells, at most in each [`READS_PERIOD`]; of others it is silent.
pub const READS: u32 = 50;

/// See [`READS`].
pub const READS_PERIOD: Duration = Duration::from_millis(100);

/// The daemon says this often that it is there.
pub const ALIVE: Duration = Duration::from_secs(1);

/// A daemon that says nothing for so long hangs: it is as if it were gone.
pub const SILENCE: Duration = Duration::from_secs(5);

/// What the daemon says. Disks are numbered by the back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromDaemon {
    /// It is there.
    Alive {},
    /// Who asks for something of this disk can be looked up in the memory that comes with this message.
    Askers {
        /// The disk.
        disk: u16,
        /// vCPUs of its VM.
        vcpus: u16,
        /// Where to look.
        layout: Layout,
    },
    /// It can be looked up no longer.
    NoAskers {
        /// The disk.
        disk: u16,
    },
    /// A person did something in the VM of this disk.
    Input {
        /// The disk.
        disk: u16,
        /// What.
        input: UserInput,
        /// When, in nanoseconds of the monotonic clock.
        at_ns: u64,
    },
}

/// What a back end says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromDisk {
    /// A VM is connected to a disk. A duplicate of its connection comes with this message.
    Attached {
        /// The disk.
        disk: u16,
        /// Its name.
        name: String,
        /// The thread that serves it.
        thread: i32,
    },
    /// That VM is connected no longer.
    Detached {
        /// The disk.
        disk: u16,
    },
    /// The guest notifies a disk by these eventfds, and by no others any more.
    Notifiers {
        /// The disk.
        disk: u16,
        /// The kernel's numbers of them (`eventfd-id`); at most [`MAX_NOTIFIERS`].
        eventfds: Vec<u32>,
    },
    /// What was served, and why.
    Report {
        /// The disk.
        disk: u16,
        /// What.
        report: DiskReport,
    },
    /// A read was taken up.
    Read {
        /// The disk.
        disk: u16,
        /// Identifies it until it is done.
        request: u32,
    },
    /// A read is done, and the guest about to be told.
    ReadDone {
        /// The disk.
        disk: u16,
        /// As it was called when it was taken up.
        request: u32,
    },
}

/// What was served of a disk since its VM was connected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskReport {
    /// Queues that the guest uses. Who asks is known if that is its number of vCPUs, or it has one vCPU.
    pub queues: u16,
    /// Requests, or parts of large ones, that were served in each class: `High`, `Common`, `Low`.
    pub served: [u64; 3],
    /// Of these, those whose asker was known.
    pub known: u64,
    /// Who asked last; at most [`MAX_APPLICATIONS`].
    pub applications: Vec<ApplicationReport>,
}

/// An application that asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplicationReport {
    /// The task.
    pub task: Option<TaskId>,
    /// Its name, if the guest tells; the daemon fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether a person is thought to wait for what it asks.
    pub interactive: bool,
    /// Its reads after inputs, of late.
    pub post: u32,
    /// Its reads before inputs, of late.
    pub pre: u32,
    /// Its requests that were served in each class.
    pub served: [u64; 3],
}

impl DiskReport {
    /// Whether it is as long as a report may be.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let short = |application: &ApplicationReport| {
            application.name.as_ref().is_none_or(|name| name.len() <= MAX_NAME)
        };
        self.applications.len() <= MAX_APPLICATIONS && self.applications.iter().all(short)
    }
}
