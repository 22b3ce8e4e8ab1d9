//! What follows from the facts that a world states about itself and its VMs.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod world;

use frontdesk_engine::{
    ActionKind, Boost, Capabilities, Config, EventKind, Protocol, Reason, Standing, TaskId, Thread, Time,
    VmId,
};
use std::time::Duration;
use world::{ECHO, HOG, MS, US, VM, World, boost};

const OTHER: VmId = VmId(2);

/// A VM that has learnt its server, beside another one that only computes, on one physical CPU.
fn beside(capabilities: Capabilities) -> World {
    let mut config = Config::default();
    // It wants to run all the time, and is not let.
    config.ledger.longest_wait = Duration::ZERO;
    beside_with(config, capabilities)
}

fn beside_with(config: Config, capabilities: Capabilities) -> World {
    let mut world = World::new(config);
    world.feed(EventKind::World(capabilities));
    world.feed(EventKind::VmAdded { vm: OTHER, vcpus: 1, weight: 1024 });
    world.feed(EventKind::TaskSwitch { vm: OTHER, vcpu: 0, task: TaskId(9) });
    world.feed(EventKind::Run { vm: OTHER, thread: Thread::Vcpu(0), pcpu: 0 });
    world.feed(EventKind::Stop { vm: OTHER, thread: Thread::Vcpu(0), runnable: true });
    world.learn_echo();
    world
}

/// Whoever is not boosted, because the budget is used up, does not wait for what the others were given as
/// well: the VM has its ordinary share from then on, and repays when nobody waits.
#[test]
fn who_waits_without_a_boost_is_not_kept_waiting_by_what_boosts_gave() {
    let mut config = Config::default();
    config.ledger.longest_wait = Duration::ZERO;
    config.tavs.pb_ratio = 0.02;
    let mut world = beside_with(config, Capabilities::default());
    let (mut share, mut postponed, mut refused) = (1000, 0, 0);
    for _ in 0..200 {
        let settle = |world: &mut World, share: &mut u32| {
            while let Some(due) = world.engine.next_deadline().filter(|due| due.0 <= world.now) {
                world.engine.on_deadline(due);
            }
            let own = |action: ActionKind| match action {
                ActionKind::Share { vm: VM, permille } => Some(permille),
                _ => None,
            };
            *share = world.actions().into_iter().filter_map(own).next_back().unwrap_or(*share);
        };
        // Each has about half of the CPU.
        let turn = |world: &mut World, from, to| {
            world.feed(EventKind::Stop { vm: from, thread: Thread::Vcpu(0), runnable: true });
            world.feed(EventKind::Run { vm: to, thread: Thread::Vcpu(0), pcpu: 0 });
        };
        turn(&mut world, VM, OTHER);
        world.pass(4500 * US);
        turn(&mut world, OTHER, VM);
        world.pass(4500 * US);
        settle(&mut world, &mut share);
        let before = share;
        world.packet(7);
        settle(&mut world, &mut share);
        if world.reason() == Some(Reason::BudgetSpent) {
            refused += 1;
            postponed += u32::from(before < 1000);
            assert!(share >= 1000, "{before} {share}");
        }
        world.deliver();
        world.handle(ECHO, 400 * US);
        world.feed(EventKind::Reply { vm: VM, protocol: Protocol::Tcp, port: 7 });
    }
    // In between it does repay.
    assert!(refused > 20 && postponed > 2, "{refused} {postponed}");
}

/// A second in which the VM is asked every 10 ms and uses the CPU alone although the other one wants it.
fn greedy(world: &mut World) -> Vec<ActionKind> {
    greedy_while(world, None)
}

/// The same, while something else happens every 10 ms.
fn greedy_while(world: &mut World, happens: Option<EventKind>) -> Vec<ActionKind> {
    for _ in 0..100 {
        world.packet(7);
        world.deliver();
        world.handle(ECHO, 400 * US);
        world.pass(9 * MS);
        happens.into_iter().for_each(|kind| world.feed(kind));
        while let Some(due) = world.engine.next_deadline().filter(|due| due.0 <= world.now) {
            world.engine.on_deadline(due);
        }
    }
    world.actions()
}

fn stand(world: &mut World, standing: Standing) {
    world.feed(EventKind::Standing { vm: VM, standing });
}

fn boosts(actions: &[ActionKind]) -> usize {
    actions.iter().filter(|action| **action == boost(Boost::Io)).count()
}

fn shares(actions: &[ActionKind]) -> Vec<u32> {
    let share = |action: &ActionKind| match action {
        ActionKind::Share { permille, .. } => Some(*permille),
        _ => None,
    };
    actions.iter().filter_map(share).collect()
}

