//! The ledger: a boost changes when a VM gets the CPU, not how much.
//!
//! The kernel does not charge real-time run time to the fair class, so a VM that is boosted gets its fair share and
//! the boosted time on top; and a VM whose vCPUs have unequal weights gets less than its share, for the kernel divides a group's weight
//! among CPUs by what runs there. The ledger compares what each such VM got with what weighted fair sharing would have given it, and lowers
//! or raises its share until the difference is gone. It counts the error itself, so it needs no
//! model of the kernel's scheduler and what is left of the error does not grow with time.

use crate::config::Ledger as Config;
use crate::event::{Time, VmId};
use crate::nanos::nanos;
use crate::nanos::total;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A set of physical CPUs; numbers above its size wrap, which can only make two pools one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PcpuSet([u64; 16]);

impl PcpuSet {
    pub(crate) fn insert(&mut self, pcpu: u16) {
        let bit = usize::from(pcpu) % (self.0.len() * 64);
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    fn overlaps(&self, other: &PcpuSet) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| a & b != 0)
    }

    fn join(&mut self, other: &PcpuSet) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a |= b;
        }
    }

    fn len(&self) -> u64 {
        let words = self.0.iter().filter(|word| **word != 0);
        words.map(|word| u64::from(word.count_ones())).sum()
    }
}

/// What a VM got so far, and what it wanted since the last settlement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub(crate) vm: VmId,
    pub(crate) weight: u32,
    pub(crate) threads: u64,
    /// Nanoseconds its threads ran.
    pub(crate) ran: u64,
    /// Nanoseconds its threads would have run beyond that since the last settlement.
    pub(crate) unmet: u64,
    /// Nanoseconds its threads ran boosted.
    pub(crate) boosted: u64,
    /// Whether its share can be changed.
    pub(crate) acting: bool,
    /// Whether its vCPUs have unequal weights.
    pub(crate) uneven: bool,
    /// Whether an event waits for its answer in vain.
    pub(crate) waits: bool,
    /// The physical CPUs its threads ran on or waited for since the last settlement.
    pub(crate) pcpus: PcpuSet,
}

/// A VM's account.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Book {
    ran: u64,
    boosted: u64,
    /// What the VM got beyond its fair share, in nanoseconds, negative if it got less; `None` while nothing was done to it that
    /// changes that.
    debt: Option<i64>,
    /// What a VM without a debt got beyond its fair share, bounded by the horizon: the world's scheduler is not always fair.
    drift: i64,
    /// Boosted time since the account was opened: no more than this is taken back, unless
    since_open: u64,
    /// the world's scheduler gave the VM much more or less than its fair share since then.
    unfair: bool,
    /// When it was boosted last, or its vCPUs were of unequal weight.
    last_cause: Time,
    permille: u32,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ledger {
    books: BTreeMap<VmId, Book>,
    settled: Time,
    next: Option<Time>,
    distrust: bool,
}

const FULL: u32 = 1000;
/// A VM's share is never raised above so many times its weight.
const MOST: u32 = 16 * FULL;
/// A VM that the world's scheduler treats unfairly may owe, or be owed, so many horizons: it may be kept from
/// running for a second.
const UNFAIR: u64 = 4;
/// What the share of a VM with unequal vCPUs changes by in a settlement, at most: by a quarter.
const GAIN: i128 = 4;
/// Longest time between settlements that can be configured.
const MAX_PERIOD: Duration = Duration::from_secs(10);
/// A change of share smaller than this is not worth a system call.
const STEP: u32 = 20;

impl Ledger {
    /// Checks a ledger that was loaded.
    pub(crate) fn check(&self, now: Time, followed: impl Fn(VmId) -> bool) -> Result<(), StateError> {
        check(self.books.keys().all(|vm| followed(*vm)), "an account of no VM")?;
        let shares = self.books.values().all(|account| (1..=MOST).contains(&account.permille));
        check(shares, "a share that there is not")?;
        let soon = self.next.is_none_or(|next| next <= now.plus(nanos(MAX_PERIOD)));
        check(soon, "accounts that are never settled")
    }

