//! What the tests of several crates share.

#![allow(clippy::unwrap_used)] // A test that panics fails.

pub mod all_ends;
pub mod disk_calls;
mod fake_daemon;
pub mod left_out;
pub mod modules;
pub mod oracle;

pub use fake_daemon::FakeDaemon;
use frontdesk_engine::{Engine, Time};
pub use left_out::{Need, leave_out};

/// Deadlines between two events, at most; those of a ledger with the shortest period are fewer.
const MOST_DEADLINES: usize = 10_000;

/// Lets the time pass for an engine, which is told it whenever it wants to be.
///
/// # Panics
/// The engine wants to be told it without end.
pub fn pass(engine: &mut Engine, to: Time) {
    for _ in 0..MOST_DEADLINES {
        let Some(deadline) = engine.next_deadline().filter(|deadline| *deadline <= to) else { return };
        engine.on_deadline(deadline);
    }
    panic!("the engine wants to be told the time again and again before {to:?}");
}
