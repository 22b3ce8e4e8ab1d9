//! Studies of reservations on processes of this host (VSched §4, §6): processes that compute, reservations
//! for them in several ways, and what they got.

mod bsp;
mod change;
mod delivered;
mod enforce;
mod findings;
mod random;
mod study;
mod study_lab;
mod worker;

pub(crate) use enforce::reserve_for;
pub use study::study;
pub use worker::{WORKER_ARGUMENT, work};
