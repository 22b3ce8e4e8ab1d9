//! Task-aware boosting: a vCPU runs ahead of the others while an I/O-bound task handles its event (TAVS
//! §3.2).
//!
//! A boost belongs to an event and lasts until that is *answered*. That another task runs is no answer: a
//! guest may finish its tick before it lets the woken task run, and one that is only seen now and then may
//! have been seen too early. Which vCPUs are boosted is a matter of where the event is handled: on the one
//! that takes the device's interrupt, on those that this hands it on to, and where an I/O-bound task ran
//! last.

mod helping;
mod lasting;
mod state;

pub(crate) use state::PartialBoost;

use super::budget::Budget;
use super::claim::{Ask, Knob, Owner};
use super::view::{Fact, Policy, View};
use crate::action::{Boost, BoostTarget};
use crate::capabilities::Standing;
use crate::event::Time;
use crate::explain::{Cause, Reason};
use crate::infer::{Device, GuestVcpu, bit};
use crate::nanos::nanos;
use arrayvec::ArrayVec;
use state::{BoostRole, BoostedVcpu, MAX_TARGETS, Serving, boost, boost_to, longest, watch};

/// An emulator thread that has the answer in its hands when the boost of the vCPU ends keeps its own for so
/// long at most.
const EMULATOR_GRACE: u64 = 2_000_000;

impl PartialBoost {
    /// The vCPUs to boost for an event: the one where an I/O-bound task ran last, which gets it first, and
    /// those that take the device's interrupts; if those are not known, any that halts may. If the VM
    /// [idles](Self::idles) there need be no such task.
    fn candidates(view: &View<'_>, device: Device) -> ArrayVec<u16, MAX_TARGETS> {
        let last = view.guest.last_io_bound();
        if last.is_none() && !Self::idles(view) {
            return ArrayVec::new();
        }
        let takers = view.guest.takers(device);
        let vcpus = (0u16..).zip(&view.guest.vcpus);
        let takes = |(index, vcpu): &(u16, &GuestVcpu)| {
            Some(*index) != last && takers.map_or(vcpu.seen.is_halted(), |takers| takers & bit(*index) != 0)
        };
        let first = last.filter(|last| !Self::is_in_the_way(*last, takers, view));
        first.into_iter().chain(vcpus.filter(takes).map(|(index, _)| index)).take(MAX_TARGETS).collect()
    }

    /// Whether a vCPU where an I/O-bound task ran last runs something else on the physical CPU of another
    /// one that takes the interrupt. Before that has, it can do nothing for the event, and would only run
    /// ahead of it: it is boosted when the event is handed on, or when that one is done.
    fn is_in_the_way(index: u16, takers: Option<u64>, view: &View<'_>) -> bool {
        let guest = view.guest;
        let (Some(takers), Some(known)) = (takers, guest.vcpus.get(usize::from(index))) else { return false };
        let busy = known.seen.thread.is_awake() && !known.seen.is_halted() && !guest.runs_io_bound(index);
        let pcpu = known.seen.thread.pcpu;
        let beside = |(taker, vcpu): (u16, &GuestVcpu)| {
            taker != index && takers & bit(taker) != 0 && vcpu.seen.thread.pcpu == pcpu
        };
        busy && takers & bit(index) == 0 && pcpu.is_some() && (0u16..).zip(&guest.vcpus).any(beside)
    }

    /// Whether the whole VM sleeps, and has not had more than its share: whatever an event wakes there takes
    /// nothing from work of its own.
    fn idles(view: &View<'_>) -> bool {
        let asleep = view.guest.vcpus.iter().all(|vcpu| vcpu.seen.is_halted());
        view.config.tavs.idle && view.debt.nanos <= 0 && asleep
    }

    /// How much of its CPU time the VM may use boosted, when an event of this device comes. Beyond the paper:
    /// where packets are answered, too, reads may use half of it. Who types is not kept waiting by what they
    /// have started.
    fn pb_ratio(&self, view: &View<'_>, device: Device) -> f64 {
        let tavs = &view.config.tavs;
        let pb_ratio = view.own.pb_ratio.unwrap_or(tavs.pb_ratio);
        // As long as boosted time counts.
        let lately = nanos(tavs.pb_period).saturating_mul(2);
        let asked = self.asked.is_some_and(|asked| view.now.since(asked) < lately);
        if device == Device::Disk && asked { pb_ratio / 2.0 } else { pb_ratio }
    }

