//! How long a boost lasts: whether it goes on when its time is over or its vCPU halts, and what is waited for
//! after one whose event was not answered.

use super::state::{BoostRole, BoostedVcpu, LOOK, PartialBoost, UNANSWERED, boost, longest, unaided, watch};
use crate::action::BoostTarget;
use crate::event::Time;
use crate::explain::{Cause, Reason};
use crate::infer::Device;
use crate::policy::claim::{Ask, Knob, Owner};
use crate::policy::view::View;

impl PartialBoost {
    /// Until when a boost whose time is over goes on: it may have waited for a CPU, and what counts is what
    /// it ran.
    pub(super) fn extension(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<Time> {
        let known = view.guest.vcpus.get(usize::from(index))?;
        let asleep = !known.seen.thread.is_awake() && !known.seen.rests();
        let several = self.vcpus.len() > 1;
        let vcpu = self.vcpus.get_mut(usize::from(index))?;
        let ran = vcpu.ran;
        let serving = vcpu.serving.as_mut()?;
        // Who is helped then would be boosted for nothing, and help others in turn. And nobody keeps one that
        // goes ahead from running.
        let over = longest(serving.since, &view.config.tavs) <= view.now;
        if over || serving.part == BoostRole::HelpsAhead {
            return None;
        }
        if serving.part == BoostRole::ServesAhead {
            // It had its chance, and serves on beside the one that was held up.
            (serving.part, serving.ran_before) = (BoostRole::Serves, ran);
            serving.until = serving.end(ran, view);
            let until = serving.until;
            asks.push(boost(BoostTarget::Vcpu(index), until));
            return (until > view.now).then_some(until);
        }
        let long = ran.saturating_sub(serving.ran_before) >= unaided(&view.config.tavs);
        let unaided = serving.part == BoostRole::Serves && (long || view.guest.is_kept_waiting());
        // Whoever has a lock now may not have had it when others were helped before.
        if unaided || asleep && several && !serving.part.is_help() {
            serving.part = BoostRole::Helped;
            self.help(index, view, asks);
        }
        let serving = self.serving(index)?;
        let until = serving.end(ran, view);
        if until <= view.now {
            return None;
        }
        // Next to nothing may be left to run, and the vCPU may wait for long: then it is looked at now and
        // then.
        let look = if known.seen.thread.is_running() { until } else { view.now.plus(LOOK) };
        serving.until = until.max(look).min(longest(serving.since, &view.config.tavs));
        (serving.until > view.now).then_some(serving.until)
    }

    /// The time of a boost is over, and its event is not answered: whose it is may be seen yet.
    pub(super) fn give_up(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
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
        } else {
            self.unserved = Some(view.now);
        }
    }

    /// An I/O-bound task is seen whose event may be the one that was not answered: it is boosted once more.
    pub(super) fn take_up(
        &mut self,
        index: u16,
        view: &View<'_>,
        asks: &mut Vec<Ask>,
    ) -> Option<(Cause, Reason)> {
        let since = self.unanswered.take()?;
        self.unwatch(asks);
        if view.now.since(since) > UNANSWERED {
            return None;
        }
        let verdict = self.weigh(view, &[index], true, self.pb_ratio(view, Device::Network));
        if verdict.is_ok() {
            self.begin(index, view, asks);
        }
        Some((Cause::Unanswered, verdict.err().unwrap_or(Reason::Boosted)))
    }

    /// The guest halted a vCPU. If it has not been told of the event, or may not have been, it is woken for
    /// that yet.
    pub(super) fn halted(&mut self, vcpu: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let asleep = view.guest.vcpus.iter().all(|vcpu| vcpu.seen.is_halted());
        let on_its_way = view.guest.awaits_delivery();
        let told = !on_its_way && !view.guest.deliverer_is_awake();
        // A clock tick: what had been loaded went on, and answered nothing.
        let ticked = on_its_way && view.guest.only_resumed(vcpu);
        if let Some(serving) = self.serving(vcpu) {
            // Whoever it was for, known or not, ran shortly.
            serving.hit = (serving.hit || asleep && told) && !ticked;
            if serving.hit || told || serving.part.is_help() {
                self.end(vcpu, view, asks);
            }
        }
        if asleep {
            self.unserved = None;
            if self.unanswered.take().is_some() {
                self.unwatch(asks);
            }
        }
    }

    /// The emulator thread sleeps: who [halted](Self::halted) meanwhile, and sleeps still, was not woken for
    /// the event.
    pub(super) fn not_woken(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        for (index, known) in (0u16..).zip(&view.guest.vcpus) {
            let at_rest = known.seen.is_halted() && !known.seen.thread.is_awake();
            if at_rest && self.vcpus.get(usize::from(index)).is_some_and(BoostedVcpu::has_run) {
                self.halted(index, view, asks);
            }
        }
    }

    /// Nobody is waited for any more on vCPUs that are not boosted.
    pub(super) fn unwatch(&self, asks: &mut Vec<Ask>) {
        let idle = (0u16..).zip(&self.vcpus).filter(|(_, vcpu)| vcpu.serving.is_none());
        asks.extend(idle.map(|(index, _)| Ask::End(Owner::PartialBoost, Knob::Watch(index))));
    }
}
