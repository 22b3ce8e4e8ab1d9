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
            dispatcher.decide(Time(self.now), 0, self);
        }
    }
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
        dispatcher.set(Time(0), member(target), 0, reservation, &world);
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
    let cpus = Admission::new(&[0, 1], 0).admit(TargetId(1), reservation, 2).unwrap();
    for (index, cpu) in (0..).zip(cpus) {
        let vcpu = Member { target: TargetId(1), index };
        world.actors.insert(vcpu, Actor::default());
        dispatcher.set(Time(0), vcpu, cpu, reservation, &world);
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
    dispatcher.set(Time(world.now), member(1), 0, faster, &world);
    world.run_until(520 * MS, &mut dispatcher);
    assert_eq!(world.actors[&member(1)].ran_from[1..], [(500 * MS, 505 * MS), (510 * MS, 515 * MS)]);
    dispatcher.pause(Time(world.now), member(1), true, &world);
    world.run_until(540 * MS, &mut dispatcher);
    dispatcher.pause(Time(world.now), member(1), false, &world);
    world.run_until(550 * MS, &mut dispatcher);
    let account = dispatcher.remove(member(1)).unwrap();
    assert_eq!((account.periods, account.missed), (5, 0), "nothing is missed in a pause: {account:?}");
    assert_eq!(account.reserved_ns, 50 * MS + 25 * MS);
    assert_eq!(account.used_ns, 100 * MS + 15 * MS);
    assert_eq!(dispatcher.next_due(), None);
}

#[test]
fn who_has_no_limit_gets_what_nobody_wants() {
    let (mut world, mut dispatcher) = one_cpu(&[(10 * MS, 2 * MS), (10 * MS, 3 * MS)]);
    let soft = Reservation { period_ns: 10 * MS, slice_ns: 3 * MS, hard: false, phase_ns: Some(0) };
    dispatcher.set(Time(0), member(2), 0, soft, &world);
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
    dispatcher.decide(Time(world.now), 0, &world);
    let account = dispatcher.account(member(1)).unwrap();
    assert_eq!((account.periods, account.missed, account.stalled), (4, 2, 2), "{account:?}");
    world.run_until(60 * MS, &mut dispatcher);
    let account = dispatcher.account(member(1)).unwrap();
    // 5 of the 8 ms were left to the period in which it went on.
    assert_eq!((account.periods, account.missed, account.stalled), (6, 3, 3), "{account:?}");
    assert_eq!(account.shortfall.buckets[12], 1, "3 ms are between 2.048 and 4.096");
}

/// Two on one CPU: the first always wants its 9 of 10 ms, the second wants 1 of 10 ms from 9.5 ms on.
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
    dispatcher.decide(Time(1000), 0, &world);
    world.pass_until(10 * MS);
    dispatcher.decide(Time(10 * MS), 0, &world);
    let account = dispatcher.account(member(1)).unwrap();
    assert_eq!((account.missed, account.shortfall.max_ns), (1, 2 * MS - 1000), "{account:?}");
}

#[test]
fn a_pause_in_the_middle_of_a_period_is_no_miss() {
    let (mut world, mut dispatcher) = one_cpu(&[(10 * MS, 8 * MS), (10 * MS, 2 * MS)]);
    for (at, paused) in [(3, true), (5, false), (24, true), (39, false)] {
        world.run_until(at * MS, &mut dispatcher);
        dispatcher.pause(Time(at * MS), member(1), paused, &world);
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

    /// Whatever is asked of it and whatever the clock does: no panic, bounded memory, the same again, and admission never overbooks.
    #[test]
    fn fuzz_any_sequence(
        steps in prop::collection::vec((0..6u8, 0..5u32, 0..5u64, any::<u64>(), any::<u64>(), any::<bool>()), 1..200),
    ) {
        let run = || {
            let (mut world, mut dispatcher) = (World::default(), Dispatcher::new(77));
            let mut admission = Admission::new(&[0, 1, 2], WHOLE_CPU / 20);
            let mut told = Vec::new();
            for (what, target, jump, a, b, flag) in &steps {
                let id = TargetId(*target);
                let now = Time(if *jump == 0 { *a } else { world.now.saturating_add(b % 10 * MS) });
                world.now = world.now.max(now.0);
                let (period_ns, slice_ns) = if *flag { (a % (20 * MS), b % (10 * MS)) } else { (*a, *b) };
                match what {
                    0 | 1 => {
                        let members = usize::try_from(b % 4).unwrap();
                        let phase_ns = flag.then_some(a % 7 * MS);
                        let wanted = Reservation { period_ns, slice_ns, hard: *flag, phase_ns };
                        match admission.admit(id, wanted, members) {
                            Ok(cpus) => for (index, cpu) in (0..).zip(cpus) {
                                let member = Member { target: id, index };
                                world.actors.entry(member).or_default();
                                dispatcher.set(now, member, cpu, wanted, &world);
                            },
                            Err(AdmissionError::Infeasible(refusal)) => assert!(!refusal.to_string().is_empty()),
                            Err(_) => {}
                        }
                    }
                    2 => {
                        admission.release(id);
                        (0..4).for_each(|index| drop(dispatcher.remove(Member { target: id, index })));
                    }
                    3 => dispatcher.pause(now, Member { target: id, index: 0 }, *flag, &world),
                    4 => dispatcher.align(*b),
                    _ => {
                        if let Some(actor) = world.actors.get_mut(&Member { target: id, index: 0 }) {
                            actor.ran = actor.ran.saturating_add(b % (9 * MS));
                            actor.woken = if *flag { world.now } else { *a };
                        }
                        dispatcher.decide(now, a % 20_000, &world);
                    }
                }
                told.extend(std::iter::from_fn(|| dispatcher.poll_action()));
                let _ = dispatcher.next_due();
                for account in (0..5).filter_map(|target| dispatcher.account(member(target))) {
                    assert!(account.recent.len() <= crate::reservation::RECENT);
                    assert!(account.stalled <= account.missed && account.missed <= account.periods);
                }
                for room in admission.rooms() {
                    assert!(room.free <= WHOLE_CPU - WHOLE_CPU / 20);
                }
            }
            told
        };
        prop_assert_eq!(run(), run());
    }
}
