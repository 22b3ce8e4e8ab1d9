//! The state behind the engine's decisions, for people.

mod decision;
mod log;
mod vm;

pub use decision::{Cause, Decision, Outcomes, PortOutcomes, Reason, Recent};
pub(crate) use log::Log;
pub use vm::{
    AsymmetricExplain, BackgroundExplain, EpisodeExplain, MultimediaExplain, PlayerExplain, PortExplain,
    StarvationExplain, TaskExplain, VcpuExplain, VmExplain,
};
