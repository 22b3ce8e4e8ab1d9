//! What policies ask of the knobs of a VM: claims, until they end, and the actions where another one wins.

use super::state::{End, Engine};
use super::vm::Vm;
use crate::action::ActionKind;
use crate::event::VmId;
use crate::policy::{Ask, Claim, Knob, Owner};
use std::collections::BTreeSet;

impl Engine {
    /// Does what policies ask, and keeps the emptied list for the next time.
    pub(super) fn apply(&mut self, vm: VmId, mut asks: Vec<Ask>) {
        for ask in asks.drain(..) {
            match ask {
                Ask::Claim(claim) => self.claim(vm, claim),
                Ask::End(owner, target) => self.end_claim(vm, owner, target),
            }
        }
        self.asks = asks;
    }

    fn claim(&mut self, vm: VmId, claim: Claim) {
        let boosts = matches!(claim.target, Knob::Boost(_));
        if boosts && self.ledger.next().is_none() {
            self.open_ledger();
        }
        self.change(vm, claim.target, |state, ends| {
            if let Some(until) = state.claims.set(claim) {
                ends.remove(&(until, vm, claim.owner, claim.target));
            }
            ends.insert((claim.until, vm, claim.owner, claim.target));
        });
    }

    fn end_claim(&mut self, vm: VmId, owner: Owner, target: Knob) {
        self.change(vm, target, |state, ends| {
            if let Some(until) = state.claims.end(owner, target) {
                ends.remove(&(until, vm, owner, target));
            }
        });
    }

    /// Changes claims on a knob of a VM whose times are up to date. The winner is told where it is another
    /// one now.
    fn change(&mut self, vm: VmId, target: Knob, change: impl FnOnce(&mut Vm, &mut BTreeSet<End>)) {
        let Some(state) = self.vms.get_mut(&vm) else { return };
        let before = state.claims.value(target);
        change(state, &mut self.ends);
        if state.claims.value(target) == before {
            return;
        }
        let kind = match target {
            Knob::Boost(target) => ActionKind::Boost { vm, target, level: state.claims.level(target) },
            Knob::Watch(vcpu) => ActionKind::Watch { vm, vcpu, on: before == 0 },
        };
        self.act(kind);
    }

    /// Ends the claims whose time is over, but those that their owners want to go on.
    pub(super) fn expire(&mut self) {
        if self.ends.first().is_some_and(|(until, ..)| *until <= self.now) {
            self.end_those_over();
        }
    }

    #[cold]
    fn end_those_over(&mut self) {
        while let Some((until, vm, owner, target)) =
            self.ends.first().copied().filter(|(until, ..)| *until <= self.now)
        {
            let Some(state) = self.vms.get_mut(&vm) else {
                self.ends.remove(&(until, vm, owner, target));
                continue;
            };
            let debt = self.ledger.debt(vm);
            let mut asks = std::mem::take(&mut self.asks);
            let later = state.expire((owner, target), self.now, &self.config, self.world, debt, &mut asks);
            match later.filter(|later| *later > self.now) {
                Some(until) => {
                    let value = state.claims.value(target);
                    self.claim(vm, Claim { owner, target, value, until });
                }
                None => self.end_claim(vm, owner, target),
            }
            self.apply(vm, asks);
        }
    }
}
