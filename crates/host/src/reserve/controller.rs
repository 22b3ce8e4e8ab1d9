//! A thread that dispatches, one for each CPU that has reservations: it sleeps until a decision is due,
//! decides, and carries the decision out.
//!
//! It runs as `SCHED_DEADLINE`, ahead of everything and exempt from the real-time throttle (unless the kernel
//! enforces the slices itself), on the CPU of its members: nothing has to be told to another CPU, and whoever
//! it decides about does not run meanwhile. A timer wakes it late, so for the end of a slice it is set as
//! much earlier; how much is learnt from each time.

use super::bell::Bell;
use super::enforce::{AHEAD, Enforce};
use super::margin::Early;
use super::members::MemberThreads;
use super::promises::Promises;
use super::trace::TraceWriter;
use crate::clock::monotonic;
use crate::wake::Wake;
use frontdesk_engine::Time;
use frontdesk_engine::reservation::{
    Dispatch, Dispatcher, Due, Eligible, Member, MemberAccount, Meter, Reading, Reservation,
    ReservationEvent, ReservationEventKind,
};
use frontdesk_linux::sched::{self, Attributes};
use frontdesk_probes::meter::{Ring, Slots};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};

/// How often the wall clock is looked at, in nanoseconds.
const ALIGN: u64 = 1_000_000_000;
/// What is left of a slice is not worth two switches if it is less, in nanoseconds.
const GRAIN: u64 = 5_000;
/// And not another wake-up, if the kernel has not run its owner since the last.
const REST: u64 = 50_000;
/// A timer is not set nearer than a wake-up takes, in nanoseconds.
const NEAREST: u64 = 10_000;
/// How long the guardian waits for us to come back, and how often we do at least, in nanoseconds.
const PROMISE: u64 = 1_500_000_000;
const BACK: u64 = 500_000_000;
/// After it has left `SCHED_DEADLINE` this thread does not come back sooner, in nanoseconds. Within a period
/// or two Linux may forget it for ever: if it was out of run time when it left, and the timer that is to give
/// it more finds it gone.
const SETTLING: u64 = 200_000_000;

/// What the controller is told.
pub(super) enum ControllerCommand {
    /// A reservation for a member, in place of what it had.
    Set {
        member: Member,
        cpu: u16,
        slot: usize,
        reservation: Reservation,
        since: Time,
        threads: MemberThreads,
    },
    /// The threads of a member.
    Threads { member: Member, threads: MemberThreads },
    /// Stops a member, or lets it go on; answered with why that failed, if it did.
    Pause { member: Member, paused: bool, done: SyncSender<Option<String>> },
    /// Forgets a member; answered with what it got when that is done.
    Remove { member: Member, done: SyncSender<MemberAccount> },
    /// Asks for the accounts.
    Report(SyncSender<Vec<MemberReport>>),
}

/// What is known of a member.
pub(super) struct MemberReport {
    pub(super) member: Member,
    pub(super) account: MemberAccount,
    /// Why it is not scheduled as it should be.
    pub(super) trouble: Option<String>,
}

/// The thread's own.
pub(super) struct Controller {
    pub(super) slots: Slots,
    pub(super) kicks: Ring,
    pub(super) commands: Receiver<ControllerCommand>,
    /// Readable when there are commands, or when all who could send some have gone.
    pub(super) wake: Wake,
    /// Rings for both.
    pub(super) bell: Bell,
    /// The CPU of the members,
    pub(super) cpu: u16,
    /// and whether that is where they are: the kernel has those under `SCHED_DEADLINE` anywhere.
    pub(super) pinned: bool,
    /// The CPUs there are.
    pub(super) cpus: Vec<u16>,
    /// What schedules the members.
    pub(super) enforcer: Box<dyn Enforce>,
    /// Told when we will be back.
    pub(super) promises: Promises,
    /// Told of each decision, for recordings.
    pub(super) trace: TraceWriter,
}

