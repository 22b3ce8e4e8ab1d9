//! Whether boosts lasted until what they were for was answered.

/// From the guest's call to send an answer to the client that has it, at most: what is between is the guest's
/// network stack, the emulator and the host. Who loses the CPU meanwhile gets it back later than that.
const ON_ITS_WAY_NS: u64 = 3_000_000;

/// A request to an I/O-bound server in a VM, and its answer. All times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTimes {
    /// When the client sent it.
    pub sent: u64,
    /// When the server woke for it.
    pub woke: u64,
    /// When the server began to send the answer.
    pub replied: u64,
    /// When the client had the answer.
    pub received: u64,
}

impl RequestTimes {
    /// Whether a boost was for this request: it began while the request waited, or the server woke in it.
    fn is_for(&self, (begin, end): (u64, u64)) -> bool {
        let waits = self.sent..=self.replied;
        waits.contains(&begin) || (begin..=end).contains(&self.woke)
    }

    /// Whether at that time the answer was still to be sent.
    fn is_open(&self, at: u64) -> bool {
        at < self.replied || at.saturating_add(ON_ITS_WAY_NS) < self.received
    }
}

/// Boosts for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestBoosts {
    /// All of them. Boosts of a VM that overlap are one.
    pub all: u64,
    /// Those that ended before the answer was sent, whether the server ran in them or not.
    pub unanswered: u64,
}

impl RequestBoosts {
    /// Judges the boosts of a VM by the requests to it. `boosts`: begin and end of each, of any vCPU.
    #[must_use]
    pub fn of(boosts: &[(u64, u64)], requests: &[RequestTimes]) -> RequestBoosts {
        let mut boosts = boosts.to_vec();
        boosts.sort_unstable();
        // A boost that moves to another vCPU goes on.
        boosts.dedup_by(|next, boost| {
            let goes_on = next.0 <= boost.1;
            if goes_on {
                boost.1 = boost.1.max(next.1);
            }
            goes_on
        });
        let mut requests = requests.to_vec();
        requests.sort_unstable_by_key(|request| request.sent);
        let mut later = requests.as_slice();
        let mut found = RequestBoosts::default();
        for boost in boosts {
            while let Some((_, rest)) = later.split_first().filter(|(first, _)| first.received < boost.0) {
                later = rest;
            }
            let near = later.iter().take_while(|request| request.sent <= boost.1);
            let mut served = near.filter(|request| request.is_for(boost)).peekable();
            found.all += u64::from(served.peek().is_some());
            found.unanswered += u64::from(served.any(|request| request.is_open(boost.1)));
        }
        found
    }

    /// Adds those of another VM.
    pub fn add(&mut self, other: RequestBoosts) {
        self.all += other.all;
        self.unanswered += other.unanswered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// One each 100 ms: the server wakes after 1 ms, replies after another, and the client has it 0.5 ms
    /// later.
    fn requests() -> Vec<RequestTimes> {
        let one = |begin| RequestTimes {
            sent: begin,
            woke: begin + MS,
            replied: begin + 2 * MS,
            received: begin + 2 * MS + MS / 2,
        };
        (1..4).map(|number| one(number * 100 * MS)).collect()
    }

    fn judged(boosts: &[(u64, u64)]) -> (u64, u64) {
        let boosts: Vec<_> = boosts.iter().map(|(begin, end)| (begin * MS / 10, end * MS / 10)).collect();
        let RequestBoosts { all, unanswered } = RequestBoosts::of(&boosts, &requests());
        (all, unanswered)
    }

    #[test]
    fn a_boost_is_answered_if_it_lasts_until_the_server_sends() {
        assert_eq!(judged(&[(1001, 1021), (2001, 2020)]), (2, 0));
        assert_eq!(judged(&[(1001, 1019)]), (1, 1), "the server was about to send");
        assert_eq!(judged(&[(1001, 1005)]), (1, 1), "the server did not even wake in it");
        assert_eq!(judged(&[(990, 1015)]), (1, 1), "it began before, and the server woke in it");
    }

    #[test]
    fn who_loses_the_cpu_while_it_sends_is_not_answered() {
        let late = RequestTimes { received: 105 * MS, ..requests()[0] };
        let boost = (101 * MS, 102 * MS);
        assert_eq!(RequestBoosts::of(&[boost], &[late]), RequestBoosts { all: 1, unanswered: 0 });
        let later = RequestTimes { received: 106 * MS, ..late };
        assert_eq!(RequestBoosts::of(&[boost], &[later]), RequestBoosts { all: 1, unanswered: 1 });
    }

    #[test]
    fn what_is_for_no_request_does_not_count() {
        assert_eq!(judged(&[]), (0, 0));
        assert_eq!(judged(&[(500, 990), (1022, 1024), (1500, 1600)]), (0, 0));
    }

    #[test]
    fn a_boost_that_moves_to_another_vcpu_goes_on() {
        assert_eq!(judged(&[(1001, 1005), (1004, 1012), (1012, 1021)]), (1, 0));
        assert_eq!(judged(&[(1001, 1021), (1002, 1003)]), (1, 0), "the longer one lasts");
        assert_eq!(judged(&[(1001, 1005), (1006, 1021)]), (2, 1), "between these there was none");
    }
}
