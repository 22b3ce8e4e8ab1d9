//! What the daemon and a disk's back end tell each other.
//!
//! The back end connects to the daemon's socket. It tells which VMs are connected to it, each with a
//! duplicate of QEMU's connection, by which the kernel says whose that is. For each of these VMs the daemon
//! passes on what a person does in it, and memory in which the asker of a request can be looked up. Neither
//! side waits for the other: who does not read is cut off, and who is alone goes on without.

mod askers;
mod channel;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod message;
mod trace;

pub use askers::{AskersError, AskersMemory, Layout, MAX_VCPUS};
pub use channel::{Channel, ChannelError, listen};
pub use message::{
    ALIVE, ApplicationReport, DEFAULT_SOCKET, DiskReport, FromDaemon, FromDisk, MAX_APPLICATIONS, MAX_DISKS,
    MAX_NAME, MAX_NOTIFIERS, READS, READS_PERIOD, SILENCE,
};
pub use trace::TracedWork;
