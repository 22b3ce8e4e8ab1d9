//! How many desktops a host holds at a limit of their response times, on the model.
//!
//! A [`Profile`] names a scenario and which of its VMs are desktops, in what proportion. [`capacity`] looks
//! for the largest number of them with which a [`Limit`] is kept, in each arm. [`observe`] says what a
//! recording tells of a host's VMs, and [`Derived`] makes a profile of that.

#![forbid(unsafe_code)]

mod account;
mod derived;
mod error;
mod limit;
mod observed;
mod profile;
mod search;
mod sequential;
mod summary;

pub use account::{Asked, Film, ObservedVm};
pub use derived::Derived;
pub use error::CapacityError;
pub use limit::{Limit, LimitError, Statistic, Whose};
pub use observed::{Observed, observe};
pub use profile::Profile;
pub use search::{ArmCapacity, Cluster, Held, Progress, Tried, capacity};
pub use sequential::{MOST_RUNS, Sequential, Verdict};
pub use summary::summary;

/// The example in the crate's README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
