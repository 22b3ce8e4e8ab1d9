//! Films: who plays, what boosts them, and what raises the share of their VM (MM).

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod boosts;
mod films;
mod players;
mod shares;
#[path = "../world/mod.rs"]
mod world;
