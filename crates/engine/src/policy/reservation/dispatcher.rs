//! Who runs on which CPU, earliest deadline first (VSched §3.3).
//!
//! Decisions are made when a slice is used up, at the boundaries of periods, and when reservations change; the kernel does the rest. On
//! each CPU every member with something left of its slice has a level, by deadline, so that the next one runs while the
//! first sleeps. One whose slice is used up gets what nobody else wants, or nothing if its limit is hard.
//!
//! A member that slept and wakes with more of its slice left than its share of the rest of the period comes behind those that it would
//! delay (its deadline is postponed as a constant bandwidth server's is, Abeni and Buttazzo 1998): who sleeps harms nobody else.

use super::levels;
use super::{Account, Member, Reservation};
use crate::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

/// A decision that comes later than this after it was due comes after a standstill of the machine, in nanoseconds.
const STANDSTILL: u64 = 500_000;

/// What the world says about a member at the time of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// CPU time that it ever used, in nanoseconds. It never falls.
    pub ran_ns: u64,
    /// Whether it runs or wants to.
    pub ready: bool,
    /// When it last began to want to, after a sleep.
    pub woken: Time,
}

/// Where readings come from.
pub trait Meter {
    /// What is known about a member. One that is not known has not run and does not want to.
    fn read(&self, member: Member) -> Reading;
}

/// What is to be done with a member from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The member.
    pub member: Member,
    /// The CPU that it is to be on.
    pub cpu: u16,
    /// How it is to be scheduled.
    pub kind: DispatchKind,
}

/// How a member is to be scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchKind {
    /// Before everything without a reservation, and before members on the CPU with a lower level (1 to [`LEVELS`](super::LEVELS)).
    Run {
        /// Its level.
        level: u8,
    },
    /// Only when nothing else wants the CPU.
    Leftover,
    /// Not at all.
    Stop,
}

impl DispatchKind {
    fn is_run(self) -> bool {
        self.level().is_some()
    }

    fn level(self) -> Option<u8> {
        match self {
            DispatchKind::Run { level } => Some(level),
            DispatchKind::Leftover | DispatchKind::Stop => None,
        }
    }
}

/// A decision to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When.
    pub at: Time,
    /// Whose slice ends then; `None` if a period does.
    pub slice_of: Option<Member>,
}

/// A member with something left of its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eligible {
    /// The member.
    pub member: Member,
    /// Its CPU.
    pub cpu: u16,
    /// The CPU time that it will ever have used when its slice ends, in nanoseconds.
    pub ends: u64,
    /// If it sleeps now and wakes later than this, it comes behind those that it would delay: a decision is due then.
    pub late: Time,
}

/// The state machine.
#[derive(Debug, Default)]
pub struct Dispatcher {
    members: BTreeMap<Member, State>,
    actions: VecDeque<Dispatch>,
    /// What the wall clock shows at time zero.
    wall_offset_ns: u64,
    /// When the latest decision was made.
    decided: Time,
    /// When the next one is due, as far as that one knew.
    due: Option<Due>,
    /// Room for what is worked out at each decision.
    queue: Vec<Queued>,
    first: Vec<Option<(Time, Member, u64)>>,
}

/// A member in the queue of its CPU, and the level that it has.
type Queued = (u16, Time, Member, Option<u8>);

#[derive(Debug)]
struct State {
    cpu: u16,
    reservation: Reservation,
    /// Length of the current period: shorter than usual if the reservation began in its middle.
    length: u64,
    /// When the current period ends.
    end: Time,
    /// Of the slice that is left; never before `end`.
    deadline: Time,
    /// What the current period has of the slice.
    slice: u64,
    /// What is left of that.
    left: u64,
    /// What was last said about it.
    told: Option<DispatchKind>,
    paused: bool,
    reading: Reading,
    /// CPU time of its reservation that it used in the current period.
    used: u64,
    /// The machine stood still in the current period.
    stalled: bool,
    account: Account,
}

impl Dispatcher {
    /// Nobody has a reservation yet. `wall_offset_ns` is what the wall clock, in nanoseconds, shows at [`Time`] zero: periods that have
    /// a phase are aligned to it.
    #[must_use]
    pub fn new(wall_offset_ns: u64) -> Dispatcher {
        Dispatcher { wall_offset_ns, ..Dispatcher::default() }
    }

    /// The wall clock was adjusted: periods from the next on follow it.
    pub fn align(&mut self, wall_offset_ns: u64) {
        self.wall_offset_ns = wall_offset_ns;
    }

