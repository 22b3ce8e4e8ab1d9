//! What the tests of several crates share.

#![allow(clippy::unwrap_used)] // A test that panics fails.

pub mod all_ends;
pub mod disk_calls;
mod fake_daemon;
pub mod left_out;
pub mod modules;
pub mod oracle;
mod pass;

pub use fake_daemon::FakeDaemon;
pub use left_out::{Need, leave_out};
pub use pass::pass;
