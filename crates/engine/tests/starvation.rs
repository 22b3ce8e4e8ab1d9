//! Turns for threads that the host's scheduler has forgotten.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod world;

use frontdesk_engine::{
    ActionKind, Boost, BoostTarget, Capabilities, Config, EventKind, Standing, Thread, Time, VmId, VmPolicy,
};
use std::time::Duration;
use world::{MS, VM, World};

const OTHER: VmId = VmId(2);

/// Another VM computes on the physical CPU that this one's vCPU wants.
fn forgotten(config: Config, capabilities: Capabilities) -> World {
    let mut world = World::new(config);
    world.feed(EventKind::World(capabilities));
    world.feed(EventKind::VmAdded { vm: OTHER, vcpus: 1, weight: 1024 });
    stop(&mut world, VM);
    run(&mut world, OTHER);
    world
}

fn run(world: &mut World, vm: VmId) {
    world.feed(EventKind::Run { vm, thread: Thread::Vcpu(0), pcpu: 0 });
}

fn stop(world: &mut World, vm: VmId) {
    world.feed(EventKind::Stop { vm, thread: Thread::Vcpu(0), runnable: true });
}

/// The boosts of the VM and their ends in so many milliseconds, each with the millisecond. A host that hears
/// of one lets it run, and after that whoever ran before.
fn turns(world: &mut World, millis: u64) -> Vec<(u64, Boost)> {
    let (begin, mut turns) = (world.now, Vec::new());
    while world.now < begin + millis * MS {
        world.pass(MS);
        while world.engine.next_deadline().is_some_and(|due| due.0 <= world.now) {
            world.engine.on_deadline(Time(world.now));
        }
        for action in world.actions() {
            let ActionKind::Boost { vm: VM, target: BoostTarget::Vcpu(0), level } = action else { continue };
            turns.push(((world.now - begin) / MS, level));
            let (next, last) = if level == Boost::None { (OTHER, VM) } else { (VM, OTHER) };
            stop(world, last);
            run(world, next);
        }
    }
    turns
}

#[test]
fn who_is_forgotten_has_turns_until_it_gets_one_by_itself() {
    let mut world = forgotten(Config::default(), Capabilities::default());
    let (on, off) = (Boost::Io, Boost::None);
    assert_eq!(turns(&mut world, 145), [(100, on), (110, off), (120, on), (130, off), (140, on)]);
    assert_eq!(turns(&mut world, 10), [(5, off)]);
    let starvation = world.engine.explain(VM).unwrap().starvation.unwrap();
    assert_eq!((starvation.turns, starvation.longest_wait_ns), (3, 140 * MS));
    assert_eq!(starvation.boosted_ns, 30 * MS);
    stop(&mut world, OTHER);
    run(&mut world, VM);
    world.pass(3 * MS);
    stop(&mut world, VM);
    run(&mut world, OTHER);
    assert_eq!(turns(&mut world, 99), [], "it has waited no longer than anybody");
    assert_eq!(turns(&mut world, 5).first(), Some(&(1, on)));
}

/// As long as those that the scheduler itself gives, and as many.
#[test]
fn a_turn_is_as_long_as_a_slice() {
    let slice = Capabilities { slice_ns: 3 * MS, ..Capabilities::default() };
    let mut world = forgotten(Config::default(), slice);
    let (on, off) = (Boost::Io, Boost::None);
    assert_eq!(turns(&mut world, 110), [(100, on), (103, off), (106, on), (109, off)]);
}

/// Nobody waits: there is nothing to look at.
#[test]
fn who_sleeps_is_not_forgotten() {
    let mut world = forgotten(Config::default(), Capabilities::default());
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: false });
    assert_eq!(turns(&mut world, 300), []);
    assert_eq!(world.engine.next_deadline(), None);
}

#[test]
fn who_waits_rightly_has_no_turns() {
    let none = |what: &str, config: Config, capabilities: Capabilities, and: &dyn Fn(&mut World)| {
        let mut world = forgotten(config, capabilities);
        and(&mut world);
        assert_eq!(turns(&mut world, 200), [], "{what}");
    };
    let (usual, world) = (Config::default, Capabilities::default);
    let mut off = usual();
    off.ledger.longest_wait = Duration::ZERO;
    none("turned off", off, world(), &|_| ());
    none("only observed", usual(), Capabilities { acts: false, ..world() }, &|_| ());
    none("by our scheduler", usual(), Capabilities { charges_boosts: true, ..world() }, &|_| ());
    // Two of them, four rounds of 30 ms.
    none("with long slices", usual(), Capabilities { slice_ns: 30 * MS, ..world() }, &|_| ());
    let sliced = || Capabilities { slice_ns: 3 * MS, ..world() };
    // Four rounds of 51 ms.
    none("beside one with sixteen times its weight", usual(), sliced(), &|world| {
        world.feed(EventKind::Weight { vm: OTHER, weight: 16 * 1024 });
    });
    none("a slow vCPU", usual(), world(), &|world| {
        world.feed(EventKind::VcpuWeight { vm: VM, vcpu: 0, permille: 333 });
    });
    none("by a limit", usual(), world(), &|world| world.feed(EventKind::Limited { vm: VM, limited: true }));
    none("with a reservation", usual(), world(), &|world| {
        world.feed(EventKind::Standing { vm: VM, standing: Standing::Reserved });
    });
    none("paused", usual(), world(), &|world| world.feed(EventKind::VmPaused { vm: VM }));
    none("excepted", usual(), world(), &|world| {
        world.engine.configure_vm(VM, VmPolicy { off: true, ..VmPolicy::default() }).unwrap();
    });
}

/// Turns change when a VM runs, not how much: who has had more than its share repays that first.
#[test]
fn who_has_had_its_share_has_no_turns() {
    let mut world = forgotten(Config::default(), Capabilities::default());
    // It has been boosted for its server for four seconds, alone on the CPU that both want.
    run(&mut world, VM);
    stop(&mut world, OTHER);
    world.learn_echo();
    for _ in 0..400 {
        world.packet(7);
        world.deliver();
        world.handle(world::ECHO, 400_000);
        world.pass(9 * MS);
        while world.engine.next_deadline().is_some_and(|due| due.0 <= world.now) {
            world.engine.on_deadline(Time(world.now));
        }
    }
    world.actions();
    let debt = |world: &World| world.engine.explain(VM).unwrap().debt_ns;
    assert!(debt(&world) > 100_000_000, "{}", debt(&world));
    stop(&mut world, VM);
    run(&mut world, OTHER);
    assert_eq!(turns(&mut world, 150), []);
    assert!(debt(&world) > 25_000_000, "{}", debt(&world));
}
