//! The thread that dispatches: it sleeps until a decision is due, decides, and carries the decision out.
//!
//! It runs as `SCHED_DEADLINE`, ahead of everything and exempt from the real-time throttle (unless the kernel enforces the slices itself), on
//! the CPU where it disturbs the fewest periods: a member on its own CPU loses some ten microseconds each time. A timer wakes it about as
//! late, so it is set as much earlier; how much is learnt from each time.

use super::enforce::{AHEAD, Enforce};
use super::margin::{Early, Elsewhere, LAG};
use super::members::Threads;
use super::trace::TraceWriter;
use crate::clock::monotonic;
use frontdesk_engine::Time;
use frontdesk_engine::reservation::{
    Account, Dispatch, Dispatcher, Due, Eligible, Event, EventKind, Member, Meter, Reading, Reservation,
};
use frontdesk_guardian::Promise;
use frontdesk_linux::sched;
use frontdesk_probes::meter::{Ring, Slots};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};

/// How often the wall clock is looked at, in nanoseconds.
const ALIGN: u64 = 1_000_000_000;
/// What is left of a slice is not worth two switches if it is less, in nanoseconds.
const GRAIN: u64 = 5_000;
/// How long the guardian waits for us to come back, and how often we do at least, in nanoseconds.
const PROMISE: u64 = 1_500_000_000;
const BACK: u64 = 500_000_000;

/// What the controller is told.
pub(super) enum Command {
    /// A reservation for a member, in place of what it had.
    Set { member: Member, cpu: u16, slot: usize, reservation: Reservation, threads: Threads },
    /// The threads of a member.
    Threads { member: Member, threads: Threads },
    /// Stops a member, or lets it go on.
    Pause { member: Member, paused: bool },
    /// Forgets a member; answered when that is done.
    Remove { member: Member, done: SyncSender<()> },
    /// Asks for the accounts.
    Report(SyncSender<Vec<Report>>),
}

/// What is known of a member.
pub(super) struct Report {
    pub(super) member: Member,
    pub(super) account: Account,
    /// Why it is not scheduled as it should be.
    pub(super) trouble: Option<String>,
}

/// The thread's own.
pub(super) struct Controller {
    pub(super) slots: Slots,
    pub(super) kicks: Ring,
    pub(super) commands: Receiver<Command>,
    /// Readable when there are commands, or when all who could send some have gone.
    pub(super) wake: Arc<OwnedFd>,
    /// The CPUs there are.
    pub(super) cpus: Vec<u16>,
    /// What schedules the members.
    pub(super) enforcer: Box<dyn Enforce>,
    /// Told when we will be back.
    pub(super) promise: Promise,
    /// Told of each decision, for recordings.
    pub(super) trace: TraceWriter,
}

/// A member that has a reservation.
struct Kept {
    slot: usize,
    cpu: u16,
    period_ns: u64,
    hard: bool,
    threads: Threads,
}

/// How readings are taken.
struct Gauge<'a> {
    slots: &'a Slots,
    members: &'a BTreeMap<Member, Kept>,
    now: Time,
}

impl Meter for Gauge<'_> {
    fn read(&self, member: Member) -> Reading {
        self.members.get(&member).map_or_else(Reading::default, |kept| self.slots.read(kept.slot, self.now))
    }
}

impl Controller {
    /// Dispatches until nobody can send commands any more.
    pub(super) fn run(self) {
        let Controller { slots, kicks, commands, wake, cpus, enforcer, promise, trace } = self;
        let mut work = Work {
            cpus: cpus.iter().map(|cpu| (*cpu, 0)).collect(),
            at: None,
            dispatcher: Dispatcher::new(wall_offset()),
            event: Event::default(),
            dispatches: Vec::new(),
            trace,
            aligned: monotonic(),
            enforcer,
            members: BTreeMap::new(),
            contenders: Vec::new(),
            troubles: BTreeMap::new(),
            early: Early::here(),
            soft: Elsewhere::soft(),
            hard: Elsewhere::hard(),
            learns: false,
            ended: None,
        };
        let mut promised = 0;
        work.settle();
        loop {
            work.trace.tell_state(&work.dispatcher);
            let due = work.tell(&slots);
            let alarm = due.map(|due| work.alarm(due));
            let now = monotonic();
            if work.members.is_empty() != (promised == 0)
                || (promised > 0 && promised < now.0 + PROMISE - BACK)
            {
                promised = if work.members.is_empty() { 0 } else { now.0 + PROMISE };
                promise.until(promised);
            }
            let timeout = alarm.map(|alarm| until(alarm.min(now.plus(BACK))));
            let mut fds =
                [PollFd::new(&*wake, PollFlags::IN), PollFd::from_borrowed_fd(kicks.fd(), PollFlags::IN)];
            // An interruption is as good as a reason.
            let by_timer =
                poll(&mut fds, timeout.as_ref()) == Ok(0) && alarm.is_some_and(|at| at <= monotonic());
            if !fds[1].revents().is_empty() {
                kicks.drain();
            }
            // What is due while we are busy says nothing of how late a timer is.
            work.learns = alarm.is_some_and(|alarm| alarm > now);
            let told = !fds[0].revents().is_empty();
            work.decide(&slots, due.filter(|_| by_timer));
            if told && !take_commands(&mut work, &commands, &wake, &slots) {
                break;
            }
        }
        promise.until(0);
    }
}

