//! The scenario file and the result model of an experiment.
//!
//! A scenario is read with [`Scenario::load`]; a run of it gives an [`Outcome`] and a [`Timeline`] for each repeat.

#![forbid(unsafe_code)]

mod load;
mod outcome;
mod scenario;
mod timeline;
mod validate;

pub use load::{Overrides, Place, ScenarioError};
pub use outcome::{ArmResult, Bar, Check, HostInfo, Latency, Outcome, Repeat, Summary};
pub use scenario::{
    Arm, Checks, Daemon, Guest, Host, LoadProfile, Measure, ResponseCheck, Responses, Scenario, Vm, Workload,
    WorkloadKind,
};
pub use timeline::{BeliefPoint, BoostSlice, PacketMark, RunSlice, TaskSlice, Timeline};
pub use validate::Violation;
