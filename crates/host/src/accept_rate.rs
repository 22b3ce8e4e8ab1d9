//! Who may be served in real time: on a host whose CPUs are all busy, ordinary threads wait for milliseconds,
//! and a request for a reservation would pass through three of them before it takes effect.
//!
//! The thread that accepts clients of the socket and those that hear them out are real-time, below whatever
//! has a reservation. So that nobody gets the host by talking to us, the rate at which clients are accepted
//! is limited, and who does not ask for a change is served by an ordinary thread.

use frontdesk_linux::sched::{self, Attributes, Policy};
use std::time::{Duration, Instant};

/// Above boosts (1 and 2), below members with reservations (4 and more).
const REAL_TIME: Attributes = Attributes { policy: Policy::Fifo { priority: 3 }, reset_on_fork: false };
const ORDINARY: Attributes =
    Attributes { policy: Policy::Other { nice: 0, slice_ns: 0 }, reset_on_fork: false };
/// So many clients are accepted in a period: each costs some hundred microseconds.
const CLIENTS: u32 = 20;
const PERIOD: Duration = Duration::from_millis(100);

/// Makes the calling thread a real-time one, and the threads that it starts.
pub(crate) fn become_real_time() {
    if let Err(error) = sched::set(0, REAL_TIME) {
        tracing::debug!("requests may wait for a CPU: {error}");
    }
}

/// Makes the calling thread ordinary again.
pub(crate) fn become_ordinary() {
    // It can always be had.
    let _ = sched::set(0, ORDINARY);
}

/// Counts clients: at most [`CLIENTS`] in each [`PERIOD`].
#[derive(Debug)]
pub(crate) struct AcceptRate {
    since: Instant,
    count: u32,
}

impl AcceptRate {
    pub(crate) fn new(now: Instant) -> AcceptRate {
        AcceptRate { since: now, count: 0 }
    }

    /// Another client has come; how long the next has to wait.
    pub(crate) fn count(&mut self, now: Instant) -> Option<Duration> {
        if now.duration_since(self.since) >= PERIOD {
            *self = AcceptRate::new(now);
        }
        self.count += 1;
        (self.count >= CLIENTS).then(|| (self.since + PERIOD).duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_accepted_in_a_period_and_no_more() {
        let start = Instant::now();
        let mut rate = AcceptRate::new(start);
        for _ in 1..CLIENTS {
            assert_eq!(rate.count(start), None);
        }
        assert_eq!(rate.count(start + PERIOD / 4), Some(PERIOD * 3 / 4));
        assert_eq!(rate.count(start + PERIOD), None, "the next period");
    }
}
