//! One vCPU: its thread's times, and which guest task runs on it for how long.

use crate::event::{TaskId, Time};
use crate::observe::thread::ThreadTimes;
use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

/// Largest inspection window that can be configured: so many of the last tasks are remembered.
const MAX_WINDOW: usize = 16;

/// What was seen of a vCPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Vcpu {
    pub(crate) thread: ThreadTimes,
    current: Option<TaskId>,
    halted: bool,
    /// Run time of the current task since it was dispatched.
    dispatch_ran: u64,
    /// What of that it is known to have run, if its source only looks now and then: until it was last seen.
    seen_ran: Option<u64>,
    /// What its thread had run when it was heard of last.
    #[serde(default)]
    heard_ran: u64,
    /// Run time of the current task that its VM's registry has not been told of.
    uncharged: u64,
    /// How often the guest changed to another task or to none.
    pub(crate) switches: u64,
    /// Tasks dispatched, latest last.
    recent: ArrayVec<TaskId, MAX_WINDOW>,
    /// An interrupt of another vCPU was sent here and has not been taken.
    pub(crate) ipi_pending: bool,
    /// Weight of its thread inside the VM in permille of an ordinary one's, if somebody gave it another.
    pub(crate) weight: Option<u32>,
}

impl Vcpu {
    /// Forgets the guest: what runs and what ran. What the vCPU has used stays.
    pub(crate) fn reset(&mut self) {
        let thread = std::mem::take(&mut self.thread);
        *self = Vcpu { thread, switches: self.switches, weight: self.weight, ..Vcpu::default() };
    }

    /// Events were lost: what was going on is not known.
    pub(crate) fn forget(&mut self) {
        self.thread.forget();
        self.begin_run(0);
        self.ipi_pending = false;
    }

    /// The task on the vCPU; `None` while it is halted or before the first switch.
    pub(crate) fn current(&self) -> Option<TaskId> {
        self.current.filter(|_| !self.halted)
    }

    /// The task that is loaded; a guest that idles keeps the last one.
    pub(crate) fn loaded(&self) -> Option<TaskId> {
        self.current
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.halted
    }

    /// Whether the guest leaves it asleep: it has halted it, and no other vCPU has interrupted it since.
    pub(crate) fn rests(&self) -> bool {
        self.halted && !self.ipi_pending
    }

    /// Whether its source only looks now and then.
    pub(crate) fn is_sampled(&self) -> bool {
        self.seen_ran.is_some()
    }

    /// Brings the times up to `now`; returns what the vCPU ran since the last call.
    pub(crate) fn account(&mut self, now: Time) -> u64 {
        let ran = self.thread.account(now);
        if ran > 0 && self.current().is_some() {
            self.dispatch_ran = self.dispatch_ran.saturating_add(ran);
            self.uncharged = self.uncharged.saturating_add(ran);
        }
        ran
    }

    /// The vCPU is heard of, and its times are up to date. Where its source only looks now and then,
    /// `silence` is how long it may not be heard of while it runs (0: any time). A longer silence is taken
    /// from the run of the current task as a whole, for how much of it somebody ran is not known. Returns how
    /// long it was.
    pub(crate) fn heard(&mut self, silence: u64) -> u64 {
        let since = self.thread.ran.saturating_sub(std::mem::replace(&mut self.heard_ran, self.thread.ran));
        if silence == 0 || !self.is_sampled() {
            return 0;
        }
        let lost = if since > silence { since } else { 0 };
        self.dispatch_ran = self.dispatch_ran.saturating_sub(lost);
        lost
    }

    /// Run time of the current task that has not been charged to it.
    pub(crate) fn uncharged(&self) -> u64 {
        self.uncharged
    }

    /// Run time of the current task that is to be charged to it now.
    pub(crate) fn take_uncharged(&mut self) -> u64 {
        std::mem::take(&mut self.uncharged)
    }

    /// What the current task is known to have run since it was dispatched.
    pub(crate) fn known_run(&self) -> u64 {
        self.seen_ran.unwrap_or(self.dispatch_ran)
    }

    /// What it may have run since then without having been seen.
    pub(crate) fn unseen_run(&self) -> u64 {
        self.dispatch_ran.saturating_sub(self.known_run())
    }

    /// A run begins, or goes on after so much.
    pub(crate) fn begin_run(&mut self, ran: u64) {
        self.dispatch_ran = ran;
        self.seen_ran = self.seen_ran.map(|_| ran);
    }

    /// Another task is loaded; its run begins after so much.
    pub(crate) fn switch(&mut self, task: TaskId, ran: u64) {
        self.switches = self.switches.wrapping_add(1);
        self.halted = false;
        self.current = Some(task);
        self.begin_run(ran);
        if self.recent.is_full() {
            self.recent.remove(0);
        }
        self.recent.push(task);
    }

    /// The source tells each switch.
    pub(crate) fn seen_exactly(&mut self) {
        self.seen_ran = None;
    }

    /// The source saw the task now. `unseen` is what may have run before it.
    pub(crate) fn was_seen(&mut self, unseen: u64) {
        self.dispatch_ran = self.dispatch_ran.saturating_add(unseen);
        self.seen_ran = Some(self.dispatch_ran);
    }

    /// Whoever hears of the halt knows what ran until then.
    pub(crate) fn seen_until_now(&mut self) {
        self.seen_ran = self.seen_ran.map(|_| self.dispatch_ran);
    }

    pub(crate) fn halt(&mut self) {
        self.switches = self.switches.wrapping_add(1);
        self.halted = true;
    }

    /// It goes on, and what is loaded is not known.
    pub(crate) fn resume(&mut self) {
        self.halted = false;
    }

    /// The last tasks dispatched, latest first.
    pub(crate) fn recent(&self) -> impl Iterator<Item = TaskId> {
        self.recent.iter().rev().copied()
    }
}
