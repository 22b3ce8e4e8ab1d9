//! The thread that dispatches: it sleeps until a decision is due, decides, and carries the decision out.
//!
//! It runs as `SCHED_DEADLINE`, ahead of everything and exempt from the real-time throttle. A timer wakes it some ten microseconds late,
//! so it is set as much earlier; how much is learnt from each time.

use super::meter::{Ring, Slots};
use super::user::{Threads, User};
use crate::daemon::monotonic;
use crate::sched::{self, Attributes, Policy};
use frontdesk_engine::Time;
use frontdesk_engine::reservation::{
    Account, Dispatcher, Due, Eligible, Member, Meter, Reading, Reservation,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

/// Half a CPU at most, a millisecond at a time.
const OWN: Attributes = Attributes {
    policy: Policy::Deadline { runtime_ns: 500_000, deadline_ns: 1_000_000, period_ns: 1_000_000, flags: 0 },
    reset_on_fork: true,
};
/// Where the kernel refuses that (a CPU set of its own): the highest priority of the others.
const ELSE: Attributes = Attributes::fifo(99);
/// How often the wall clock is looked at, in nanoseconds.
const ALIGN: u64 = 1_000_000_000;

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
}

/// How readings are taken.
struct Gauge<'a> {
    slots: &'a Slots,
    of: &'a BTreeMap<Member, usize>,
    now: Time,
}

impl Meter for Gauge<'_> {
    fn read(&self, member: Member) -> Reading {
        self.of.get(&member).map_or_else(Reading::default, |slot| self.slots.read(*slot, self.now))
    }
}

impl Controller {
    /// Dispatches until nobody can send commands any more.
    pub(super) fn run(self) {
        if sched::set(0, OWN).or_else(|_| sched::set(0, ELSE)).is_err() {
            tracing::warn!("reservations are kept badly: their dispatcher can't be made real-time");
        }
        let mut work = Work {
            dispatcher: Dispatcher::new(wall_offset()),
            aligned: monotonic(),
            user: User::default(),
            of: BTreeMap::new(),
            troubles: BTreeMap::new(),
            early: Early::default(),
        };
        while self.take_commands(&mut work) {
            let due = work.tell(&self.slots);
            let timeout = due.map(|due| until(work.early.alarm(due.at)));
            let mut fds = [
                PollFd::new(&*self.wake, PollFlags::IN),
                PollFd::from_borrowed_fd(self.kicks.fd(), PollFlags::IN),
            ];
            // An interruption is as good as a reason.
            let woken_by_timer = poll(&mut fds, timeout.as_ref()) == Ok(0);
            let kicked = !fds[1].revents().is_empty();
            if kicked {
                self.kicks.drain();
            }
            work.decide(&self.slots, due.filter(|_| woken_by_timer));
        }
    }

