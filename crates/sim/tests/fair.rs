//! Linux group scheduling, behaviour by behaviour.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "helpers of tests")]

mod cycles;

use cycles::{Cycle, Cycles, HOG, MS, Spec, ran};
use frontdesk_engine::Boost;
use frontdesk_sim::{Entity, Group, HostScheduler, Machine, Nanos, Pcpu, PcpuSet, cfs, eevdf};

const BOTH: [fn() -> Box<dyn HostScheduler>; 2] = [eevdf, cfs];

fn on(pcpu: u16) -> PcpuSet {
    [Pcpu(pcpu)].into_iter().collect()
}

fn pinned(pcpu: u16, nice: i8) -> Spec {
    Spec { affinity: on(pcpu), nice, ..Spec::of(HOG) }
}

/// CPU time of entities from now until `time` later, as fractions of it.
fn rates<const N: usize>(machine: &mut Machine, work: &mut Cycles, time: Nanos, of: [u32; N]) -> [f64; N] {
    let before = of.map(|entity| ran(machine, entity));
    machine.run_until(work, machine.now() + time).unwrap();
    let mut after = of.map(|entity| ran(machine, entity)).into_iter().zip(before);
    of.map(|_| after.next().map_or(0.0, |(after, before)| (after - before) as f64 / time as f64))
}

fn assert_near<const N: usize>(found: [f64; N], expected: [f64; N]) {
    let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.01);
    assert!(near, "{found:?}, expected {expected:?}");
}

#[test]
fn a_group_gets_its_share_however_many_run_in_it() {
    for scheduler in BOTH {
        let groups = [(1024, vec![Spec::of(HOG)]), (1024, vec![Spec::of(HOG); 3])];
        let (mut machine, mut work) = Cycles::machine(1, scheduler(), &groups);
        let found = rates(&mut machine, &mut work, 10_000 * MS, [0, 1, 2, 3]);
        assert_near(found, [0.5, 1.0 / 6.0, 1.0 / 6.0, 1.0 / 6.0]);
    }
}

#[test]
fn the_share_of_a_group_goes_where_its_load_is() {
    // Nice 0 and 5 weigh 1024 and 335: each group asks for 3/4 of one pCPU and 1/4 of the other.
    for scheduler in BOTH {
        let groups = [(1024, vec![pinned(0, 0), pinned(1, 5)]), (1024, vec![pinned(0, 5), pinned(1, 0)])];
        let (mut machine, mut work) = Cycles::machine(2, scheduler(), &groups);
        machine.run_until(&mut work, 1_000 * MS).unwrap();
        let part = 1024.0 / (1024.0 + 335.0);
        let found = rates(&mut machine, &mut work, 20_000 * MS, [0, 1, 2, 3]);
        assert_near(found, [part, 1.0 - part, 1.0 - part, part]);
    }
}

#[test]
fn a_load_that_moved_away_is_forgotten() {
    for scheduler in BOTH {
        let moving = Spec { cycle: HOG, ..Spec::of(HOG) };
        let groups =
            [(1024, vec![pinned(0, 0), moving]), (1024, vec![pinned(0, 0)]), (1024, vec![pinned(1, 0); 2])];
        let (mut machine, mut work) = Cycles::machine(2, scheduler(), &groups);
        machine.run_until(&mut work, 1_000 * MS).unwrap();
        machine.set_affinity(Entity(1), on(0)).unwrap();
        machine.run_until(&mut work, 2_000 * MS).unwrap();
        // Both entities of the first group are on pCPU 0 now, and share half of it.
        assert_near(rates(&mut machine, &mut work, 20_000 * MS, [0, 1, 2]), [0.25, 0.25, 0.5]);
    }
}

#[test]
fn shares_change_at_once() {
    for scheduler in BOTH {
        let groups = [(1024, vec![Spec::of(HOG)]), (1024, vec![Spec::of(HOG)])];
        let (mut machine, mut work) = Cycles::machine(1, scheduler(), &groups);
        assert_near(rates(&mut machine, &mut work, 5_000 * MS, [0, 1]), [0.5, 0.5]);
        machine.share(Group(0), 500);
        assert_near(rates(&mut machine, &mut work, 5_000 * MS, [0, 1]), [1.0 / 3.0, 2.0 / 3.0]);
        machine.share(Group(0), 1000);
        assert_near(rates(&mut machine, &mut work, 5_000 * MS, [0, 1]), [0.5, 0.5]);
    }
}

#[test]
fn niceness_counts_inside_a_group_only() {
    for scheduler in BOTH {
        let nice = |nice| Spec { nice, ..Spec::of(HOG) };
        let groups = [(1024, vec![nice(0), nice(5)]), (1024, vec![nice(19)])];
        let (mut machine, mut work) = Cycles::machine(1, scheduler(), &groups);
        let part = 0.5 * 1024.0 / (1024.0 + 335.0);
        assert_near(rates(&mut machine, &mut work, 20_000 * MS, [0, 1, 2]), [part, 0.5 - part, 0.5]);
        machine.set_nice(Entity(1), 0);
        assert_near(rates(&mut machine, &mut work, 20_000 * MS, [0, 1, 2]), [0.25, 0.25, 0.5]);
    }
}

