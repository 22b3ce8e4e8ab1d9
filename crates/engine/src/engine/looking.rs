//! Looks, now and then, for threads that wait for a physical CPU longer than turns take.

use super::state::Engine;
use crate::capabilities::Capabilities;
use crate::config::Config;
use crate::event::{Time, VmId};
use crate::nanos::nanos;
use crate::policy::{Fact, turn};
use std::collections::BTreeMap;

/// Rounds in which the world's scheduler has given each thread that wants a physical CPU its slice.
const ROUNDS: u64 = 4;

/// When threads that want a physical CPU from now on are looked at first; `None` if they never are. A
/// scheduler that charges boosts is one of ours, which forgets nobody.
pub(super) fn first_look(config: &Config, world: Capabilities, now: Time) -> Option<Time> {
    let longest = nanos(config.ledger.longest_wait);
    (longest > 0 && world.acts && !world.charges_boosts).then(|| now.plus(longest))
}

impl Engine {
    /// Tells of threads that starve, and looks again when the next one might: not at all if none waits.
    pub(super) fn look(&mut self) {
        self.look = None;
        let Some(longest) = first_look(&self.config, self.world, Time(0)).map(|Time(longest)| longest) else {
            return;
        };
        // How many want each physical CPU, and with what weight.
        let mut wanted = BTreeMap::new();
        for (vm, state) in &self.vms {
            let weight = self.weight_now(*vm);
            for thread in state.guest.threads().filter(|thread| thread.is_awake()) {
                let (rivals, weights) = wanted.entry(thread.pcpu).or_insert((0u64, 0u64));
                (*rivals, *weights) = (*rivals + 1, weights.saturating_add(weight));
            }
        }
        let (turn, slice) = (turn(&self.config, self.world), self.world.slice_ns);
        let unboosted = self.ledger.unboosted();
        let mut starved = Vec::new();
        // Who is limited waits because of that.
        for (vm, state) in self.vms.iter().filter(|(_, state)| !state.limited) {
            let weight = self.weight_now(*vm);
            for (target, since, pcpu) in state.starving() {
                let (rivals, weights) = wanted.get(&pcpu).copied().unwrap_or((1, weight));
                // Whose share is lowered waits for longer, and so do all while boosts have much of the time.
                let slices = rivals.max(weights / weight).saturating_mul(ROUNDS);
                let turns = slice.saturating_mul(slices).saturating_mul(1000) / unboosted;
                let due = since.plus(longest.max(turns));
                if due <= self.now {
                    starved.push((*vm, target, since));
                }
                // One that had a turn lets each of the others have one, too.
                let again = self.now.plus(turn.saturating_mul(rivals));
                let next = if due <= self.now { again } else { due };
                self.look = Some(self.look.map_or(next, |look| look.min(next)));
            }
        }
        for (vm, target, since) in starved {
            let _ = self.tell(vm, Fact::Starves { target, since });
        }
    }

    /// The weight that each thread of a VM has now, in thousandths; positive.
    fn weight_now(&self, vm: VmId) -> u64 {
        let weight = self.vms.get(&vm).map_or(1, |state| u64::from(state.weight));
        weight.saturating_mul(u64::from(self.permille(vm))).max(1)
    }
}
