//! Helping: locks of the guest and of its emulator.
//!
//! A vCPU that serves an event may need what another vCPU of the VM holds that has lost its CPU. The one that
//! took the interrupt and woke the task elsewhere finishes its handler boosted; and when one that serves is
//! held up, the others that want to run are boosted until the event is answered.

use super::state::{BoostRole, BoostedVcpu, LOOK, MAX_TARGETS, PartialBoost, Serving, boost_to};
use crate::action::BoostTarget;
use crate::event::Time;
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
        let waits = |serving: &Serving| resumed || serving.waits && !serving.hit || serving.part.is_help();
        let Some((since, part)) = self.serving(from).filter(|s| waits(s)).map(|s| (s.since, s.part)) else {
            return;
        };
        // The event was within the budget when it came.
        let others = (0u16..).take(self.vcpus.len()).filter(|index| *index != from && to & bit(*index) != 0);
        let targets: ArrayVec<u16, MAX_TARGETS> = others.take(MAX_TARGETS).collect();
        targets.iter().for_each(|index| self.begin_since(*index, since, view, asks));
        if !targets.is_empty() && !part.is_help() {
            // It did what it was boosted for.
            self.count_end(from, true);
            self.start(from, BoostRole::Finishes, since, view, asks);
        }
    }

    /// A vCPU took the device's interrupt, and the one where the task ran last has one of another vCPU to
    /// take yet; it was boosted as well, and may have slept since. Whom the handler wakes there needs no
    /// second one: nothing else tells that the event is handed on, and the two may share a physical CPU.
    pub(super) fn taken(&mut self, from: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let guest = view.guest;
        let last = guest.last_io_bound().filter(|last| *last != from);
        let Some(to) = last.filter(|_| !guest.awaits_delivery()) else { return };
        if guest.vcpus.get(usize::from(to)).is_some_and(|known| known.seen.ipi_pending) {
            self.hand_on(from, bit(to), view, asks);
        }
    }

    /// A vCPU that serves an event is held up: the others of the VM that want to run may hold what it needs.
    /// First those that were woken and have not run since: if they slept for a lock, they have it.
    pub(super) fn help(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let Some(since) = self.serving(index).map(|serving| serving.since) else { return };
        let pcpu = view.guest.vcpus.get(usize::from(index)).and_then(|known| known.seen.thread.pcpu);
        let awake = |(_, known): &(u16, &GuestVcpu)| known.seen.thread.is_awake();
        let others = (0u16..).zip(&view.guest.vcpus).filter(awake).filter(|(other, _)| *other != index);
        let (woken, preempted): (Vec<_>, Vec<_>) =
            others.partition(|(_, known)| known.seen.thread.is_woken());
        for (other, known) in woken.into_iter().chain(preempted).take(MAX_TARGETS) {
            let behind = pcpu.is_some() && known.seen.thread.pcpu == pcpu;
            let part = if behind { BoostRole::HelpsAhead } else { BoostRole::Helps };
            if behind && self.has_not_come_to_serve(other) {
                self.start(other, BoostRole::ServesAhead, since, view, asks);
            } else {
                self.help_by(other, part, since, view, asks);
            }
        }
    }

    /// Whether a vCPU serves an event and has not run since it is boosted for it.
    fn has_not_come_to_serve(&self, index: u16) -> bool {
        self.vcpus.get(usize::from(index)).is_some_and(|vcpu| vcpu.serves() && !vcpu.has_run())
    }

    /// While the event is held up, one that is boosted has woken a vCPU that its emulator had wait: that one
    /// has the lock now that it gave up.
    pub(super) fn inherit(&mut self, index: u16, from: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let helped = |serving: &Serving| serving.part == BoostRole::Helped;
        let held_up = self.vcpus.iter().any(|vcpu| vcpu.serving.as_ref().is_some_and(helped));
        if let Some(since) = self.serving(from).map(|serving| serving.since)
            && held_up
        {
            self.help_by(index, BoostRole::Helps, since, view, asks);
        }
    }

    fn help_by(&mut self, index: u16, part: BoostRole, since: Time, view: &View<'_>, asks: &mut Vec<Ask>) {
        if self.vcpus.get(usize::from(index)).is_some_and(|vcpu| vcpu.serving.is_none()) {
            self.start(index, part, since, view, asks);
        }
    }

    /// A boosted vCPU sleeps although the guest has not halted it: the emulator has it wait for something. It
    /// is looked at soon.
    pub(super) fn stalled(&mut self, index: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let until = view.now.plus(LOOK);
        let several = self.vcpus.len() > 1;
        if let Some(serving) = self.serving(index)
            && several
            && !serving.part.is_help()
            && serving.until > until
        {
            serving.until = until;
            asks.push(boost_to(BoostTarget::Vcpu(index), serving.part.level(), until));
        }
    }

    /// The emulator delivers: nobody has a lock that kept it from that. Those that helped it make room for
    /// who answers, which may share a physical CPU with them and may be held up by something else yet.
    pub(super) fn relieve(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        if self.vcpus.len() < 2 {
            return;
        }
        for index in (0u16..).take(self.vcpus.len()) {
            match self.serving(index).map(|serving| serving.part) {
                Some(BoostRole::Helps | BoostRole::HelpsAhead) if !view.guest.runs_io_bound(index) => {
                    self.end(index, view, asks)
                }
                Some(BoostRole::Helped) => {
                    if let Some(serving) = self.serving(index) {
                        serving.part = BoostRole::Serves;
                    }
                }
                _ => {}
            }
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
