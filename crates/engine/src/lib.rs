//! What frontdesk knows and decides: guest task tracking, inference and policy, without I/O.
//!
//! An [`Engine`] is told what happens on the host ([`Event`]) and says what to do ([`Action`]). It holds no clock,
//! no thread and no handle: time comes with the events, and the same events give the same actions.
//!
//! - *Observation*: run, wait and stolen time of each vCPU, and which guest task runs on it.
//! - *Inference*: which tasks are I/O-bound (TAVS §3.1), and which ports and disk reads lead to them (TAVS §3.3).
//! - *Policy*: partial boosts, bounded in time and by `pb_ratio` (TAVS §3.2), and the ledger that takes back what they
//!   gave beyond a VM's share.
//!
//! ```
//! use frontdesk_engine::{Config, Engine, Event, EventKind, TaskId, Time, VmId};
//!
//! let mut engine = Engine::new(Config::default())?;
//! let vm = VmId(1);
//! engine.on_event(&Event { at: Time(0), kind: EventKind::VmAdded { vm, vcpus: 1, weight: 1024 } });
//! let task = TaskId(0x1234_0000);
//! engine.on_event(&Event { at: Time(1000), kind: EventKind::TaskSwitch { vm, vcpu: 0, task } });
//! assert_eq!(engine.explain(vm).unwrap().vcpus[0].current, Some(task));
//! assert_eq!(engine.poll_action(), None);
//! # Ok::<(), frontdesk_engine::ConfigError>(())
//! ```

#![forbid(unsafe_code)]

mod action;
mod capabilities;
mod config;
mod engine;
mod event;
mod explain;
mod infer;
mod knob;
mod nice;
mod observe;
mod policy;
mod state;

pub use action::{Action, ActionKind, Boost, BoostTarget};
pub use capabilities::{Capabilities, Standing};
pub use config::{Config, ConfigError, Ledger, Tavs, VmPolicy};
pub use engine::{Engine, Troubles};
pub use event::{Event, EventKind, Protocol, TaskId, Thread, Time, VmId};
pub use explain::{
    Cause, Decision, Outcomes, PortExplain, PortOutcomes, Reason, Recent, TaskExplain, VcpuExplain, VmExplain,
};
pub use nice::{nice_for, nice_weight};
pub use policy::reservation;

/// A duration in nanoseconds, saturating.
fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes that an `LruCache` holds: an index with room for `capacity` entries, a power of two of slots of which an eighth stays free,
/// and a list node for each entry.
fn lru_bytes<K, V>(capacity: usize, entries: usize) -> usize {
    const SLOT: usize = 2 * size_of::<usize>() + 1;
    let slots = if capacity == 0 { 0 } else { (capacity * 8).div_ceil(7).next_power_of_two() };
    slots * SLOT + entries * (size_of::<(K, V)>() + 2 * size_of::<usize>())
}
