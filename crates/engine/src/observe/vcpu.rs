//! One vCPU: which guest task runs on it, for how long, and what that says after an event (TAVS §3.1).

use crate::budget::Budget;
use crate::config::Tavs;
use crate::event::{TaskId, Time};
use crate::nanos;
use crate::state::{StateError, check};
use crate::tasks::{Evidence, TaskTable};
use crate::thread::ThreadTimes;
use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Largest inspection window that can be configured.
const MAX_WINDOW: usize = 16;
/// Longest boost that can be configured.
const MAX_BOOST: Duration = Duration::from_secs(1);

/// Where in the order of tasks after an event we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    /// The task that was there when the vCPU was scheduled with the event pending. Whatever it does is ambiguous:
    /// it was preempted by the task that the event woke, or is it itself.
    First,
    /// So far every task after the first ran shortly.
    Consecutive,
    /// Some task ran for long: a short one now says nothing.
    AfterLong,
}

/// The observation that begins when a vCPU is scheduled with an event pending.
///
/// The paper ends it with the time slice. Here the emulator thread preempts the vCPU in the middle of it to send the
/// reply, so it ends when the vCPU has *run* for a time slice.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Observation {
    phase: Phase,
    first: Option<TaskId>,
    /// What the first task had run when it was preempted. When it goes on in the same observation, so does its run: otherwise
    /// frequent events would cut the run of a CPU-bound task into many short ones.
    first_ran: u64,
    ran: u64,
    /// Whether an I/O-bound task was dispatched in it.
    served: bool,
    /// Whether the packet that began it is still to be judged.
    unjudged: bool,
}

/// A boost that is going on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Boosted {
    pub(crate) since: Time,
    /// When it ends by itself.
    pub(crate) until: Time,
    /// Boosted run time of the vCPU before it.
    pub(crate) ran_before: u64,
    /// Whether an I/O-bound task has run in it.
    pub(crate) hit: bool,
    /// Whether nothing is awaited within the VM's patience: an I/O-bound task has run since its last event.
    pub(crate) answered: bool,
    /// Whether an I/O-bound task has run since the last event was delivered.
    pub(crate) served: bool,
    /// Whether the guest has rung a doorbell here since then.
    pub(crate) rang: bool,
}

/// Counts since the VM was added.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) boosts: u64,
    pub(crate) hits: u64,
    pub(crate) expired: u64,
}

/// What a packet turned out to be: whether it woke an I/O-bound task; `Unclear` teaches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    IoBound,
    NotIoBound,
    Unclear,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Vcpu {
    pub(crate) thread: ThreadTimes,
    pub(crate) tasks: TaskTable,
    pub(crate) budget: Budget,
    pub(crate) boosted: Option<Boosted>,
    pub(crate) boosted_ran: u64,
    pub(crate) counts: Counts,
    /// When an I/O-bound task last ran here.
    pub(crate) last_io: Option<Time>,
    /// An event is pending; the observation begins when the vCPU is scheduled.
    pending: Option<bool>,
    current: Option<TaskId>,
    halted: bool,
    /// Run time of the current task since it was dispatched.
    dispatch_ran: u64,
    /// What of that it is known to have run, if its source only looks now and then: until it was last seen.
    seen_ran: Option<u64>,
    /// How often the guest changed to another task or to none.
    pub(crate) switches: u64,
    /// The current task, an I/O-bound one, asked for a read that has ended, and may not know: it may be on its way to sleep, to be woken
    /// at once.
    pub(crate) falling_asleep: bool,
    /// Tasks dispatched, latest last.
    recent: ArrayVec<TaskId, MAX_WINDOW>,
    observation: Option<Observation>,
    /// Run time from the last event to the I/O-bound task that was dispatched for it, until it is taken.
    delay: Option<u64>,
}

impl Vcpu {
    pub(crate) fn new(config: &Tavs) -> Vcpu {
        Vcpu {
            thread: ThreadTimes::default(),
            tasks: TaskTable::new(config),
            budget: Budget::default(),
            boosted: None,
            boosted_ran: 0,
            counts: Counts::default(),
            last_io: None,
            pending: None,
            current: None,
            halted: false,
            dispatch_ran: 0,
            seen_ran: None,
            switches: 0,
            falling_asleep: false,
            recent: ArrayVec::new(),
            observation: None,
            delay: None,
        }
    }

    /// Completes a vCPU that was loaded.
    pub(crate) fn restore(&mut self, now: Time, config: &Tavs) -> Result<(), StateError> {
        if let Some(boosted) = &self.boosted {
            let most = nanos(MAX_BOOST);
            let bounded = boosted.since <= now && boosted.until <= boosted.since.plus(most);
            check(bounded, "a boost longer than any")?;
        }
        check(self.counts.hits <= self.counts.boosts, "more hits than boosts")?;
        self.tasks.restore(config)
    }

