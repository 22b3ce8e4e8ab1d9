//! The scenario file and the result model of an experiment.
//!
//! A scenario is read with [`Scenario::load`]; a run of it gives an [`Outcome`] and a [`Timeline`] for each
//! repeat.

#![forbid(unsafe_code)]

mod allowed;
mod answers;
mod checks;
mod close;
mod dilation;
mod experiment;
mod figure;
mod load;
mod outcome;
mod scenario;
mod sentence;
mod sim;
mod statistics;
mod study;
mod summary;
mod timeline;
mod tracer;
mod validate;

pub use frontdesk_workload::{Film, LateFrames, Protocol, SoundPath, Storm, Violation, WorkloadKind};

pub use answers::{RequestBoosts, RequestTimes};
pub use experiment::Experiment;
pub use figure::{Figure, Mark, NumberTable, Series};
pub use load::{ErrorLocation, Overrides, ScenarioError};
pub use outcome::{
    ArmResult, Bar, Check, DiskServed, Follow, Frames, HostInfo, Latency, Lost, Modelled, Outcome, Rate,
    Repeat, Screenshot, Summary, ThreadUse, Unit,
};
pub use scenario::{
    Across, Agent, Arm, ArmDisk, Checks, Compare, Daemon, Debian, Disk, DiskModel, Gain, Guest, Host,
    IoScheduler, LoadKind, LoadProfile, Loser, Machine, Measure, Mechanism, Scenario, SeenAt, Subject,
    VmSpec, Workload,
};
pub use sentence::sentence;
pub use sim::{
    Credit, DiskScheduler, Extension, GuestCosts, GuestScheduler, HostCosts, Interrupts, IoPath, Network,
    Scheduler, Sim, SimDisk, SimReservation,
};
pub use statistics::{float, mean_and_deviation, median, quantile};
pub use study::{Enforcer, PeriodSlice, Study, StudyArm, StudyCheck, StudyKind, StudyMeasure, duration_text};
pub use summary::{Extra, checks, cpu_shares, latency, summarise, wanting_vms};
pub use timeline::{
    BeliefPoint, BlockMark, BoostSlice, DiskSlice, DisplayMark, EpisodeSlice, FrameRatePoint, PacketMark,
    RunSlice, SoundMark, TaskSlice, Timeline, WeightSlice,
};
pub use tracer::{Tracer, task_name};

/// The example in the crate's README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