    /// Gives a [valid](Reservation::validate) reservation to a member on a CPU, in place of what it had. A period begins at once; if
    /// periods are aligned it ends at the next boundary and has its part of the slice. One that stays the same is not touched. It is up to [`Admission`](super::Admission) that all of
    /// them fit.
    pub fn set(&mut self, now: Time, member: Member, cpu: u16, reservation: Reservation, meter: &impl Meter) {
        self.decide(now, 0, meter);
        let now = self.decided;
        let end = match reservation.phase_ns {
            Some(phase) => boundary_after(now, reservation.period_ns, self.wall_offset_ns, phase),
            None => now.plus(reservation.period_ns),
        };
        let reading = meter.read(member);
        let state = self.members.entry(member).or_insert_with(|| State {
            cpu,
            reservation,
            length: 0,
            end: Time::default(),
            deadline: Time::default(),
            slice: 0,
            left: 0,
            told: None,
            paused: false,
            reading,
            used: 0,
            stalled: false,
            account: Account::default(),
        });
        let same = (state.cpu, state.reservation) == (cpu, reservation) && state.length > 0;
        if !same {
            if state.cpu != cpu {
                state.told = None;
            }
            state.cut(now);
            (state.cpu, state.reservation) = (cpu, reservation);
            state.begin(now, end);
            self.rank();
            self.plan();
        }
    }

    /// Forgets a member. Whoever carries the decisions out puts it back as it was.
    pub fn remove(&mut self, member: Member) -> Option<Account> {
        self.actions.retain(|action| action.member != member);
        let removed = self.members.remove(&member);
        self.plan();
        removed.map(|state| state.account)
    }

    /// Stops a member altogether, or lets it go on. Its periods pass as before; while it is stopped nothing is missed, and when it goes on
    /// it is as one that wakes up.
    pub fn pause(&mut self, now: Time, member: Member, paused: bool, meter: &impl Meter) {
        self.decide(now, 0, meter);
        let now = self.decided;
        if let Some(state) = self.members.get_mut(&member)
            && mem::replace(&mut state.paused, paused)
            && !paused
        {
            state.postpone(now);
        }
        self.rank();
        self.plan();
    }

    /// What a member got so far. What it uses since the latest decision is not in it yet.
    #[must_use]
    pub fn account(&self, member: Member) -> Option<&Account> {
        self.members.get(&member).map(|state| &state.account)
    }

    /// When the next decision is due, as far as the latest one knows. Call [`decide`](Self::decide) then, and whenever another member
    /// begins to run whose slice ends sooner, or one wakes up.
    #[must_use]
    pub fn next_due(&self) -> Option<Due> {
        self.due
    }

    /// The members that have something left of their slices.
    pub fn eligible(&self) -> impl Iterator<Item = Eligible> {
        let eligible = self.members.iter().filter(|(_, state)| state.is_eligible());
        eligible.map(|(member, state)| Eligible {
            member: *member,
            cpu: state.cpu,
            ends: state.reading.ran_ns.saturating_add(state.left),
            late: state.late(),
        })
    }

    /// Decides. What is due within `tolerance_ns` is taken as due now; a slice of which no more is left is used up.
    pub fn decide(&mut self, now: Time, tolerance_ns: u64, meter: &impl Meter) {
        let now = now.max(self.decided);
        let standstill = self.due.is_some_and(|due| now.since(due.at) > STANDSTILL);
        self.decided = now;
        let mut changed = false;
        for (member, state) in &mut self.members {
            changed |= state.charge(meter.read(*member));
            state.stalled |= standstill;
            if now.plus(tolerance_ns) >= state.end {
                state.close(now, self.wall_offset_ns, tolerance_ns);
                state.stalled = standstill;
                changed = true;
            }
            if state.left <= tolerance_ns && state.told.is_some_and(DispatchKind::is_run) {
                state.left = 0;
                changed = true;
            }
        }
        if changed {
            self.rank();
        }
        self.plan();
    }

    /// What is to be done next. Who is to give up a CPU comes before who is to get it.
    pub fn poll_action(&mut self) -> Option<Dispatch> {
        self.actions.pop_front()
    }

    /// Works out when the next decision is due.
    fn plan(&mut self) {
        self.first.clear();
        self.due =
            self.members.values().map(|state| Due { at: state.end, slice_of: None }).min_by_key(|due| due.at);
        for (member, state) in &self.members {
            if !state.is_eligible() || !state.reading.ready {
                continue;
            }
            let (cpu, candidate) = (usize::from(state.cpu), (state.deadline, *member, state.left));
            if self.first.len() <= cpu {
                self.first.resize(cpu + 1, None);
            }
            let first = &mut self.first[cpu];
            *first = Some(first.map_or(candidate, |first| first.min(candidate)));
        }
        for (_, member, left) in self.first.iter().flatten() {
            let at = self.decided.plus(*left);
            if self.due.is_some_and(|due| at < due.at) {
                self.due = Some(Due { at, slice_of: Some(*member) });
            }
        }
    }

    /// Tells whoever is to be scheduled in another way than before.
    fn rank(&mut self) {
        let fetched = self.actions.is_empty();
        let mut queue = mem::take(&mut self.queue);
        queue.clear();
        for (member, state) in &mut self.members {
            if state.is_eligible() {
                queue.push((state.cpu, state.deadline, *member, state.told.and_then(DispatchKind::level)));
                continue;
            }
            let stop = state.paused || state.reservation.hard;
            let kind = if stop { DispatchKind::Stop } else { DispatchKind::Leftover };
            if state.told.replace(kind) != Some(kind) {
                self.actions.push_back(Dispatch { member: *member, cpu: state.cpu, kind });
            }
        }
        queue.sort_unstable();
        queue.chunk_by(|a, b| a.0 == b.0).for_each(|queue| self.assign(queue));
        self.queue = queue;
        if !fetched {
            self.supersede();
        }
    }

