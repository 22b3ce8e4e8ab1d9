//! Which tasks are I/O-bound: what runs on a vCPU after an event, and for how long (TAVS §3.1).

use crate::config::Tavs;
use crate::event::TaskId;
use crate::nanos::nanos;
use crate::observe::{Evidence, Registry, Vcpu};
use serde::{Deserialize, Serialize};

/// Where in the order of tasks after an event we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    /// The task that was there when the vCPU was scheduled with the event pending. If it runs shortly, that
    /// is ambiguous: it was preempted by the task that the event woke, or is it itself.
    First,
    /// So far every task after the first ran shortly.
    Consecutive,
    /// Some task ran for long: a short one now says nothing.
    AfterLong,
}

/// The observation that begins when a vCPU is scheduled with an event pending.
///
/// The paper ends it with the time slice. Here the emulator thread preempts the vCPU in the middle of it to
/// send the reply, so it ends when the vCPU has *run* for a time slice.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Observation {
    phase: Phase,
    first: Option<TaskId>,
    /// What the first task had run when it was preempted. When it goes on in the same observation, so does
    /// its run: otherwise frequent events would cut the run of a CPU-bound task into many short ones.
    first_ran: u64,
    ran: u64,
    /// Whether an I/O-bound task was dispatched in it.
    served: bool,
    /// Whether the packet that began it is still to be judged.
    unjudged: bool,
}

/// What a packet turned out to be: whether it woke an I/O-bound task; `Unclear` teaches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    IoBound,
    NotIoBound,
    Unclear,
}

/// Watches what a vCPU does after events.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observer {
    /// An event is pending; the observation begins when the vCPU is scheduled. Whether it is a packet to be
    /// judged.
    pending: Option<bool>,
    observation: Option<Observation>,
}

impl Observer {
    /// An event is pending for the guest on this vCPU. `judge`: a packet whose port is to be learnt from.
    pub(crate) fn event_pending(
        &mut self,
        judge: bool,
        vcpu: &Vcpu,
        tasks: &mut Registry,
        config: &Tavs,
    ) -> Option<Verdict> {
        self.pending = Some(judge);
        if vcpu.thread.is_running() { self.begin(vcpu, tasks, config) } else { None }
    }

