//! The ledger: a boost changes when a VM gets the CPU, not how much.
//!
//! The kernel does not charge real-time run time to the fair class, so a VM that is boosted gets its fair
//! share and the boosted time on top; and a VM whose vCPUs have unequal weights gets less than its share, for
//! the kernel divides a group's weight among CPUs by what runs there. The ledger compares what each such VM
//! got with what weighted fair sharing would have given it, and lowers or raises its share until the
//! difference is gone. It counts the error itself, so it needs no model of the kernel's scheduler and what is
//! left of the error does not grow with time.

use super::account::{Delta, VmAccount};
use super::book::{Book, FULL, MOST};
use super::fair_share::{Fair, fair_shares, pools};
use crate::config::Ledger as Config;
use crate::event::{Time, VmId};
use crate::nanos::{nanos, total};
use crate::policy::Debt;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ledger {
    books: BTreeMap<VmId, Book>,
    settled: Time,
    next: Option<Time>,
    distrust: bool,
}

/// One of those who shared physical CPUs in the window that is settled.
struct Member {
    claim: VmAccount,
    delta: Delta,
    fair: Fair,
}

impl Member {
    fn wants_more(&self) -> bool {
        self.fair.unwanted == 0
    }
}

/// Longest time between settlements that can be configured.
const MAX_PERIOD: Duration = Duration::from_secs(10);
/// A change by less than this fraction of the share is not worth a system call.
const STEP: u32 = 50;

impl Ledger {
    /// Checks a ledger that was loaded.
    pub(crate) fn check(&self, now: Time, followed: impl Fn(VmId) -> bool) -> Result<(), StateError> {
        check(self.books.keys().all(|vm| followed(*vm)), "an account of no VM")?;
        let shares = self.books.values().all(|account| (1..=MOST).contains(&account.permille));
        check(shares, "a share out of range")?;
        let soon = self.next.is_none_or(|next| next <= now.plus(nanos(MAX_PERIOD)));
        check(soon, "accounts that are never settled")
    }

    /// When accounts are to be settled next; `None` while no VM was boosted.
    pub(crate) fn next(&self) -> Option<Time> {
        self.next
    }

    /// A VM is being boosted: from now on accounts are settled.
    pub(crate) fn open(&mut self, now: Time, claims: impl Iterator<Item = VmAccount>, config: &Config) {
        for claim in claims {
            self.restart(&claim);
        }
        self.settled = now;
        self.next = Some(now.plus(nanos(config.period)));
    }

    fn restart(&mut self, claim: &VmAccount) {
        let VmAccount { vm, ran, boosted, .. } = *claim;
        let new = Book {
            ran,
            boosted,
            debt: None,
            drift: 0,
            since_open: 0,
            unfair: false,
            last_cause: Time(0),
            permille: FULL,
            boosted_lately: 0,
            due_lately: 0,
        };
        let account = self.books.entry(vm).or_insert(new);
        (account.ran, account.boosted) = (ran, boosted);
    }

    /// A VM ran so long, but not in the time that is settled next.
    pub(crate) fn leave_out(&mut self, vm: VmId, ran: u64) {
        if let Some(account) = self.books.get_mut(&vm) {
            account.ran = account.ran.saturating_add(ran);
        }
    }

    /// Accounts are settled once more, although there is nothing to settle now.
    pub(crate) fn keep_open(&mut self, now: Time, config: &Config) {
        self.next.get_or_insert(now.plus(nanos(config.period)));
    }

    /// All run times are unreliable until the next settlement.
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

    /// What it owes, and whether boosts are why.
    pub(crate) fn balance(&self, vm: VmId, config: &Config) -> Debt {
        self.books.get(&vm).map(|book| book.debt(config)).unwrap_or_default()
    }

    /// The fraction of its weight that the VM has now, in permille.
    pub(crate) fn permille(&self, vm: VmId) -> u32 {
        self.books.get(&vm).map_or(FULL, |account| account.permille)
    }

    /// What part of all CPU time was not boosted of late, in permille; a tenth at least.
    pub(crate) fn unboosted(&self) -> u64 {
        let due = total(self.books.values().map(|book| book.due_lately));
        let boosted = total(self.books.values().map(|book| book.boosted_lately)).min(due);
        let part = boosted.saturating_mul(1000).checked_div(due).unwrap_or(0);
        1000u64.saturating_sub(part).max(100)
    }

    /// A VM repays what it owes later, if that is little; returns whether its share changes by that.
    pub(crate) fn postpone(&mut self, vm: VmId, config: &Config) -> bool {
        let repays = |book: &&mut Book| book.permille < FULL && book.least_waited_for(config) == FULL;
        let Some(book) = self.books.get_mut(&vm).filter(repays) else { return false };
        book.permille = FULL;
        true
    }

