//! What follows when a vCPU changes tasks, halts, or goes on.

use super::guest::{Guest, GuestVcpu};
use super::io_bound::Verdict;
use super::routing::Device;
use crate::config::Tavs;
use crate::event::{TaskId, Time};
use crate::observe::Registry;

/// A task was dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskDispatch {
    /// Whether it is I/O-bound.
    pub(crate) io_bound: bool,
    /// Whether the one before was on its way to sleep, to be woken at once.
    pub(crate) fell_asleep: bool,
    /// Whether it is the one that ran before.
    pub(crate) again: bool,
}

impl Guest {
    /// A task was dispatched. `exactly`: the source tells each switch, and tells it when it is made.
    ///
    /// When one that was only seen was dispatched is not known, and still less when it stops: a task that
    /// answers and sleeps is followed by one that computes and gives nobody reason to look. So it is taken to
    /// have run from when the one before was last seen until it was last seen itself.
    pub(crate) fn switch(
        &mut self,
        index: u16,
        task: TaskId,
        exactly: bool,
        now: Time,
        config: &Tavs,
    ) -> Option<TaskDispatch> {
        let vcpu = self.vcpu(index)?;
        let unseen = vcpu.seen.unseen_run();
        let dispatch = self.dispatch(index, task, false, now, config);
        let vcpu = self.vcpu(index)?;
        if exactly {
            vcpu.seen.seen_exactly();
        } else {
            vcpu.seen.was_seen(if dispatch.again { 0 } else { unseen });
        }
        Some(dispatch)
    }

    fn dispatch(
        &mut self,
        index: u16,
        task: TaskId,
        resumed: bool,
        now: Time,
        config: &Tavs,
    ) -> TaskDispatch {
        let only_loaded = self.is_only_loaded(index);
        let vcpu = &mut self.vcpus[usize::from(index)];
        if vcpu.seen.current() == Some(task) {
            let io_bound = self.tasks.is_io_bound(task) && !self.is_background(task, now);
            return TaskDispatch { io_bound, fell_asleep: false, again: true };
        }
        vcpu.end_run(only_loaded, &mut self.tasks, config);
        let (before, loaded) =
            if vcpu.resumed { (None, vcpu.seen.current()) } else { (vcpu.seen.current(), None) };
        vcpu.asking.dispatched(before, loaded);
        self.shown = self.frames.next(index, Some(task)).or(self.shown);
        let patience = self.answers.patience(config);
        let verdict = vcpu.observer.next(Some(task), resumed, patience, &self.tasks, config);
        vcpu.seen.switch(task, vcpu.observer.goes_on(task));
        (vcpu.handles_since, vcpu.resumed) = (None, resumed);
        // Background work that synchronises its threads may look I/O-bound (vAMP §3.1.1).
        let io_bound = self.tasks.dispatch(task, now, config) && !self.is_background(task, now);
        let vcpu = &mut self.vcpus[usize::from(index)];
        let fell_asleep = std::mem::take(&mut vcpu.falling_asleep) && !io_bound;
        if io_bound {
            vcpu.last_io = Some(now);
            // A vCPU that only goes on with what was loaded serves the event if it is told of it.
            vcpu.served |= !resumed || self.routing.takers(Device::Network).is_none();
            if let Some(delay) = vcpu.observer.serves(task) {
                self.answers.dispatched(delay, now);
            }
        }
        // What the interrupt's taker wakes may run on a vCPU that is not observed.
        let elsewhere = io_bound && !vcpu.observer.observes();
        self.learn(verdict.or(elsewhere.then_some(Verdict::IoBound)));
        TaskDispatch { io_bound, fell_asleep, again: false }
    }

    /// Whether the task on a vCPU is only what was left loaded when it was halted: it runs on another one.
    /// What runs here is the guest's idle task, and what interrupts that, which is nearly always short. A
    /// background task that moves from vCPU to vCPU would come to be believed by that.
    fn is_only_loaded(&self, index: u16) -> bool {
        let task = self.vcpus.get(usize::from(index)).filter(|vcpu| vcpu.resumed);
        let Some(task) = task.and_then(|vcpu| vcpu.seen.current()) else { return false };
        let others = (0u16..).zip(&self.vcpus).filter(|(other, _)| *other != index);
        others.map(|(_, vcpu)| vcpu).any(|vcpu| vcpu.seen.current() == Some(task))
    }

    /// The guest halted a vCPU: its idle task preempts nobody and is woken by nobody.
    pub(crate) fn halt(&mut self, index: u16, config: &Tavs) {
        let only_loaded = self.is_only_loaded(index);
        let may_be_woken = self.deliverer_is_awake();
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
        vcpu.seen.seen_until_now();
        vcpu.end_run(only_loaded, &mut self.tasks, config);
        let verdict = if may_be_woken {
            None
        } else {
            vcpu.observer.next(None, false, self.answers.patience(config), &self.tasks, config)
        };
        vcpu.seen.halt();
        vcpu.handles_since = None;
        vcpu.asking.halted();
        vcpu.wakeups.halted();
        self.shown = self.frames.next(index, None).or(self.shown);
        self.learn(verdict);
    }

    /// A halted vCPU goes on. A guest that idles keeps the last address space loaded, so without a switch the
    /// task that runs now is the one that ran before.
    pub(crate) fn resume(&mut self, index: u16, now: Time, config: &Tavs) -> Option<TaskDispatch> {
        let vcpu = self.vcpu(index)?;
        if !vcpu.seen.is_halted() {
            return None;
        }
        match vcpu.seen.loaded() {
            Some(task) => Some(self.dispatch(index, task, true, now, config)),
            None => {
                vcpu.seen.resume();
                None
            }
        }
    }
}

impl GuestVcpu {
    /// The run of the current task ends. One that is `only_loaded` is nobody to learn of.
    fn end_run(&mut self, only_loaded: bool, tasks: &mut Registry, config: &Tavs) {
        if !only_loaded {
            self.observer.end_run(&self.seen, tasks, config);
        }
        if let Some(task) = self.seen.current() {
            tasks.charge(task, self.seen.take_uncharged());
        }
    }
}