    /// A read ended before the guest could put the task that asked for it to sleep: for what it is, as if it
    /// had slept and been woken.
    pub(crate) fn read_ended_at_once(&mut self, vcpu: &Vcpu, tasks: &mut Registry, config: &Tavs) {
        self.end_run(vcpu, tasks, config);
        self.pending = None;
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

    /// The vCPU is scheduled: if an event is pending, its observation begins.
    pub(crate) fn begin(&mut self, vcpu: &Vcpu, tasks: &mut Registry, config: &Tavs) -> Option<Verdict> {
        let unjudged = self.pending.take()?;
        let verdict = self.end(vcpu, tasks, config);
        let (phase, first) = (Phase::First, vcpu.current());
        self.observation = Some(Observation { phase, first, first_ran: 0, ran: 0, served: false, unjudged });
        verdict
    }

    /// The vCPU ran. A verdict comes when the observation ends by it.
    pub(crate) fn ran(
        &mut self,
        ran: u64,
        vcpu: &Vcpu,
        tasks: &mut Registry,
        config: &Tavs,
    ) -> Option<Verdict> {
        let observation = self.observation.as_mut()?;
        observation.ran = observation.ran.saturating_add(ran);
        if observation.ran < nanos(config.time_slice) {
            return None;
        }
        self.end(vcpu, tasks, config)
    }

    /// So much of what the vCPU seemed to run it did not: the host had no CPU for it.
    pub(crate) fn did_not_run(&mut self, lost: u64) {
        if let Some(observation) = &mut self.observation {
            observation.ran = observation.ran.saturating_sub(lost);
        }
    }

    /// Ends the observation. The task that is still running may have run long, but not shortly: it would have
    /// gone on.
    fn end(&mut self, vcpu: &Vcpu, tasks: &mut Registry, config: &Tavs) -> Option<Verdict> {
        if vcpu.known_run() > nanos(config.io_threshold) {
            self.end_run(vcpu, tasks, config);
        }
        let observation = self.observation.take()?;
        observation.unjudged.then(|| judge(observation.first, None, tasks, config))
    }

    /// Draws the evidence from the current task's run, which ends (TAVS §3.1, Figure 2).
    pub(crate) fn end_run(&mut self, vcpu: &Vcpu, tasks: &mut Registry, config: &Tavs) {
        let ran = vcpu.known_run();
        let (Some(task), Some(observation)) = (vcpu.current(), self.observation.as_mut()) else { return };
        let short = ran <= nanos(config.io_threshold);
        let evidence = match observation.phase {
            Phase::First => {
                observation.first_ran = ran;
                // Whether it was preempted for the event or is for it itself: for so long no I/O-bound task
                // would run.
                if observation.ran > nanos(config.io_threshold) {
                    tasks.observe(task, Evidence::Negative, config);
                }
                return;
            }
            Phase::Consecutive if short => Evidence::Positive,
            Phase::AfterLong if short => return,
            Phase::Consecutive | Phase::AfterLong => Evidence::Negative,
        };
        if evidence == Evidence::Negative {
            observation.phase = Phase::AfterLong;
        }
        tasks.observe(task, evidence, config);
    }

    /// Moves on to `next`, the task that follows the current one (`None`: idle). It was dispatched at once if
    /// the guest, which may finish its tick first, ran no longer than `patience`. `resumed`: the vCPU was
    /// idle, and `next` is what was loaded all the while.
    pub(crate) fn next(
        &mut self,
        next: Option<TaskId>,
        resumed: bool,
        patience: u64,
        tasks: &Registry,
        config: &Tavs,
    ) -> Option<Verdict> {
        let observation = self.observation.as_mut()?;
        if observation.phase == Phase::First {
            let immediate = observation.ran <= patience;
            observation.phase = if immediate { Phase::Consecutive } else { Phase::AfterLong };
        }
        // It is the idle task, probably, with the handler of the interrupt: whom that wakes is dispatched
        // next, perhaps on another vCPU.
        if resumed && !next.is_some_and(|task| tasks.is_io_bound(task)) {
            return None;
        }
        let first = observation.first;
        std::mem::take(&mut observation.unjudged).then(|| judge(first, next, tasks, config))
    }

    /// What the run of `task` begins with: the first task of an observation goes on with its own.
    pub(crate) fn goes_on(&self, task: TaskId) -> u64 {
        let first = self.observation.as_ref().filter(|observation| observation.first == Some(task));
        first.map_or(0, |observation| observation.first_ran)
    }

    /// An I/O-bound task was dispatched. Returns for how long the vCPU had run for the event, if this is the
    /// first such task and was not there before.
    pub(crate) fn serves(&mut self, task: TaskId) -> Option<u64> {
        let observation = self.observation.as_mut().filter(|observation| observation.first != Some(task))?;
        (!std::mem::replace(&mut observation.served, true)).then_some(observation.ran)
    }

    /// Whether an observation goes on.
    pub(crate) fn observes(&self) -> bool {
        self.observation.is_some()
    }

    /// What the event woke runs on another vCPU: here it is over. Returns whether its packet is still to be
    /// judged, if there was one.
    pub(crate) fn hand_on(&mut self) -> Option<bool> {
        self.observation.take().map(|observation| observation.unjudged)
    }

    /// Events were lost, or the guest began anew: nothing can be concluded from what was going on.
    pub(crate) fn forget(&mut self) {
        *self = Observer::default();
    }
}

/// TAVS §4.3.2: up if the first woken task is I/O-bound, down if neither it nor the first task is. Where
/// acknowledgements count, what woke nobody is probably one, and says nothing: they would undo what the
/// requests taught.
fn judge(first: Option<TaskId>, woken: Option<TaskId>, tasks: &Registry, config: &Tavs) -> Verdict {
    let io_bound = |task: Option<TaskId>| task.is_some_and(|id| tasks.is_io_bound(id));
    match (io_bound(woken), io_bound(first)) {
        (true, _) => Verdict::IoBound,
        (false, true) => Verdict::Unclear,
        (false, false) if woken.is_none() && config.acknowledgements => Verdict::Unclear,
        (false, false) => Verdict::NotIoBound,
    }
}
