//! The state behind the engine's decisions, for people.

mod decision;
mod log;
mod vm;

pub use decision::{Cause, Decision, Outcomes, PortOutcomes, Reason, Recent};
pub(crate) use log::Log;
pub use vm::{MultimediaExplain, PlayerExplain, PortExplain, TaskExplain, VcpuExplain, VmExplain};
