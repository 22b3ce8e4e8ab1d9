//! Guest tasks that are only seen now and then: when the guest leaves for the hypervisor.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod world;

use frontdesk_engine::{Boost, Capabilities, Config, EventKind, TaskId, Time};
use world::{ECHO, HOG, MS, US, VM, World, boost};

/// Between two ticks of the guest's clock, on each of which it leaves.
const TICK: u64 = 4 * MS;
const OTHER_HOG: TaskId = TaskId(0x3000_0000);

/// How a source tells what it sees at an exit.
type Tell = fn(TaskId) -> EventKind;

const SEEN: Tell = |task| EventKind::TaskSeen { vm: VM, vcpu: 0, task };
/// As if what is seen first were a switch.
const SWITCH: Tell = |task| EventKind::TaskSwitch { vm: VM, vcpu: 0, task };

/// The guest computes, and leaves at each tick. If there is another task that computes, they take turns at
/// each.
fn compute(world: &mut World, ticks: u64, hogs: [TaskId; 2], tell: Tell) {
    for tick in 0..ticks {
        world.pass(TICK);
        world.feed(tell(hogs[usize::try_from(tick % 2).unwrap()]));
    }
}

/// A packet, whose interrupt makes the guest leave, and the answer, with which it leaves again.
fn request(world: &mut World, runs: TaskId, tell: Tell) {
    world.packet(7);
    world.deliver();
    world.feed(tell(runs));
    world.pass(200 * US);
    world.feed(tell(ECHO));
}

fn beliefs(hogs: [TaskId; 2], tell: Tell) -> (World, [i32; 3]) {
    let mut world = World::new(Config::default());
    for round in 0..40 {
        request(&mut world, hogs[1], tell);
        compute(&mut world, 10 + round % 3 * 2, hogs, tell);
    }
    let belief = |task| world.engine.belief(VM, task).unwrap_or(0);
    let beliefs = [ECHO, hogs[0], hogs[1]].map(belief);
    (world, beliefs)
}

#[test]
fn who_answers_is_told_from_who_computes() {
    for hogs in [[HOG, HOG], [HOG, OTHER_HOG]] {
        let (_, [echo, first, second]) = beliefs(hogs, SEEN);
        assert!(echo > 20 && first <= 0 && second <= 0, "{echo} {first} {second}");
    }
}

/// The host is a guest itself, or emulated, and loses its CPU for a while just when a task answers.
#[test]
fn time_that_the_host_lost_is_nobodys_run() {
    let belief = |silence_ns| {
        let mut world = World::new(Config::default());
        world.feed(EventKind::World(Capabilities { silence_ns, ..Capabilities::default() }));
        for _ in 0..40 {
            request(&mut world, HOG, SEEN);
            world.pass(6 * MS);
            world.feed(SEEN(ECHO));
            compute(&mut world, 10, [HOG, HOG], SEEN);
        }
        [ECHO, HOG].map(|task| world.engine.belief(VM, task).unwrap_or(0))
    };
    let [echo, hog] = belief(5 * MS);
    assert!(echo > 20 && hog <= 0, "{echo} {hog}");
    // It may have run all the while, for all that is known.
    assert!(belief(0)[0] < 0 && belief(7 * MS)[0] < 0);
}

/// Why the engine has to know: the task that answered would seem to run until the next tick.
#[test]
fn taken_for_switches_what_is_seen_misleads() {
    let (_, [echo, ..]) = beliefs([HOG, HOG], SWITCH);
    assert!(echo < 0, "{echo}");
}

#[test]
fn a_boost_ends_when_another_task_is_seen_or_by_time() {
    let (mut world, _) = beliefs([HOG, HOG], SEEN);
    world.actions();
    request(&mut world, HOG, SEEN);
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    world.feed(SEEN(ECHO));
    assert_eq!(world.actions(), [], "seen again");
    world.pass(TICK);
    world.feed(SEEN(HOG));
    assert_eq!(world.actions(), [boost(Boost::None)]);
    // Nobody leaves the guest any more.
    request(&mut world, HOG, SEEN);
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    world.engine.on_deadline(Time(world.now + 10 * MS));
    assert_eq!(world.actions()[..1], [boost(Boost::None)]);
}

#[test]
fn an_exact_source_may_take_over() {
    let (mut world, [before, ..]) = beliefs([HOG, HOG], SEEN);
    for _ in 0..4 {
        world.request(7, ECHO, 2 * MS);
    }
    let after = world.engine.belief(VM, ECHO).unwrap();
    assert_eq!(after, before - 80, "four long runs, each of them known to be long");
}
