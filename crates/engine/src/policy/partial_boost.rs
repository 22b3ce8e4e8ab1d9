//! When a boost begins, how long it goes on and when it ends (TAVS §3.2).

use super::Engine;
use crate::action::{ActionKind, Boost, BoostTarget};
use crate::config::Config;
use crate::event::{Time, VmId};
use crate::explain::{Cause, Reason};
use crate::nanos;
use crate::vcpu::Boosted;
use crate::vm::Vm;

impl Engine {
    /// Decides about an event that is pending for a VM (TAVS §3.2).
    pub(super) fn consider_boost(&mut self, vm: VmId, cause: Cause, correlated: bool) {
        let now = self.now;
        let Some(state) = self.vms.get_mut(&vm) else { return };
        let verdict = Self::weigh(state, &self.config, self.ledger.debt(vm) > 0, correlated, now);
        let reason = verdict.err().unwrap_or(Reason::Boosted);
        state.history.decided(now, cause, reason);
        if let Ok(index) = verdict {
            self.begin_boost(vm, index);
        }
    }

    fn weigh(
        state: &mut Vm,
        config: &Config,
        in_debt: bool,
        correlated: bool,
        now: Time,
    ) -> Result<u16, Reason> {
        let pb_ratio = state.policy.pb_ratio.unwrap_or(config.tavs.pb_ratio);
        if pb_ratio <= 0.0 || state.policy.off {
            return Err(Reason::Off);
        }
        if state.paused {
            return Err(Reason::Paused);
        }
        let index = state.boost_candidate().ok_or(Reason::NoIoBoundTask)?;
        if !correlated {
            return Err(Reason::NotCorrelated);
        }
        if state.is_boosted() {
            return Err(Reason::AlreadyBoosted);
        }
        state.account(now, &config.tavs);
        if !state.within_limit(now, &config.tavs) {
            return Err(Reason::LimitReached);
        }
        let vcpu = state.vcpu(index).ok_or(Reason::NoIoBoundTask)?;
        let allowed = vcpu.may_boost(now, in_debt, pb_ratio, &config.tavs);
        if allowed { Ok(index) } else { Err(Reason::BudgetSpent) }
    }

    fn begin_boost(&mut self, vm: VmId, index: u16) {
        if self.ledger.next().is_none() {
            self.open_ledger();
        }
        let Some(state) = self.vms.get_mut(&vm) else { return };
        let patience = state.answers.patience(&self.config.tavs);
        let first = !state.is_boosted();
        let Some(vcpu) = state.vcpu(index) else { return };
        let hit = vcpu.runs_io_bound(&self.config.tavs) && !vcpu.falling_asleep;
        let since = self.now;
        let length = if hit { nanos(self.config.tavs.max_boost) } else { patience };
        let until = since.plus(length);
        vcpu.boosted = Some(Boosted {
            since,
            until,
            ran_before: vcpu.boosted_ran,
            hit,
            answered: hit,
            served: hit,
            rang: false,
        });
        vcpu.counts.boosts = vcpu.counts.boosts.saturating_add(1);
        self.boosts.insert((until, vm, index));
        // They deliver what the vCPU waits for: they must never be behind it.
        if first {
            self.act(ActionKind::Boost { vm, target: BoostTarget::Emulators, level: Boost::Io });
        }
        self.act(ActionKind::Boost { vm, target: BoostTarget::Vcpu(index), level: Boost::Io });
        self.act(ActionKind::Watch { vm, vcpu: index, on: true });
    }

    /// An event was delivered: what boosts wait for begins anew.
    pub(super) fn await_answer(&mut self, vm: VmId) {
        let Some(state) = self.vms.get_mut(&vm) else { return };
        if !state.take_delivered() {
            return;
        }
        for index in (0..).take(state.vcpus.len()) {
            let Some(vcpu) = self.vms.get_mut(&vm).and_then(|state| state.vcpu(index)) else { return };
            let served = vcpu.runs_io_bound(&self.config.tavs) && !vcpu.falling_asleep;
            let Some(boosted) = vcpu.boosted.as_mut() else { continue };
            (boosted.served, boosted.rang) = (served, false);
            self.wait(vm, index, served);
        }
    }

    /// A boost goes on: to the longest it may last if it is `answered`, else until the vCPU has run for the VM's patience from now on.
    fn wait(&mut self, vm: VmId, index: u16, answered: bool) {
        let Some(state) = self.vms.get_mut(&vm) else { return };
        state.account(self.now, &self.config.tavs);
        let patience = state.answers.patience(&self.config.tavs);
        let Some(vcpu) = state.vcpu(index) else { return };
        let ran_before = vcpu.boosted_ran;
        let Some(boosted) = vcpu.boosted.as_mut() else { return };
        (boosted.answered, boosted.ran_before) = (answered, ran_before);
        let most = boosted.since.plus(nanos(self.config.tavs.max_boost));
        let until = if answered { most } else { most.min(self.now.plus(patience)) };
        self.move_end(vm, index, until);
    }

    /// The guest has rung a doorbell: what was delivered before is answered.
    pub(super) fn doorbell(&mut self, vm: VmId, index: u16) {
        let Some(state) = self.vms.get_mut(&vm).filter(|state| !state.awaits_delivery()) else { return };
        let Some(vcpu) = state.vcpu(index) else { return };
        let runs_io_bound = vcpu.runs_io_bound(&self.config.tavs);
        let Some(boosted) = vcpu.boosted.as_mut().filter(|boosted| boosted.served) else { return };
        boosted.rang = true;
        if !runs_io_bound {
            state.answers.handled(true);
            self.end_boost(vm, index);
        }
    }