    /// When accounts are to be settled next; `None` while no VM was boosted.
    pub(crate) fn next(&self) -> Option<Time> {
        self.next
    }

    /// A VM is being boosted: from now on accounts are settled.
    pub(crate) fn open(&mut self, now: Time, claims: impl Iterator<Item = Account>, config: &Config) {
        for claim in claims {
            self.restart(&claim);
        }
        self.settled = now;
        self.next = Some(now.plus(nanos(config.period)));
    }

    fn restart(&mut self, claim: &Account) {
        let Account { vm, ran, boosted, .. } = *claim;
        let new = Book {
            ran,
            boosted,
            debt: None,
            drift: 0,
            since_open: 0,
            unfair: false,
            last_cause: Time(0),
            permille: FULL,
        };
        let account = self.books.entry(vm).or_insert(new);
        (account.ran, account.boosted) = (ran, boosted);
    }

    /// Accounts are settled once more, although there is nothing to settle now.
    pub(crate) fn keep_open(&mut self, now: Time, config: &Config) {
        self.next.get_or_insert(now.plus(nanos(config.period)));
    }

    /// Run times are unreliable until the next settlement.
    pub(crate) fn distrust(&mut self) {
        self.distrust = true;
    }

    pub(crate) fn remove(&mut self, vm: VmId) {
        self.books.remove(&vm);
    }

    /// What the VM got beyond its fair share and has not repaid, in nanoseconds.
    pub(crate) fn debt(&self, vm: VmId) -> i64 {
        self.books.get(&vm).and_then(|account| account.debt).unwrap_or(0)
    }

    /// The fraction of its weight that the VM has now, in permille.
    pub(crate) fn permille(&self, vm: VmId) -> u32 {
        self.books.get(&vm).map_or(FULL, |account| account.permille)
    }

    /// Settles all accounts; returns the VMs whose share changes, and to what.
    pub(crate) fn settle(&mut self, now: Time, claims: &[Account], config: &Config) -> Vec<(VmId, u32)> {
        let window = now.since(self.settled);
        self.settled = now;
        let distrust = std::mem::take(&mut self.distrust) || window == 0;
        let mut changes = Vec::new();
        for pool in pools(claims) {
            let deltas: Vec<Delta> = pool.iter().map(|place| self.delta(&claims[*place], window)).collect();
            let capacity = total(deltas.iter().map(|delta| delta.ran));
            if distrust || capacity == 0 {
                continue;
            }
            let fair = fair_shares(capacity, &deltas);
            for ((place, delta), fair) in pool.iter().zip(&deltas).zip(fair) {
                let claim = &claims[*place];
                let Some(account) = self.books.get_mut(&claim.vm) else { continue };
                account.book(now, delta, fair, config);
                if !claim.acting {
                    continue;
                }
                let permille = account.target(delta, fair.share, window, config);
                if permille.abs_diff(account.permille) >= STEP || permille == FULL && account.permille != FULL
                {
                    account.permille = permille;
                    changes.push((claim.vm, permille));
                }
            }
        }
        for claim in claims {
            self.restart(claim);
        }
        let open = self.books.values().any(|account| account.debt.is_some());
        self.next = open.then(|| now.plus(nanos(config.period)));
        changes
    }

    fn delta(&self, claim: &Account, window: u64) -> Delta {
        let before = self.books.get(&claim.vm);
        let ran = claim.ran.saturating_sub(before.map_or(claim.ran, |account| account.ran));
        let boosted = claim.boosted.saturating_sub(before.map_or(claim.boosted, |account| account.boosted));
        let most = window.saturating_mul(claim.threads.min(claim.pcpus.len().max(1)));
        Delta {
            weight: claim.weight,
            ran,
            wanted: ran.saturating_add(claim.unmet).min(most).max(ran),
            boosted,
            uneven: claim.uneven,
            waits: claim.waits,
        }
    }
}

