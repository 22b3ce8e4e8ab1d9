//! Kernel interfaces without policy: how threads are scheduled, control groups of both versions, processes,
//! clocks.
//!
//! What is changed here is not undone by itself: who changes something of others records it with the guardian
//! first.

pub mod cgroup;
mod clock;
mod cpus;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod peer;
mod program;
pub mod realtime;
pub mod sched;
mod tap;

/// Threads of a process that are looked at, the oldest: one that starts them without end is to take nobody's
/// time. A QEMU's vCPUs, its threads for I/O and some hundred workers fit in.
pub const MAX_THREADS: usize = 1024;

pub use clock::monotonic_ns;
pub use cpus::online_cpus;
pub use peer::{Peer, peer_groups};
pub use program::of_root;
pub use tap::Tap;
