//! Xen's credit scheduler (TAVS §2.2), as version 3.2 behaves, with what TAVS and MM changed as options.
//!
//! Charging is by sampling: who runs at a tick pays 100 credits. Every third tick hands out credits by
//! weight, and makes priorities of them: UNDER (something left) before OVER. A vCPU that wakes while UNDER
//! becomes BOOST and preempts what has a lower priority.
//!
//! | file | what |
//! |---|---|
//! | `credit/scheduler.rs` | wake-ups, preemption, the decision, stealing |
//! | `credit/account.rs` | charging, handing out credits, caps |
//! | `credit/queue.rs` | the run queue of a physical CPU |

mod account;
mod priority;
mod queue;
mod scheduler;

pub(crate) use priority::Priority;
pub use scheduler::Credit;
