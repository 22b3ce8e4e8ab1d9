//! Who helps a vCPU that is held up while it serves an event, or an emulator that waits for a vCPU.

use crate::world::{ECHO, NET, THRESHOLD, US, VECTOR, VM, World};
use frontdesk_engine::{Boost, EventKind, Thread, Time};

/// A vCPU that needs long for an event, or that its emulator has wait, may need a lock of one that lost its
/// CPU.
#[test]
fn a_vcpu_that_is_held_up_has_the_others_boosted_that_want_to_run() {
    for asleep in [false, true] {
        let mut world = World::new(4);
        world.learn(0, true);
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
        world.feed(EventKind::Halt { vm: VM, vcpu: 2 });
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(2), runnable: false });
        world.packet();
        world.deliver(true);
        assert_eq!(world.boosted(), [0]);
        if asleep {
            world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: false });
            world.now += 200 * US;
        } else {
            world.now += THRESHOLD / 2;
        }
        world.engine.on_deadline(Time(world.now));
        assert_eq!(world.boosted(), [0, 1, 3], "asleep: {asleep}");
        if asleep {
            world.feed(EventKind::Wake { vm: VM, thread: Thread::Vcpu(0), by: None });
            world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
        }
        world.answer(0);
        assert_eq!(world.boosted(), [], "asleep: {asleep}");
    }
}

/// On the same physical CPU, the one that is held up keeps the other from running for as long as it is
/// boosted, if it waits for what that one has.
#[test]
fn who_helps_on_the_same_cpu_goes_first_but_not_for_long() {
    for (pcpu, level) in [(0, Boost::Multimedia), (1, Boost::Io)] {
        let mut world = World::new(2);
        world.learn(0, true);
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
        world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(1), pcpu });
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
        world.packet();
        world.deliver(true);
        assert_eq!(world.boosts(), [(0, Boost::Io)]);
        world.now += THRESHOLD / 2;
        world.engine.on_deadline(Time(world.now));
        assert_eq!(world.boosts(), [(1, level)]);
        world.now += THRESHOLD / 8;
        world.engine.on_deadline(Time(world.now));
        let over = if pcpu == 0 { vec![(1, Boost::None)] } else { vec![] };
        assert_eq!(world.boosts(), over, "and the one that it helped goes on");
        assert!(world.boosted().contains(&0));
        world.answer(0);
        assert_eq!(world.boosted(), []);
    }
}

/// Both serve: one was woken first and runs on and on, for what the other one has, which is yet to take the
/// device's interrupt and waits for the same physical CPU.
#[test]
fn who_is_yet_to_take_the_interrupt_goes_before_one_that_is_held_up_but_not_for_long() {
    for (pcpu, takes) in [(NET, false), (NET, true), (2, false)] {
        let mut world = World::new(2);
        world.learn(1, true);
        world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(1), pcpu });
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 1, task: ECHO });
        world.feed(EventKind::Halt { vm: VM, vcpu: 1 });
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: false });
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(NET), runnable: true });
        world.packet();
        world.deliver(false);
        world.feed(EventKind::Wake { vm: VM, thread: Thread::Vcpu(1), by: None });
        world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(1), pcpu });
        world.feed(EventKind::Resume { vm: VM, vcpu: 1 });
        assert_eq!(world.boosted(), [0, 1]);
        world.boosts();
        world.now += THRESHOLD / 2;
        world.engine.on_deadline(Time(world.now));
        let ahead = if pcpu == NET { vec![(NET, Boost::Multimedia)] } else { vec![] };
        assert_eq!(world.boosts(), ahead);
        if takes {
            world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
            world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(NET), pcpu });
            world.feed(EventKind::Interrupt { vm: VM, vcpu: NET, vector: VECTOR });
            world.ipi(1);
            assert_eq!(world.boosts(), [(NET, Boost::Io)], "it is handed on");
        }
        world.now += THRESHOLD / 8;
        world.engine.on_deadline(Time(world.now));
        let expected = match (pcpu == NET, takes) {
            (true, true) => vec![(NET, Boost::None)],
            (true, false) => vec![(NET, Boost::Io)],
            (false, _) => vec![],
        };
        assert_eq!(world.boosts(), expected, "on CPU {pcpu}, takes it: {takes}");
        if !takes {
            world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(NET), pcpu: NET });
            world.feed(EventKind::Interrupt { vm: VM, vcpu: NET, vector: VECTOR });
            world.ipi(1);
            world.now += THRESHOLD / 8;
            world.engine.on_deadline(Time(world.now));
        }
        world.answer(1);
        assert_eq!(world.boosted(), [], "on CPU {pcpu}, takes it: {takes}");
    }
}

