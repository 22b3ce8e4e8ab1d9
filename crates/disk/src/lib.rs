//! A disk for VMs: a vhost-user-blk back end.
//!
//! One process serves the VMs of a physical disk, each with a thread of its own, and so decides whose request
//! the disk does next.

mod admit;
mod chain;
mod config;
mod daemon;
mod device;
mod error;
mod front_end;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod image;
mod inflight;
mod memory;
mod request;
mod scheduler;
mod serve;
mod session;
mod trace;
mod transfer;
mod uring;
mod vm;
mod vring;
mod worker;

pub use error::DiskError;
pub use serve::{ServeConfig, VmDisk, serve};