    /// A task was dispatched on a vCPU: a boost is for I/O-bound ones only, but lasts until its event is answered. That another task
    /// runs is no answer: a guest may finish its tick before it lets the woken task run, and one that is only seen now and then may have
    /// been seen too early.
    pub(super) fn task_runs(&mut self, vm: VmId, index: u16, io_bound: bool) {
        let Some(state) = self.vms.get_mut(&vm) else { return };
        let awaits_delivery = state.awaits_delivery();
        let Some(vcpu) = state.vcpu(index) else { return };
        let delay = vcpu.take_delay();
        let sampled = vcpu.is_sampled();
        let falling_asleep = vcpu.falling_asleep;
        if let Some(ran) = delay {
            state.answers.dispatched(ran);
        }
        let expects_doorbell = state.answers.expects_doorbell(sampled);
        let Some(boosted) = state.vcpu(index).and_then(|vcpu| vcpu.boosted.as_mut()) else {
            if !io_bound && let Some(vcpu) = state.vcpu(index) {
                vcpu.falling_asleep = false;
            }
            return;
        };
        if io_bound {
            boosted.hit = true;
            boosted.served = true;
            if !boosted.answered {
                self.wait(vm, index, true);
            }
        } else if falling_asleep {
            self.await_preemption(vm, index);
        } else if !awaits_delivery && boosted.served {
            if boosted.rang || !expects_doorbell {
                let rang = boosted.rang;
                state.answers.handled(rang);
                self.end_boost(vm, index);
            } else if boosted.answered {
                self.wait(vm, index, false);
            }
        }
    }

    /// The I/O-bound task went to sleep just when its read ended: it preempts the task that runs now soon, or not at all.
    fn await_preemption(&mut self, vm: VmId, index: u16) {
        let Some(vcpu) = self.vms.get_mut(&vm).and_then(|state| state.vcpu(index)) else { return };
        vcpu.falling_asleep = false;
        if let Some(boosted) = vcpu.boosted.as_mut() {
            boosted.served = false;
        }
        self.wait(vm, index, false);
    }

    pub(super) fn end_boost(&mut self, vm: VmId, index: u16) {
        let now = self.now;
        let Some(state) = self.vms.get_mut(&vm) else { return };
        if state.vcpu(index).is_none_or(|vcpu| vcpu.boosted.is_none()) {
            return;
        }
        // The emulator's time up to now was boosted too.
        state.account(now, &self.config.tavs);
        let Some(vcpu) = state.vcpu(index) else { return };
        let Some(boosted) = vcpu.boosted.take() else { return };
        vcpu.falling_asleep = false;
        vcpu.counts.hits = vcpu.counts.hits.saturating_add(u64::from(boosted.hit));
        state.history.boost_ended(now, boosted.hit);
        let last = !state.is_boosted();
        self.boosts.remove(&(boosted.until, vm, index));
        self.act(ActionKind::Watch { vm, vcpu: index, on: false });
        self.act(ActionKind::Boost { vm, target: BoostTarget::Vcpu(index), level: Boost::None });
        if last {
            self.act(ActionKind::Boost { vm, target: BoostTarget::Emulators, level: Boost::None });
        }
    }

    pub(super) fn end_boosts(&mut self, vm: VmId) -> Option<()> {
        for index in (0..).take(self.vms.get(&vm)?.vcpus.len()) {
            self.end_boost(vm, index);
        }
        Some(())
    }

    pub(super) fn expire_boosts(&mut self) {
        while let Some((until, vm, index)) =
            self.boosts.first().copied().filter(|(until, _, _)| *until <= self.now)
        {
            if let Some(later) = self.extension(vm, index) {
                self.move_end(vm, index, later);
                continue;
            }
            if let Some(vcpu) = self.vms.get_mut(&vm).and_then(|state| state.vcpu(index)) {
                vcpu.counts.expired = vcpu.counts.expired.saturating_add(1);
            }
            self.unanswered(vm, index);
            self.end_boost(vm, index);
            self.boosts.remove(&(until, vm, index));
        }
    }

    /// The time of a boost is over: no doorbell followed if one was awaited.
    fn unanswered(&mut self, vm: VmId, index: u16) {
        let Some(state) = self.vms.get_mut(&vm) else { return };
        let boosted = state.vcpu(index).and_then(|vcpu| vcpu.boosted.as_ref());
        if boosted.is_some_and(|boosted| boosted.served && !boosted.answered) {
            state.answers.handled(false);
        }
    }

    /// Until when a boost whose time is over goes on: one in which no I/O-bound task has run may be waiting for a CPU, and what
    /// counts is what it ran.
    fn extension(&mut self, vm: VmId, index: u16) -> Option<Time> {
        let (now, config) = (self.now, &self.config.tavs);
        let state = self.vms.get_mut(&vm)?;
        state.account(now, config);
        let patience = state.answers.patience(config);
        let vcpu = state.vcpu(index)?;
        let boosted = vcpu.boosted.as_ref()?;
        let ran = vcpu.boosted_ran.saturating_sub(boosted.ran_before);
        let left = patience.checked_sub(ran).filter(|left| *left > 0 && !boosted.answered)?;
        let until = now.plus(left).min(boosted.since.plus(nanos(config.max_boost)));
        (until > now).then_some(until)
    }

    /// Changes when a boost ends by itself.
    fn move_end(&mut self, vm: VmId, index: u16, until: Time) {
        let Some(vcpu) = self.vms.get_mut(&vm).and_then(|state| state.vcpu(index)) else { return };
        let Some(boosted) = vcpu.boosted.as_mut() else { return };
        self.boosts.remove(&(boosted.until, vm, index));
        boosted.until = until;
        self.boosts.insert((until, vm, index));
    }
}