    /// Gives levels to the members on one CPU, who are in order.
    fn assign(&mut self, queue: &[Queued]) {
        let level = |queued: &Queued| queued.3;
        if queue.iter().all(|queued| level(queued).is_some())
            && queue.is_sorted_by(|a, b| level(a) > level(b))
        {
            return;
        }
        let current: Vec<Option<u8>> = queue.iter().map(level).collect();
        for ((cpu, _, member, _), level) in queue.iter().zip(levels::assign(&current)) {
            let kind = DispatchKind::Run { level };
            let state = self.members.get_mut(member);
            if state.is_some_and(|state| state.told.replace(kind) != Some(kind)) {
                self.actions.push_back(Dispatch { member: *member, cpu: *cpu, kind });
            }
        }
    }

    /// Of what was not fetched yet, only the latest about each member is worth doing.
    fn supersede(&mut self) {
        let mut seen = BTreeSet::new();
        let latest: Vec<Dispatch> = self.actions.drain(..).rev().filter(|a| seen.insert(a.member)).collect();
        self.actions.extend(latest.into_iter().rev());
    }
}

impl State {
    fn is_eligible(&self) -> bool {
        !self.paused && self.left > 0
    }

    /// It ran and slept as the reading says; whether that changed its deadline.
    fn charge(&mut self, now: Reading) -> bool {
        let ran = now.ran_ns.saturating_sub(self.reading.ran_ns);
        let on_reservation = self.told.is_some_and(DispatchKind::is_run);
        self.account.charge(ran, on_reservation.then_some(self.left));
        if on_reservation {
            self.left = self.left.saturating_sub(ran);
            self.used = self.used.saturating_add(ran);
        }
        let woke = now.ready && now.woken > self.reading.woken;
        self.reading = now;
        woke && self.postpone(now.woken)
    }

    /// How long what is left of its slice takes at its rate.
    fn needs(&self) -> u64 {
        let product = u128::from(self.left) * u128::from(self.reservation.period_ns);
        u64::try_from(product.div_ceil(u128::from(self.reservation.slice_ns.max(1)))).unwrap_or(u64::MAX)
    }

    /// A wake-up after this time postpones its deadline.
    fn late(&self) -> Time {
        Time(self.deadline.0.saturating_sub(self.needs()))
    }

    /// It woke up, or goes on: what is left of its slice, at its rate, may take longer than its period.
    fn postpone(&mut self, woken: Time) -> bool {
        let deadline = woken.plus(self.needs());
        let later = deadline > self.deadline;
        self.deadline = self.deadline.max(deadline);
        later
    }

    /// Its reservation changes: of the current period, only what has passed counts.
    fn cut(&mut self, now: Time) {
        let to_come =
            u128::from(self.slice) * u128::from(self.end.since(now)) / u128::from(self.length.max(1));
        let passed = self.slice.saturating_sub(u64::try_from(to_come).unwrap_or(u64::MAX));
        self.account.reserved_ns = self.account.reserved_ns.saturating_add(passed);
    }

    /// The current period is over.
    fn close(&mut self, now: Time, wall_offset: u64, tolerance: u64) {
        let period = self.reservation.period_ns;
        let wanted = self.reading.ready && !self.paused;
        // Who came late has until later: what it can still get until then is not missed yet.
        let lacking = self.left.saturating_sub(self.deadline.since(self.end));
        let shortfall = (wanted && lacking > tolerance).then_some(lacking);
        self.account.close(self.end, self.slice, self.used, shortfall, self.stalled);
        let skipped = now.since(self.end) / period.max(1);
        if skipped > 0 {
            self.account.skip(skipped, self.reservation.slice_ns, wanted);
        }
        let begin = self.end.plus(skipped.saturating_mul(period));
        let end = match self.reservation.phase_ns {
            // Where the wall clock was adjusted, one period is shorter or longer, by half at most.
            Some(phase) => boundary_after(begin.plus(period / 2).max(now), period, wall_offset, phase),
            None => begin.plus(period),
        };
        self.begin(begin, end);
    }

    fn begin(&mut self, begin: Time, end: Time) {
        self.length = end.since(begin).max(1);
        (self.end, self.deadline) = (end, end);
        self.slice = self.reservation.slice_in(self.length);
        self.left = self.slice;
        self.used = 0;
    }
}

/// The first time after `time` that is `phase` after a multiple of the period on the wall clock.
fn boundary_after(time: Time, period: u64, wall_offset: u64, phase: u64) -> Time {
    let period = u128::from(period.max(1));
    // How long before time zero the wall clock was at such a point.
    let offset = (u128::from(wall_offset) + period - u128::from(phase) % period) % period;
    let next = ((u128::from(time.0) + offset) / period + 1) * period - offset;
    Time(u64::try_from(next).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
