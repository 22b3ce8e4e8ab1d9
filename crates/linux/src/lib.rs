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
mod process;
mod program;
pub mod realtime;
pub mod sched;
mod tap;

pub use clock::monotonic_ns;
pub use cpus::online_cpus;
pub use peer::{Peer, peer_groups};
pub use process::MAX_THREADS;
pub use program::of_root;
pub use tap::Tap;