    /// Settles all accounts; returns the VMs whose share changes, and to what. One whose times may be wrong
    /// is left out, and owes what it was boosted: the others settle what they had among themselves. So nobody
    /// who floods keeps others from settling.
    pub(crate) fn settle(&mut self, now: Time, claims: &[VmAccount], config: &Config) -> Vec<(VmId, u32)> {
        let window = now.since(self.settled);
        self.settled = now;
        let distrust = std::mem::take(&mut self.distrust) || window == 0;
        let mut changes = Vec::new();
        // And of one that is new it is not known what it had in this window.
        let is_sure = |claim: &&VmAccount| !claim.unsure && self.books.contains_key(&claim.vm);
        let sure: Vec<VmAccount> = claims.iter().filter(is_sure).copied().collect();
        for pool in pools(&sure) {
            let deltas: Vec<Delta> = pool.iter().map(|place| self.delta(&sure[*place], window)).collect();
            let capacity = total(deltas.iter().map(|delta| delta.ran));
            if distrust || capacity == 0 {
                continue;
            }
            let fair = fair_shares(capacity, &deltas);
            let of_pool = pool.iter().map(|place| sure[*place]);
            let members: Vec<Member> = of_pool
                .zip(deltas)
                .zip(fair)
                .map(|((claim, delta), fair)| Member { claim, delta, fair })
                .collect();
            for Member { claim, delta, fair } in &members {
                if let Some(account) = self.books.get_mut(&claim.vm) {
                    account.book(now, window, delta, *fair, config);
                }
            }
            self.forgive(&members, window, config);
            let targets = self.targets(&members, window, config);
            for (Member { claim, .. }, permille) in members.iter().zip(targets) {
                let Some(account) = self.books.get_mut(&claim.vm).filter(|_| claim.acting) else { continue };
                let change = permille.abs_diff(account.permille);
                if change >= account.permille.div_ceil(STEP) || permille == FULL && account.permille != FULL {
                    account.permille = permille;
                    changes.push((claim.vm, permille));
                }
            }
        }
        for claim in claims {
            let delta = self.delta(claim, window);
            if claim.unsure
                && let Some(account) = self.books.get_mut(&claim.vm)
            {
                account.charge(now, window, &delta, config);
            }
            self.restart(claim);
        }
        let open = self.books.values().any(|account| account.debt.is_some());
        self.next = open.then(|| now.plus(nanos(config.period)));
        changes
    }

    /// What one repays is to be had by the others that want more than they may have. So what all of these owe
    /// is owed to nobody, and whoever else is on these CPUs would have it. What all are owed nobody owes, and
    /// whoever else is there would pay: it is forgotten as fast as it would be repaid.
    fn forgive(&mut self, members: &[Member], window: u64, config: &Config) {
        let wanting = || members.iter().filter(|member| member.wants_more()).map(|member| member.claim.vm);
        let debts = || wanting().map(|vm| self.debt(vm));
        let all_owe = debts().min().unwrap_or(0).max(0);
        let all_are_owed = i128::from(debts().max().unwrap_or(0).min(0));
        let repaid = all_are_owed * i128::from(window) / i128::from(nanos(config.horizon).max(1));
        let common = all_owe.saturating_add(i64::try_from(repaid.max(all_are_owed)).unwrap_or(0));
        for vm in wanting() {
            if let Some(debt) = self.books.get_mut(&vm).and_then(|account| account.debt.as_mut()) {
                *debt -= common;
            }
        }
    }

    /// The shares that they should have in the next window, in permille of their weights. What all that want
    /// more would be raised by raises none of them: they would go on until all have the highest share that
    /// there is, and then it would no longer matter who is owed what.
    fn targets(&self, members: &[Member], window: u64, config: &Config) -> Vec<u32> {
        let target = |Member { claim, delta, fair }: &Member| match self.books.get(&claim.vm) {
            Some(account) if claim.acting => account.target(delta, fair.share, window, config),
            _ => self.permille(claim.vm),
        };
        let targets: Vec<u32> = members.iter().map(target).collect();
        let raised = members.iter().zip(&targets).filter(|(member, _)| member.wants_more());
        let all_raised = raised.map(|(_, target)| *target).min().unwrap_or(FULL).max(FULL);
        let relative = |(member, target): (&Member, u32)| {
            if member.wants_more() { target * FULL / all_raised } else { target }
        };
        members.iter().zip(targets).map(relative).collect()
    }

    fn delta(&self, claim: &VmAccount, window: u64) -> Delta {
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

#[cfg(test)]
mod tests;
