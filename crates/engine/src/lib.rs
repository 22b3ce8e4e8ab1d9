//! What frontdesk knows and decides: guest task tracking, inference and policy, without I/O.
//!
//! An [`Engine`] is told what happens on the host ([`Event`]) and says what to do ([`Action`]). It holds no
//! clock, no thread and no handle: time comes with the events, and the same events give the same actions.
//!
//! - *Observation*: run, wait and stolen time of each vCPU, and which guest task runs on it.
//! - *Inference*: which tasks are I/O-bound (TAVS §3.1), and which ports and disk reads lead to them (TAVS
//!   §3.3); how many frames a second each task shows, and who plays sound (MM §5.1);
//!   whether a person waits, and which tasks are background work (vAMP §3.1).
//! - *Policy*: partial boosts, bounded in time and by `pb_ratio` (TAVS §3.2), and the ledger that takes back
//!   what they gave beyond a VM's share; what multimedia gets first, and how much of it (MM §5.2, §5.3); and
//!   which vCPUs are slow meanwhile (vAMP §3.2).
//! - [`reservation`]s and the [`disk`] have policies of their own.

#![forbid(unsafe_code)]

mod action;
mod capabilities;
mod config;
pub mod disk;
mod engine;
mod event;
mod explain;
mod infer;
mod knob;
mod lru;
mod nanos;
mod nice;
mod observe;
mod policy;
mod recorded;
mod state;

pub use action::{Action, ActionKind, Boost, BoostTarget, Foreseen};
pub use capabilities::{Capabilities, Standing};
pub use config::{Asymmetric, Config, ConfigError, Ledger, Multimedia, Profile, Ratio, Tavs, VmPolicy};
pub use engine::{Engine, Troubles};
pub use event::{Event, EventKind, MediaDevice, Protocol, Region, TaskId, Thread, Time, UserInput, VmId};
pub use explain::{
    AsymmetricExplain, BackgroundExplain, Cause, Decision, EpisodeExplain, MultimediaExplain, Outcomes,
    PlayerExplain, PortExplain, PortOutcomes, Reason, Recent, StarvationExplain, TaskExplain, VcpuExplain,
    VmExplain,
};
pub use infer::EpisodeCause;
pub use nanos::nanos;
pub use nice::{nice_for, nice_weight};
pub use policy::reservation;
pub use recorded::{RecordedConfig, RecordedPolicy};

/// The example in the crate's README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
