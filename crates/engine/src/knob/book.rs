//! A VM's account in the ledger: what it owes or is owed, and the share by which that is repaid.

use super::account::Delta;
use super::fair_share::Fair;
use crate::config::Ledger as Config;
use crate::event::Time;
use crate::nanos::{nanos, signed};
use crate::policy::Debt;
use serde::{Deserialize, Serialize};

pub(super) const FULL: u32 = 1000;
/// A VM's share is never raised above so many times its weight.
pub(super) const MOST: u32 = 16 * FULL;
/// A VM that the world's scheduler treats unfairly may owe, or be owed, so many horizons: it may be kept from
/// running for a second.
pub(super) const UNFAIR: u64 = 4;
/// What the share of a VM with unequal vCPUs changes by in a settlement, at most: by a quarter.
const GAIN: i128 = 4;
/// A VM that owes much repays with half of its share while somebody waits for its answer.
pub(super) const HALF: u32 = FULL / 2;

/// A VM's account.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Book {
    pub(super) ran: u64,
    pub(super) boosted: u64,
    /// What the VM got beyond its fair share, in nanoseconds, negative if it got less; `None` while nothing
    /// was done to it that changes that.
    pub(super) debt: Option<i64>,
    /// What a VM without a debt got beyond its fair share, bounded by the horizon: the world's scheduler is
    /// not always fair.
    pub(super) drift: i64,
    /// Boosted time since the account was opened: no more than this is taken back, unless
    pub(super) since_open: u64,
    /// the world's scheduler gave the VM much more or less than its fair share since then.
    pub(super) unfair: bool,
    /// When it was boosted last, or its vCPUs were of unequal weight.
    pub(super) last_cause: Time,
    pub(super) permille: u32,
    /// What it was boosted, and what was its fair share, of late: both fade over the horizon.
    #[serde(default)]
    pub(super) boosted_lately: u64,
    #[serde(default)]
    pub(super) due_lately: u64,
}

impl Book {
    pub(super) fn book(&mut self, now: Time, window: u64, delta: &Delta, fair: Fair, config: &Config) {
        let horizon = nanos(config.horizon);
        self.remember(window, delta.boosted, fair.share, config);
        let error = signed(delta.ran).saturating_sub(signed(fair.share));
        if delta.boosted > 0 || delta.uneven {
            self.last_cause = now;
            self.since_open = self.since_open.saturating_add(delta.boosted);
            self.debt.get_or_insert(0);
        }
        let Some(debt) = self.debt.as_mut() else {
            self.drift = self.drift.saturating_add(error).clamp(-signed(horizon), signed(horizon));
            if self.is_treated_unfairly(config) {
                self.debt = Some(std::mem::take(&mut self.drift));
                (self.unfair, self.last_cause) = (true, now);
            }
            return;
        };
        // Both are bounded. Who wants no more than it may have cannot save credit up to be favoured later,
        // and nobody owes more than boosts gave it, or an unfair scheduler.
        let most = if self.unfair { horizon.saturating_mul(UNFAIR) } else { horizon };
        let credit = if delta.wanted > fair.share { most } else { nanos(config.period) / 2 };
        let owed = if delta.uneven || self.unfair { most } else { 0 };
        *debt = debt.saturating_add(error).clamp(-signed(credit), signed(owed.max(self.since_open)));
        // A VM that wants less than it may have repays with that: it would not get less, and so never repay,
        // by a lower share.
        *debt -= (*debt).clamp(0, signed(fair.unwanted));
        let settled = *debt <= 0 && -*debt < signed(horizon / 8);
        if self.is_treated_unfairly(config) {
            (self.unfair, self.last_cause) = (true, now);
        } else if settled && now.since(self.last_cause) > horizon.saturating_mul(4) {
            self.drift = self.debt.take().unwrap_or(0);
            (self.since_open, self.unfair) = (0, false);
        }
    }

    /// What the VM had is not known, but that it had this as boosts.
    pub(super) fn charge(&mut self, now: Time, window: u64, delta: &Delta, config: &Config) {
        self.remember(window, delta.boosted, 0, config);
        if delta.boosted > 0 {
            self.last_cause = now;
            self.since_open = self.since_open.saturating_add(delta.boosted);
            self.debt = Some(self.debt.unwrap_or(0).saturating_add(signed(delta.boosted)));
        }
    }

    fn remember(&mut self, window: u64, boosted: u64, due: u64, config: &Config) {
        let horizon = nanos(config.horizon).max(1);
        let left = horizon.saturating_sub(window);
        let faded = |sum: u64| {
            let faded = u128::from(sum) * u128::from(left) / u128::from(horizon);
            u64::try_from(faded).unwrap_or(u64::MAX)
        };
        self.boosted_lately = faded(self.boosted_lately).saturating_add(boosted);
        self.due_lately = faded(self.due_lately).saturating_add(due);
    }

    /// What it owes. It is overdrawn if that is much, and half of its share or more were boosts of late. What
    /// the world's scheduler gave it beyond its share is no reason.
    pub(super) fn debt(&self, config: &Config) -> Debt {
        let owed = self.debt.unwrap_or(0);
        let much = owed > signed(nanos(config.period).saturating_mul(2));
        Debt { nanos: owed, overdrawn: much && self.boosted_lately > self.due_lately / 2 }
    }

    /// Whether it got so much more or less than its fair share that no scheduler that is fair within some
    /// slices can be the reason.
    fn is_treated_unfairly(&self, config: &Config) -> bool {
        self.debt.unwrap_or(self.drift).unsigned_abs() >= nanos(config.horizon) / 4
    }

    /// The least share that it has while somebody waits for its answer: if it owes little, it repays later.
    pub(super) fn least_waited_for(&self, config: &Config) -> u32 {
        if self.debt.unwrap_or(0) <= signed(nanos(config.period)) { FULL } else { HALF }
    }

    /// The share that lets the VM have its fair share in the next window and settles what it owes, or is
    /// owed, within the horizon.
    ///
    /// Of its fair share it gets a part as boosts, probably as much as in the last window, and owes a part;
    /// what is left must come from the fair class. All VMs together leave just what the fair class has, so
    /// weights in proportion to what each is to get from it are right for all. With unequal vCPUs the fair
    /// class gives less than in proportion, how much less depends on who runs where, and a scheduler that is
    /// not fair gives anything: there the share goes on from what it was, by what the VM got for it.
    pub(super) fn target(&self, delta: &Delta, fair: u64, window: u64, config: &Config) -> u32 {
        let Some(debt) = self.debt else { return FULL };
        if delta.wanted <= fair && debt <= 0 && !delta.uneven {
            // It wants no more than its share: its boosts take nothing from others.
            return FULL;
        }
        let settled = i128::from(debt) * i128::from(window) / i128::from(nanos(config.horizon).max(1));
        let left = i128::from(fair) - i128::from(delta.boosted) - settled;
        let permille = if delta.uneven || self.unfair {
            let got = i128::from(delta.ran.saturating_sub(delta.boosted)).max(1);
            let before = i128::from(self.permille);
            (before * left / got).clamp(before - before / GAIN, before + before / GAIN + 1)
        } else {
            left * i128::from(FULL) / i128::from(fair.max(1))
        };
        // Between 0 and 1000.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let least = ((config.min_share * f64::from(FULL)) as u32).max(1);
        let least = if delta.waits { least.max(self.least_waited_for(config)) } else { least };
        u32::try_from(permille.clamp(i128::from(least), i128::from(MOST))).unwrap_or(FULL)
    }
}