impl Book {
    fn book(&mut self, now: Time, delta: &Delta, fair: Fair, config: &Config) {
        let horizon = nanos(config.horizon);
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
        // Both are bounded. Who wants no more than it may have can't save credit up to be favoured later, and nobody owes more than boosts
        // gave it, or an unfair scheduler.
        let most = if self.unfair { horizon.saturating_mul(UNFAIR) } else { horizon };
        let credit = if delta.wanted > fair.share { most } else { nanos(config.period) / 2 };
        let owed = if delta.uneven || self.unfair { most } else { 0 };
        *debt = debt.saturating_add(error).clamp(-signed(credit), signed(owed.max(self.since_open)));
        // A VM that wants less than it may have repays with that: it would not get less, and so never repay, by a lower share.
        *debt -= (*debt).clamp(0, signed(fair.unwanted));
        let settled = *debt <= 0 && -*debt < signed(horizon / 8);
        if self.is_treated_unfairly(config) {
            (self.unfair, self.last_cause) = (true, now);
        } else if settled && now.since(self.last_cause) > horizon.saturating_mul(4) {
            self.drift = self.debt.take().unwrap_or(0);
            (self.since_open, self.unfair) = (0, false);
        }
    }

    /// Whether it got so much more or less than its fair share that no scheduler that is fair within some slices can be the reason.
    fn is_treated_unfairly(&self, config: &Config) -> bool {
        self.debt.unwrap_or(self.drift).unsigned_abs() >= nanos(config.horizon) / 4
    }

    /// The share that lets the VM have its fair share in the next window and settles what it owes, or is owed, within the horizon.
    ///
    /// Of its fair share it gets a part as boosts, probably as much as in the last window, and owes a part; what is left must
    /// come from the fair class. All VMs together leave just what the fair class has, so weights in proportion to what each is
    /// to get from it are right for all. With unequal vCPUs the fair class gives less than in proportion, how much less depends on who
    /// runs where, and a scheduler that is not fair gives anything: there the share goes on from what it was, by what the VM got for it.
    fn target(&self, delta: &Delta, fair: u64, window: u64, config: &Config) -> u32 {
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
        // Who waits for an answer repays later, as long as that is little.
        let least = if delta.waits && debt <= signed(nanos(config.period)) { FULL } else { least };
        u32::try_from(permille.clamp(i128::from(least), i128::from(MOST))).unwrap_or(FULL)
    }
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

/// What a VM got and wanted between two settlements.
#[derive(Clone, Copy, Debug)]
struct Delta {
    weight: u32,
    ran: u64,
    wanted: u64,
    boosted: u64,
    uneven: bool,
    waits: bool,
}

/// What would have been fair in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fair {
    share: u64,
    /// What it could have had beyond that but did not want.
    unwanted: u64,
}

/// Groups VMs that shared a physical CPU, directly or through others: only they took time from each other. By their places in `claims`.
fn pools(claims: &[Account]) -> Vec<VecDeque<usize>> {
    let mut pools: Vec<(PcpuSet, VecDeque<usize>)> = Vec::new();
    for (place, claim) in claims.iter().enumerate() {
        let mut touching = pools.extract_if(.., |(pcpus, _)| pcpus.overlaps(&claim.pcpus));
        let (mut pcpus, mut members) = touching.next().unwrap_or_default();
        for (others, more) in touching {
            pcpus.join(&others);
            members.extend(more);
        }
        pcpus.join(&claim.pcpus);
        members.push_front(place);
        pools.push((pcpus, members));
    }
    pools.into_iter().map(|(_, members)| members).collect()
}

