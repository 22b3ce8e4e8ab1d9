//! The claims on the knobs of one VM, and the one rule by which one of them wins.

use crate::action::{Boost, BoostTarget};
use crate::event::Time;
use crate::policy::{Claim, Knob, Owner};
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// An ordinary share or weight, in permille.
const ORDINARY: u32 = 1000;

/// The claims on the knobs of a VM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Claims {
    /// Few: some for each owner and vCPU that is boosted, watched or slow, and one for the emulator threads.
    held: Vec<Claim>,
}

impl Claims {
    /// Checks claims that were loaded.
    pub(crate) fn check(&self, vcpus: usize) -> Result<(), StateError> {
        let mut keys: Vec<_> = self.held.iter().map(|claim| (claim.owner, claim.knob)).collect();
        keys.sort_unstable();
        keys.dedup();
        check(keys.len() == self.held.len(), "two claims of one owner on one knob")?;
        let there = |claim: &Claim| match claim.knob {
            Knob::Boost(BoostTarget::Vcpu(vcpu)) | Knob::Watch(vcpu) | Knob::Weight(vcpu) => {
                usize::from(vcpu) < vcpus
            }
            Knob::Boost(BoostTarget::Emulators) | Knob::Share => true,
        };
        check(self.held.iter().all(there), "a claim on a vCPU that is not there")
    }

    /// Takes a claim in place of the owner's former one on that knob; returns when that would have ended.
    pub(crate) fn set(&mut self, claim: Claim) -> Option<Time> {
        match self.held.iter_mut().find(|held| (held.owner, held.knob) == (claim.owner, claim.knob)) {
            Some(held) => Some(std::mem::replace(held, claim).until),
            None => {
                self.held.push(claim);
                None
            }
        }
    }

    /// Drops a claim; returns when it would have ended. An owner can end its own only.
    pub(crate) fn end(&mut self, owner: Owner, knob: Knob) -> Option<Time> {
        let place = self.held.iter().position(|held| (held.owner, held.knob) == (owner, knob))?;
        Some(self.held.remove(place).until)
    }

    /// What holds for a knob: the highest value claimed, or what it is without us.
    pub(crate) fn holds(&self, knob: Knob) -> u32 {
        let claims = self.held.iter().filter(|claim| claim.knob == knob);
        let highest = claims.map(|claim| claim.value).max();
        match knob {
            Knob::Boost(_) | Knob::Watch(_) => highest.unwrap_or(0),
            Knob::Share => highest.unwrap_or(ORDINARY).max(ORDINARY),
            Knob::Weight(_) => highest.unwrap_or(ORDINARY),
        }
    }

    /// What an owner claims, or 0.
    pub(crate) fn of(&self, owner: Owner, knob: Knob) -> u32 {
        let claim = self.held.iter().find(|held| (held.owner, held.knob) == (owner, knob));
        claim.map_or(0, |claim| claim.value)
    }

    /// What the VM is entitled to, in permille of its weight.
    pub(crate) fn entitlement(&self) -> u32 {
        self.holds(Knob::Share)
    }

    /// Whether anything is claimed of weights inside the VM.
    pub(crate) fn any_weight(&self) -> bool {
        self.held.iter().any(|claim| matches!(claim.knob, Knob::Weight(_)))
    }

    /// The weight of a vCPU inside the VM, in permille of an ordinary one's.
    pub(crate) fn weight(&self, vcpu: u16) -> u32 {
        self.holds(Knob::Weight(vcpu))
    }

    /// The dispatch preference that holds for a vCPU or the emulator threads.
    pub(crate) fn level(&self, target: BoostTarget) -> Boost {
        match self.holds(Knob::Boost(target)) {
            0 => Boost::None,
            1 => Boost::Io,
            _ => Boost::Multimedia,
        }
    }

    /// All claims.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.held.iter()
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.held.capacity() * size_of::<Claim>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_claim_holds_and_an_owner_ends_its_own() {
        let knob = Knob::Boost(BoostTarget::Vcpu(1));
        let claim = |value, until| Claim { owner: Owner::PartialBoost, knob, value, until: Time(until) };
        let mut claims = Claims::default();
        assert_eq!(claims.set(claim(1, 5)), None);
        assert_eq!(claims.level(BoostTarget::Vcpu(1)), Boost::Io);
        assert_eq!(claims.set(claim(2, 9)), Some(Time(5)), "in place of the former");
        assert_eq!(claims.level(BoostTarget::Vcpu(1)), Boost::Multimedia);
        assert_eq!(claims.level(BoostTarget::Emulators), Boost::None);
        assert_eq!(claims.end(Owner::PartialBoost, knob), Some(Time(9)));
        assert_eq!((claims.end(Owner::PartialBoost, knob), claims.holds(knob)), (None, 0));
        assert_eq!(claims.entitlement(), 1000);
        for (owner, value) in [(Owner::PartialBoost, 1), (Owner::Multimedia, 2)] {
            claims.set(Claim { owner, ..claim(value, 5) });
        }
        assert_eq!((claims.of(Owner::PartialBoost, knob), claims.holds(knob)), (1, 2));
        assert_eq!((claims.end(Owner::Multimedia, knob), claims.holds(knob)), (Some(Time(5)), 1));
    }
}