#[test]
fn a_world_that_does_not_act_is_asked_for_nothing_and_told_what_would_have_boosted() {
    let mut world = beside(Capabilities { acts: false, ..Capabilities::default() });
    assert_eq!(greedy(&mut world), []);
    let recent = world.engine.recent(VM, Time(world.now)).unwrap();
    let outcomes = recent.packets[0].outcomes;
    assert_eq!((outcomes.boosted, world.reason()), (0, Some(Reason::Observed)));
    assert!(outcomes.observed >= 100, "{outcomes:?}");
    // What would not have boosted is told as in any world.
    world.packet(9);
    assert_eq!(world.reason(), Some(Reason::NotCorrelated));
}

#[test]
fn a_world_that_begins_to_act_boosts_at_once_and_one_that_ends_takes_all_back() {
    let mut world = beside(Capabilities { acts: false, ..Capabilities::default() });
    world.feed(EventKind::World(Capabilities::default()));
    let actions = greedy(&mut world);
    assert!(
        boosts(&actions) > 10 && shares(&actions).last().is_some_and(|share| *share < 1000),
        "{actions:?}"
    );
    world.packet(7);
    world.actions();
    world.feed(EventKind::World(Capabilities { acts: false, ..Capabilities::default() }));
    let actions = world.actions();
    assert_eq!(actions[..2], [boost(Boost::None), ActionKind::Share { vm: VM, permille: 1000 }]);
    // Who got less beside it had been given a larger share.
    let ordinary = |action: &ActionKind| matches!(action, ActionKind::Share { permille: 1000, .. });
    assert!(actions[2..].iter().all(ordinary), "{actions:?}");
    assert_eq!(world.engine.next_deadline(), None);
}

fn is_raised(action: &ActionKind) -> bool {
    matches!(action, ActionKind::Share { vm: OTHER, permille } if *permille > 1000)
}

/// What a VM runs in threads that nobody hears of one by one counts as its vCPUs' time does: who computes
/// with these all the time is owed nothing.
#[test]
fn what_other_threads_run_is_settled() {
    let others = EventKind::OthersRan { vm: OTHER, pcpu: 0, ran_ns: 9 * MS, waited_ns: 0 };
    for (happens, is_owed) in [(None, true), (Some(others), false)] {
        let mut world = beside(Capabilities::default());
        let actions = greedy_while(&mut world, happens);
        assert_eq!(actions.iter().any(is_raised), is_owed, "{:?}", shares(&actions));
        let ran = if is_owed { 0 } else { 900 * MS };
        assert_eq!(world.engine.explain(OTHER).unwrap().emulator_ran_ns, ran);
    }
}

/// Who computes in such threads is owed what others get beyond their share, as far as they wait for it.
#[test]
fn what_other_threads_wait_for_is_wanted() {
    for (waited_ns, is_owed) in [(0, false), (8 * MS, true)] {
        let mut world = beside(Capabilities::default());
        world.feed(EventKind::Run { vm: OTHER, thread: Thread::Vcpu(0), pcpu: 0 });
        world.feed(EventKind::Stop { vm: OTHER, thread: Thread::Vcpu(0), runnable: false });
        let others = EventKind::OthersRan { vm: OTHER, pcpu: 0, ran_ns: MS, waited_ns };
        let actions = greedy_while(&mut world, Some(others));
        assert_eq!(actions.iter().any(is_raised), is_owed, "{:?}", shares(&actions));
    }
}

/// What a VM may not have it is not owed.
#[test]
fn who_is_limited_is_owed_nothing() {
    for limited in [false, true] {
        let mut world = beside(Capabilities::default());
        world.feed(EventKind::Limited { vm: OTHER, limited });
        let actions = greedy(&mut world);
        assert_eq!(actions.iter().any(is_raised), !limited, "{:?}", shares(&actions));
        assert_eq!(world.engine.explain(OTHER).unwrap().debt_ns < 0, !limited);
    }
}

/// A VM that has a physical CPU to itself is none of those that share another one because a thread of theirs
/// looked in there; it is if they compute there.
#[test]
fn who_only_looks_in_shares_no_cpu() {
    const APART: VmId = VmId(3);
    for (ran_ns, shares_it) in [(MS / 2, false), (2 * MS, true)] {
        let mut world = beside(Capabilities::default());
        world.feed(EventKind::VmAdded { vm: APART, vcpus: 1, weight: 1024 });
        world.feed(EventKind::Run { vm: APART, thread: Thread::Vcpu(0), pcpu: 1 });
        let others = EventKind::OthersRan { vm: OTHER, pcpu: 1, ran_ns, waited_ns: 0 };
        let actions = greedy_while(&mut world, Some(others));
        let lowered = |action: &ActionKind| matches!(action, ActionKind::Share { vm: APART, .. });
        assert_eq!(actions.iter().any(lowered), shares_it, "{:?}", shares(&actions));
    }
}

