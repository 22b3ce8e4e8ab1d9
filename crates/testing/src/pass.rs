//! The time, as it passes for an engine.

use frontdesk_engine::{Engine, Time};

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
