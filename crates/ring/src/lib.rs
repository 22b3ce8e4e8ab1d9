//! The shared-memory ring between the TCG plugin (the producer, inside QEMU) and the daemon (the consumer).
//!
//! The producer keeps the ring in a memfd, so nothing lies in the file system and it goes when QEMU goes. The
//! memfd is sealed against resizing, so that a consumer cannot be killed by reading beyond its end. Each vCPU
//! has a lane of its own: the task that it runs, a ring of entries with one writer and one reader, and an
//! *armed* flag that asks for one wake-up, at entries of some kinds. The consumer finds the memfd with
//! [`find`] and trusts nothing in it: whoever can write to QEMU's memory can make events up, but not make the
//! consumer panic, read out of bounds or work without end. It is made by hand because the ends of other rings
//! trust each other.
//!
//! # Waiting for an event
//! Call [`Consumer::arm`], then [`Consumer::drain`], then wait for the producer's eventfd. In this order no
//! entry of [`Interest`] is missed: it is either drained or wakes.

mod consumer;
mod entry;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod layout;
mod producer;

pub use consumer::{AttachError, Consumer, find};
pub use entry::{Entry, EntryKind, Interest};
pub use layout::{CAPACITY, MAX_VCPUS, TaskWords};
pub use producer::{CreateError, Producer};

/// The example in the crate's README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