/// Weighted max-min fair shares of `capacity`: nobody gets more than it wanted, and what it leaves goes to the others
/// by weight. In the order of `claims`.
fn fair_shares(capacity: u64, claims: &[Delta]) -> Vec<Fair> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    // By wanted / weight, compared crosswise to stay in integers.
    order.sort_by_cached_key(|i| {
        u128::from(claims[*i].wanted) * 1_000_000 / u128::from(claims[*i].weight.max(1))
    });
    let mut shares = vec![Fair { share: 0, unwanted: 0 }; claims.len()];
    let mut left = u128::from(capacity);
    let mut weights: u128 = claims.iter().map(|claim| u128::from(claim.weight.max(1))).sum();
    for i in order {
        let weight = u128::from(claims[i].weight.max(1));
        let most = u64::try_from(left * weight / weights).unwrap_or(u64::MAX);
        let share = most.min(claims[i].wanted);
        shares[i] = Fair { share, unwanted: most - share };
        left -= u128::from(share);
        weights -= weight;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nanos::nanos_f64;

    fn delta(weight: u32, ran: u64, wanted: u64) -> Delta {
        Delta { weight, ran, wanted, boosted: 0, uneven: false, waits: false }
    }

    #[test]
    fn fair_shares_follow_weights_and_demand() {
        let fair = |share, unwanted| Fair { share, unwanted };
        assert_eq!(fair_shares(600, &[delta(1, 0, 600); 6]), [fair(100, 0); 6]);
        assert_eq!(fair_shares(600, &[delta(2, 0, 600), delta(1, 0, 600)]), [fair(400, 0), fair(200, 0)]);
        let modest = [delta(1, 0, 60), delta(1, 0, 600), delta(1, 0, 600)];
        assert_eq!(fair_shares(600, &modest), [fair(60, 140), fair(270, 0), fair(270, 0)]);
        assert_eq!(fair_shares(0, &[delta(1, 0, 60)]), [fair(0, 0)]);
    }

    #[test]
    fn vms_on_different_cpus_are_settled_apart() {
        let on = |vm, cpus: &[u16]| {
            let mut pcpus = PcpuSet::default();
            cpus.iter().for_each(|cpu| pcpus.insert(*cpu));
            Account {
                vm: VmId(vm),
                weight: 1,
                threads: 1,
                ran: 0,
                unmet: 0,
                boosted: 0,
                acting: true,
                uneven: false,
                waits: false,
                pcpus,
            }
        };
        let pools = pools(&[on(0, &[0]), on(1, &[1]), on(2, &[2, 3]), on(3, &[0, 1])]);
        let mut sizes: Vec<usize> = pools.iter().map(VecDeque::len).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 3]);
    }

    /// VMs that want all they can get share one CPU; the first ones are boosted for a part of the time, on
    /// top of what their share gives. The fair class is modelled as an ideal fluid. What each got over its
    /// fair share, after a minute: what is still owed then is bounded, however long it goes on. The
    /// scheduler's `bias` for a VM in a window, in permille, is what it takes its weight for.
    fn shares_after(weights: &[u32], boosted: &[u64], bias: impl Fn(u32, u64) -> u64) -> Vec<f64> {
        let config = Config::default();
        let mut ledger = Ledger::default();
        let mut pcpus = PcpuSet::default();
        pcpus.insert(0);
        let claim = |(vm, weight): (u32, &u32)| {
            let vm = VmId(vm);
            Account {
                vm,
                weight: *weight,
                threads: 2,
                ran: 0,
                unmet: 0,
                boosted: 0,
                acting: true,
                uneven: false,
                waits: false,
                pcpus,
            }
        };
        let mut claims: Vec<Account> = (0..).zip(weights).map(claim).collect();
        let mut now = Time(0);
        ledger.open(now, claims.iter().copied(), &config);
        let window = nanos(config.period);
        let rest = window - boosted.iter().sum::<u64>();
        for step in 0..1200 {
            let effective = |claim: &Account| {
                let weight = u64::from(claim.weight) * u64::from(ledger.permille(claim.vm));
                weight * bias(claim.vm.0, step) / 1000
            };
            let all: u64 = claims.iter().map(effective).sum();
            let ran: Vec<u64> = claims.iter().map(|claim| rest * effective(claim) / all).collect();
            for (i, claim) in claims.iter_mut().enumerate() {
                let boosted = boosted.get(i).copied().unwrap_or(0);
                claim.ran += ran[i] + boosted;
                claim.boosted += boosted;
                claim.unmet = window - ran[i] - boosted;
            }
            now = now.plus(window);
            ledger.settle(now, &claims, &config);
        }
        let total: u64 = claims.iter().map(|claim| claim.ran).sum();
        let weights: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let share = |claim: &Account| {
            nanos_f64(claim.ran) / nanos_f64(total) * nanos_f64(weights) / f64::from(claim.weight)
        };
        claims.iter().map(share).collect()
    }

    #[test]
    fn what_a_boost_gave_is_taken_back() {
        let shares = shares_after(&[1024; 6], &[2_500_000], |_, _| 1000);
        assert!(shares.iter().all(|share| (share - 1.0).abs() < 0.01), "{shares:?}");
    }

    proptest::proptest! {
        /// Fairness: as long as no VM is boosted for more than its fair share, each gets that share.
        #[test]
        fn every_vm_gets_its_fair_share(
            weights in proptest::collection::vec(512..4096u32, 2..9),
            boosts in proptest::collection::vec(0.0..0.8f64, 0..4),
        ) {
            let all: u32 = weights.iter().sum();
            let window = nanos_f64(nanos(Config::default().period));
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Below the window, above zero.
            let boosted: Vec<u64> = weights
                .iter()
                .zip(boosts)
                .map(|(weight, part)| (window * part * f64::from(*weight) / f64::from(all)) as u64)
                .collect();
            let shares = shares_after(&weights, &boosted, |_, _| 1000);
            proptest::prop_assert!(shares.iter().all(|share| (share - 1.0).abs() < 0.02), "{:?}", shares);
        }
    }

    /// A scheduler gives some VMs more than others all the time, or keeps one from running for half a second
    /// now and then.
    #[test]
    fn what_an_unfair_scheduler_gives_is_evened_out() {
        let favours = |vm: u32, _: u64| [1300u64, 1000, 700, 1000, 1100, 900][vm as usize];
        let starves = |vm: u32, step: u64| if vm == 0 && step % 60 < 10 { 10u64 } else { 1000 };
        for (name, bias) in [("favours", &favours as &dyn Fn(u32, u64) -> u64), ("starves", &starves)] {
            for boosted in [&[][..], &[2_500_000]] {
                let shares = shares_after(&[1024; 6], boosted, bias);
                assert!(
                    shares.iter().all(|share| (share - 1.0).abs() < 0.01),
                    "{name} {boosted:?}: {shares:?}"
                );
            }
        }
    }

    /// A VM that needs little of its share had more than that in one window, boosted. It gets all it wants ever after.
    #[test]
    fn who_wants_less_than_its_share_repays_with_the_rest() {
        const MS: u64 = 1_000_000;
        let config = Config::default();
        let mut ledger = Ledger::default();
        let mut pcpus = PcpuSet::default();
        pcpus.insert(0);
        let claim = |vm, ran, boosted| {
            let unmet = if vm == 0 { 0 } else { 50 * MS };
            Account {
                vm: VmId(vm),
                weight: 1,
                threads: 1,
                ran,
                unmet,
                boosted,
                acting: true,
                uneven: false,
                waits: false,
                pcpus,
            }
        };
        ledger.open(Time(0), [claim(0, 0, 0), claim(1, 0, 0)].into_iter(), &config);
        ledger.settle(Time(50 * MS), &[claim(0, 35 * MS, 35 * MS), claim(1, 15 * MS, 0)], &config);
        assert_eq!(ledger.debt(VmId(0)), signed(10 * MS));
        ledger.settle(Time(100 * MS), &[claim(0, 54 * MS, 40 * MS), claim(1, 46 * MS, 0)], &config);
        assert_eq!(ledger.debt(VmId(0)), signed(4 * MS), "6 of 25 ms were left to the other");
        ledger.settle(Time(150 * MS), &[claim(0, 55 * MS, 41 * MS), claim(1, 95 * MS, 0)], &config);
        assert_eq!(ledger.debt(VmId(0)), 0, "and no credit is saved up");
    }

    #[test]
    fn a_vm_that_was_never_boosted_is_left_alone() {
        let config = Config::default();
        let mut ledger = Ledger::default();
        let mut pcpus = PcpuSet::default();
        pcpus.insert(0);
        let claim = |vm, ran, boosted| {
            let vm = VmId(vm);
            Account {
                vm,
                weight: 1,
                threads: 1,
                ran,
                unmet: 50_000_000,
                boosted,
                acting: true,
                uneven: false,
                waits: false,
                pcpus,
            }
        };
        ledger.open(Time(0), [claim(0, 0, 0), claim(1, 0, 0)].into_iter(), &config);
        let changes = ledger.settle(
            Time(50_000_000),
            &[claim(0, 45_000_000, 0), claim(1, 5_000_000, 1_000_000)],
            &config,
        );
        assert_eq!(changes, [(VmId(1), 1120)], "who was boosted and got less is owed it, a little at a time");
        assert_eq!(ledger.debt(VmId(0)), 0);
    }

    /// A VM with one of two vCPUs at a low weight, beside an even one, on two CPUs. The kernel divides a group's weight among CPUs by
    /// the weights of what runs there, which is modelled as an ideal fluid. The share of CPU that the uneven VM has at the end.
    fn uneven_share(fast: u64, slow: u64, corrected: bool) -> f64 {
        const WINDOW: u64 = 50_000_000;
        let config = Config::default();
        let mut ledger = Ledger::default();
        let mut pcpus = PcpuSet::default();
        (0..2).for_each(|cpu| pcpus.insert(cpu));
        let account = |vm, uneven| Account {
            vm: VmId(vm),
            weight: 1024,
            threads: 2,
            ran: 0,
            unmet: 0,
            boosted: 0,
            acting: true,
            uneven,
            waits: false,
            pcpus,
        };
        let mut accounts = [account(0, corrected), account(1, false)];
        ledger.open(Time(0), accounts.iter().copied(), &config);
        for round in 1..=600 {
            let weight = 1024 * u64::from(ledger.permille(VmId(0)));
            let on = |part: u64| {
                let mine = u128::from(weight) * u128::from(part) / u128::from(fast + slow);
                u64::try_from(u128::from(WINDOW) * mine / (mine + 512_000)).unwrap()
            };
            let got = on(fast) + on(slow);
            if round == 400 {
                accounts[0].ran = 0;
                accounts[1].ran = 0;
                ledger.open(Time((round - 1) * WINDOW), accounts.iter().copied(), &config);
            }
            for (account, ran) in accounts.iter_mut().zip([got, 2 * WINDOW - got]) {
                account.ran += ran;
                account.unmet = 2 * WINDOW - ran;
            }
            if corrected {
                ledger.settle(Time(round * WINDOW), &accounts, &config);
            }
        }
        nanos_f64(accounts[0].ran) / nanos_f64(accounts[0].ran + accounts[1].ran)
    }

    #[test]
    fn a_vm_with_unequal_vcpus_keeps_its_share() {
        for (slow, alone) in [(335, 0.46), (110, 0.40), (56, 0.37)] {
            let kernel = uneven_share(1024, slow, false);
            assert!(kernel < alone + 0.02, "the kernel alone: {kernel}");
            let share = uneven_share(1024, slow, true);
            assert!((share - 0.5).abs() < 0.005, "{slow} of 1024: {share}");
        }
    }

    #[test]
    fn who_waits_for_an_answer_repays_later_but_not_never() {
        const MS: u64 = 1_000_000;
        let config = Config::default();
        let mut pcpus = PcpuSet::default();
        pcpus.insert(0);
        let settled = |waits, boosted| {
            let account = |vm, ran, boosted, waits| Account {
                vm: VmId(vm),
                weight: 1,
                threads: 1,
                ran,
                unmet: 50 * MS,
                boosted,
                acting: true,
                uneven: false,
                waits,
                pcpus,
            };
            let mut ledger = Ledger::default();
            ledger.open(Time(0), [account(0, 0, 0, false), account(1, 0, 0, false)].into_iter(), &config);
            let now =
                [account(0, 25 * MS + boosted, boosted, waits), account(1, 25 * MS - boosted, 0, false)];
            let mut time = Time(0);
            let mut accounts = now;
            for _ in 0..8 {
                time = time.plus(50 * MS);
                ledger.settle(time, &accounts, &config);
                for (account, step) in accounts.iter_mut().zip(now) {
                    (account.ran, account.boosted) = (account.ran + step.ran, account.boosted + step.boosted);
                }
            }
            ledger.permille(VmId(0))
        };
        assert!(settled(false, 5 * MS) < FULL);
        assert!(settled(true, 5 * MS) >= FULL);
        assert!(settled(true, 20 * MS) < FULL, "who waits for ever repays all the same");
    }
}