    /// Decides about an event (TAVS §3.2), with so much of the VM's CPU time to be boosted. Returns the vCPUs
    /// to boost.
    fn weigh(
        &mut self,
        view: &View<'_>,
        candidates: &[u16],
        correlated: bool,
        pb_ratio: f64,
    ) -> Result<ArrayVec<u16, MAX_TARGETS>, Reason> {
        let tavs = &view.config.tavs;
        if pb_ratio <= 0.0 || view.own.off {
            return Err(Reason::Off);
        }
        if view.paused {
            return Err(Reason::Paused);
        }
        if candidates.is_empty() {
            return Err(Reason::NoIoBoundTask);
        }
        if !correlated && !Self::idles(view) {
            return Err(Reason::NotCorrelated);
        }
        if candidates.iter().all(|index| self.is_boosted(*index)) {
            return Err(Reason::AlreadyBoosted);
        }
        if view.debt.overdrawn {
            return Err(Reason::Overdrawn);
        }
        if !self.allowance.allows(view.now, view.world.boost_limit(tavs.boost_limit), view.boosted) {
            return Err(Reason::LimitReached);
        }
        let targets: ArrayVec<u16, MAX_TARGETS> =
            candidates.iter().copied().filter(|index| self.may_boost(*index, view, pb_ratio)).collect();
        match view.standing {
            _ if targets.is_empty() => Err(Reason::BudgetSpent),
            Standing::Reserved => Err(Reason::Reserved),
            Standing::Observed => Err(Reason::Observed),
            Standing::Acting if !view.world.acts => Err(Reason::Observed),
            Standing::Acting => Ok(targets),
        }
    }

    /// The vCPUs that a packet would boost that came now and that an I/O-bound task waits for.
    pub(crate) fn foresee(&self, view: &View<'_>) -> ArrayVec<u16, MAX_TARGETS> {
        let candidates = Self::candidates(view, Device::Network);
        // Weighing an event brings the budgets up to date, and there was none.
        let pb_ratio = self.pb_ratio(view, Device::Network);
        self.clone().weigh(view, &candidates, true, pb_ratio).unwrap_or_default()
    }

    /// Boosted CPU time of the VM's vCPUs over all their CPU time in the last periods.
    pub(crate) fn pb_used(&self) -> f64 {
        Budget::used(self.vcpus.iter().map(|vcpu| &vcpu.budget))
    }

