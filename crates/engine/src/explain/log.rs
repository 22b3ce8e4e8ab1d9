//! The decision log: what was decided about a VM in the last seconds: counts that say why it was boosted, or
//! was not.

use super::decision::{Cause, Decision, Outcomes, PortOutcomes, Reason, Recent};
use crate::event::Time;
use crate::infer::{Port, PortMap};
use crate::state::{StateError, check};
use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Buckets, one for each second of the window.
const BUCKETS: usize = 10;
/// The window in seconds.
const WINDOW: u64 = BUCKETS as u64;
/// Ports told apart in a second; packets to more are counted together.
const PORTS: usize = 8;
/// Decisions remembered one by one.
const DECISIONS: usize = 16;
const SECOND: u64 = 1_000_000_000;

/// Decisions about a VM: one by one, and counted by the second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Log {
    /// The bucket of second `n` is the one at `n % WINDOW`; empty until there is something to count.
    seconds: Vec<Second>,
    /// Latest last.
    decisions: VecDeque<Decision>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Second {
    /// Of the monotonic clock.
    number: u64,
    ports: ArrayVec<(Port, Outcomes), PORTS>,
    other_packets: Outcomes,
    pending_reads: Outcomes,
    reads: Outcomes,
    unanswered: Outcomes,
    boosts_ended: u32,
    hits: u32,
}

impl Log {
    /// Checks a history that was loaded.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        let seconds = self.seconds.is_empty() || self.seconds.len() == BUCKETS;
        check(seconds && self.decisions.len() <= DECISIONS, "a history longer than any")
    }

    /// Notes a decision.
    pub(crate) fn decided(&mut self, at: Time, cause: Cause, verdict: Reason) {
        if self.decisions.len() >= DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Decision { at, cause, verdict });
        self.second(at).outcomes(cause).count(verdict);
    }

    /// Notes the end of a boost, and whether an I/O-bound task ran in it.
    pub(crate) fn boost_ended(&mut self, at: Time, hit: bool) {
        let second = self.second(at);
        second.boosts_ended = second.boosts_ended.saturating_add(1);
        second.hits = second.hits.saturating_add(u32::from(hit));
    }

    /// The latest decision.
    pub(crate) fn last(&self) -> Option<Decision> {
        self.decisions.back().copied()
    }

    /// The bucket of the present second.
    fn second(&mut self, at: Time) -> &mut Second {
        let number = at.0 / SECOND;
        if self.seconds.is_empty() {
            self.seconds.resize(BUCKETS, Second::default());
        }
        let bucket = usize::try_from(number % WINDOW).unwrap_or(0);
        let second = &mut self.seconds[bucket];
        if second.number != number {
            *second = Second { number, ..Second::default() };
        }
        second
    }

    /// Sums up the window that ends at `now`. `counters` are those of the ports now.
    pub(crate) fn recent(&self, now: Time, counters: &PortMap) -> Recent {
        let last = now.0 / SECOND;
        let mut recent = Recent { window_seconds: WINDOW, ..Recent::default() };
        let window = self.seconds.iter().filter(|second| last.saturating_sub(second.number) < WINDOW);
        for second in window {
            for (port, outcomes) in &second.ports {
                let same = |known: &&mut PortOutcomes| (known.protocol, known.port) == *port;
                match recent.packets.iter_mut().find(same) {
                    Some(known) => known.outcomes.add(outcomes),
                    None => recent.packets.push(PortOutcomes {
                        protocol: port.0,
                        port: port.1,
                        counter: counters.counter(*port),
                        outcomes: *outcomes,
                    }),
                }
            }
            recent.other_packets.add(&second.other_packets);
            recent.pending_reads.add(&second.pending_reads);
            recent.reads.add(&second.reads);
            recent.unanswered.add(&second.unanswered);
            recent.boosts_ended = recent.boosts_ended.saturating_add(second.boosts_ended);
            recent.hits = recent.hits.saturating_add(second.hits);
        }
        recent
            .packets
            .sort_by_key(|port| (std::cmp::Reverse(port.outcomes.total()), port.protocol, port.port));
        recent.decisions = self.decisions.iter().copied().collect();
        recent
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.seconds.capacity() * size_of::<Second>() + self.decisions.capacity() * size_of::<Decision>()
    }
}

impl Second {
    fn outcomes(&mut self, cause: Cause) -> &mut Outcomes {
        match cause {
            Cause::PendingRead => &mut self.pending_reads,
            Cause::Read => &mut self.reads,
            Cause::Unanswered => &mut self.unanswered,
            Cause::Packet { protocol, port } => {
                let port = (protocol, port);
                match self.ports.iter().position(|(known, _)| *known == port) {
                    Some(index) => &mut self.ports[index].1,
                    None if self.ports.is_full() => &mut self.other_packets,
                    None => {
                        self.ports.push((port, Outcomes::default()));
                        let newest = self.ports.len() - 1;
                        &mut self.ports[newest].1
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Protocol;

    fn packet(port: u16) -> Cause {
        Cause::Packet { protocol: Protocol::Tcp, port }
    }

    #[test]
    fn a_window_of_ten_seconds_is_summed_up() {
        let mut log = Log::default();
        let counters = PortMap::new(2);
        for second in 0..25 {
            log.decided(Time(second * SECOND), packet(22), Reason::Boosted);
            log.decided(Time(second * SECOND + 1), packet(80), Reason::NotCorrelated);
            log.decided(Time(second * SECOND + 2), packet(80), Reason::AlreadyBoosted);
            log.decided(Time(second * SECOND + 3), Cause::Read, Reason::BudgetSpent);
            log.boost_ended(Time(second * SECOND + 4), second % 2 == 0);
        }
        let recent = log.recent(Time(24 * SECOND + 5), &counters);
        let ports: Vec<_> = recent.packets.iter().map(|port| (port.port, port.outcomes.total())).collect();
        assert_eq!(ports, [(80, 20), (22, 10)]);
        assert_eq!((recent.reads.budget_spent, recent.reads.total()), (10, 10));
        assert_eq!((recent.boosts_ended, recent.hits), (10, 5));
        assert_eq!(recent.decisions.len(), DECISIONS);
        assert_eq!(log.last().map(|decision| decision.cause), Some(Cause::Read));
        // Five seconds of silence later half of it is left, and after ten nothing.
        assert_eq!(log.recent(Time(29 * SECOND), &counters).reads.total(), 5);
        assert_eq!(log.recent(Time(34 * SECOND), &counters).reads.total(), 0);
    }

    #[test]
    fn packets_to_many_ports_are_counted_together() {
        let mut log = Log::default();
        for port in 0..1000 {
            log.decided(Time(7), packet(port), Reason::NoIoBoundTask);
        }
        let recent = log.recent(Time(8), &PortMap::new(2));
        assert_eq!((recent.packets.len(), recent.other_packets.no_io_bound_task), (PORTS, 992));
    }
}
