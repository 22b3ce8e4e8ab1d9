//! How much of a VM's requests may come first, and how much before others' (§3.2.1).
//!
//! Each period a VM gets W of what the disk offers for `High` requests, and C for these and `Common` ones
//! together. What it is served as `Low` is nobody's due and is not counted. VMs that have not used the disk
//! of late leave theirs to the others.

use super::config::{DiskConfig, Unit};
use super::request::{Beyond, DiskClass};
use crate::event::{Time, VmId};
use crate::nanos::nanos;
use std::collections::BTreeMap;

/// A VM without a request for so many periods leaves its part to the others.
const ABSENT: u64 = 10;
/// What one request counts where requests are counted, so that parts of one can be due.
const REQUEST: u64 = 1_000;
/// The highest offer of the past loses this part in each period, as a power of two.
const DECAY: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Account {
    weight: u32,
    cap: u32,
    /// Left of W, and of C.
    high: i64,
    all: i64,
    /// When it asked last.
    asked: Time,
}

#[derive(Debug, Default)]
pub(super) struct Limiter {
    accounts: BTreeMap<VmId, Account>,
    /// When the current period ends; `None` before the first.
    ends: Option<Time>,
    /// Requests in this period, as counted.
    used: u64,
    /// The most that was used in a period, decayed.
    peak: u64,
}

impl Limiter {
    /// A VM asks for something. What it may have grows from now on, if it is new.
    pub(super) fn asked(&mut self, vm: VmId, now: Time, config: &DiskConfig) {
        let fresh = Account { weight: config.weight, cap: config.cap, high: 0, all: 0, asked: now };
        let new = !self.accounts.contains_key(&vm);
        self.accounts.entry(vm).or_insert(fresh).asked = now;
        if new {
            // As for one that was there before and left all.
            self.refill(vm, u64::from(config.carry), now, config);
        }
    }

    /// From now on a VM has this weight and this cap.
    pub(super) fn set(&mut self, vm: VmId, weight: u32, cap: u32, now: Time) {
        let fresh = Account { weight, cap, high: 0, all: 0, asked: now };
        let account = self.accounts.entry(vm).or_insert(fresh);
        (account.weight, account.cap) = (weight, cap);
    }

    pub(super) fn forget(&mut self, vm: VmId) {
        self.accounts.remove(&vm);
    }

    /// Time passes.
    pub(super) fn advance(&mut self, now: Time, config: &DiskConfig) {
        let period = nanos(config.period);
        let ends = *self.ends.get_or_insert(now.plus(period));
        if now < ends {
            return;
        }
        let periods = 1 + now.since(ends) / period;
        self.ends = Some(ends.plus(periods.saturating_mul(period)));
        let decayed =
            if periods < 64 { (0..periods).fold(self.peak, |peak, _| peak - (peak >> DECAY)) } else { 0 };
        self.peak = std::mem::take(&mut self.used).max(decayed);
        for vm in self.accounts.keys().copied().collect::<Vec<_>>() {
            self.refill(vm, periods, now, config);
        }
    }

    /// What the disk offers in a period.
    fn offer(&self, config: &DiskConfig) -> u64 {
        match config.unit {
            Unit::Time => nanos(config.period),
            // One at least, so that it can be found out.
            Unit::Requests => self.peak.max(REQUEST),
        }
    }

    /// Gives a VM what it is due for so many periods.
    fn refill(&mut self, vm: VmId, periods: u64, now: Time, config: &DiskConfig) {
        let absent = ABSENT.saturating_mul(nanos(config.period));
        let shares = |(other, account): (&VmId, &Account)| *other == vm || now.since(account.asked) < absent;
        let present = self.accounts.iter().filter(|entry| shares(*entry));
        let caps = present.map(|(_, account)| u64::from(account.cap)).sum::<u64>().max(1);
        let offer = self.offer(config);
        let Some(account) = self.accounts.get_mut(&vm) else { return };
        let due = |part: u32| offer.saturating_mul(u64::from(part)) / caps;
        let carry = u64::from(config.carry);
        let filled = |left: i64, due: u64| {
            let gets = signed(due.saturating_mul(periods));
            left.saturating_add(gets).min(signed(due.saturating_mul(carry)))
        };
        account.high = filled(account.high, due(account.weight));
        account.all = filled(account.all, due(account.cap));
    }

    /// The limit that a VM's next request is beyond.
    pub(super) fn beyond(&self, vm: VmId) -> Option<Beyond> {
        let account = self.accounts.get(&vm)?;
        if account.all <= 0 { Some(Beyond::Cap) } else { (account.high <= 0).then_some(Beyond::Weight) }
    }

