//! Guests with several vCPUs: the boost goes where the event is handled.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod events;
mod helping;
mod replies;
mod world;