/// A member that has a reservation.
struct ControlledMember {
    slot: usize,
    slice_ns: u64,
    hard: bool,
    threads: MemberThreads,
    /// Why not all of them could be taken hold of.
    refused: Option<String>,
}

/// How readings are taken.
struct Gauge<'a> {
    slots: &'a Slots,
    members: &'a BTreeMap<Member, ControlledMember>,
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
        let Controller { slots, kicks, commands, wake, bell, cpu, pinned, cpus, enforcer, promises, trace } =
            self;
        let mut work = DispatchWork {
            cpu,
            pinned,
            cpus,
            unreachable: false,
            settled: Time(0),
            risen: None,
            dispatcher: Dispatcher::new(wall_offset()),
            event: ReservationEvent::default(),
            dispatches: Vec::new(),
            trace,
            aligned: monotonic(),
            enforcer,
            members: BTreeMap::new(),
            troubles: BTreeMap::new(),
            soft: Early::soft(),
            hard: Early::hard(),
            learns: false,
            last: None,
        };
        let mut promised = 0;
        work.settle();
        work.settled = Time(0);
        work.rise();
        loop {
            work.trace.tell_state(&work.dispatcher);
            let due = work.tell(&slots);
            let alarm = due.map(|due| work.alarm(due));
            let now = monotonic();
            if work.members.is_empty() != (promised == 0)
                || (promised > 0 && promised < now.0 + PROMISE - BACK)
            {
                promised = if work.members.is_empty() { 0 } else { now.0 + PROMISE };
                promises.until(cpu, promised);
                work.rise();
            }
            let rung = bell.wait(alarm.map(|alarm| alarm.min(now.plus(BACK)).since(monotonic())));
            let by_timer = rung.by_timer && alarm.is_some_and(|alarm| alarm <= monotonic());
            if rung.by_kick {
                kicks.drain();
            }
            // What is due while we are busy says nothing of how late a timer is.
            work.learns = alarm.is_some_and(|alarm| alarm > now);
            if work.is_astray() {
                work.settle();
            }
            work.decide(&slots, due.filter(|_| by_timer));
            if rung.by_command && !take_commands(&mut work, &commands, &wake, &slots) {
                break;
            }
        }
        promises.until(cpu, 0);
    }
}

/// Does what is told; whether more may come.
fn take_commands(
    work: &mut DispatchWork,
    commands: &Receiver<ControllerCommand>,
    wake: &Wake,
    slots: &Slots,
) -> bool {
    wake.take();
    loop {
        match commands.try_recv() {
            Ok(command) => work.obey(command, slots),
            Err(TryRecvError::Empty) => return true,
            Err(TryRecvError::Disconnected) => return false,
        }
    }
}

struct DispatchWork {
    dispatcher: Dispatcher,
    /// What it was told last, and what it said to that; kept for their memory.
    event: ReservationEvent,
    dispatches: Vec<Dispatch>,
    trace: TraceWriter,
    /// When the wall clock was last looked at.
    aligned: Time,
    enforcer: Box<dyn Enforce>,
    members: BTreeMap<Member, ControlledMember>,
    troubles: BTreeMap<Member, String>,
    /// For ends of slices, by the limit of whose they are.
    soft: Early,
    hard: Early,
    /// Whether we slept until now.
    learns: bool,
    /// Whose slice we last came for, and how much it had run then.
    last: Option<(usize, u64)>,
    /// Where the members are, if they are in one place, and all CPUs.
    cpu: u16,
    pinned: bool,
    cpus: Vec<u16>,
    /// That CPU could not be gone to.
    unreachable: bool,
    /// When it last went there, and how this thread is scheduled since it has been able to rise.
    settled: Time,
    risen: Option<Attributes>,
}

impl DispatchWork {
    /// Goes to the CPU of its members. From a CPU that is taken away we are put on another, and decide from
    /// there until the admission thread has released who was on it.
    fn settle(&mut self) {
        let go = || sched::set(0, AHEAD).and_then(|()| sched::set_affinity(0, &[self.cpu]));
        let gone = if self.pinned { go() } else { Ok(()) };
        self.unreachable = gone.is_err();
        if let Err(error) = gone {
            tracing::warn!(
                cpu = self.cpu,
                "reservations are kept badly: their CPU cannot be reached: {error}"
            );
        }
        (self.settled, self.risen) = (monotonic(), None);
    }

