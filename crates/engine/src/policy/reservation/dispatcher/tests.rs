//! A world of CPUs on which exactly that runs what the dispatcher says.

use super::*;
use crate::reservation::{Admission, AdmissionError, TargetId, WHOLE_CPU};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// A member as the world has it: it wants to run always, or from time to time.
#[derive(Clone, Debug, Default)]
struct Actor {
    cpu: u16,
    kind: Option<DispatchKind>,
    ran: u64,
    running: bool,
    /// Works so long, then sleeps so long, over and over; always works if it sleeps for 0.
    habit: (u64, u64),
    asleep_until: Option<u64>,
    /// Until it sleeps.
    work: u64,
    woken: u64,
    /// From when to when it ran.
    ran_from: Vec<(u64, u64)>,
}

#[derive(Default)]
struct World {
    now: u64,
    actors: BTreeMap<Member, Actor>,
}

impl Meter for World {
    fn read(&self, member: Member) -> Reading {
        self.actors.get(&member).map_or_else(Reading::default, |actor| Reading {
            ran_ns: actor.ran,
            ready: actor.asleep_until.is_none(),
            woken: Time(actor.woken),
        })
    }
}

impl World {
    fn carry_out(&mut self, dispatcher: &mut Dispatcher) {
        while let Some(action) = dispatcher.poll_action() {
            if let Some(actor) = self.actors.get_mut(&action.member) {
                (actor.cpu, actor.kind) = (action.cpu, Some(action.kind));
            }
        }
        let mut best: BTreeMap<u16, (u8, Member)> = BTreeMap::new();
        for (member, actor) in &mut self.actors {
            actor.running = false;
            let level = match actor.kind {
                Some(DispatchKind::Run { level }) => level,
                Some(DispatchKind::Leftover) => 0,
                Some(DispatchKind::Stop) | None => continue,
            };
            let first = best.get(&actor.cpu).is_none_or(|(other, _)| level > *other);
            if actor.asleep_until.is_none() && first {
                best.insert(actor.cpu, (level, *member));
            }
        }
        for (_, member) in best.into_values() {
            self.actors.get_mut(&member).unwrap().running = true;
        }
    }

    /// Lets time pass; stops early where somebody falls asleep or wakes up.
    fn pass_until(&mut self, time: u64) {
        let next = self.actors.values().filter_map(|actor| match actor.asleep_until {
            Some(until) => Some(until),
            None if actor.running && actor.habit.1 > 0 => Some(self.now + actor.work),
            None => None,
        });
        let time = next.min().unwrap_or(time).clamp(self.now, time);
        let passed = time - self.now;
        for actor in self.actors.values_mut() {
            if actor.running && passed > 0 {
                actor.ran += passed;
                match actor.ran_from.last_mut() {
                    Some((_, until)) if *until == self.now => *until = time,
                    _ => actor.ran_from.push((self.now, time)),
                }
                if actor.habit.1 > 0 {
                    actor.work = actor.work.saturating_sub(passed);
                    if actor.work == 0 {
                        actor.asleep_until = Some(time + actor.habit.1);
                    }
                }
            } else if actor.asleep_until.is_some_and(|until| until <= time) {
                (actor.asleep_until, actor.work, actor.woken) = (None, actor.habit.0.max(1), time);
            }
        }
        self.now = time;
    }

    fn run_until(&mut self, end: u64, dispatcher: &mut Dispatcher) {
        while self.now < end {
            self.carry_out(dispatcher);
            let due = dispatcher.next_due().map_or(end, |due| due.at.0.min(end));
            self.pass_until(due);
            decide(dispatcher, self);
        }
    }
}

/// Tells a dispatcher what happened, with what the world says about it.
fn tell(dispatcher: &mut Dispatcher, at: u64, kind: ReservationEventKind, world: &World) -> ReservationEvent {
    let mut event = ReservationEvent { at: Time(at), kind, ..ReservationEvent::default() };
    dispatcher.read(&mut event, world);
    dispatcher.on_event(&event);
    event
}

fn set(dispatcher: &mut Dispatcher, member: Member, cpu: u16, reservation: Reservation, world: &World) {
    tell(dispatcher, world.now, ReservationEventKind::Set { member, cpu, reservation, since: None }, world);
}

fn pause(dispatcher: &mut Dispatcher, member: Member, paused: bool, world: &World) {
    tell(dispatcher, world.now, ReservationEventKind::Pause { member, paused }, world);
}

