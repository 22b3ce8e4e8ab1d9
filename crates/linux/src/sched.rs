//! How threads are scheduled: reading and setting it, and telling a thread from a stranger that got its
//! number later.

mod attributes;
mod thread;

pub use attributes::{Attributes, Policy, SchedError, affinity, get, set, set_affinity};
#[cfg(any(test, fuzzing))]
pub(crate) use thread::parse_start_time;
pub use thread::{PinnedThread, ThreadId, process_start_time};