    /// Forgets the guest: its tasks, what runs, and what it was watched for. What the vCPU has used stays.
    pub(crate) fn reset(&mut self, config: &Tavs) {
        self.tasks = TaskTable::new(config);
        self.last_io = None;
        self.pending = None;
        self.current = None;
        self.halted = false;
        self.begin_run(0);
        self.falling_asleep = false;
        self.recent.clear();
        self.observation = None;
    }

    /// The task on the vCPU; `None` while it is halted or before the first switch.
    pub(crate) fn current(&self) -> Option<TaskId> {
        self.current.filter(|_| !self.halted)
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.halted
    }

    /// Whether the task on the vCPU is I/O-bound.
    pub(crate) fn runs_io_bound(&self, config: &Tavs) -> bool {
        self.current().is_some_and(|task| self.tasks.is_io_bound(task, config))
    }

    /// Brings all time accounts up to `now`. A verdict comes when an observation ends by it.
    pub(crate) fn account(&mut self, now: Time, config: &Tavs) -> Option<Verdict> {
        let ran = self.thread.account(now);
        if ran == 0 {
            return None;
        }
        let boosted = self.boosted.is_some();
        self.budget.charge(now, nanos(config.pb_period), ran, boosted);
        if boosted {
            self.boosted_ran = self.boosted_ran.saturating_add(ran);
        }
        if let Some(task) = self.current() {
            self.dispatch_ran = self.dispatch_ran.saturating_add(ran);
            self.tasks.charge(task, ran);
        }
        let observation = self.observation.as_mut()?;
        observation.ran = observation.ran.saturating_add(ran);
        if observation.ran < nanos(config.time_slice) {
            return None;
        }
        self.end_observation(config)
    }

    /// An event is pending for the guest on this vCPU. `judge`: a packet whose port is to be learnt from.
    pub(crate) fn event_pending(&mut self, judge: bool, config: &Tavs) -> Option<Verdict> {
        self.pending = Some(judge);
        if self.thread.is_running() { self.begin_observation(config) } else { None }
    }

    /// A read ended before the guest could put the task that asked for it to sleep: for what it is, as if it had slept and been woken.
    pub(crate) fn read_ended_at_once(&mut self, config: &Tavs) {
        self.end_run(config);
        self.falling_asleep = self.runs_io_bound(config);
        self.pending = None;
        self.begin_run(0);
        let unjudged = self.observation.take().is_some_and(|observation| observation.unjudged);
        self.observation = Some(Observation {
            phase: Phase::Consecutive,
            first: None,
            first_ran: 0,
            ran: 0,
            served: true,
            unjudged,
        });
    }

    /// The vCPU was scheduled.
    pub(crate) fn run(&mut self, pcpu: u16, config: &Tavs) -> Option<Verdict> {
        self.thread.run(pcpu);
        self.begin_observation(config)
    }

    fn begin_observation(&mut self, config: &Tavs) -> Option<Verdict> {
        let unjudged = self.pending.take()?;
        let verdict = self.end_observation(config);
        let (phase, first) = (Phase::First, self.current());
        self.observation = Some(Observation { phase, first, first_ran: 0, ran: 0, served: false, unjudged });
        verdict
    }

    /// Ends the observation. The task that is still running may have run long, but not shortly: it would have gone on.
    fn end_observation(&mut self, config: &Tavs) -> Option<Verdict> {
        if self.known_run() > nanos(config.io_threshold) {
            self.end_run(config);
        }
        let observation = self.observation.take()?;
        observation.unjudged.then(|| self.judge(observation.first, None, config))
    }

    /// TAVS §4.3.2: up if the first woken task is I/O-bound, down if neither it nor the first task is.
    fn judge(&self, first: Option<TaskId>, woken: Option<TaskId>, config: &Tavs) -> Verdict {
        let io_bound = |task: Option<TaskId>| task.is_some_and(|id| self.tasks.is_io_bound(id, config));
        match (io_bound(woken), io_bound(first)) {
            (true, _) => Verdict::IoBound,
            (false, true) => Verdict::Unclear,
            (false, false) => Verdict::NotIoBound,
        }
    }

    /// The guest switched to `task`. Returns whether it is I/O-bound, and a verdict on the packet before.
    pub(crate) fn switch(&mut self, task: TaskId, now: Time, config: &Tavs) -> (bool, Option<Verdict>) {
        let dispatched = self.dispatch(task, now, config);
        self.seen_ran = None;
        dispatched
    }

    /// Somebody looked and saw `task`. Returns the same.
    ///
    /// When it was dispatched is not known, and still less when it stops: a task that answers and sleeps is followed by one that computes
    /// and gives nobody reason to look. So a task is taken to have run from when the one before was last seen until it was last seen itself.
    pub(crate) fn see(&mut self, task: TaskId, now: Time, config: &Tavs) -> (bool, Option<Verdict>) {
        let unseen = self.dispatch_ran.saturating_sub(self.known_run());
        let is_new = self.current() != Some(task);
        let dispatched = self.dispatch(task, now, config);
        if is_new {
            self.dispatch_ran = self.dispatch_ran.saturating_add(unseen);
        }
        self.seen_ran = Some(self.dispatch_ran);
        dispatched
    }