#[test]
fn an_observed_vm_and_one_with_a_reservation_are_asked_for_nothing() {
    for (standing, reason) in [(Standing::Observed, Reason::Observed), (Standing::Reserved, Reason::Reserved)]
    {
        let mut world = beside(Capabilities::default());
        assert!(shares(&greedy(&mut world)).last().is_some_and(|share| *share < 1000));
        world.packet(7);
        world.actions();
        stand(&mut world, standing);
        assert_eq!(world.actions(), [boost(Boost::None), ActionKind::Share { vm: VM, permille: 1000 }]);
        assert_eq!(greedy(&mut world), []);
        let explain = world.engine.explain(VM).unwrap();
        assert_eq!((explain.standing, explain.share_permille), (standing, 1000));
        assert_eq!(world.reason(), Some(reason));
        stand(&mut world, Standing::Acting);
        assert!(boosts(&greedy(&mut world)) > 10, "it knows its tasks all the same");
    }
}

/// What a VM gets by its reservation is not the ordinary scheduler's, and takes no part in what is fair
/// there.
#[test]
fn what_has_a_reservation_is_no_measure_for_the_others() {
    for (standing, owes) in [(Standing::Acting, true), (Standing::Reserved, false)] {
        let mut world = beside(Capabilities::default());
        world.feed(EventKind::Standing { vm: OTHER, standing });
        let actions = greedy(&mut world);
        assert!(boosts(&actions) > 10);
        assert_eq!(shares(&actions).iter().any(|share| *share < 1000), owes);
    }
}

#[test]
fn where_boosts_are_charged_nothing_is_taken_back() {
    let mut world = beside(Capabilities { charges_boosts: true, ..Capabilities::default() });
    let actions = greedy(&mut world);
    assert!(boosts(&actions) > 10);
    assert_eq!(shares(&actions), []);
    // The kernel ejects the scheduler that did so.
    world.packet(7);
    world.actions();
    world.feed(EventKind::World(Capabilities::default()));
    assert_eq!(world.actions(), [boost(Boost::None)]);
    assert!(shares(&greedy(&mut world)).last().is_some_and(|share| *share < 1000));
}

#[test]
fn boosts_stay_within_what_the_world_has_of_real_time() {
    let mut config = Config::default();
    config.tavs.pb_ratio = 1.0;
    for (realtime_permille, all) in [(1000, true), (20, false), (0, false)] {
        let mut world = World::new(config.clone());
        world.feed(EventKind::World(Capabilities { realtime_permille, ..Capabilities::default() }));
        world.learn_echo();
        world.pass(1000 * MS);
        let before = world.engine.explain(VM).unwrap().vcpus[0].boosted_ns;
        let boosted = boosts(&greedy(&mut world));
        let used = world.engine.explain(VM).unwrap().vcpus[0].boosted_ns - before;
        assert_eq!(boosted == 100, all, "{realtime_permille}: {boosted}");
        // A burst of a quarter of a second's worth, and one boost beyond.
        let most = u64::from(realtime_permille) * MS * 5 / 4 + MS;
        assert!(all || used <= most, "{realtime_permille}: {used} ns of {most}");
        let outcomes = world.engine.recent(VM, Time(world.now)).unwrap().packets[0].outcomes;
        assert_eq!(outcomes.limit_reached > 0, !all);
        assert_eq!(boosted == 0, realtime_permille == 0);
    }
}

#[test]
fn a_vm_added_anew_stands_as_any_other() {
    let mut world = beside(Capabilities::default());
    stand(&mut world, Standing::Reserved);
    world.feed(EventKind::VmAdded { vm: VM, vcpus: 1, weight: 1024 });
    world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    world.pass(100 * MS);
    world.learn_echo();
    world.packet(7);
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    let unknown = world.engine.troubles().unknown;
    world.feed(EventKind::Standing { vm: VmId(77), standing: Standing::Reserved });
    assert_eq!(world.engine.troubles().unknown, unknown + 1);
}

#[test]
fn the_defaults_hold_where_everything_takes_twenty_times_as_long() {
    assert_eq!(Config::default().dilated(20.0).validate(), Ok(()));
}
