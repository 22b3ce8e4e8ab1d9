//! Who runs on which CPU, earliest deadline first (VSched §3.3).
//!
//! Decisions are made when a slice is used up, at the boundaries of periods, and when reservations change;
//! the kernel does the rest. On each CPU every member with something left of its slice has a level, by
//! deadline, so that the next one runs while the first sleeps. One whose slice is used up gets what nobody
//! else wants, or nothing if its limit is hard.
//!
//! A member that slept and wakes with more of its slice left than its share of the rest of the period comes
//! behind those that it would delay (its deadline is postponed as a constant bandwidth server's is, Abeni and
//! Buttazzo 1998): who sleeps harms nobody else.

mod state;

use super::levels;
use super::{
    Dispatch, DispatchKind, Member, MemberAccount, Meter, Reading, Reservation, ReservationEvent,
    ReservationEventKind,
};
use crate::Time;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};
use state::{MemberState, boundary_after};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

/// A decision that comes later than this after it was due comes after a standstill of the machine, in
/// nanoseconds.
const STANDSTILL: u64 = 500_000;
/// More members than any host has CPUs and levels for: a bound on memory.
const MAX_MEMBERS: usize = 1 << 16;

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
    /// If it sleeps now and wakes later than this, it comes behind those that it would delay: a decision is
    /// due then.
    pub late: Time,
}

/// The state machine.
///
/// Sans-I/O: it is told events with [`on_event`](Dispatcher::on_event) and its decisions are taken with
/// [`poll_action`](Dispatcher::poll_action). The same events give the same actions.
///
/// Serialised, it is the whole of its state: loaded again, it goes on with the same actions. What is loaded
/// is checked, and whatever passes is as safe as a dispatcher that came to its state by events. The names and
/// types in it are those of `docs/recording.md`, as the engine's.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Saved")]
pub struct Dispatcher {
    members: BTreeMap<Member, MemberState>,
    actions: VecDeque<Dispatch>,
    /// What the wall clock shows at time zero.
    wall_offset_ns: u64,
    /// When the latest decision was made.
    decided: Time,
    /// When the next one is due, as far as that one knew; follows from the rest.
    #[serde(skip)]
    due: Option<Due>,
    /// Room for what is worked out at each decision.
    #[serde(skip)]
    queue: Vec<Queued>,
    #[serde(skip)]
    first: Vec<Option<(Time, Member, u64)>>,
}

/// A state whose parts were read, but not checked; field by field as [`Dispatcher`] is serialised.
#[derive(Deserialize)]
struct Saved {
    members: BTreeMap<Member, MemberState>,
    actions: VecDeque<Dispatch>,
    wall_offset_ns: u64,
    decided: Time,
}

impl TryFrom<Saved> for Dispatcher {
    type Error = StateError;

    fn try_from(saved: Saved) -> Result<Dispatcher, StateError> {
        let Saved { members, actions, wall_offset_ns, decided } = saved;
        check(members.len() <= MAX_MEMBERS, "more members than any host has room for")?;
        members.values().try_for_each(MemberState::check)?;
        check(actions.iter().all(|action| members.contains_key(&action.member)), "an action for nobody")?;
        let mut dispatcher =
            Dispatcher { members, actions, wall_offset_ns, decided, ..Dispatcher::default() };
        dispatcher.plan();
        Ok(dispatcher)
    }
}

/// A member in the queue of its CPU, and the level that it has.
type Queued = (u16, Time, Member, Option<u8>);

impl Dispatcher {
    /// Nobody has a reservation yet. `wall_offset_ns` is what the wall clock, in nanoseconds, shows at
    /// [`Time`] zero: periods that have a phase are aligned to it.
    #[must_use]
    pub fn new(wall_offset_ns: u64) -> Dispatcher {
        Dispatcher { wall_offset_ns, ..Dispatcher::default() }
    }

    /// Puts what the meter says into an event: of each member that it is about what is new, and nothing if no
    /// decision is made.
    pub fn read(&self, event: &mut ReservationEvent, meter: &impl Meter) {
        event.readings.clear();
        if matches!(event.kind, ReservationEventKind::Remove { .. } | ReservationEventKind::Align { .. }) {
            return;
        }
        for (member, state) in &self.members {
            let reading = meter.read(*member);
            if reading != state.reading {
                event.readings.push((*member, reading));
            }
        }
        if let ReservationEventKind::Set { member, .. } = event.kind
            && !self.members.contains_key(&member)
        {
            event.readings.push((member, meter.read(member)));
        }
    }