fn decide(dispatcher: &mut Dispatcher, world: &World) {
    tell(dispatcher, world.now, ReservationEventKind::Decide { tolerance_ns: 0 }, world);
}

fn member(target: u32) -> Member {
    Member { target: TargetId(target), index: 0 }
}

/// These on one CPU, each wanting to run always.
fn one_cpu(reservations: &[(u64, u64)]) -> (World, Dispatcher) {
    let (mut world, mut dispatcher) = (World::default(), Dispatcher::new(0));
    for (target, (period_ns, slice_ns)) in (1..).zip(reservations) {
        world.actors.insert(member(target), Actor::default());
        let reservation =
            Reservation { period_ns: *period_ns, slice_ns: *slice_ns, hard: true, phase_ns: Some(0) };
        set(&mut dispatcher, member(target), 0, reservation, &world);
    }
    (world, dispatcher)
}

/// VSched §3.3, figure 2: the schedule of (50, 20), (100, 10) and (1000, 300) ms.
#[test]
fn the_schedule_of_figure_2() {
    let (mut world, mut dispatcher) =
        one_cpu(&[(50 * MS, 20 * MS), (100 * MS, 10 * MS), (1000 * MS, 300 * MS)]);
    world.run_until(200 * MS, &mut dispatcher);
    let ran = |target| -> Vec<(u64, u64)> {
        world.actors[&member(target)].ran_from.iter().map(|(from, to)| (from / MS, to / MS)).collect()
    };
    assert_eq!(ran(1), [(0, 20), (50, 70), (100, 120), (150, 170)]);
    assert_eq!(ran(2), [(20, 30), (120, 130)]);
    assert_eq!(ran(3), [(30, 50), (70, 100), (130, 150), (170, 200)]);
    world.run_until(1000 * MS, &mut dispatcher);
    for target in 1..=3 {
        assert_eq!(dispatcher.account(member(target)).unwrap().missed, 0);
    }
    assert_eq!(world.actors[&member(3)].ran, 300 * MS, "hard limits hold");
}

#[test]
fn the_vcpus_of_a_target_run_in_lock_step() {
    let (mut world, mut dispatcher) = (World::default(), Dispatcher::new(3 * MS));
    let reservation = Reservation { period_ns: 10 * MS, slice_ns: 4 * MS, hard: true, phase_ns: Some(MS) };
    let cpus = Admission::new(&[0, 1], 0, 0).admit(TargetId(1), reservation, 2).unwrap();
    for (index, cpu) in (0..).zip(cpus) {
        let vcpu = Member { target: TargetId(1), index };
        world.actors.insert(vcpu, Actor::default());
        set(&mut dispatcher, vcpu, cpu, reservation, &world);
    }
    world.run_until(30 * MS, &mut dispatcher);
    let ran: Vec<_> = world.actors.values().map(|actor| actor.ran_from.clone()).collect();
    assert_eq!(ran[0], ran[1]);
    // The wall clock showed 3 ms at time zero: 8 ms are left of the first period, and 3.2 ms of its slice.
    let expected = [(0, 32 * MS / 10), (8 * MS, 12 * MS), (18 * MS, 22 * MS), (28 * MS, 30 * MS)];
    assert_eq!(ran[0], expected);
}

#[test]
fn a_change_holds_at_once() {
    let (mut world, mut dispatcher) = one_cpu(&[(1000 * MS, 100 * MS)]);
    world.run_until(500 * MS, &mut dispatcher);
    let faster = Reservation { period_ns: 10 * MS, slice_ns: 5 * MS, hard: true, phase_ns: None };
    set(&mut dispatcher, member(1), 0, faster, &world);
    world.run_until(520 * MS, &mut dispatcher);
    assert_eq!(world.actors[&member(1)].ran_from[1..], [(500 * MS, 505 * MS), (510 * MS, 515 * MS)]);
    pause(&mut dispatcher, member(1), true, &world);
    world.run_until(540 * MS, &mut dispatcher);
    pause(&mut dispatcher, member(1), false, &world);
    world.run_until(550 * MS, &mut dispatcher);
    let account = dispatcher.account(member(1)).unwrap().clone();
    tell(&mut dispatcher, world.now, ReservationEventKind::Remove { member: member(1) }, &world);
    assert_eq!((account.periods, account.missed), (5, 0), "nothing is missed in a pause: {account:?}");
    assert_eq!(account.reserved_ns, 50 * MS + 25 * MS);
    assert_eq!(account.used_ns, 100 * MS + 15 * MS);
    assert_eq!(dispatcher.next_due(), None);
}

