//! What a member got of what it was promised.

use crate::Time;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Buckets of a [`Distribution`].
pub const BUCKETS: usize = 24;
/// Entries of [`MemberAccount::recent`].
pub const RECENT: usize = 100;
/// Short periods share an entry of [`MemberAccount::recent`] while they end within this time, in nanoseconds.
const RECENT_SPAN: u64 = 50_000_000;

/// How long something was: bounded, whatever happens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// How often.
    pub count: u64,
    /// The shortest, in nanoseconds.
    pub min_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// All together, in nanoseconds.
    pub sum_ns: u64,
    /// How often it was below 1 us, 2 us, 4 us and so on; what is longer is in the last.
    pub buckets: [u64; BUCKETS],
}

impl Distribution {
    fn add(&mut self, nanos: u64) {
        self.min_ns = if self.count == 0 { nanos } else { self.min_ns.min(nanos) };
        self.max_ns = self.max_ns.max(nanos);
        self.sum_ns = self.sum_ns.saturating_add(nanos);
        self.count = self.count.saturating_add(1);
        let micros = nanos / 1000;
        let bucket = micros.checked_ilog2().map_or(0, |log| log as usize + 1).min(BUCKETS - 1);
        self.buckets[bucket] = self.buckets[bucket].saturating_add(1);
    }

    /// Both together.
    fn join(&mut self, other: &Distribution) {
        if other.count == 0 {
            return;
        }
        self.min_ns = if self.count == 0 { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.count = self.count.saturating_add(other.count);
        for (bucket, other) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket = bucket.saturating_add(other);
        }
    }
}

/// What a member got in one of the latest periods, or in several short ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentPeriod {
    /// When the first of them ended.
    begin: Time,
    /// When the last of them ended.
    pub end: Time,
    /// How many.
    pub periods: u32,
    /// Of these, those missed.
    pub missed: u32,
    /// CPU time that was reserved, in nanoseconds.
    pub reserved_ns: u64,
    /// CPU time of its reservation that the member used, in nanoseconds.
    pub used_ns: u64,
}

/// What a member got, since its reservation was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberAccount {
    /// Periods that ended.
    pub periods: u64,
    /// Of these, those at whose end the member still wanted to run and had not got its slice, as far as it
    /// wanted to run in time to get it.
    pub missed: u64,
    /// Of the missed, those in which the dispatcher itself came late: the machine stood still, and nobody got
    /// anything.
    pub stalled: u64,
    /// What was lacking of the slice at a deadline that was missed, of what could be got by then.
    pub shortfall: Distribution,
    /// CPU time that was reserved, in nanoseconds.
    pub reserved_ns: u64,
    /// CPU time of its reservation that the member used, in nanoseconds.
    pub used_ns: u64,
    /// CPU time that it used beyond, of what nobody else wanted, in nanoseconds.
    pub extra_ns: u64,
    /// How much longer than its slice it ran before it was stopped.
    pub overrun: Distribution,
    /// The latest periods, the oldest first; at most [`RECENT`] entries.
    pub recent: VecDeque<RecentPeriod>,
}

impl MemberAccount {
    /// Run time of the member; `budget` is what it had left of its slice, if it was running on its
    /// reservation.
    pub(super) fn charge(&mut self, ran: u64, budget: Option<u64>) {
        let Some(budget) = budget else {
            self.extra_ns = self.extra_ns.saturating_add(ran);
            return;
        };
        self.used_ns = self.used_ns.saturating_add(ran);
        if ran > budget {
            self.overrun.add(ran - budget);
        }
    }

    /// A period ended, in which `reserved` nanoseconds were due and `used` were used; `shortfall` is what was
    /// missing at its end.
    pub(super) fn close(
        &mut self,
        end: Time,
        reserved: u64,
        used: u64,
        shortfall: Option<u64>,
        stalled: bool,
    ) {
        self.periods = self.periods.saturating_add(1);
        self.reserved_ns = self.reserved_ns.saturating_add(reserved);
        if let Some(shortfall) = shortfall {
            self.missed = self.missed.saturating_add(1);
            self.stalled = self.stalled.saturating_add(u64::from(stalled));
            self.shortfall.add(shortfall);
        }
        if self.recent.back().is_none_or(|entry| end.since(entry.begin) >= RECENT_SPAN) {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(RecentPeriod { begin: end, ..RecentPeriod::default() });
        }
        if let Some(entry) = self.recent.back_mut() {
            entry.end = end;
            entry.periods = entry.periods.saturating_add(1);
            entry.missed = entry.missed.saturating_add(u32::from(shortfall.is_some()));
            entry.reserved_ns = entry.reserved_ns.saturating_add(reserved);
            entry.used_ns = entry.used_ns.saturating_add(used);
        }
    }

    /// What the member got before, on another CPU, is part of it.
    pub fn go_on_from(&mut self, before: &MemberAccount) {
        for (sum, before) in [
            (&mut self.periods, before.periods),
            (&mut self.missed, before.missed),
            (&mut self.stalled, before.stalled),
            (&mut self.reserved_ns, before.reserved_ns),
            (&mut self.used_ns, before.used_ns),
            (&mut self.extra_ns, before.extra_ns),
        ] {
            *sum = sum.saturating_add(before);
        }
        self.shortfall.join(&before.shortfall);
        self.overrun.join(&before.overrun);
        for entry in before.recent.iter().rev().take(RECENT.saturating_sub(self.recent.len())) {
            self.recent.push_front(*entry);
        }
    }

    /// Whole periods passed unseen, for the dispatcher came so late.
    pub(super) fn skip(&mut self, periods: u64, slice: u64, wanted: bool) {
        self.periods = self.periods.saturating_add(periods);
        self.reserved_ns = self.reserved_ns.saturating_add(slice.saturating_mul(periods));
        if wanted {
            self.missed = self.missed.saturating_add(periods);
            self.stalled = self.stalled.saturating_add(periods);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_buckets_that_double() {
        let mut distribution = Distribution::default();
        for nanos in [999, 1000, 1999, 2000, 405_000, u64::MAX] {
            distribution.add(nanos);
        }
        assert_eq!(distribution.buckets[..3], [1, 2, 1]);
        assert_eq!(distribution.buckets[9], 1, "405 us are between 256 and 512");
        assert_eq!(distribution.buckets[BUCKETS - 1], 1);
        assert_eq!((distribution.count, distribution.min_ns, distribution.max_ns), (6, 999, u64::MAX));
    }

    #[test]
    fn an_account_goes_on_from_another() {
        let end = |n: u64| Time(n * RECENT_SPAN);
        let close =
            |account: &mut MemberAccount, n| account.close(end(n), 10, 4, (n % 2 == 0).then_some(n), false);
        let (mut before, mut after, mut whole) =
            (MemberAccount::default(), MemberAccount::default(), MemberAccount::default());
        for n in 1..=80 {
            close(&mut before, n);
            close(&mut whole, n);
        }
        for n in 81..=160 {
            close(&mut after, n);
            close(&mut whole, n);
        }
        after.go_on_from(&before);
        assert_eq!(after, whole);
        assert_eq!((after.recent.len(), after.missed), (RECENT, 80));
    }
}
