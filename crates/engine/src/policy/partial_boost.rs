//! Task-aware boosting: a vCPU runs ahead of the others while an I/O-bound task handles its event (TAVS §3.2).
//!
//! A boost belongs to an event and lasts until that is *answered*. That another task runs is no answer: a guest may finish its tick before
//! it lets the woken task run, and one that is only seen now and then may have been seen too early. Which vCPUs are boosted is a matter
//! of where the event is handled: on the one that takes the device's interrupt, on those that this hands it on to, and where an I/O-bound
//! task ran last.

use super::budget::{Allowance, Budget};
use super::claim::{Ask, Claim, Owner, Target, value};
use super::view::{Fact, Policy, View};
use crate::action::{Boost, BoostTarget};
use crate::capabilities::Standing;
use crate::config::Tavs;
use crate::event::{Thread, Time};
use crate::explain::{Cause, Reason};
use crate::infer::{Device, GuestVcpu, bit};
use crate::nanos::nanos;
use crate::state::{StateError, check};
use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longest boost that can be configured.
const MAX_BOOST: Duration = Duration::from_secs(1);
/// vCPUs boosted for one event.
const MAX_TARGETS: usize = 8;
/// An emulator thread that has the answer in its hands when the boost of the vCPU ends keeps its own for so long at most.
const EMULATOR_GRACE: u64 = 2_000_000;
/// With what it waits for a CPU, a boost lasts so many times `max_boost` at most.
const STRETCH: u64 = 4;
/// A boosted vCPU that waits for a CPU is looked at so often at most.
const LOOK: u64 = 200_000;
/// An event that nobody answered is forgotten after this.
const UNANSWERED: u64 = 1_000_000_000;

/// A boost that is going on.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Serving {
    since: Time,
    /// When it ends by itself.
    until: Time,
    /// Boosted run time of the vCPU before it,
    ran_at_begin: u64,
    /// and before what is waited for.
    ran_before: u64,
    /// Whether an I/O-bound task has run in it.
    hit: bool,
    /// Whether it waits for an I/O-bound task to run, or to answer; if not, such a task runs.
    waits: bool,
    part: Part,
}

/// What a boosted vCPU has to do with the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Part {
    /// It takes the interrupt, or runs the task that answers.
    Serves,
    /// The same, and what could be done for it by boosting others is done.
    Helped,
    /// It may hold a lock that one that serves needs, and is boosted no longer than that: it handed the event
    /// on and finishes its handler, or it lost its CPU somewhere in the kernel.
    Helps,
}

/// Counts since the VM was added.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) boosts: u64,
    pub(crate) hits: u64,
    pub(crate) expired: u64,
}

/// What the policy knows of a vCPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BoostedVcpu {
    budget: Budget,
    serving: Option<Serving>,
    /// Nanoseconds that it ran boosted.
    pub(crate) ran: u64,
    pub(crate) counts: Counts,
}

impl BoostedVcpu {
    fn serves(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.part != Part::Helps)
    }

    fn helps(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.part == Part::Helps)
    }
}

/// The policy's state for a VM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PartialBoost {
    pub(crate) vcpus: Vec<BoostedVcpu>,
    allowance: Allowance,
    /// Nanoseconds that emulator threads ran boosted.
    emulator_ran: u64,
    /// Whether emulator threads are boosted although no vCPU is.
    lingers: bool,
    /// When a boost ended before its event was answered.
    unanswered: Option<Time>,
    /// What came of the boosts that ended since this was asked last: whether an I/O-bound task ran.
    #[serde(skip)]
    pub(crate) ended: ArrayVec<bool, 16>,
}

impl PartialBoost {
    pub(crate) fn new(vcpus: usize) -> PartialBoost {
        PartialBoost { vcpus: vec![BoostedVcpu::default(); vcpus], ..PartialBoost::default() }
    }

    /// Checks a state that was loaded.
    pub(crate) fn check(&self, now: Time, vcpus: usize) -> Result<(), StateError> {
        check(self.vcpus.len() == vcpus, "boosts of vCPUs that are not there")?;
        for vcpu in &self.vcpus {
            if let Some(serving) = &vcpu.serving {
                let most = nanos(MAX_BOOST) * STRETCH;
                let bounded = serving.since <= now && serving.until <= serving.since.plus(most);
                check(bounded, "a boost longer than any")?;
            }
            check(vcpu.counts.hits <= vcpu.counts.boosts, "more hits than boosts")?;
        }
        self.allowance.check()
    }