    /// Whether a boost is within the budget: that of the VM, for a guest's I/O-bound task may have a vCPU to
    /// itself, which then runs nearly only when it is boosted. A vCPU that is idle takes nothing from its own
    /// VM's background work by waking, so within its VM's share it needs no budget, as the credit scheduler
    /// boosts each vCPU that wakes with credit left (TAVS §2.2). And one whose VM is owed CPU by far more
    /// than a slice is kept from running at all: nearly all that it runs is boosted, whatever it does.
    fn may_boost(&mut self, index: u16, view: &View<'_>, pb_ratio: f64) -> bool {
        let starved =
            view.debt.nanos < 0 && view.debt.nanos.unsigned_abs() >= nanos(view.config.ledger.horizon) / 8;
        if starved || Self::is_free(index, view) {
            return true;
        }
        let period = nanos(view.config.tavs.pb_period);
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.budget.advance(view.now, period));
        self.pb_used() <= pb_ratio
    }

    /// Whether a boost needs no budget, and uses none: the vCPU is idle, and the VM within its share.
    fn is_free(index: u16, view: &View<'_>) -> bool {
        let idle = |known: &GuestVcpu| known.seen.is_halted();
        view.debt.nanos <= 0 && view.guest.vcpus.get(usize::from(index)).is_some_and(idle)
    }

    /// Boosts a vCPU for an event, if it is not boosted for one.
    fn begin(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        self.begin_since(index, view.now, view, asks);
    }

    /// The same for an event that another vCPU has been boosted for since then: all of them together are
    /// boosted for it no longer than one may be.
    fn begin_since(&mut self, index: u16, since: Time, view: &View<'_>, asks: &mut Vec<Ask>) {
        self.behind = self.behind.filter(|behind| *behind != index);
        if self.is_boosted(index) {
            return;
        }
        // With one vCPU there is nobody to help it.
        let part = if self.vcpus.len() > 1 { BoostRole::Serves } else { BoostRole::Helped };
        self.start(index, part, since, view, asks);
        if let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) {
            vcpu.counts.boosts = vcpu.counts.boosts.saturating_add(1);
        }
    }

    fn start(&mut self, index: u16, part: BoostRole, since: Time, view: &View<'_>, asks: &mut Vec<Ask>) {
        let ahead = |vcpu: &BoostedVcpu| {
            vcpu.serving.as_ref().is_some_and(|serving| serving.part.level() > Boost::Io)
        };
        let was_ahead = self.vcpus.iter().any(ahead);
        let known = view.guest.vcpus.get(usize::from(index));
        let (Some(vcpu), Some(known)) = (self.vcpus.get_mut(usize::from(index)), known) else { return };
        let tavs = &view.config.tavs;
        let hit = view.guest.runs_io_bound(index) && !known.falling_asleep;
        // Whatever it goes on for, it ends in time.
        let (since, ran_at_begin) =
            vcpu.serving.as_ref().map_or((since, vcpu.ran), |before| (before.since, before.ran_at_begin));
        let ran = vcpu.ran;
        let free = Self::is_free(index, view);
        let serving =
            Serving { since, until: since, ran_at_begin, ran_before: ran, hit, waits: !hit, free, part };
        let until = serving.end(ran, view);
        vcpu.serving = Some(Serving { until, ..serving });
        self.lingers = false;
        // They deliver what the vCPU waits for: they must never be behind it.
        let emulators = if was_ahead { Boost::Multimedia } else { part.level() };
        let until_most = longest(view.now, tavs).plus(EMULATOR_GRACE);
        asks.push(boost_to(BoostTarget::Emulators, emulators, until_most));
        asks.push(boost_to(BoostTarget::Vcpu(index), part.level(), until));
        asks.push(watch(index, longest(since, tavs)));
    }

    /// The guest was told of events: what boosts wait for begins anew.
    fn await_answer(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        self.relieve(view, asks);
        for (index, known) in (0u16..).zip(&view.guest.vcpus) {
            self.wait(index, !known.served, view, asks);
        }
    }

    /// A boost goes on: until the vCPU has run for the VM's patience from now on if it `waits`, else to the
    /// longest it may last.
    fn wait(&mut self, index: u16, waits: bool, view: &View<'_>, asks: &mut Vec<Ask>) {
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
        let ran = vcpu.ran;
        let Some(serving) = vcpu.serving.as_mut().filter(|serving| !serving.part.is_help()) else {
            return;
        };
        serving.waits = waits;
        // One that goes ahead does so no longer for that.
        if serving.part != BoostRole::ServesAhead {
            serving.ran_before = ran;
        }
        let until = serving.end(ran, view);
        // One that may last longer now is extended when its time is over.
        if until < serving.until {
            serving.until = until;
            asks.push(boost_to(BoostTarget::Vcpu(index), serving.part.level(), until));
        }
    }

    fn dispatched(
        &mut self,
        index: u16,
        io_bound: bool,
        fell_asleep: bool,
        view: &View<'_>,
        asks: &mut Vec<Ask>,
    ) {
        let Some(serving) = self.serving(index) else { return };
        let (waits, part) = (serving.waits, serving.part);
        if part.is_help() {
            // Who changes tasks holds no lock that is waited for.
            if io_bound {
                self.begin(index, view, asks);
            } else {
                self.end(index, view, asks);
            }
        } else if io_bound {
            serving.hit = true;
            if waits {
                self.excuse_wait(index);
                self.wait(index, false, view, asks);
            }
            if !view.guest.awaits_delivery() && !view.guest.only_resumed(index) {
                self.end_waiting(index, view, asks);
            }
        } else if fell_asleep {
            // It went to sleep just when its read ended: it preempts the task that runs now soon, or not at
            // all.
            self.wait(index, true, view, asks);
        } else if view.guest.is_answered(index) {
            self.end(index, view, asks);
        } else if !waits && !view.guest.awaits_delivery() {
            self.wait(index, true, view, asks);
        }
    }

    /// The task is dispatched that was waited for. What the guest ran before that is not the task's fault:
    /// since Linux 6.6 a guest finishes its tick first. The ledger takes it back as all else, and `pb_ratio`
    /// is for boosts that are not worth it.
    fn excuse_wait(&mut self, index: u16) {
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
        let Some(serving) = vcpu.serving.as_ref().filter(|serving| !serving.free) else { return };
        vcpu.budget.excuse(vcpu.ran.saturating_sub(serving.ran_before));
    }

    /// An I/O-bound task runs on a vCPU: the others on which it might have woken have nothing to do with it.
    fn end_waiting(&mut self, but: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        for index in (0..).take(self.vcpus.len()).filter(|index| *index != but) {
            let waits = |serving: &mut Serving| serving.waits && !serving.hit && !serving.part.is_help();
            if self.serving(index).is_some_and(waits) {
                self.end(index, view, asks);
            }
        }
    }

    fn end(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
        let Some(serving) = vcpu.serving.take() else { return };
        if !serving.part.is_help() {
            self.count_end(index, serving.hit);
        }
        asks.push(Ask::End(Owner::PartialBoost, Knob::Watch(index)));
        asks.push(Ask::End(Owner::PartialBoost, Knob::Boost(BoostTarget::Vcpu(index))));
        // A task that ran when the event came, and sleeps now, may have answered the one before.
        if serving.hit && !serving.part.is_help() && view.guest.is_answered(index) {
            self.behind = None;
            self.end_waiting(index, view, asks);
        }
        if !self.vcpus.iter().any(BoostedVcpu::serves)
            && !self.turn(&serving, view, asks)
            && !self.seek(serving.since, view, asks)
        {
            self.end_helping(view, asks);
        }
        if self.vcpus.iter().all(|vcpu| vcpu.serving.is_none()) {
            self.end_emulators(view, asks);
        }
    }

    /// Nobody serves the event any more, and it was not answered where its interrupt was taken: who has its
    /// turn after that is boosted. Returns whether there is anybody.
    fn turn(&mut self, ended: &Serving, view: &View<'_>, asks: &mut Vec<Ask>) -> bool {
        let Some(index) = self.behind.take() else { return false };
        let over = longest(ended.since, &view.config.tavs) <= view.now;
        if ended.hit || over || view.guest.awaits_delivery() {
            return false;
        }
        self.begin_since(index, ended.since, view, asks);
        self.is_boosted(index)
    }

    /// No vCPU serves the event any more, and the guest owes a reply: a task that was woken without an
    /// interrupt waits where another one runs, and is switched to at a tick of that vCPU. So those that run
    /// something are boosted, once for an event. Returns whether there are any.
    fn seek(&mut self, since: Time, view: &View<'_>, asks: &mut Vec<Ask>) -> bool {
        let guest = view.guest;
        let on_its_way = guest.awaits_delivery() || guest.emulator_is_awake();
        let over = longest(since, &view.config.tavs) <= view.now;
        if !guest.owes_reply() || on_its_way || over || std::mem::replace(&mut self.sought, true) {
            return false;
        }
        let busy = |(_, vcpu): &(u16, &GuestVcpu)| vcpu.seen.thread.is_awake() && !vcpu.seen.is_halted();
        let targets: ArrayVec<u16, MAX_TARGETS> =
            (0u16..).zip(&guest.vcpus).filter(busy).map(|(index, _)| index).take(MAX_TARGETS).collect();
        targets.iter().for_each(|index| self.begin_since(*index, since, view, asks));
        !targets.is_empty()
    }

    /// The guest has replied. Where the task that did so runs still it goes on until it sleeps.
    fn replied(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        (self.unanswered, self.unserved) = (None, None);
        if view.guest.awaits_delivery() {
            return;
        }
        self.behind = None;
        for index in (0..).take(self.vcpus.len()) {
            if self.is_boosted(index) && !view.guest.runs_io_bound(index) {
                self.end(index, view, asks);
            }
        }
    }

    fn count_end(&mut self, index: u16, hit: bool) {
        if let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) {
            vcpu.counts.hits = vcpu.counts.hits.saturating_add(u64::from(hit));
        }
        let _ = self.ended.try_push(hit);
    }

    /// No vCPU is boosted any more. An emulator thread that is awake may have the answer in its hands.
    fn end_emulators(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        self.lingers = view.guest.emulator_is_awake();
        if self.lingers {
            asks.push(boost(BoostTarget::Emulators, view.now.plus(EMULATOR_GRACE)));
        } else {
            asks.push(Ask::End(Owner::PartialBoost, Knob::Boost(BoostTarget::Emulators)));
        }
    }

    fn over(&mut self, asks: &mut Vec<Ask>) {
        for index in (0..).take(self.vcpus.len()) {
            let serving = self.vcpus.get_mut(usize::from(index)).and_then(|vcpu| vcpu.serving.take());
            let Some(serving) = serving else { continue };
            if !serving.part.is_help() {
                self.count_end(index, serving.hit);
            }
            asks.push(Ask::End(Owner::PartialBoost, Knob::Watch(index)));
            asks.push(Ask::End(Owner::PartialBoost, Knob::Boost(BoostTarget::Vcpu(index))));
        }
        (self.unanswered, self.unserved, self.lingers, self.behind) = (None, None, false, None);
        self.unwatch(asks);
        asks.push(Ask::End(Owner::PartialBoost, Knob::Boost(BoostTarget::Emulators)));
    }
}