/// Does what is told; whether more may come.
fn take_commands(work: &mut Work, commands: &Receiver<Command>, wake: &OwnedFd, slots: &Slots) -> bool {
    let _ = rustix::io::read(wake, &mut [0; 8]);
    loop {
        match commands.try_recv() {
            Ok(command) => work.obey(command, slots),
            Err(TryRecvError::Empty) => return true,
            Err(TryRecvError::Disconnected) => return false,
        }
    }
}

struct Work {
    dispatcher: Dispatcher,
    /// What it was told last, and what it said to that; kept for their memory.
    event: Event,
    dispatches: Vec<Dispatch>,
    trace: TraceWriter,
    /// When the wall clock was last looked at.
    aligned: Time,
    enforcer: Box<dyn Enforce>,
    members: BTreeMap<Member, Kept>,
    /// How many on each CPU have something left of their slices.
    contenders: Vec<u32>,
    troubles: BTreeMap<Member, String>,
    /// For decisions about the CPU that we are on.
    early: Early,
    /// For those about others, by the limit of whom they are about.
    soft: Elsewhere,
    hard: Elsewhere,
    /// Whether we slept until now.
    learns: bool,
    /// Which member was last told to stop there, and when in its CPU time its slice ended.
    ended: Option<(usize, u64, bool)>,
    /// CPUs, with how many periods their members begin in an hour.
    cpus: BTreeMap<u16, u64>,
    /// Where we settled.
    at: Option<u16>,
}

impl Work {
    /// Goes where the fewest periods begin. No CPU can be had for good without the loss of `SCHED_DEADLINE`, but the kernel wakes a thread
    /// where it slept.
    fn settle(&mut self) {
        let rate = |cpu: Option<u16>| cpu.and_then(|cpu| self.cpus.get(&cpu)).copied();
        let best = self.cpus.iter().min_by_key(|(_, rate)| **rate).map(|(cpu, _)| *cpu);
        if self.at.is_some() && rate(self.at) == rate(best) {
            return;
        }
        self.at = best;
        let all: Vec<u16> = self.cpus.keys().copied().collect();
        let moved = best.map_or(Ok(()), |cpu| {
            sched::set(0, AHEAD)?;
            sched::set_affinity(0, &[cpu])?;
            sched::set_affinity(0, &all)
        });
        let [first, second] = self.enforcer.dispatcher();
        if moved.and_then(|()| sched::set(0, first)).or_else(|_| sched::set(0, second)).is_err() {
            tracing::warn!("reservations are kept badly: their dispatcher can't be made real-time");
        }
    }

    /// Keeps a member as it is now, or no more; what it was before.
    fn keep(&mut self, member: Member, now: Option<Kept>) -> Option<Kept> {
        const HOUR: u64 = 3_600_000_000_000;
        let before = self.members.remove(&member);
        if let Some(kept) = &before
            && let Some(rate) = self.cpus.get_mut(&kept.cpu)
        {
            *rate = rate.saturating_sub(HOUR / kept.period_ns.max(1));
        }
        if let Some(kept) = now {
            *self.cpus.entry(kept.cpu).or_default() += HOUR / kept.period_ns.max(1);
            self.members.insert(member, kept);
        }
        self.settle();
        before
    }

    /// When the timer is to wake us for a decision.
    fn alarm(&self, due: Due) -> Time {
        let early = match (self.is_here(due.slice_of), self.is_hard(due.slice_of)) {
            (true, _) => &self.early,
            (false, true) => &self.hard.early,
            (false, false) => &self.soft.early,
        };
        Time(due.at.0.saturating_sub(early.ns))
    }