    /// A vCPU came, or went, and starts afresh.
    pub(crate) fn resize(&mut self, vcpus: usize, afresh: u16) {
        self.vcpus.resize_with(vcpus, BoostedVcpu::default);
        if let Some(vcpu) = self.vcpus.get_mut(usize::from(afresh)) {
            *vcpu = BoostedVcpu::default();
        }
    }

    /// A thread of the VM ran for so long; whether boosted.
    pub(crate) fn ran(&mut self, thread: Thread, ran: u64, boosted: bool, now: Time, config: &Tavs) {
        match thread {
            Thread::Vcpu(index) => {
                let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
                vcpu.budget.charge(now, nanos(config.pb_period), ran, boosted);
                if boosted {
                    vcpu.ran = vcpu.ran.saturating_add(ran);
                }
            }
            Thread::Emulator(_) if boosted => self.emulator_ran = self.emulator_ran.saturating_add(ran),
            Thread::Emulator(_) => {}
        }
    }

    /// Nanoseconds that its threads ran boosted.
    pub(crate) fn boosted_ran(&self) -> u64 {
        self.vcpus.iter().fold(self.emulator_ran, |sum, vcpu| sum.saturating_add(vcpu.ran))
    }

    /// Whether a fact may change anything. Most that happens does not: nobody is boosted.
    pub(crate) fn is_concerned(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Event { .. } | Fact::Over => true,
            Fact::EmulatorSlept => self.lingers,
            _ => self.unanswered.is_some() || self.vcpus.iter().any(|vcpu| vcpu.serving.is_some()),
        }
    }

    /// Whether an event waits for its answer although its boost is over.
    pub(crate) fn is_waiting(&self) -> bool {
        self.unanswered.is_some()
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.vcpus.capacity() * size_of::<BoostedVcpu>()
    }

    fn serving(&mut self, index: u16) -> Option<&mut Serving> {
        self.vcpus.get_mut(usize::from(index))?.serving.as_mut()
    }

    /// Whether a vCPU is boosted for an event of its own.
    fn is_boosted(&self, index: u16) -> bool {
        self.vcpus.get(usize::from(index)).is_some_and(BoostedVcpu::serves)
    }

    /// The vCPUs to boost for an event: the one where an I/O-bound task ran last, which gets it first, and those that take the device's
    /// interrupts; if those are not known, any that halts may.
    fn candidates(view: &View<'_>, device: Device) -> ArrayVec<u16, MAX_TARGETS> {
        let Some(last) = view.guest.last_io_bound() else { return ArrayVec::new() };
        let takers = view.guest.takers(device);
        let vcpus = (0u16..).zip(&view.guest.vcpus);
        let takes = |(index, vcpu): &(u16, &GuestVcpu)| {
            *index != last && takers.map_or(vcpu.seen.is_halted(), |takers| takers & bit(*index) != 0)
        };
        std::iter::once(last).chain(vcpus.filter(takes).map(|(index, _)| index)).take(MAX_TARGETS).collect()
    }

    /// Decides about an event (TAVS §3.2). Returns the vCPUs to boost.
    fn weigh(
        &mut self,
        view: &View<'_>,
        candidates: &[u16],
        correlated: bool,
    ) -> Result<ArrayVec<u16, MAX_TARGETS>, Reason> {
        let tavs = &view.config.tavs;
        let pb_ratio = view.own.pb_ratio.unwrap_or(tavs.pb_ratio);
        if pb_ratio <= 0.0 || view.own.off {
            return Err(Reason::Off);
        }
        if view.paused {
            return Err(Reason::Paused);
        }
        if candidates.is_empty() {
            return Err(Reason::NoIoBoundTask);
        }
        if !correlated {
            return Err(Reason::NotCorrelated);
        }
        if candidates.iter().all(|index| self.is_boosted(*index)) {
            return Err(Reason::AlreadyBoosted);
        }
        let used = self.boosted_ran();
        if !self.allowance.allows(view.now, view.world.boost_limit(tavs.boost_limit), used) {
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
        let Some(seen) = view.guest.vcpus.get(usize::from(index)) else { return false };
        let idle = seen.seen.is_halted() && view.debt <= 0;
        let starved = view.debt < 0 && view.debt.unsigned_abs() >= nanos(view.config.ledger.horizon) / 8;
        if idle || starved {
            return true;
        }
        let period = nanos(view.config.tavs.pb_period);
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.budget.advance(view.now, period));
        self.pb_used() <= pb_ratio
    }

    /// Boosts a vCPU for an event, if it is not boosted for one.
    fn begin(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        if self.is_boosted(index) {
            return;
        }
        // With one vCPU there is nobody to help it.
        let part = if self.vcpus.len() > 1 { Part::Serves } else { Part::Helped };
        self.start(index, part, view, asks);
        if let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) {
            vcpu.counts.boosts = vcpu.counts.boosts.saturating_add(1);
        }
    }

    fn start(&mut self, index: u16, part: Part, view: &View<'_>, asks: &mut Vec<Ask>) {
        let known = view.guest.vcpus.get(usize::from(index));
        let (Some(vcpu), Some(known)) = (self.vcpus.get_mut(usize::from(index)), known) else { return };
        let tavs = &view.config.tavs;
        let hit = view.guest.runs_io_bound(index) && !known.falling_asleep;
        // Whatever it goes on for, it ends in time.
        let (since, ran_at_begin) =
            vcpu.serving.as_ref().map_or((view.now, vcpu.ran), |before| (before.since, before.ran_at_begin));
        let ran = vcpu.ran;
        let serving = Serving { since, until: since, ran_at_begin, ran_before: ran, hit, waits: !hit, part };
        let until = serving.end(ran, view);
        vcpu.serving = Some(Serving { until, ..serving });
        self.lingers = false;
        // They deliver what the vCPU waits for: they must never be behind it.
        asks.push(boost(BoostTarget::Emulators, longest(view.now, tavs).plus(EMULATOR_GRACE)));
        asks.push(boost(BoostTarget::Vcpu(index), until));
        asks.push(watch(index, longest(since, tavs)));
    }

    /// The guest was told of events: what boosts wait for begins anew.
    fn await_answer(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        for (index, known) in (0u16..).zip(&view.guest.vcpus) {
            self.wait(index, !known.served, view, asks);
        }
    }

    /// A boost goes on: until the vCPU has run for the VM's patience from now on if it `waits`, else to the longest it may last.
    fn wait(&mut self, index: u16, waits: bool, view: &View<'_>, asks: &mut Vec<Ask>) {
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
        let ran = vcpu.ran;
        let Some(serving) = vcpu.serving.as_mut().filter(|serving| serving.part != Part::Helps) else {
            return;
        };
        (serving.waits, serving.ran_before) = (waits, ran);
        let until = serving.end(ran, view);
        // One that may last longer now is extended when its time is over.
        if until < serving.until {
            serving.until = until;
            asks.push(boost(BoostTarget::Vcpu(index), until));
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
        if part == Part::Helps {
            // Who changes tasks holds no lock that is waited for.
            if io_bound {
                self.begin(index, view, asks);
            } else {
                self.end(index, view, asks);
            }
        } else if io_bound {
            serving.hit = true;
            if waits {
                self.wait(index, false, view, asks);
            }
            if !view.guest.awaits_delivery() && !view.guest.only_resumed(index) {
                self.end_waiting(index, view, asks);
            }
        } else if fell_asleep {
            // It went to sleep just when its read ended: it preempts the task that runs now soon, or not at all.
            self.wait(index, true, view, asks);
        } else if view.guest.is_answered(index) {
            self.end(index, view, asks);
        } else if !waits && !view.guest.awaits_delivery() {
            self.wait(index, true, view, asks);
        }
    }

    /// The vCPU that took the interrupt has woken somebody on others: those are boosted in its place, and it
    /// may finish its handler, which holds locks that they need.
    fn hand_on(&mut self, from: u16, to: u64, view: &View<'_>, asks: &mut Vec<Ask>) {
        // What was loaded when it was halted may not have run at all.
        let resumed = view.guest.only_resumed(from);
        let waits =
            |serving: &mut Serving| (resumed || serving.waits && !serving.hit) && serving.part != Part::Helps;
        if !self.serving(from).is_some_and(waits) {
            return;
        }
        // The event was within the budget when it came.
        let others = (0u16..).take(self.vcpus.len()).filter(|index| *index != from && to & bit(*index) != 0);
        let targets: ArrayVec<u16, MAX_TARGETS> = others.take(MAX_TARGETS).collect();
        targets.iter().for_each(|index| self.begin(*index, view, asks));
        if !targets.is_empty() {
            // It did what it was boosted for.
            self.count_end(from, true);
            self.start(from, Part::Helps, view, asks);
        }
    }

    /// A vCPU that serves an event is held up: the others of the VM that want to run may hold what it needs.
    fn help(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let awake = |(_, known): &(u16, &GuestVcpu)| known.seen.thread.is_awake();
        let others = (0u16..).zip(&view.guest.vcpus).filter(awake).map(|(other, _)| other);
        for other in others.filter(|other| *other != index).take(MAX_TARGETS) {
            if self.vcpus.get(usize::from(other)).is_some_and(|vcpu| vcpu.serving.is_none()) {
                self.start(other, Part::Helps, view, asks);
            }
        }
    }

    /// A boosted vCPU sleeps although the guest has not halted it: the emulator has it wait for something. It
    /// is looked at soon.
    fn stalled(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let until = view.now.plus(LOOK);
        if let Some(serving) = self.serving(index)
            && serving.part == Part::Serves
            && serving.until > until
        {
            serving.until = until;
            asks.push(boost(BoostTarget::Vcpu(index), until));
        }
    }

    /// An I/O-bound task runs on a vCPU: the others on which it might have woken have nothing to do with it.
    fn end_waiting(&mut self, but: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        for index in (0..).take(self.vcpus.len()).filter(|index| *index != but) {
            let waits = |serving: &mut Serving| serving.waits && !serving.hit && serving.part != Part::Helps;
            if self.serving(index).is_some_and(waits) {
                self.end(index, view, asks);
            }
        }
    }

    fn end(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
        let Some(serving) = vcpu.serving.take() else { return };
        if serving.part != Part::Helps {
            self.count_end(index, serving.hit);
        }
        asks.push(Ask::End(Owner::PartialBoost, Target::Watch(index)));
        asks.push(Ask::End(Owner::PartialBoost, Target::Boost(BoostTarget::Vcpu(index))));
        if serving.hit && serving.part != Part::Helps && !view.guest.awaits_delivery() {
            self.end_waiting(index, view, asks);
        }
        if !self.vcpus.iter().any(BoostedVcpu::serves) {
            self.end_helping(view, asks);
        }
        if self.vcpus.iter().all(|vcpu| vcpu.serving.is_none()) {
            self.end_emulators(view, asks);
        }
    }

    /// Nobody serves the event any more. One that helped may have been the one that does after all; the
    /// others are ended with it.
    fn end_helping(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        let helping = |(_, vcpu): &(u16, &BoostedVcpu)| vcpu.helps();
        while let Some((index, _)) = (0u16..).zip(&self.vcpus).find(helping) {
            if view.guest.runs_io_bound(index) {
                return self.begin(index, view, asks);
            }
            self.end(index, view, asks);
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
            asks.push(Ask::End(Owner::PartialBoost, Target::Boost(BoostTarget::Emulators)));
        }
    }

    fn over(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        // Nobody is to take the place of one that serves.
        let helping = |index: &u16| self.vcpus.get(usize::from(*index)).is_some_and(BoostedVcpu::helps);
        let all = 0..u16::try_from(self.vcpus.len()).unwrap_or(u16::MAX);
        let (helping, serving): (Vec<u16>, Vec<u16>) = all.partition(helping);
        for index in helping.into_iter().chain(serving) {
            self.end(index, view, asks);
        }
        self.unanswered = None;
        self.unwatch(asks);
        asks.push(Ask::End(Owner::PartialBoost, Target::Boost(BoostTarget::Emulators)));
    }

    /// Until when a boost whose time is over goes on: it may have waited for a CPU, and what counts is what it ran.
    fn extension(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<Time> {
        let known = view.guest.vcpus.get(usize::from(index))?;
        let asleep = !known.seen.thread.is_awake() && !known.seen.is_halted();
        let vcpu = self.vcpus.get_mut(usize::from(index))?;
        let ran = vcpu.ran;
        let serving = vcpu.serving.as_mut()?;
        let long = ran.saturating_sub(serving.ran_before) >= unaided(&view.config.tavs);
        if serving.part == Part::Serves && (asleep || long) {
            serving.part = Part::Helped;
            self.help(index, view, asks);
        }
        let serving = self.serving(index)?;
        let until = serving.end(ran, view);
        if until <= view.now {
            return None;
        }
        // Next to nothing may be left to run, and the vCPU may wait for long: then it is looked at now and then.
        let look = if known.seen.thread.is_running() { until } else { view.now.plus(LOOK) };
        serving.until = until.max(look).min(longest(serving.since, &view.config.tavs));
        (serving.until > view.now).then_some(serving.until)
    }

    /// The time of a boost is over, and its event is not answered: whose it is may be seen yet.
    fn give_up(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        if !self.is_boosted(index) {
            return self.end(index, view, asks);
        }
        if let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) {
            vcpu.counts.expired = vcpu.counts.expired.saturating_add(1);
        }
        let waits = self.serving(index).is_some_and(|serving| serving.waits);
        self.end(index, view, asks);
        if waits {
            self.unanswered = Some(view.now);
            asks.push(watch(index, view.now.plus(UNANSWERED)));
        }
    }

    /// An I/O-bound task is seen whose event may be the one that was not answered: it is boosted once more.
    fn take_up(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<(Cause, Reason)> {
        let since = self.unanswered.take()?;
        self.unwatch(asks);
        if view.now.since(since) > UNANSWERED {
            return None;
        }
        let verdict = self.weigh(view, &[index], true);
        if verdict.is_ok() {
            self.begin(index, view, asks);
        }
        Some((Cause::Unanswered, verdict.err().unwrap_or(Reason::Boosted)))
    }

    /// Nobody is waited for any more on vCPUs that are not boosted.
    fn unwatch(&self, asks: &mut Vec<Ask>) {
        let idle = (0u16..).zip(&self.vcpus).filter(|(_, vcpu)| vcpu.serving.is_none());
        asks.extend(idle.map(|(index, _)| Ask::End(Owner::PartialBoost, Target::Watch(index))));
    }
}

impl Serving {
    /// When it ends by itself, if the vCPU, which ran boosted for `ran` in all, goes on running.
    fn end(&self, ran: u64, view: &View<'_>) -> Time {
        let tavs = &view.config.tavs;
        let left = nanos(tavs.max_boost).saturating_sub(ran.saturating_sub(self.ran_at_begin));
        let ran = ran.saturating_sub(self.ran_before);
        let patience = view.guest.answers.patience(tavs).saturating_sub(ran);
        let left = if self.waits { left.min(patience) } else { left };
        let left = match self.part {
            Part::Serves => left.min(unaided(tavs).saturating_sub(ran)),
            Part::Helped => left,
            Part::Helps => left.min(nanos(tavs.io_threshold).saturating_sub(ran)),
        };
        view.now.plus(left).min(longest(self.since, tavs))
    }
}

/// How long a vCPU that serves an event runs before others may help it: so long only few events take, unless
/// something holds them up, and then there is patience left.
fn unaided(config: &Tavs) -> u64 {
    nanos(config.io_threshold) / 2
}

/// When a boost that began then is over in any case.
fn longest(since: Time, config: &Tavs) -> Time {
    since.plus(nanos(config.max_boost).saturating_mul(STRETCH))
}

impl Policy for PartialBoost {
    fn on_fact(&mut self, fact: Fact, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<(Cause, Reason)> {
        match fact {
            Fact::Event { cause, device, correlated } => {
                let candidates = Self::candidates(view, device);
                let verdict = self.weigh(view, &candidates, correlated);
                let reason = verdict.as_ref().err().copied().unwrap_or(Reason::Boosted);
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
            // One that halts before it is told of the event is woken for it.
            Fact::Halted { vcpu } => {
                let hit = self.serving(vcpu).is_some_and(|serving| serving.hit);
                if hit || !view.guest.awaits_delivery() {
                    self.end(vcpu, view, asks);
                }
                let idle = view.guest.vcpus.iter().all(|vcpu| vcpu.seen.is_halted());
                if idle && self.unanswered.take().is_some() {
                    self.unwatch(asks);
                }
            }
            Fact::Answered { vcpu } => {
                if !view.guest.runs_io_bound(vcpu) {
                    self.end(vcpu, view, asks);
                }
            }
            Fact::Stalled { vcpu } => self.stalled(vcpu, view, asks),
            Fact::HandedOn { from, to } => self.hand_on(from, to, view, asks),
            Fact::EmulatorSlept => {
                if self.lingers && !view.guest.emulator_is_awake() {
                    self.lingers = false;
                    asks.push(Ask::End(Owner::PartialBoost, Target::Boost(BoostTarget::Emulators)));
                }
            }
            Fact::Over => self.over(view, asks),
            Fact::VcpuOver { vcpu } => {
                self.end(vcpu, view, asks);
                asks.push(Ask::End(Owner::PartialBoost, Target::Watch(vcpu)));
            }
        }
        None
    }

    fn on_expiry(&mut self, target: Target, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<Time> {
        let Target::Boost(BoostTarget::Vcpu(index)) = target else { return None };
        if let Some(until) = self.extension(index, view, asks) {
            return Some(until);
        }
        self.give_up(index, view, asks);
        None
    }
}

fn boost(target: BoostTarget, until: Time) -> Ask {
    let (owner, target) = (Owner::PartialBoost, Target::Boost(target));
    Ask::Claim(Claim { owner, target, value: value(Boost::Io), until })
}

fn watch(index: u16, until: Time) -> Ask {
    Ask::Claim(Claim { owner: Owner::PartialBoost, target: Target::Watch(index), value: 1, until })
}
