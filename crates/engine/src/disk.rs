//! What of a shared disk is served first (vSIP): requests that a person waits for, within each VM's limits.
//!
//! [`DiskPolicy`] stands between the virtqueues of all VMs and one device. It is of the engine's family: told
//! what happens, each time with when, it says what to submit now. It holds no clock, no thread and no handle,
//! and the same calls give the same answers.
//!
//! - `identify`: which applications read after a person's inputs (§3.1.2);
//! - `whitelist`: which names can be trusted, and which are players (§3.2.2);
//! - `limiter`: how much of a VM's requests may come first, and how much before others' (§3.2.1);
//! - `queue`: what waits, and whose turn it is;
//! - `stream`: for whom an arm is kept where it is;
//! - `device`: how much the device is given at once, and what each request cost.

mod config;
mod device;
mod identify;
mod limiter;
mod policy;
mod queue;
mod recent;
mod request;
mod stream;
mod whitelist;

pub use config::{Device, DiskConfig, Inputs, Unit};
pub use identify::ApplicationExplain;
pub use policy::DiskPolicy;
pub use request::{Asker, Beyond, DiskClass, DiskOperation, DiskRequest, Finished, Submit, Verdict, Why};