    fn is_hard(&self, member: Option<Member>) -> bool {
        member.and_then(|member| self.members.get(&member)).is_some_and(|kept| kept.hard)
    }

    fn elsewhere(&mut self, hard: bool) -> &mut Elsewhere {
        if hard { &mut self.hard } else { &mut self.soft }
    }

    /// Whether the member, or if none any that may run, is on the CPU that we are on.
    fn is_here(&self, member: Option<Member>) -> bool {
        let own = rustix::thread::sched_getcpu();
        match member {
            Some(member) => self.members.get(&member).is_some_and(|kept| usize::from(kept.cpu) == own),
            None => self.contenders.get(own).is_some_and(|count| *count > 0),
        }
    }

    fn obey(&mut self, command: Command, slots: &Slots) {
        let now = monotonic();
        match command {
            Command::Set { member, cpu, slot, reservation, threads } => {
                let Reservation { period_ns, hard, .. } = reservation;
                self.keep(member, Some(Kept { slot, cpu, period_ns, hard, threads: threads.clone() }));
                let result = self.enforcer.hold(member, Some(reservation), threads);
                self.note(member, result);
                self.dispatch(now, EventKind::Set { member, cpu, reservation }, slots);
            }
            Command::Threads { member, threads } => {
                if let Some(kept) = self.members.get_mut(&member) {
                    kept.threads = threads.clone();
                }
                let result = self.enforcer.hold(member, None, threads);
                self.note(member, result);
            }
            Command::Pause { member, paused } => {
                self.dispatch(now, EventKind::Pause { member, paused }, slots);
            }
            Command::Remove { member, done } => {
                self.dispatch(now, EventKind::Remove { member }, slots);
                self.enforcer.forget(member);
                self.troubles.remove(&member);
                if let Some(kept) = self.keep(member, None) {
                    slots.tell(kept.slot, 0, 0);
                }
                let _ = done.try_send(());
            }
            Command::Report(reply) => {
                self.decide(slots, None);
                let reports = self.members.keys().filter_map(|member| {
                    let account = self.dispatcher.account(*member)?.clone();
                    Some(Report { member: *member, account, trouble: self.troubles.get(member).cloned() })
                });
                let _ = reply.try_send(reports.collect());
            }
        }
    }

    /// Decides. `due` is what the timer was set for, if it was the timer.
    fn decide(&mut self, slots: &Slots, due: Option<Due>) {
        let mut now = monotonic();
        let mut tolerance = 0;
        if let Some((slot, ends, hard)) = self.ended.take()
            && !slots.is_running(slot)
        {
            let used = slots.read(slot, now).ran_ns;
            // What is more, it got for other reasons.
            if used < ends.saturating_add(2 * LAG) {
                self.elsewhere(hard).lag.adjust(true, used > ends);
            }
        }
        if let Some(due) = due {
            let slice_of = due.slice_of.and_then(|member| Some(self.members.get(&member)?.slot));
            match (self.is_here(due.slice_of), slice_of) {
                // We run in its place: what it has used is known, and can't become more.
                (true, Some(slot)) => {
                    let used = slots.read(slot, now).ran_ns;
                    tolerance = self.early.ns + GRAIN;
                    self.early.adjust(self.learns, used > slots.ends(slot));
                }
                (true, None) => {
                    tolerance = self.early.ns;
                    self.early.adjust(self.learns, now > due.at);
                }
                // It comes first on its CPU and wants to run, yet has not been seen to: it was running when it was taken in.
                (false, Some(slot)) if !slots.is_running(slot) && slots.read(slot, now).ready => {
                    self.nudge(due.slice_of)
                }
                (false, _) => {
                    let (learns, hard) = (self.learns, self.is_hard(due.slice_of));
                    let elsewhere = self.elsewhere(hard);
                    elsewhere.early.adjust(learns, now > due.at);
                    let lag = elsewhere.lag.ns;
                    let used_up = |now| {
                        slice_of.is_some_and(|slot| slots.read(slot, now).ran_ns + lag >= slots.ends(slot))
                    };
                    while now < due.at && !used_up(now) {
                        std::hint::spin_loop();
                        now = monotonic();
                    }
                    if let Some(slot) = slice_of {
                        tolerance = lag + 1000;
                        self.ended = Some((slot, slots.ends(slot), hard));
                    }
                }
            }
        }
        if now.since(self.aligned) >= ALIGN {
            self.aligned = now;
            self.dispatch(now, EventKind::Align { wall_offset_ns: wall_offset() }, slots);
        }
        self.dispatch(now, EventKind::Decide { tolerance_ns: tolerance }, slots);
    }