    /// Whether there may be more.
    fn take_commands(&self, work: &mut Work) -> bool {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        loop {
            match self.commands.try_recv() {
                Ok(command) => work.obey(command, &self.slots),
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }
}

struct Work {
    dispatcher: Dispatcher,
    /// When the wall clock was last looked at.
    aligned: Time,
    user: User,
    /// The slot of each member.
    of: BTreeMap<Member, usize>,
    troubles: BTreeMap<Member, String>,
    early: Early,
}

impl Work {
    fn obey(&mut self, command: Command, slots: &Slots) {
        let now = monotonic();
        match command {
            Command::Set { member, cpu, slot, reservation, threads } => {
                self.of.insert(member, slot);
                let result = self.user.hold(member, threads);
                self.note(member, result);
                let gauge = Gauge { slots, of: &self.of, now };
                self.dispatcher.set(now, member, cpu, reservation, &gauge);
            }
            Command::Threads { member, threads } => {
                let result = self.user.hold(member, threads);
                self.note(member, result);
            }
            Command::Pause { member, paused } => {
                let gauge = Gauge { slots, of: &self.of, now };
                self.dispatcher.pause(now, member, paused, &gauge);
            }
            Command::Remove { member, done } => {
                self.dispatcher.remove(member);
                self.user.forget(member);
                self.troubles.remove(&member);
                if let Some(slot) = self.of.remove(&member) {
                    slots.tell(slot, 0, 0);
                }
                let _ = done.try_send(());
            }
            Command::Report(reply) => {
                self.decide(slots, None);
                let reports = self.of.keys().filter_map(|member| {
                    let account = self.dispatcher.account(*member)?.clone();
                    Some(Report { member: *member, account, trouble: self.troubles.get(member).cloned() })
                });
                let _ = reply.try_send(reports.collect());
            }
        }
        self.carry_out();
    }

    /// Decides. `due` is what the timer was set for, if it was the timer.
    fn decide(&mut self, slots: &Slots, due: Option<Due>) {
        let mut now = monotonic();
        let mut tolerance = 0;
        if let Some(due) = due {
            let own = rustix::thread::sched_getcpu();
            let slice_of = due.slice_of.and_then(|member| self.of.get(&member).copied());
            let running_here = due.slice_of.is_some_and(|member| {
                self.dispatcher.eligible().any(|e| e.member == member && usize::from(e.cpu) == own)
            });
            match slice_of {
                // We run in its place: what it has used is known, and can't become more.
                Some(slot) if running_here => {
                    let used = slots.read(slot, now).ran_ns;
                    tolerance = self.early.ran(used, slots.ends(slot));
                }
                _ => {
                    self.early.woke(now, due.at);
                    let used_up =
                        |now| slice_of.is_some_and(|slot| slots.read(slot, now).ran_ns >= slots.ends(slot));
                    while now < due.at && !used_up(now) {
                        std::hint::spin_loop();
                        now = monotonic();
                    }
                }
            }
        }
        if now.since(self.aligned) >= ALIGN {
            self.aligned = now;
            self.dispatcher.align(wall_offset());
        }
        self.dispatcher.decide(now, tolerance, &Gauge { slots, of: &self.of, now });
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(dispatch) = self.dispatcher.poll_action() {
            let result = self.user.apply(dispatch);
            self.note(dispatch.member, result);
        }
    }

    fn note(&mut self, member: Member, result: Result<(), sched::SchedError>) {
        match result {
            Ok(()) => drop(self.troubles.remove(&member)),
            Err(error) => drop(self.troubles.insert(member, error.to_string())),
        }
    }

    /// When the next decision is due. Tells the BPF programs what would make one due before.
    fn tell(&self, slots: &Slots) -> Option<Due> {
        slots.arm(Time(0));
        let eligible: BTreeMap<Member, Eligible> =
            self.dispatcher.eligible().map(|eligible| (eligible.member, eligible)).collect();
        for (member, slot) in &self.of {
            let Some(Eligible { cpu, ends, late, .. }) = eligible.get(member) else {
                slots.tell(*slot, 0, 0);
                continue;
            };
            let contended = eligible.values().filter(|other| other.cpu == *cpu).count() > 1;
            slots.tell(*slot, *ends, if contended { late.0.max(1) } else { 0 });
        }
        let mut due = self.dispatcher.next_due()?;
        if let Some(slot) = due.slice_of.and_then(|member| self.of.get(&member)) {
            // It began to run when that had been carried out, not when it was decided.
            let now = monotonic();
            let left = slots.ends(*slot).saturating_sub(slots.read(*slot, now).ran_ns);
            due.at = due.at.max(now.plus(left));
        }
        slots.arm(due.at);
        Some(due)
    }
}

/// How much before its time the timer is set.
#[derive(Debug)]
struct Early {
    ns: u64,
}

impl Default for Early {
    fn default() -> Self {
        Early { ns: 15_000 }
    }
}

impl Early {
    const MOST: u64 = 60_000;
    const STEP: u64 = 250;

    fn alarm(&self, due: Time) -> Time {
        Time(due.0.saturating_sub(self.ns))
    }

    /// The timer woke us at `now` for `due`, where the wait for the exact time costs only our own.
    fn woke(&mut self, now: Time, due: Time) {
        self.adjust(now > due);
    }

    /// The member whose slice was to end when it had `used` so much had used that when we came in its place. Returns how much may be
    /// lacking: giving it back the CPU for so little would cost more than it is worth.
    fn ran(&mut self, used: u64, ends: u64) -> u64 {
        self.adjust(used > ends);
        self.ns
    }

    /// Follows the median.
    fn adjust(&mut self, late: bool) {
        self.ns =
            if late { (self.ns + Self::STEP).min(Self::MOST) } else { self.ns.saturating_sub(Self::STEP) };
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
