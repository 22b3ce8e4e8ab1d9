//! Goes through a recording again.
//!
//! - [`verify`]: does the engine decide what it decided when the recording was made, and the dispatcher of
//!   reservations?
//! - [`compare`]: what would it decide with other parameters?
//! - [`sample`]: what would it decide if it saw guest tasks only where a vCPU leaves the guest?
//! - [`timeline`]: what ran where and when, for people; [`TimelineBuilder`] record by record.
//!
//! A replay is an open loop: the events are those of the recorded run, whatever the engine decides now.

#![forbid(unsafe_code)]

mod compare;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod rerun;
mod reservations;
mod sampled;
mod span;
mod timeline;
mod totals;
mod verify;

pub use compare::{Comparison, Difference, Side, VmComparison, compare};
pub use error::ReplayError;
pub use rerun::Rerun;
pub use reservations::{DecisionDifference, MemberPeriods, Redecided};
pub use sampled::{Agreement, VmAgreement, sample};
pub use timeline::{Examined, TimelineBuilder, timeline};
pub use totals::Totals;
pub use verify::{Mismatch, Verified, verify};

/// The example in the crate's README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