#[test]
fn who_has_no_limit_gets_what_nobody_wants() {
    let (mut world, mut dispatcher) = one_cpu(&[(10 * MS, 2 * MS), (10 * MS, 3 * MS)]);
    let soft = Reservation { period_ns: 10 * MS, slice_ns: 3 * MS, hard: false, phase_ns: Some(0) };
    set(&mut dispatcher, member(2), 0, soft, &world);
    world.run_until(100 * MS, &mut dispatcher);
    let account = dispatcher.account(member(2)).unwrap();
    assert_eq!((account.used_ns, account.extra_ns, account.missed), (30 * MS, 50 * MS, 0));
    let recent: Vec<_> =
        account.recent.iter().map(|entry| (entry.end, entry.periods, entry.used_ns)).collect();
    assert_eq!(recent, [(Time(50 * MS), 5, 15 * MS), (Time(100 * MS), 5, 15 * MS)]);
}

#[test]
fn a_standstill_is_told_from_a_miss() {
    let (mut world, mut dispatcher) = one_cpu(&[(10 * MS, 8 * MS)]);
    world.run_until(20 * MS, &mut dispatcher);
    // Nobody ran for 25 ms, the dispatcher neither.
    world.now += 25 * MS;
    decide(&mut dispatcher, &world);
    let account = dispatcher.account(member(1)).unwrap();
    assert_eq!((account.periods, account.missed, account.stalled), (4, 2, 2), "{account:?}");
    world.run_until(60 * MS, &mut dispatcher);
    let account = dispatcher.account(member(1)).unwrap();
    // 5 of the 8 ms were left to the period in which it went on.
    assert_eq!((account.periods, account.missed, account.stalled), (6, 3, 3), "{account:?}");
    assert_eq!(account.shortfall.buckets[12], 1, "3 ms are between 2.048 and 4.096");
}

/// Two on one CPU: the first always wants its 9 of 10 ms, the second wants 1 of 10 ms from 9.5 ms on. Who
/// wakes at 8 of 10 ms has until 18 ms for its slice. With the next, until 20 ms, it would have more than its
/// rate.
#[test]
fn who_comes_late_stays_behind_in_its_next_period() {
    let (mut world, mut dispatcher) = (World::default(), Dispatcher::new(0));
    let late = Actor { asleep_until: Some(8 * MS), ..Actor::default() };
    for (target, actor, period_ns, slice_ns) in [(1, late, 10, 5), (2, Actor::default(), 21, 10)] {
        world.actors.insert(member(target), actor);
        let (period_ns, slice_ns) = (period_ns * MS, slice_ns * MS);
        let reservation = Reservation { period_ns, slice_ns, hard: true, phase_ns: Some(0) };
        set(&mut dispatcher, member(target), 0, reservation, &world);
    }
    world.run_until(20 * MS, &mut dispatcher);
    let ran = |target| world.actors[&member(target)].ran_from.clone();
    assert_eq!(ran(2), [(0, 8 * MS), (10 * MS, 12 * MS)], "its deadline is 21 ms, the other's 22 ms");
    assert_eq!(ran(1), [(8 * MS, 10 * MS), (12 * MS, 17 * MS)]);
}

#[test]
fn who_comes_late_has_missed_only_what_it_could_have_got() {
    let (mut world, mut dispatcher) = one_cpu(&[(10 * MS, 9 * MS), (10 * MS, MS)]);
    world.actors.get_mut(&member(2)).unwrap().asleep_until = Some(95 * MS / 10);
    world.run_until(20 * MS, &mut dispatcher);
    let account = dispatcher.account(member(2)).unwrap();
    assert_eq!((account.periods, account.missed), (2, 0), "{account:?}");
    assert_eq!(dispatcher.account(member(1)).unwrap().missed, 0);
    // One that comes a little late and gets nothing has missed its slice, but for that little.
    let (mut world, mut dispatcher) = one_cpu(&[(10 * MS, 2 * MS)]);
    world.actors.get_mut(&member(1)).unwrap().asleep_until = Some(1000);
    world.pass_until(1000);
    decide(&mut dispatcher, &world);
    world.pass_until(10 * MS);
    decide(&mut dispatcher, &world);
    let account = dispatcher.account(member(1)).unwrap();
    assert_eq!((account.missed, account.shortfall.max_ns), (1, 2 * MS - 1000), "{account:?}");
}