/// The emulator thread sleeps although there is a packet for it: it waits for a lock that a vCPU without a
/// CPU holds, and that one passes it on to another vCPU, which has no CPU either.
#[test]
fn a_lock_that_the_emulator_waits_for_is_followed_from_vcpu_to_vcpu() {
    let mut world = World::new(4);
    world.learn(0, true);
    let stop = |world: &mut World, vcpu, runnable| {
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(vcpu), runnable });
    };
    stop(&mut world, 1, true);
    stop(&mut world, 2, false);
    stop(&mut world, 3, false);
    world.feed(EventKind::Wake { vm: VM, thread: Thread::Vcpu(3), by: Some(1) });
    world.packet();
    assert_eq!(world.boosts(), [(0, Boost::Io)]);
    world.now += 150 * US;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosts(), [], "it may yet be woken");
    world.now += 50 * US;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosts(), [(3, Boost::Io), (1, Boost::Io)], "first who was woken last");
    world.feed(EventKind::Wake { vm: VM, thread: Thread::Vcpu(2), by: None });
    assert_eq!(world.boosts(), [], "by somebody else");
    stop(&mut world, 2, false);
    world.feed(EventKind::Wake { vm: VM, thread: Thread::Vcpu(2), by: Some(3) });
    assert_eq!(world.boosts(), [(2, Boost::Io)]);
    world.feed(EventKind::Wake { vm: VM, thread: Thread::Emulator(0), by: Some(2) });
    assert_eq!(world.boosted(), [0, 1, 2, 3]);
    world.deliver(true);
    assert_eq!(world.boosted(), [0], "nobody has the lock any more");
    world.answer(0);
    assert_eq!(world.boosted(), []);
}

/// A vhost worker sleeps although there is a packet if the guest has no room for it: it waits for no lock
/// that a vCPU holds.
#[test]
fn a_vhost_worker_that_sleeps_waits_for_no_lock() {
    let mut world = World::new(2);
    world.emulator = Thread::Emulator(1);
    world.learn(0, true);
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
    world.packet();
    world.now += 200 * US;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosted(), [0]);
}

/// The emulator's lock goes from one to the next, and not every hand-over is seen.
#[test]
fn a_vcpu_that_is_held_up_again_is_helped_again() {
    let mut world = World::new(3);
    world.learn(0, true);
    for vcpu in [1, 2] {
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(vcpu), runnable: vcpu == 1 });
    }
    world.packet();
    world.deliver(true);
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: false });
    world.now += 200 * US;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosted(), [0, 1]);
    world.feed(EventKind::Wake { vm: VM, thread: Thread::Vcpu(0), by: Some(1) });
    world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: false });
    world.feed(EventKind::Wake { vm: VM, thread: Thread::Vcpu(2), by: None });
    assert_eq!(world.boosted(), [0, 1]);
    world.now += 200 * US;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosted(), [0, 1, 2]);
}

#[test]
fn an_emulator_that_is_woken_for_its_packet_holds_nobody_up() {
    let mut world = World::new(2);
    world.learn(0, true);
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
    world.packet();
    world.now += 50 * US;
    world.feed(EventKind::Wake { vm: VM, thread: Thread::Emulator(0), by: None });
    world.now += 150 * US;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosted(), [0]);
}

/// One that waits for its emulator for a moment, as they all do, needs no help.
#[test]
fn a_short_sleep_holds_nobody_up() {
    let mut world = World::new(2);
    world.learn(0, true);
    world.packet();
    world.deliver(true);
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: false });
    world.now += 20 * US;
    world.feed(EventKind::Wake { vm: VM, thread: Thread::Vcpu(0), by: None });
    world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
    world.now += 180 * US;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosted(), [0]);
}