#[test]
fn a_boosted_entity_runs_at_once_and_is_not_charged() {
    for scheduler in BOTH {
        let groups: Vec<_> = (0..4).map(|_| (1024, vec![Spec::of(HOG)])).collect();
        let (mut machine, mut work) = Cycles::machine(1, scheduler(), &groups);
        machine.run_until(&mut work, 1_001 * MS).unwrap();
        let waiting = (0..4).map(Entity).find(|entity| machine.host().running_on(*entity).is_none()).unwrap();
        machine.boost(waiting, Boost::Io);
        machine.run_until(&mut work, 1_001 * MS).unwrap();
        assert_eq!(machine.host().running_on(waiting), Some(Pcpu(0)));
        machine.run_until(&mut work, 1_101 * MS).unwrap();
        assert_eq!(machine.host().running_on(waiting), Some(Pcpu(0)), "no other runs until the boost ends");
        machine.boost(waiting, Boost::None);
        // Real-time run time comes on top of its share, as in the kernel.
        machine.run_until(&mut work, 1_200 * MS).unwrap();
        let found = rates(&mut machine, &mut work, 8_000 * MS, [0, 1, 2, 3]);
        assert_near(found, [0.25; 4]);
    }
}

#[test]
fn a_boosted_emulator_thread_comes_before_the_boosted_vcpu() {
    let vm = vec![Spec::of(HOG), Spec { emulator: true, ..Spec::of(HOG) }];
    let (mut machine, mut work) = Cycles::machine(1, eevdf(), &[(1024, vm), (1024, vec![Spec::of(HOG)])]);
    machine.boost(Entity(0), Boost::Io);
    machine.run_until(&mut work, 5 * MS).unwrap();
    assert_eq!(machine.host().current(Pcpu(0)), Some(Entity(0)));
    machine.boost(Entity(1), Boost::Io);
    machine.run_until(&mut work, 5 * MS).unwrap();
    assert_eq!(machine.host().current(Pcpu(0)), Some(Entity(1)));
    machine.boost(Entity(1), Boost::None);
    machine.run_until(&mut work, 5 * MS).unwrap();
    assert_eq!(machine.host().current(Pcpu(0)), Some(Entity(0)));
}

#[test]
fn a_boosted_entity_that_would_wait_for_another_goes_elsewhere() {
    let (mut machine, mut work) =
        Cycles::machine(2, eevdf(), &[(1024, vec![Spec::of(HOG); 4]), (1024, vec![pinned(0, 0)])]);
    machine.run_until(&mut work, 50 * MS).unwrap();
    for entity in [0, 1] {
        machine.boost(Entity(entity), Boost::Io);
    }
    machine.run_until(&mut work, 50 * MS).unwrap();
    let places = [0, 1].map(|entity| machine.host().running_on(Entity(entity)));
    assert!(places.iter().all(Option::is_some) && places[0] != places[1], "{places:?}");
}

#[test]
fn preemption_of_one_that_computes_waits_for_a_tick() {
    // What two that compute get in turns is whole ticks, or what is left of one.
    let groups = [(1024, vec![Spec::of(HOG)]), (1024, vec![Spec::of(HOG)])];
    let (mut machine, mut work) =
        Cycles::machine(2, eevdf(), &groups.map(|(weight, _)| (weight, vec![pinned(0, 0)])));
    let mut last = 0;
    for step in 1..200u64 {
        machine.run_until(&mut work, step * 4 * MS).unwrap();
        let now = ran(&machine, 0) / MS;
        assert!(now - last == 0 || now - last == 4, "{} ms at tick {step}", now - last);
        last = now;
    }
}

#[test]
fn a_sleeper_preempts_but_one_beside_a_hog_of_its_own_waits() {
    // The wait of a wake-up is what the sleeper does not get of the CPU time that it wants.
    let wants = Cycle { compute: MS / 4, sleep: 10 * MS };
    let others = || (0..5).map(|_| (1024, vec![Spec::of(HOG)]));
    let used = |own: Vec<Spec>| {
        let groups: Vec<_> = std::iter::once((1024, own)).chain(others()).collect();
        let (mut machine, mut work) = Cycles::machine(1, eevdf(), &groups);
        machine.run_until(&mut work, 30_000 * MS).unwrap();
        ran(&machine, 0)
    };
    let (alone, beside) = (used(vec![Spec::of(wants)]), used(vec![Spec::of(wants), Spec::of(HOG)]));
    assert!(beside * 4 < alone * 3, "alone {alone} ns, beside a hog {beside} ns");
}

#[test]
fn a_group_that_keeps_waking_shortly_waits_less() {
    // Traced in a VM that idles but for its emulator's clock: what the group is owed when it falls asleep it
    // still is when it wakes, what it owes is forgiven, and so each short run leaves it better off. With that
    // it keeps the CPU for longer when it needs it.
    let request = Spec::of(Cycle { compute: 2 * MS, sleep: 20 * MS });
    let clock = Spec::of(Cycle { compute: MS / 10, sleep: 4 * MS });
    let used = |own: Vec<Spec>| {
        let others = (0..5).map(|_| (1024, vec![Spec::of(HOG)]));
        let groups: Vec<_> = std::iter::once((1024, own)).chain(others).collect();
        let (mut machine, mut work) = Cycles::machine(1, eevdf(), &groups);
        machine.run_until(&mut work, 60_000 * MS).unwrap();
        ran(&machine, 0)
    };
    let (alone, beside) = (used(vec![request]), used(vec![request, clock]));
    assert!(beside * 10 > alone * 11, "alone {alone} ns, beside a clock {beside} ns");
}