    /// Becomes what the enforcer wants of its dispatcher, also if somebody has made this thread an ordinary
    /// one (the guardian does when it is not back in time). Under `SCHED_DEADLINE` no CPU can be had for
    /// good, but the kernel wakes a thread where it slept.
    fn rise(&mut self) {
        let is_risen = |risen: Attributes| sched::get(0).is_ok_and(|found| risen.agrees_with(found));
        if self.risen.is_some_and(is_risen) || monotonic().since(self.settled) < SETTLING {
            return;
        }
        // Refused only where no CPU is left to run on.
        let _ = sched::set_affinity(0, &self.cpus);
        self.risen = self.enforcer.dispatcher().into_iter().find(|wanted| sched::set(0, *wanted).is_ok());
        if self.risen.is_none() {
            tracing::warn!("reservations are kept badly: their dispatcher cannot be made real-time");
        }
    }

    /// Whether the kernel has woken us elsewhere.
    fn is_astray(&self) -> bool {
        self.pinned && !self.unreachable && rustix::thread::sched_getcpu() != usize::from(self.cpu)
    }

    /// When the timer is to wake us for a decision. No period begins before its time.
    fn alarm(&self, due: Due) -> Time {
        let kept = due.slice_of.and_then(|member| self.members.get(&member));
        let early = kept.map_or(0, |kept| {
            let learnt = if kept.hard { &self.hard } else { &self.soft };
            learnt.of(kept.slice_ns)
        });
        Time(due.at.0.saturating_sub(early))
    }

    fn obey(&mut self, command: ControllerCommand, slots: &Slots) {
        let now = monotonic();
        match command {
            ControllerCommand::Set { member, cpu, slot, reservation, since, threads } => {
                if self.unreachable {
                    self.settle();
                }
                slots.place(slot, cpu);
                let Reservation { slice_ns, hard, .. } = reservation;
                let kept = ControlledMember { slot, slice_ns, hard, threads: threads.clone(), refused: None };
                self.members.insert(member, kept);
                self.hold(member, Some(reservation), threads);
                let since = Some(since);
                self.dispatch(now, ReservationEventKind::Set { member, cpu, reservation, since }, slots);
            }
            ControllerCommand::Threads { member, threads } => {
                if let Some(kept) = self.members.get_mut(&member) {
                    kept.threads = threads.clone();
                }
                self.hold(member, None, threads);
            }
            ControllerCommand::Pause { member, paused, done } => {
                self.dispatch(now, ReservationEventKind::Pause { member, paused }, slots);
                let _ = done.try_send(self.troubles.get(&member).cloned());
            }
            ControllerCommand::Remove { member, done } => {
                let account = self.dispatcher.account(member).cloned().unwrap_or_default();
                self.dispatch(now, ReservationEventKind::Remove { member }, slots);
                self.enforcer.forget(member);
                self.troubles.remove(&member);
                if let Some(kept) = self.members.remove(&member) {
                    slots.tell(kept.slot, 0, 0);
                }
                let _ = done.try_send(account);
            }
            ControllerCommand::Report(reply) => {
                self.decide(slots, None);
                let reports = self.members.iter().filter_map(|(member, kept)| {
                    let account = self.dispatcher.account(*member)?.clone();
                    let trouble = kept.refused.as_ref().or(self.troubles.get(member)).cloned();
                    Some(MemberReport { member: *member, account, trouble })
                });
                let _ = reply.try_send(reports.collect());
            }
        }
    }