    /// Has a member switched to again, by moving it to our CPU and back.
    fn nudge(&self, member: Option<Member>) {
        let here = u16::try_from(rustix::thread::sched_getcpu()).ok();
        let kept = member.and_then(|member| self.members.get(&member));
        let (Some(here), Some(kept)) = (here, kept) else { return };
        for (_, tid, _) in &kept.threads.all {
            // One that has ended needs nothing; otherwise the second is refused only if the first was.
            let _ = sched::set_affinity(*tid, &[here]);
            let _ = sched::set_affinity(*tid, &[kept.cpu]);
        }
    }

    /// Tells the dispatcher what happened, carries out what it decides, and tells recordings of both.
    fn dispatch(&mut self, now: Time, kind: EventKind, slots: &Slots) {
        (self.event.at, self.event.kind) = (now, kind);
        self.dispatcher.read(&mut self.event, &Gauge { slots, members: &self.members, now });
        self.dispatcher.on_event(&self.event);
        self.dispatches.clear();
        while let Some(dispatch) = self.dispatcher.poll_action() {
            let result = self.enforcer.apply(dispatch);
            self.note(dispatch.member, result);
            self.dispatches.push(dispatch);
        }
        self.trace.tell(&self.event, &self.dispatches);
    }

    fn note(&mut self, member: Member, result: Result<(), sched::SchedError>) {
        match result {
            Ok(()) => drop(self.troubles.remove(&member)),
            Err(error) => drop(self.troubles.insert(member, error.to_string())),
        }
    }

    /// When the next decision is due. Tells the BPF programs what would make one due before.
    fn tell(&mut self, slots: &Slots) -> Option<Due> {
        slots.arm(Time(0));
        self.contenders.clear();
        for cpu in self.dispatcher.eligible().map(|eligible| usize::from(eligible.cpu)) {
            if self.contenders.len() <= cpu {
                self.contenders.resize(cpu + 1, 0);
            }
            self.contenders[cpu] += 1;
        }
        let mut eligible = self.dispatcher.eligible().peekable();
        for (member, kept) in &self.members {
            // Both are in the order of members.
            match eligible.next_if(|eligible| eligible.member == *member) {
                Some(Eligible { cpu, ends, late, .. }) => {
                    let contended = self.contenders.get(usize::from(cpu)).is_some_and(|count| *count > 1);
                    slots.tell(kept.slot, ends, if contended { late.0.max(1) } else { 0 });
                }
                None => slots.tell(kept.slot, 0, 0),
            }
        }
        let mut due = self.dispatcher.next_due()?;
        let now = monotonic();
        let own = rustix::thread::sched_getcpu();
        let end_of = |kept: &Kept| {
            let left = slots.ends(kept.slot).saturating_sub(slots.read(kept.slot, now).ran_ns);
            // On our own CPU it stops when we come.
            let lag = match (usize::from(kept.cpu) == own, kept.hard) {
                (true, _) => 0,
                (false, true) => self.hard.lag.ns,
                (false, false) => self.soft.lag.ns,
            };
            now.plus(left.saturating_sub(lag))
        };
        if let Some(kept) = due.slice_of.and_then(|member| self.members.get(&member)) {
            // It began to run when that had been carried out, not when it was decided.
            due.at = end_of(kept);
        }
        // From now on the programs see who begins to run. Who did so since the decision is looked at here.
        slots.arm(due.at);
        for (member, kept) in &self.members {
            if slots.ends(kept.slot) == 0 || !slots.is_running(kept.slot) {
                continue;
            }
            let at = end_of(kept);
            if at < due.at {
                due = Due { at, slice_of: Some(*member) };
            }
        }
        slots.arm(due.at);
        Some(due)
    }
}

fn until(at: Time) -> Timespec {
    let nanos = at.since(monotonic());
    Timespec {
        tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
    }
}

/// What the wall clock shows at time zero of the monotonic one.
fn wall_offset() -> u64 {
    let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = u64::try_from(wall.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(wall.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos).saturating_sub(monotonic().0)
}