impl Policy for PartialBoost {
    fn is_concerned(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Event { .. } | Fact::Over | Fact::VcpuOver { .. } => true,
            Fact::Shown { .. } | Fact::Media { .. } | Fact::Played | Fact::Episode => false,
            Fact::Interrupted { .. } | Fact::Starves { .. } => false,
            Fact::EmulatorSlept if self.lingers => true,
            Fact::Replied | Fact::Halted { .. } if self.unserved.is_some() => true,
            _ => self.unanswered.is_some() || self.vcpus.iter().any(|vcpu| vcpu.serving.is_some()),
        }
    }

    fn on_fact(&mut self, fact: Fact, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<(Cause, Reason)> {
        match fact {
            Fact::Event { cause, device, correlated } => {
                let candidates = Self::candidates(view, device);
                if correlated && device == Device::Network {
                    self.asked = Some(view.now);
                }
                let verdict = self.weigh(view, &candidates, correlated, self.pb_ratio(view, device));
                let reason = verdict.as_ref().err().copied().unwrap_or(Reason::Boosted);
                self.sought &= verdict.is_err();
                if verdict.is_ok() {
                    let last = view.guest.last_io_bound();
                    self.behind = last.filter(|last| !candidates.contains(last));
                }
                if matches!(reason, Reason::BudgetSpent | Reason::LimitReached | Reason::Overdrawn) {
                    self.unserved = Some(view.now);
                }
                verdict.into_iter().flatten().for_each(|index| self.begin(index, view, asks));
                return Some((cause, reason));
            }
            Fact::Delivered => self.await_answer(view, asks),
            Fact::Dispatched { vcpu, dispatch } => {
                if dispatch.io_bound && self.unanswered.is_some() && !self.is_boosted(vcpu) {
                    return self.take_up(vcpu, view, asks);
                }
                self.dispatched(vcpu, dispatch.io_bound, dispatch.fell_asleep, view, asks);
            }
            Fact::Halted { vcpu } => self.halted(vcpu, view, asks),
            Fact::Answered { vcpu } => {
                if !view.guest.runs_io_bound(vcpu) {
                    self.end(vcpu, view, asks);
                }
            }
            Fact::Stalled { vcpu } => self.stalled(vcpu, view, asks),
            Fact::Inherited { vcpu, from } => self.inherit(vcpu, from, view, asks),
            Fact::Replied => self.replied(view, asks),
            Fact::Taken { vcpu } => self.taken(vcpu, view, asks),
            Fact::HandedOn { from, to } => self.hand_on(from, to, view, asks),
            Fact::EmulatorSlept => {
                if self.lingers && !view.guest.emulator_is_awake() {
                    self.lingers = false;
                    asks.push(Ask::End(Owner::PartialBoost, Knob::Boost(BoostTarget::Emulators)));
                }
                self.not_woken(view, asks);
                if view.guest.is_kept_waiting() {
                    (0..).take(self.vcpus.len()).for_each(|index| self.stalled(index, view, asks));
                }
            }
            Fact::Shown { .. } | Fact::Media { .. } | Fact::Played | Fact::Episode => {}
            Fact::Interrupted { .. } | Fact::Starves { .. } => {}
            Fact::Over => self.over(asks),
            Fact::VcpuOver { vcpu } => {
                // Who is woken without an interrupt does not wait there.
                let sought = std::mem::replace(&mut self.sought, true);
                self.behind = self.behind.filter(|behind| *behind != vcpu);
                self.end(vcpu, view, asks);
                self.sought = sought;
                asks.push(Ask::End(Owner::PartialBoost, Knob::Watch(vcpu)));
            }
        }
        None
    }

    fn on_expiry(&mut self, knob: Knob, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<Time> {
        let Knob::Boost(BoostTarget::Vcpu(index)) = knob else { return None };
        if let Some(until) = self.extension(index, view, asks) {
            return Some(until);
        }
        self.give_up(index, view, asks);
        None
    }
}