    /// Decides. `due` is what the timer was set for, if it was the timer.
    fn decide(&mut self, slots: &Slots, due: Option<Due>) {
        let now = monotonic();
        let kept = due.and_then(|due| self.members.get(&due.slice_of?));
        let tolerance = match kept {
            // We run in its place: what it has used is known, and cannot become more.
            Some(&ControlledMember { slot, slice_ns, hard, .. }) => {
                let Reading { ran_ns, ready, .. } = slots.read(slot, now);
                let ends = slots.ends(slot);
                if self.last.replace((slot, ran_ns)) == Some((slot, ran_ns)) {
                    // It wants to run and comes first, but the kernel does not run it.
                    if ready && ends > ran_ns.saturating_add(REST) {
                        self.nudge(due.and_then(|due| due.slice_of));
                    }
                    REST
                } else {
                    let early = if hard { &mut self.hard } else { &mut self.soft };
                    let tolerance = early.of(slice_ns) + GRAIN;
                    let late = ran_ns > ends;
                    // What is late in spite of all that its slice allows says nothing of others.
                    if self.learns && (!late || early.of(slice_ns) == early.ns) {
                        early.adjust(late);
                    }
                    tolerance
                }
            }
            None if due.is_some() => GRAIN,
            None => 0,
        };
        if now.since(self.aligned) >= ALIGN {
            self.aligned = now;
            self.dispatch(now, ReservationEventKind::Align { wall_offset_ns: wall_offset() }, slots);
        }
        self.dispatch(now, ReservationEventKind::Decide { tolerance_ns: tolerance }, slots);
    }

    /// Has a member switched to again, by moving it to another CPU and back: it was running when it was taken
    /// in, and was not seen.
    fn nudge(&self, member: Option<Member>) {
        let kept = member.and_then(|member| self.members.get(&member));
        let other = self.cpus.iter().find(|cpu| **cpu != self.cpu);
        let (Some(other), Some(kept)) = (other, kept) else { return };
        for member in &kept.threads.all {
            // One that has ended needs nothing; otherwise the second is refused only if the first was.
            let _ = member.thread.set_affinity(&[*other]);
            let _ = member.thread.set_affinity(&[self.cpu]);
        }
    }

    /// Tells the dispatcher what happened, carries out what it decides, and tells recordings of both.
    fn dispatch(&mut self, now: Time, kind: ReservationEventKind, slots: &Slots) {
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

    fn hold(&mut self, member: Member, reservation: Option<Reservation>, threads: MemberThreads) {
        let result = self.enforcer.hold(member, reservation, threads);
        if let Some(kept) = self.members.get_mut(&member) {
            kept.refused = result.err().map(|error| error.to_string());
        }
    }

    /// Whether a decision could be carried out.
    fn note(&mut self, member: Member, result: Result<(), sched::SchedError>) {
        match result {
            Ok(()) => drop(self.troubles.remove(&member)),
            Err(error) => drop(self.troubles.insert(member, error.to_string())),
        }
    }

    /// When the next decision is due. Tells the BPF programs what would make one due before.
    fn tell(&mut self, slots: &Slots) -> Option<Due> {
        slots.arm(self.cpu, Time(0));
        let contended = self.dispatcher.eligible().nth(1).is_some();
        let mut eligible = self.dispatcher.eligible().peekable();
        for (member, kept) in &self.members {
            // Both are in the order of members.
            match eligible.next_if(|eligible| eligible.member == *member) {
                Some(Eligible { ends, late, .. }) => {
                    slots.tell(kept.slot, ends, if contended { late.0.max(1) } else { 0 });
                }
                None => slots.tell(kept.slot, 0, 0),
            }
        }
        let mut due = self.dispatcher.next_due()?;
        let now = monotonic();
        // It begins to run when we sleep, not when that was decided. Until then nobody else does.
        if let Some(kept) = due.slice_of.and_then(|member| self.members.get(&member)) {
            let left = slots.ends(kept.slot).saturating_sub(slots.read(kept.slot, now).ran_ns);
            due.at = now.plus(left.max(NEAREST));
        }
        slots.arm(self.cpu, due.at);
        Some(due)
    }
}

/// What the wall clock shows at time zero of the monotonic one.
fn wall_offset() -> u64 {
    let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = u64::try_from(wall.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(wall.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos).saturating_sub(monotonic().0)
}
