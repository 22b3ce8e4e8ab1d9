//! What the tests of several crates share.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod fake_daemon;
pub mod modules;
pub mod oracle;

pub use fake_daemon::FakeDaemon;
