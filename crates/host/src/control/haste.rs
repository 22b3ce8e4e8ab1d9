//! Haste for those who change reservations: on a host whose CPUs are all busy, ordinary threads wait for milliseconds, and a request would
//! pass through three of them before it takes effect.
//!
//! The thread that accepts clients of the socket and those that hear them out are real-time, below whatever has a reservation. So that nobody
//! gets the host by talking to us, a few clients are accepted in a while, and who does not ask for a change is served by an ordinary thread.

use frontdesk_linux::sched::{self, Attributes, Policy};
use std::time::{Duration, Instant};

/// Above boosts (1 and 2), below members with reservations (4 and more).
const HASTY: Attributes = Attributes { policy: Policy::Fifo { priority: 3 }, reset_on_fork: false };
const ORDINARY: Attributes =
    Attributes { policy: Policy::Other { nice: 0, slice_ns: 0 }, reset_on_fork: false };
/// So many clients are accepted in a while: each costs some hundred microseconds.
const CLIENTS: u32 = 20;
const WHILE: Duration = Duration::from_millis(100);

/// Makes the calling thread hasty, and the threads that it starts.
pub(super) fn enter() {
    if let Err(error) = sched::set(0, HASTY) {
        tracing::debug!("requests may wait for a CPU: {error}");
    }
}

/// Makes the calling thread ordinary again.
pub(super) fn leave() {
    // It can always be had.
    let _ = sched::set(0, ORDINARY);
}

/// Counts clients.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    count: u32,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Pace {
        Pace { since: now, count: 0 }
    }

    /// Another client has come; how long the next has to wait.
    pub(super) fn count(&mut self, now: Instant) -> Option<Duration> {
        if now.duration_since(self.since) >= WHILE {
            *self = Pace::new(now);
        }
        self.count += 1;
        (self.count >= CLIENTS).then(|| (self.since + WHILE).duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_accepted_in_a_while_and_no_more() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for _ in 1..CLIENTS {
            assert_eq!(pace.count(start), None);
        }
        assert_eq!(pace.count(start + WHILE / 4), Some(WHILE * 3 / 4));
        assert_eq!(pace.count(start + WHILE), None, "the next while");
    }
}