    /// Tells it what happened.
    pub fn on_event(&mut self, event: &ReservationEvent) {
        let &ReservationEvent { at, ref readings, kind } = event;
        match kind {
            ReservationEventKind::Set { member, cpu, reservation, since } => {
                self.decide(at, 0, readings);
                self.set(member, cpu, reservation, since, readings);
            }
            ReservationEventKind::Pause { member, paused } => {
                self.decide(at, 0, readings);
                self.pause(member, paused);
            }
            ReservationEventKind::Remove { member } => self.remove(member),
            ReservationEventKind::Align { wall_offset_ns } => self.wall_offset_ns = wall_offset_ns,
            ReservationEventKind::Decide { tolerance_ns } => self.decide(at, tolerance_ns, readings),
        }
    }

    fn set(
        &mut self,
        member: Member,
        cpu: u16,
        reservation: Reservation,
        since: Option<Time>,
        readings: &[(Member, Reading)],
    ) {
        let now = self.decided;
        if self.members.len() >= MAX_MEMBERS && !self.members.contains_key(&member) {
            return;
        }
        let period = reservation.period_ns.max(1);
        let (begin, end) = match reservation.phase_ns {
            Some(phase) => (now, boundary_after(now, period, self.wall_offset_ns, phase)),
            None => {
                let passed = now.since(since.unwrap_or(now)) % period;
                let begin = Time(now.0.saturating_sub(passed));
                (begin, begin.plus(period))
            }
        };
        let reading = || readings.iter().find(|(of, _)| *of == member).map(|(_, reading)| *reading);
        let state = self
            .members
            .entry(member)
            .or_insert_with(|| MemberState::new(cpu, reservation, reading().unwrap_or_default()));
        let same = (state.cpu, state.reservation) == (cpu, reservation) && state.length > 0;
        if !same {
            if state.cpu != cpu {
                state.dispatched = None;
            }
            state.cut(now);
            (state.cpu, state.reservation) = (cpu, reservation);
            state.begin(begin, end);
            if begin < now {
                state.postpone(now);
            }
            self.rank();
            self.plan();
        }
    }

    fn remove(&mut self, member: Member) {
        self.actions.retain(|action| action.member != member);
        self.members.remove(&member);
        self.plan();
    }

    fn pause(&mut self, member: Member, paused: bool) {
        if let Some(state) = self.members.get_mut(&member)
            && mem::replace(&mut state.paused, paused)
            && !paused
        {
            state.postpone(self.decided);
        }
        self.rank();
        self.plan();
    }

    /// The members, in order.
    pub fn members(&self) -> impl Iterator<Item = Member> {
        self.members.keys().copied()
    }

    /// What a member got so far. What it uses since the latest decision is not in it yet.
    #[must_use]
    pub fn account(&self, member: Member) -> Option<&MemberAccount> {
        self.members.get(&member).map(|state| &state.account)
    }

    /// When the next decision is due, as far as the latest one knows. It is to be asked for then, and
    /// whenever another member begins to run whose slice ends sooner, or one wakes up.
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

    /// Decides. What is due within `tolerance_ns` is taken as due now; a slice of which no more is left is
    /// used up.
    fn decide(&mut self, now: Time, tolerance_ns: u64, readings: &[(Member, Reading)]) {
        let now = now.max(self.decided);
        let standstill = self.due.is_some_and(|due| now.since(due.at) > STANDSTILL);
        self.decided = now;
        let mut changed = false;
        for (member, reading) in readings {
            changed |= self.members.get_mut(member).is_some_and(|state| state.charge(*reading));
        }
        for state in self.members.values_mut() {
            state.stalled |= standstill;
            if now.plus(tolerance_ns) >= state.end {
                state.close(now, self.wall_offset_ns, tolerance_ns);
                state.stalled = standstill;
                changed = true;
            }
            if state.left <= tolerance_ns && state.dispatched.is_some_and(DispatchKind::is_run) {
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
                queue.push((
                    state.cpu,
                    state.deadline,
                    *member,
                    state.dispatched.and_then(DispatchKind::level),
                ));
                continue;
            }
            let stop = state.paused || state.reservation.hard;
            let kind = if stop { DispatchKind::Stop } else { DispatchKind::Leftover };
            if state.dispatched.replace(kind) != Some(kind) {
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
            if state.is_some_and(|state| state.dispatched.replace(kind) != Some(kind)) {
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

#[cfg(test)]
mod tests;