/// The members of a VM have dispatchers of their own, which hear of its reservation at different times.
#[test]
fn who_hears_later_has_the_periods_of_the_others() {
    let reservation = Reservation { period_ns: 20 * MS, slice_ns: 4 * MS, hard: true, phase_ns: None };
    let heard = |at: u64, since: Option<Time>| {
        let mut dispatcher = Dispatcher::new(0);
        let world = World { now: at, ..World::default() };
        let member = Member { target: TargetId(1), index: 1 };
        tell(&mut dispatcher, at, ReservationEventKind::Set { member, cpu: 0, reservation, since }, &world);
        let late = dispatcher.eligible().next().unwrap().late;
        (dispatcher.next_due().unwrap().at.0, late.0)
    };
    // The second number: with its whole slice it needs all of a period from when it hears.
    assert_eq!(heard(100 * MS, None), (120 * MS, 100 * MS));
    assert_eq!(heard(100 * MS, Some(Time(100 * MS))), (120 * MS, 100 * MS));
    assert_eq!(heard(107 * MS, Some(Time(100 * MS))), (120 * MS, 107 * MS));
    assert_eq!(heard(147 * MS, Some(Time(100 * MS))), (160 * MS, 147 * MS));
    assert_eq!(heard(107 * MS, Some(Time(110 * MS))), (127 * MS, 107 * MS));
}

#[test]
fn a_pause_in_the_middle_of_a_period_is_no_miss() {
    let (mut world, mut dispatcher) = one_cpu(&[(10 * MS, 8 * MS), (10 * MS, 2 * MS)]);
    for (at, paused) in [(3, true), (5, false), (24, true), (39, false)] {
        world.run_until(at * MS, &mut dispatcher);
        pause(&mut dispatcher, member(1), paused, &world);
    }
    world.run_until(60 * MS, &mut dispatcher);
    for target in [1, 2] {
        let account = dispatcher.account(member(target)).unwrap();
        assert_eq!((account.periods, account.missed), (6, 0), "{target}: {account:?}");
    }
    assert_eq!(world.actors[&member(2)].ran, 12 * MS, "who goes on takes nothing from others");
}

/// Slices that take this part of a CPU altogether, split as the weights say.
fn reservations(periods: &[u64], weights: &[u64], percent: u64) -> Vec<(u64, u64)> {
    let all: u64 = weights.iter().sum();
    periods
        .iter()
        .zip(weights)
        .map(|(p, w)| (p * 1000, (p * 1000 * w * percent / all / 100).max(1)))
        .collect()
}

/// What the wall clock shows at time zero.
const OFFSET: u64 = 77;

/// What somebody does and when, as numbers.
type Step = (u8, u32, u64, u64, u64, bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..6u8, 0..5u32, 0..5u64, any::<u64>(), any::<u64>(), any::<bool>()), 1..200)
}

/// A dispatcher's life: what it was told, and what it said to each.
fn live(steps: &[Step]) -> (Vec<ReservationEvent>, Vec<Vec<Dispatch>>, Dispatcher) {
    let (mut world, mut dispatcher) = (World::default(), Dispatcher::new(OFFSET));
    let mut admission = Admission::new(&[0, 1, 2], WHOLE_CPU / 20, 40_000);
    let (mut events, mut dispatches) = (Vec::new(), Vec::new());
    for (what, target, jump, a, b, flag) in steps {
        let id = TargetId(*target);
        let first = Member { target: id, index: 0 };
        let now = if *jump == 0 { *a } else { world.now.saturating_add(b % 10 * MS) };
        world.now = world.now.max(now);
        let (period_ns, slice_ns) = if *flag { (a % (20 * MS), b % (10 * MS)) } else { (*a, *b) };
        let mut kinds = Vec::new();
        match what {
            0 | 1 => {
                let members = usize::try_from(b % 4).unwrap();
                let phase_ns = flag.then_some(a % 7 * MS);
                let reservation = Reservation { period_ns, slice_ns, hard: *flag, phase_ns };
                match admission.admit(id, reservation, members) {
                    Ok(cpus) => {
                        for (index, cpu) in (0..).zip(cpus) {
                            let member = Member { target: id, index };
                            world.actors.entry(member).or_default();
                            kinds.push(ReservationEventKind::Set { member, cpu, reservation, since: None });
                        }
                    }
                    Err(AdmissionError::Infeasible(refusal)) => assert!(!refusal.to_string().is_empty()),
                    Err(_) => {}
                }
            }
            2 => {
                admission.release(id);
                kinds.extend(
                    (0..4).map(|index| ReservationEventKind::Remove { member: Member { target: id, index } }),
                );
            }
            3 => kinds.push(ReservationEventKind::Pause { member: first, paused: *flag }),
            4 => kinds.push(ReservationEventKind::Align { wall_offset_ns: *b }),
            _ => {
                if let Some(actor) = world.actors.get_mut(&first) {
                    actor.ran = actor.ran.saturating_add(b % (9 * MS));
                    actor.woken = if *flag { world.now } else { *a };
                }
                kinds.push(ReservationEventKind::Decide { tolerance_ns: a % 20_000 });
            }
        }
        for kind in kinds {
            events.push(tell(&mut dispatcher, now, kind, &world));
            dispatches.push(fetch(&mut dispatcher));
        }
        let _ = dispatcher.next_due();
        check_accounts(&dispatcher);
        for room in admission.rooms() {
            assert!(room.free <= WHOLE_CPU - WHOLE_CPU / 20);
        }
    }
    (events, dispatches, dispatcher)
}

