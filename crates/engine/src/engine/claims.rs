//! What policies ask of the knobs of a VM: claims, until they end, and the actions where another one wins.

use super::state::{End, Engine};
use super::vm::{Situation, Vm};
use crate::action::ActionKind;
use crate::capabilities::Standing;
use crate::event::VmId;
use crate::policy::{Ask, Claim, Knob, Owner};
use std::collections::BTreeSet;

impl Engine {
    /// Does what policies ask, and keeps the emptied list for the next time.
    pub(super) fn apply(&mut self, vm: VmId, mut asks: Vec<Ask>) {
        for ask in asks.drain(..) {
            match ask {
                Ask::Claim(claim) => self.claim(vm, claim),
                Ask::End(owner, knob) => self.end_claim(vm, owner, knob),
            }
        }
        self.asks = asks;
    }

    fn claim(&mut self, vm: VmId, claim: Claim) {
        let settled = match claim.knob {
            Knob::Boost(_) => true,
            Knob::Weight(_) => !self.world.charges_boosts,
            Knob::Watch(_) | Knob::Share => false,
        };
        if settled && self.ledger.next().is_none() {
            self.open_ledger();
        }
        self.change(vm, claim.knob, |state, ends| {
            if let Some(until) = state.claims.set(claim) {
                ends.remove(&(until, vm, claim.owner, claim.knob));
            }
            ends.insert((claim.until, vm, claim.owner, claim.knob));
        });
    }

    fn end_claim(&mut self, vm: VmId, owner: Owner, knob: Knob) {
        self.change(vm, knob, |state, ends| {
            if let Some(until) = state.claims.end(owner, knob) {
                ends.remove(&(until, vm, owner, knob));
            }
        });
    }

    /// Changes claims on a knob of a VM whose times are up to date. The winner is told where it is another
    /// one now.
    fn change(&mut self, vm: VmId, knob: Knob, change: impl FnOnce(&mut Vm, &mut BTreeSet<End>)) {
        let Some(state) = self.vms.get_mut(&vm) else { return };
        let before = state.claims.holds(knob);
        change(state, &mut self.ends);
        let value = state.claims.holds(knob);
        if value == before {
            return;
        }
        let kind = match knob {
            Knob::Boost(target) => ActionKind::Boost { vm, target, level: state.claims.level(target) },
            Knob::Watch(vcpu) => ActionKind::Watch { vm, vcpu, on: before == 0 },
            Knob::Share => ActionKind::Share { vm, permille: self.permille(vm) },
            // One owner ends its claim before the others do.
            Knob::Weight(_) if value != 1000 && !(self.world.acts && state.standing == Standing::Acting) => {
                return;
            }
            Knob::Weight(vcpu) => {
                state.note_weights();
                let compensates = state.compensate(self.world);
                self.act(ActionKind::Weight { vm, vcpu, permille: value });
                if !compensates {
                    return;
                }
                ActionKind::Share { vm, permille: self.permille(vm) }
            }
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
        while let Some((until, vm, owner, knob)) =
            self.ends.first().copied().filter(|(until, ..)| *until <= self.now)
        {
            let contended = owner == Owner::Asymmetric && self.is_contended(vm);
            let debt = self.debt(vm);
            let Some(state) = self.vms.get_mut(&vm) else {
                self.ends.remove(&(until, vm, owner, knob));
                continue;
            };
            let mut asks = std::mem::take(&mut self.asks);
            let situation =
                Situation { now: self.now, config: &self.config, world: self.world, debt, contended };
            let waited = state.waits(self.now);
            let later = state.expire((owner, knob), &situation, &mut asks);
            match later.filter(|later| *later > self.now) {
                Some(until) => {
                    let value = state.claims.of(owner, knob);
                    self.claim(vm, Claim { owner, knob, value, until });
                }
                None => self.end_claim(vm, owner, knob),
            }
            self.apply(vm, asks);
            self.postpone(vm, waited);
        }
    }
}
