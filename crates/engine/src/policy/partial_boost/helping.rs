//! Helping: locks of the guest and of its emulator.
//!
//! A vCPU that serves an event may need what another vCPU of the VM holds that has lost its CPU. The one that took the interrupt and
//! woke the task elsewhere finishes its handler boosted; and when one that serves is held up, the others that want to run are boosted
//! until the event is answered.

use super::state::{BoostedVcpu, LOOK, MAX_TARGETS, Part, PartialBoost, Serving, boost};
use crate::action::BoostTarget;
use crate::infer::{GuestVcpu, bit};
use crate::policy::claim::Ask;
use crate::policy::view::View;
use arrayvec::ArrayVec;

impl PartialBoost {
    /// The vCPU that took the interrupt has woken somebody on others: those are boosted in its place, and it
    /// may finish its handler, which holds locks that they need.
    pub(super) fn hand_on(&mut self, from: u16, to: u64, view: &View<'_>, asks: &mut Vec<Ask>) {
        // What was loaded when it was halted may not have run at all.
        let resumed = view.guest.only_resumed(from);
        let waits =
            |serving: &Serving| (resumed || serving.waits && !serving.hit) && serving.part != Part::Helps;
        let Some(since) = self.serving(from).filter(|serving| waits(serving)).map(|serving| serving.since)
        else {
            return;
        };
        // The event was within the budget when it came.
        let others = (0u16..).take(self.vcpus.len()).filter(|index| *index != from && to & bit(*index) != 0);
        let targets: ArrayVec<u16, MAX_TARGETS> = others.take(MAX_TARGETS).collect();
        targets.iter().for_each(|index| self.begin_since(*index, since, view, asks));
        if !targets.is_empty() {
            // It did what it was boosted for.
            self.count_end(from, true);
            self.start(from, Part::Helps, since, view, asks);
        }
    }

    /// A vCPU that serves an event is held up: the others of the VM that want to run may hold what it needs.
    pub(super) fn help(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let Some(since) = self.serving(index).map(|serving| serving.since) else { return };
        let awake = |(_, known): &(u16, &GuestVcpu)| known.seen.thread.is_awake();
        let others = (0u16..).zip(&view.guest.vcpus).filter(awake).map(|(other, _)| other);
        for other in others.filter(|other| *other != index).take(MAX_TARGETS) {
            if self.vcpus.get(usize::from(other)).is_some_and(|vcpu| vcpu.serving.is_none()) {
                self.start(other, Part::Helps, since, view, asks);
            }
        }
    }

    /// A boosted vCPU sleeps although the guest has not halted it: the emulator has it wait for something. It
    /// is looked at soon.
    pub(super) fn stalled(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let until = view.now.plus(LOOK);
        if let Some(serving) = self.serving(index)
            && serving.part == Part::Serves
            && serving.until > until
        {
            serving.until = until;
            asks.push(boost(BoostTarget::Vcpu(index), until));
        }
    }

    /// Nobody serves the event any more. One that helped may have been the one that does after all; the
    /// others are ended with it.
    pub(super) fn end_helping(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        let helping = |(_, vcpu): &(u16, &BoostedVcpu)| vcpu.helps();
        while let Some((index, _)) = (0u16..).zip(&self.vcpus).find(helping) {
            if view.guest.runs_io_bound(index) {
                return self.begin(index, view, asks);
            }
            self.end(index, view, asks);
        }
    }
}
