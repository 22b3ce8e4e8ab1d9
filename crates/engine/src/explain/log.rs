//! The decision log: what was decided about a VM in the last minute: counts that say why it was boosted, or
//! was not.

use super::decision::{Cause, Decision, Outcomes, PortOutcomes, Reason, Recent};
use crate::event::Time;
use crate::infer::{Port, PortMap};
use crate::state::{StateError, check};
use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Buckets of the window: a minute is kept in as little memory as ten seconds would be second by second.
const BUCKETS: usize = 10;
/// Seconds of a bucket.
const BUCKET: u64 = 6;
/// The window in seconds.
const WINDOW: u64 = BUCKETS as u64 * BUCKET;
/// Ports told apart in a bucket; packets to more are counted together.
const PORTS: usize = 8;
/// Decisions remembered one by one.
const DECISIONS: usize = 16;
const SECOND: u64 = 1_000_000_000;

/// Decisions about a VM: one by one, and counted by the bucket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Log {
    /// The bucket that begins at second `n` is the one at `n / BUCKET % BUCKETS`; empty until there is
    /// something to count. A recording of an earlier release has one for each of ten seconds, wherever: they
    /// count as long as they are in the window.
    seconds: Vec<Bucket>,
    /// Latest last.
    decisions: VecDeque<Decision>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Bucket {
    /// The second of the monotonic clock with which it begins.
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
        self.bucket(at).outcomes(cause).count(verdict);
    }

    /// Notes the end of a boost, and whether an I/O-bound task ran in it.
    pub(crate) fn boost_ended(&mut self, at: Time, hit: bool) {
        let bucket = self.bucket(at);
        bucket.boosts_ended = bucket.boosts_ended.saturating_add(1);
        bucket.hits = bucket.hits.saturating_add(u32::from(hit));
    }

    /// The latest decision.
    pub(crate) fn last(&self) -> Option<Decision> {
        self.decisions.back().copied()
    }

    /// The present bucket.
    fn bucket(&mut self, at: Time) -> &mut Bucket {
        let count = at.0 / SECOND / BUCKET;
        if self.seconds.is_empty() {
            self.seconds.resize(BUCKETS, Bucket::default());
        }
        let place = usize::try_from(count % BUCKETS as u64).unwrap_or(0);
        let bucket = &mut self.seconds[place];
        let number = count * BUCKET;
        if bucket.number != number {
            *bucket = Bucket { number, ..Bucket::default() };
        }
        bucket
    }

    /// Sums up the window that ends with the bucket of `now`. `counters` are those of the ports now.
    pub(crate) fn recent(&self, now: Time, counters: &PortMap) -> Recent {
        let last = now.0 / SECOND / BUCKET * BUCKET;
        let mut recent = Recent { window_seconds: WINDOW, ..Recent::default() };
        let window = self.seconds.iter().filter(|bucket| last.saturating_sub(bucket.number) < WINDOW);
        for bucket in window {
            for (port, outcomes) in &bucket.ports {
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
            recent.other_packets.add(&bucket.other_packets);
            recent.pending_reads.add(&bucket.pending_reads);
            recent.reads.add(&bucket.reads);
            recent.unanswered.add(&bucket.unanswered);
            recent.boosts_ended = recent.boosts_ended.saturating_add(bucket.boosts_ended);
            recent.hits = recent.hits.saturating_add(bucket.hits);
        }
        recent
            .packets
            .sort_by_key(|port| (std::cmp::Reverse(port.outcomes.total()), port.protocol, port.port));
        recent.decisions = self.decisions.iter().copied().collect();
        recent
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.seconds.capacity() * size_of::<Bucket>() + self.decisions.capacity() * size_of::<Decision>()
    }
}

impl Bucket {
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
    fn a_window_of_a_minute_is_summed_up() {
        let mut log = Log::default();
        let counters = PortMap::new(2);
        // Two in each bucket.
        for second in (0..150).step_by(3) {
            log.decided(Time(second * SECOND), packet(22), Reason::Boosted);
            log.decided(Time(second * SECOND + 1), packet(80), Reason::NotCorrelated);
            log.decided(Time(second * SECOND + 2), packet(80), Reason::AlreadyBoosted);
            log.decided(Time(second * SECOND + 3), Cause::Read, Reason::BudgetSpent);
            log.boost_ended(Time(second * SECOND + 4), second % 2 == 0);
        }
        let recent = log.recent(Time(149 * SECOND + 5), &counters);
        let ports: Vec<_> = recent.packets.iter().map(|port| (port.port, port.outcomes.total())).collect();
        assert_eq!(ports, [(80, 40), (22, 20)]);
        assert_eq!((recent.reads.budget_spent, recent.reads.total()), (20, 20));
        assert_eq!((recent.boosts_ended, recent.hits), (20, 10));
        assert_eq!(recent.decisions.len(), DECISIONS);
        assert_eq!(log.last().map(|decision| decision.cause), Some(Cause::Read));
        // Half a minute of silence later half of it is left, and after a minute nothing.
        assert_eq!(log.recent(Time(179 * SECOND), &counters).reads.total(), 10);
        assert_eq!(log.recent(Time(209 * SECOND), &counters).reads.total(), 0);
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
