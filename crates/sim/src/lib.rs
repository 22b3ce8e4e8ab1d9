//! A deterministic discrete-event model of a host: physical CPUs, hypervisor schedulers, guests and devices.
//!
//! - [`Queue`]: timers in the total order of (time, sequence), in integer nanoseconds.
//! - [`Machine`]: physical CPUs under a [`HostScheduler`], on which entities (vCPUs, emulator threads, a
//!   driver domain) run.
//!   What they do when they run is told by a [`Work`].
//! - Schedulers: [`Credit`] is Xen's; [`eevdf`] and [`cfs`] are Linux'; [`edf`] is the engine's reservation
//!   dispatcher.
//! - [`run`] runs an arm of a scenario, [`simulate`] whole scenarios on several threads. Guests' tasks are
//!   programs of [`Step`]s.

#![forbid(unsafe_code)]

mod calibrate;
mod credit;
mod disk;
mod feed;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod guest;
mod machine;
mod network;
mod program;
mod queue;
mod rng;
mod rtapp;
mod run;
mod scheduler;
mod sweep;
mod workload;
mod world;

pub use calibrate::{Calibration, CalibrationError, Conditions, calibrate, predict};
pub use credit::Credit;
pub use disk::{DiskRequest, IoClass};
pub use feed::FeedEntry;
pub use machine::{Fault, Flow, Machine, Work};
pub use program::{Packet, Step, Waits};
pub use queue::{NEVER, Nanos, Queue, Timer};
pub use rng::Rng;
pub use rtapp::RtAppError;
pub use run::{FrameSecond, Run, decisions, feed_entries, outcome, run};
pub use scheduler::{
    Entity, EntitySpec, Group, GroupSpec, Host, HostScheduler, Pcpu, PcpuSet, SchedulerTimer, cfs, edf, eevdf,
};
pub use sweep::{Simulated, simulate};
pub use world::SimError;

/// The example in the crate's README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