fn fetch(dispatcher: &mut Dispatcher) -> Vec<Dispatch> {
    std::iter::from_fn(|| dispatcher.poll_action()).collect()
}

/// Tells it all events; what it says to each.
fn tell_all(dispatcher: &mut Dispatcher, events: &[ReservationEvent]) -> Vec<Vec<Dispatch>> {
    let say = |event: &ReservationEvent| {
        dispatcher.on_event(event);
        fetch(dispatcher)
    };
    events.iter().map(say).collect()
}

fn saved(dispatcher: &Dispatcher) -> Vec<u8> {
    postcard::to_stdvec(dispatcher).unwrap()
}

fn check_accounts(dispatcher: &Dispatcher) {
    for account in dispatcher.members().filter_map(|member| dispatcher.account(member)) {
        assert!(account.recent.len() <= crate::reservation::RECENT);
        assert!(account.stalled <= account.missed && account.missed <= account.periods);
    }
}

fn any_member() -> impl Strategy<Value = Member> {
    (0..6u32, 0..3u16).prop_map(|(target, index)| Member { target: TargetId(target), index })
}

fn any_event() -> impl Strategy<Value = ReservationEvent> {
    let time = || prop_oneof![any::<u64>(), 0..100 * MS];
    let reading = (time(), any::<bool>(), time());
    let reading = reading.prop_map(|(ran_ns, ready, woken)| Reading { ran_ns, ready, woken: Time(woken) });
    let reservation = (time(), time(), any::<bool>(), prop::option::of(time()));
    let reservation = reservation.prop_map(|(period_ns, slice_ns, hard, phase_ns)| Reservation {
        period_ns,
        slice_ns,
        hard,
        phase_ns,
    });
    let kind = prop_oneof![
        (any_member(), 0..4u16, reservation).prop_map(|(member, cpu, reservation)| {
            ReservationEventKind::Set { member, cpu, reservation, since: None }
        }),
        (any_member(), any::<bool>())
            .prop_map(|(member, paused)| ReservationEventKind::Pause { member, paused }),
        any_member().prop_map(|member| ReservationEventKind::Remove { member }),
        time().prop_map(|wall_offset_ns| ReservationEventKind::Align { wall_offset_ns }),
        time().prop_map(|tolerance_ns| ReservationEventKind::Decide { tolerance_ns }),
    ];
    let readings = prop::collection::vec((any_member(), reading), 0..4);
    (time(), readings, kind).prop_map(|(at, readings, kind)| ReservationEvent {
        at: Time(at),
        readings,
        kind,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_deadline_is_met_if_and_only_if_they_fit(
        periods in prop::collection::vec(prop::sample::select(vec![200u64, 500, 800, 1000, 1600, 2000, 4000]), 1..6),
        weights in prop::collection::vec(1..10u64, 6),
        percent in prop_oneof![Just(100u64), 1..100u64, 103..200u64],
    ) {
        let set = reservations(&periods, &weights, percent);
        // A slice is no longer than its period, also of those that do not fit.
        let set: Vec<(u64, u64)> = set.into_iter().map(|(p, s)| (p, s.min(p))).collect();
        let load: f64 = set.iter().map(|(p, s)| *s as f64 / *p as f64).sum();
        let (mut world, mut dispatcher) = one_cpu(&set);
        // Twice the least common multiple of the periods.
        world.run_until(16 * MS, &mut dispatcher);
        let missed: u64 = (1..).take(set.len()).filter_map(|t| dispatcher.account(member(t))).map(|a| a.missed).sum();
        if load <= 1.0 {
            prop_assert_eq!(missed, 0);
            for (target, (period, slice)) in (1..).zip(&set) {
                prop_assert_eq!(world.actors[&member(target)].ran, 16 * MS / period * slice);
            }
        } else {
            prop_assert!(missed > 0, "{set:?} loads {load}");
        }
    }

    /// One that sleeps and wakes as it likes does not take from one that always wants its slice.
    #[test]
    fn sleepers_harm_nobody(
        periods in prop::collection::vec(prop::sample::select(vec![500u64, 800, 1000, 1600, 2000, 4000]), 2..6),
        weights in prop::collection::vec(1..10u64, 6),
        habits in prop::collection::vec((1_000..900_000u64, 1_000..900_000u64), 5),
    ) {
        let set = reservations(&periods, &weights, 100);
        let (mut world, mut dispatcher) = one_cpu(&set);
        for (target, habit) in (2..).zip(habits) {
            if let Some(actor) = world.actors.get_mut(&member(target)) {
                (actor.habit, actor.work) = (habit, habit.0);
            }
        }
        world.run_until(100 * MS, &mut dispatcher);
        for target in (1..).take(set.len()) {
            let account = dispatcher.account(member(target)).unwrap();
            prop_assert_eq!(account.missed, 0, "{} of {:?}: {:?}", target, set, account.shortfall);
        }
    }

    /// Whatever is asked of it and whatever the clock does: no panic, bounded memory, the same again, and
    /// admission never overbooks.
    #[test]
    fn fuzz_any_sequence(steps in steps()) {
        let (events, dispatches, _) = live(&steps);
        let again = live(&steps);
        prop_assert_eq!((&events, &dispatches), (&again.0, &again.1));
        // Nothing but the events leads to the actions.
        let mut told = Dispatcher::new(OFFSET);
        prop_assert_eq!(dispatches, tell_all(&mut told, &events));
    }

    #[test]
    fn saved_and_loaded_in_the_middle_it_goes_on_as_before(steps in steps(), at in any::<prop::sample::Index>()) {
        let (events, dispatches, last) = live(&steps);
        let middle = at.index(events.len() + 1);
        let mut dispatcher = Dispatcher::new(OFFSET);
        tell_all(&mut dispatcher, &events[..middle]);
        let mut loaded: Dispatcher = postcard::from_bytes(&saved(&dispatcher)).unwrap();
        prop_assert_eq!(loaded.next_due(), dispatcher.next_due());
        prop_assert_eq!(saved(&loaded), saved(&dispatcher));
        prop_assert_eq!(tell_all(&mut loaded, &events[middle..]), &dispatches[middle..]);
        prop_assert_eq!(saved(&loaded), saved(&last));
    }

    /// A state from a damaged or forged file is refused, or does no harm.
    #[test]
    fn fuzz_states(steps in steps(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let (events, _, dispatcher) = live(&steps);
        let mut bytes = saved(&dispatcher);
        for (at, byte) in changes {
            *at.get_mut(&mut bytes) = byte;
        }
        let Ok(mut forged) = postcard::from_bytes::<Dispatcher>(&bytes) else { return Ok(()) };
        tell_all(&mut forged, &events);
        let _ = forged.eligible().count();
        check_accounts(&forged);
    }

    /// Events from a damaged or forged file, which no dispatcher's user would tell it.
    #[test]
    fn fuzz_events(events in prop::collection::vec(any_event(), 1..100)) {
        let (mut one, mut other) = (Dispatcher::new(OFFSET), Dispatcher::new(OFFSET));
        prop_assert_eq!(tell_all(&mut one, &events), tell_all(&mut other, &events));
        let _ = one.eligible().count();
        check_accounts(&one);
        let loaded: Result<Dispatcher, _> = postcard::from_bytes(&saved(&one));
        prop_assert!(loaded.is_ok(), "a state that it came to by events is refused: {:?}", loaded.err());
    }
}