    /// A run begins, or goes on after so much.
    fn begin_run(&mut self, ran: u64) {
        self.dispatch_ran = ran;
        self.seen_ran = self.seen_ran.map(|_| ran);
    }

    /// What the current task is known to have run since it was dispatched.
    fn known_run(&self) -> u64 {
        self.seen_ran.unwrap_or(self.dispatch_ran)
    }

    fn dispatch(&mut self, task: TaskId, now: Time, config: &Tavs) -> (bool, Option<Verdict>) {
        if self.current() == Some(task) {
            return (self.tasks.is_io_bound(task, config), None);
        }
        self.end_run(config);
        let verdict = self.next_after_event(Some(task), config);
        self.switches = self.switches.wrapping_add(1);
        self.halted = false;
        self.current = Some(task);
        let goes_on = self.observation.as_ref().filter(|observation| observation.first == Some(task));
        let ran = goes_on.map_or(0, |observation| observation.first_ran);
        self.begin_run(ran);
        if self.recent.is_full() {
            self.recent.remove(0);
        }
        self.recent.push(task);
        let io_bound = self.tasks.dispatch(task, now, config);
        if io_bound {
            self.last_io = Some(now);
            self.falling_asleep = false;
            // One that ran already was not dispatched for the event.
            if let Some(observation) = self.observation.as_mut()
                && observation.first != Some(task)
                && !std::mem::replace(&mut observation.served, true)
            {
                self.delay = Some(observation.ran);
            }
        }
        (io_bound, verdict)
    }

    /// Takes the delay to learn from, if there is one.
    pub(crate) fn take_delay(&mut self) -> Option<u64> {
        self.delay.take()
    }

    /// Whether its source only looks now and then.
    pub(crate) fn is_sampled(&self) -> bool {
        self.seen_ran.is_some()
    }

    /// The guest halted: its idle task preempts nobody and is woken by nobody.
    pub(crate) fn halt(&mut self, config: &Tavs) -> Option<Verdict> {
        // Whoever hears of the halt knows what ran until then.
        self.seen_ran = self.seen_ran.map(|_| self.dispatch_ran);
        self.end_run(config);
        let verdict = self.next_after_event(None, config);
        self.switches = self.switches.wrapping_add(1);
        self.halted = true;
        verdict
    }

    /// The guest goes on. A guest that idles keeps the last address space loaded, so without a switch the task
    /// that runs now is the one that ran before.
    pub(crate) fn resume(&mut self, now: Time, config: &Tavs) -> Option<(bool, Option<Verdict>)> {
        if !self.halted {
            return None;
        }
        let Some(task) = self.current else {
            self.halted = false;
            return None;
        };
        Some(self.dispatch(task, now, config))
    }

    /// Moves the observation on to `next`, the task that follows the current one (`None`: idle).
    fn next_after_event(&mut self, next: Option<TaskId>, config: &Tavs) -> Option<Verdict> {
        let observation = self.observation.as_mut()?;
        if observation.phase != Phase::First {
            return None;
        }
        let immediate = observation.ran <= nanos(config.io_threshold);
        observation.phase = if immediate { Phase::Consecutive } else { Phase::AfterLong };
        let first = observation.first;
        std::mem::take(&mut observation.unjudged).then(|| self.judge(first, next, config))
    }

    /// Draws the evidence from the current task's run, which ends (TAVS §3.1, Figure 2).
    fn end_run(&mut self, config: &Tavs) {
        let ran = self.known_run();
        let (Some(task), Some(observation)) = (self.current(), self.observation.as_mut()) else { return };
        let short = ran <= nanos(config.io_threshold);
        let evidence = match observation.phase {
            Phase::First => {
                observation.first_ran = ran;
                return;
            }
            Phase::Consecutive if short => Evidence::Positive,
            Phase::AfterLong if short => return,
            Phase::Consecutive | Phase::AfterLong => Evidence::Negative,
        };
        if evidence == Evidence::Negative {
            observation.phase = Phase::AfterLong;
        }
        self.tasks.observe(task, evidence, config);
    }

    /// Whether an I/O-bound task is among the last tasks dispatched (TAVS §3.3.1).
    pub(crate) fn inspect(&self, config: &Tavs) -> bool {
        let window = self.recent.iter().rev().take(config.inspection_window);
        window.into_iter().any(|task| self.tasks.is_io_bound(*task, config))
    }

    /// Events were lost: nothing can be concluded from what was going on.
    pub(crate) fn forget(&mut self) {
        self.thread.forget();
        self.observation = None;
        self.pending = None;
        self.begin_run(0);
        self.falling_asleep = false;
    }
}

#[cfg(test)]
mod tests;
