//! Turns for who starves: a thread that the host's scheduler has forgotten is boosted now and then, until it
//! gets a physical CPU by itself again.
//!
//! No fair scheduler should leave a thread runnable for longer than its turn takes, but kernels do: Linux
//! 6.13 to 6.18 sets a control group back by seconds when its weight changes, and that changes with where its
//! threads run. None of the papers needs this, for the schedulers that they build on forget nobody.
//!
//! A VM that has had its share waits rightly, and gets no such turns: they change when it runs, not how much.

use super::budget::Allowance;
use super::claim::{Ask, Claim, Knob, Owner, value};
use super::view::{Fact, Policy, View};
use crate::action::{Boost, BoostTarget};
use crate::capabilities::{Capabilities, Standing};
use crate::config::Config;
use crate::event::Time;
use crate::explain::{Cause, Reason, StarvationExplain};
use crate::nanos::nanos;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// Emulator threads stay boosted for so long after the last vCPU.
const EMULATOR_GRACE: u64 = 1_000_000;

/// The policy's state for a VM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Starvation {
    allowance: Allowance,
    turns: u64,
    /// The longest time that a thread wanted a physical CPU, in nanoseconds.
    longest: u64,
    /// Nanoseconds that threads of the VM ran boosted for this alone.
    ran: u64,
}

impl Starvation {
    /// Checks a state that was loaded.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        check(self.turns == 0 || self.longest > 0, "a turn for who did not wait")?;
        self.allowance.check()
    }

    /// A thread of the VM ran boosted for this alone.
    pub(crate) fn ran(&mut self, ran: u64) {
        self.ran = self.ran.saturating_add(ran);
    }

    /// Nanoseconds that threads of the VM ran boosted for this alone.
    pub(crate) fn boosted_ran(&self) -> u64 {
        self.ran
    }

    /// What it came to, if any thread ever starved.
    pub(crate) fn explain(&self) -> Option<StarvationExplain> {
        let &Starvation { turns, longest: longest_wait_ns, ran: boosted_ns, .. } = self;
        (longest_wait_ns > 0).then_some(StarvationExplain { turns, longest_wait_ns, boosted_ns })
    }

    fn may_act(&mut self, view: &View<'_>) -> bool {
        let acts = view.world.acts && view.standing == Standing::Acting && !view.own.off && !view.paused;
        let limit = view.world.boost_limit(view.config.tavs.boost_limit);
        // What one settlement finds may be chance.
        let period = i64::try_from(nanos(view.config.ledger.period)).unwrap_or(i64::MAX);
        acts && view.debt.nanos < period / 2 && self.allowance.allows(view.now, limit, view.boosted)
    }
}

/// How long a turn is, in nanoseconds: what the scheduler itself would let the thread run, so that nobody who
/// is boosted for an event waits for longer than that; `max_boost` where it is not known, and at most.
pub(crate) fn turn(config: &Config, world: Capabilities) -> u64 {
    let most = nanos(config.tavs.max_boost);
    if world.slice_ns == 0 { most } else { world.slice_ns.min(most) }
}

fn boost(target: BoostTarget, until: Time) -> Ask {
    let (owner, knob) = (Owner::Starvation, Knob::Boost(target));
    Ask::Claim(Claim { owner, knob, value: value(Boost::Io), until })
}

impl Policy for Starvation {
    fn is_concerned(&self, fact: &Fact) -> bool {
        matches!(fact, Fact::Starves { .. } | Fact::Over | Fact::VcpuOver { .. })
    }

    fn on_fact(&mut self, fact: Fact, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<(Cause, Reason)> {
        let owner = Owner::Starvation;
        match fact {
            Fact::Starves { target, since } => {
                self.longest = self.longest.max(view.now.since(since));
                if self.may_act(view) {
                    self.turns = self.turns.saturating_add(1);
                    let until = view.now.plus(turn(view.config, view.world));
                    // They deliver what the vCPU may wait for: they must never be behind it.
                    asks.push(boost(BoostTarget::Emulators, until.plus(EMULATOR_GRACE)));
                    if target != BoostTarget::Emulators {
                        asks.push(boost(target, until));
                    }
                }
            }
            Fact::Over => {
                let vcpus = (0..).take(view.guest.vcpus.len()).map(BoostTarget::Vcpu);
                let targets = vcpus.chain([BoostTarget::Emulators]);
                asks.extend(targets.map(|target| Ask::End(owner, Knob::Boost(target))));
            }
            Fact::VcpuOver { vcpu } => {
                asks.push(Ask::End(owner, Knob::Boost(BoostTarget::Vcpu(vcpu))));
            }
            _ => {}
        }
        None
    }

    fn on_expiry(&mut self, _: Knob, _: &View<'_>, _: &mut Vec<Ask>) -> Option<Time> {
        None
    }
}