    /// A request that will take so much device time is submitted.
    pub(super) fn submitted(&mut self, vm: VmId, class: DiskClass, time: u64, config: &DiskConfig) {
        match config.unit {
            Unit::Time => self.spent(vm, class, signed(time)),
            Unit::Requests => {
                self.used = self.used.saturating_add(REQUEST);
                self.spent(vm, class, signed(REQUEST));
            }
        }
    }

    /// It took so much more device time than was thought, or less.
    pub(super) fn corrected(&mut self, vm: VmId, class: DiskClass, more: i64, config: &DiskConfig) {
        if config.unit == Unit::Time {
            self.spent(vm, class, more);
        }
    }

    fn spent(&mut self, vm: VmId, class: DiskClass, amount: i64) {
        let Some(account) = self.accounts.get_mut(&vm) else { return };
        if class == DiskClass::High {
            account.high = account.high.saturating_sub(amount);
        }
        if class != DiskClass::Low {
            account.all = account.all.saturating_sub(amount);
        }
    }
}

pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DiskClass::{Common, High, Low};

    const SECOND: u64 = 1_000_000_000;
    const ONE: VmId = VmId(1);
    const OTHER: VmId = VmId(2);

    /// How many requests come in each class, of those that one VM sends beside another in a period.
    fn classes(interactive: bool, requests: u64, time: u64, config: &DiskConfig) -> [u64; 3] {
        let mut limiter = Limiter::default();
        for period in 0..20 {
            let now = Time(period * SECOND);
            limiter.advance(now, config);
            [ONE, OTHER].into_iter().for_each(|vm| limiter.asked(vm, now, config));
            (0..100).for_each(|_| limiter.submitted(OTHER, Low, 1, config));
        }
        limiter.accounts.values_mut().for_each(|account| (account.high, account.all) = (0, 0));
        limiter.advance(Time(20 * SECOND), config);
        let mut classes = [0; 3];
        for _ in 0..requests {
            let class = match limiter.beyond(ONE) {
                Some(Beyond::Cap) => Low,
                None if interactive => High,
                _ => Common,
            };
            classes[class as usize] += 1;
            limiter.submitted(ONE, class, time, config);
        }
        classes
    }

    #[test]
    fn equal_vms_have_half_of_their_part_first() {
        // The disk serves 100 requests in a period: C is 50 and W 25.
        let paper = DiskConfig::paper();
        assert_eq!(classes(true, 200, 1, &paper), [25, 25, 150]);
        assert_eq!(classes(false, 200, 1, &paper), [0, 50, 150]);
    }

    #[test]
    fn by_default_it_is_time_that_counts() {
        let config = DiskConfig::default();
        assert_eq!(classes(true, 200, SECOND / 100, &config), [25, 25, 150]);
        assert_eq!(classes(true, 200, SECOND / 10, &config), [3, 2, 195], "large ones are fewer");
    }

    #[test]
    fn what_is_left_is_kept_for_a_while() {
        let config = DiskConfig::default();
        let mut limiter = Limiter::default();
        limiter.asked(ONE, Time(0), &config);
        limiter.advance(Time(0), &config);
        let left = |limiter: &Limiter| limiter.accounts[&ONE].all;
        limiter.submitted(ONE, Common, 40 * SECOND, &config);
        assert_eq!(left(&limiter), -10 * signed(SECOND));
        assert_eq!(limiter.beyond(ONE), Some(Beyond::Cap));
        limiter.advance(Time(12 * SECOND), &config);
        assert_eq!(limiter.beyond(ONE), None, "a second for each that passed");
        limiter.advance(Time(1_000 * SECOND), &config);
        assert_eq!(left(&limiter), 30 * signed(SECOND));
    }

    #[test]
    fn who_is_absent_leaves_its_part_to_others() {
        let config = DiskConfig { carry: 1, ..DiskConfig::default() };
        let mut limiter = Limiter::default();
        [ONE, OTHER].into_iter().for_each(|vm| limiter.asked(vm, Time(0), &config));
        for second in 0..20 {
            limiter.asked(ONE, Time(second * SECOND), &config);
            limiter.advance(Time(second * SECOND), &config);
            let whole = limiter.accounts[&ONE].all == signed(SECOND);
            assert_eq!(whole, second == 0 || second >= ABSENT, "after {second} s");
        }
    }

    #[test]
    fn a_weight_and_a_cap_can_be_those_of_one_vm() {
        let config = DiskConfig::default();
        let mut limiter = Limiter::default();
        limiter.asked(OTHER, Time(0), &config);
        limiter.set(ONE, 30, 30, Time(0));
        limiter.advance(Time(0), &config);
        limiter.advance(Time(SECOND), &config);
        let Account { high, all, .. } = limiter.accounts[&ONE];
        assert_eq!([high, all], [signed(SECOND) * 3 / 4; 2]);
    }
}
