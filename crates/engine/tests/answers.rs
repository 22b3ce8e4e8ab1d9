//! How long a boost lasts: until its event is answered, and no longer than that takes.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod world;

use frontdesk_engine::{Boost, Config, EventKind, TaskId, Thread, Time};
use world::{ECHO, HOG, MS, US, VM, World, boost};

#[test]
fn a_boost_that_nobody_answers_ends_by_time_alone() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.packet(7);
    let deadline = world.engine.next_deadline().unwrap();
    assert!(deadline <= Time(world.now + 10 * MS));
    world.engine.on_deadline(Time(world.now + 10 * MS));
    assert_eq!(world.actions()[..2], [boost(Boost::Io), boost(Boost::None)]);
    assert_eq!(world.engine.explain(VM).unwrap().vcpus[0].expired, 1);
}

/// The guest changes tasks for reasons of its own before it hears of the event.
#[test]
fn a_boost_outlasts_switches_until_the_event_is_delivered() {
    let other = TaskId(0x3000_0000);
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.actions();
    world.packet(7);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: other });
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    world.deliver();
    world.handle(ECHO, 100 * US);
    assert_eq!(world.actions(), [boost(Boost::None)]);
    // A read: told by the emulator thread, too.
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(EventKind::BlockRead { vm: VM, request: 1 });
    world.feed(EventKind::BlockPending { vm: VM });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    world.feed(EventKind::BlockDone { vm: VM, request: 1 });
    world.handle(ECHO, 100 * US);
    assert_eq!(world.actions(), [boost(Boost::None)]);
}

/// A fast disk: the read ends while the guest is still about to put the task that asked for it to sleep.
#[test]
fn a_read_that_ends_at_once_is_a_sleep_and_a_wake_up() {
    let emulator = Thread::Emulator(0);
    let mut world = World::new(Config::default());
    world.feed(EventKind::Run { vm: VM, thread: emulator, pcpu: 1 });
    world.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
    let read = |world: &mut World| {
        world.feed(EventKind::Wake { vm: VM, thread: emulator, by: Some(0) });
        world.feed(EventKind::BlockRead { vm: VM, request: 1 });
        world.feed(EventKind::BlockDone { vm: VM, request: 1 });
        world.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
    };
    // The reader never sleeps, and in all runs for long.
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    for _ in 0..20 {
        world.pass(300 * US);
        read(&mut world);
    }
    assert!(world.engine.belief(VM, ECHO).is_some_and(|belief| belief > 20));
    world.pass(300 * US);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    world.pass(6 * MS);
    world.engine.on_deadline(Time(world.now));
    world.pass(3000 * MS);
    world.actions();
    // Now it does go to sleep, but is woken at once.
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    read(&mut world);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    assert_eq!(world.actions(), [boost(Boost::Io)], "the reader is still to wake");
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(EventKind::Wake { vm: VM, thread: emulator, by: Some(0) });
    world.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    assert_eq!(world.actions(), [boost(Boost::None)]);
}

#[test]
fn a_boost_in_which_nobody_preempts_ends_when_the_vcpu_ran_for_the_patience() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.actions();
    world.packet(7);
    world.deliver();
    // Another boosted VM has the CPU.
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: true });
    world.pass(MS);
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.actions(), [boost(Boost::Io)], "waiting does not count");
    world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
    world.pass(5900 * US);
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.actions(), []);
    world.pass(100 * US);
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.actions(), [boost(Boost::None)]);
}

#[test]
fn a_boost_that_waits_for_a_cpu_with_next_to_nothing_left_is_looked_at_now_and_then() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.packet(7);
    world.deliver();
    world.pass(6 * MS - 1);
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: true });
    let mut looks = 0;
    while let Some(deadline) = world.engine.next_deadline().filter(|_| boosted(&world)) {
        world.engine.on_deadline(deadline);
        looks += 1;
        assert!(looks < 1000);
    }
    assert!(looks > 10, "{looks}");
}

fn boosted(world: &World) -> bool {
    world.engine.explain(VM).unwrap().vcpus[0].boosted
}

/// The guest's scheduler lets the hog finish its tick before the woken task runs, as Linux has done since
/// 6.6.
#[test]
fn a_boost_outlasts_the_tick_that_the_guest_finishes_first() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.actions();
    for _ in 0..40 {
        world.packet(7);
        world.deliver();
        world.pass(3900 * US);
        world.engine.on_deadline(Time(world.now));
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
        assert_eq!(world.actions(), [boost(Boost::Io)]);
        world.pass(200 * US);
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
        assert_eq!(world.actions(), [boost(Boost::None)]);
        world.pass(95 * MS);
    }
    // Learnt from that guest: half as much again as its largest delay.
    world.packet(7);
    world.deliver();
    world.pass(5800 * US);
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    world.pass(100 * US);
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.actions(), [boost(Boost::None)]);
}

/// The guest rings a doorbell for the answer: until then its task may have been seen too early, or was itself
/// preempted.
#[test]
fn a_boost_lasts_until_the_doorbell_of_a_guest_that_rings() {
    let doorbell = EventKind::Wake { vm: VM, thread: Thread::Emulator(0), by: Some(0) };
    let sleeps = EventKind::Stop { vm: VM, thread: Thread::Emulator(0), runnable: false };
    let mut world = World::new(Config::default());
    world.learn_echo();
    for _ in 0..3 {
        world.packet(7);
        world.deliver();
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
        world.feed(doorbell);
        world.feed(sleeps);
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
        world.pass(50 * MS);
    }
    world.actions();
    world.packet(7);
    world.deliver();
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.pass(100 * US);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    assert_eq!(world.actions(), [boost(Boost::Io)], "it has not answered");
    world.pass(100 * US);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(doorbell);
    assert_eq!(world.actions(), [], "it may have more to do");
    world.feed(sleeps);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    assert_eq!(world.actions(), [boost(Boost::None)]);
    // The answer is seen after the other task: the boost ends with it.
    world.pass(50 * MS);
    world.packet(7);
    world.deliver();
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    world.feed(doorbell);
    assert_eq!(world.actions(), [boost(Boost::Io), boost(Boost::None)]);
}

#[test]
fn a_guest_that_rings_no_more_is_waited_for_in_vain_only_twice() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    for round in 0..6 {
        world.packet(7);
        world.deliver();
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
        if round < 3 {
            world.feed(EventKind::Wake { vm: VM, thread: Thread::Emulator(0), by: Some(0) });
            world.feed(EventKind::Stop { vm: VM, thread: Thread::Emulator(0), runnable: false });
        }
        world.actions();
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
        let ended = world.actions() == [boost(Boost::None)];
        assert_eq!(ended, !(3..5).contains(&round), "round {round}");
        world.pass(6 * MS);
        world.engine.on_deadline(Time(world.now));
        world.pass(200 * MS);
        world.actions();
    }
}

#[test]
fn an_event_that_comes_while_a_boost_is_on_is_answered_in_it_too() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.actions();
    world.packet(7);
    world.deliver();
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.pass(100 * US);
    world.packet(7);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    world.deliver();
    world.pass(2 * MS);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: TaskId(0x3000_0000) });
    assert_eq!(world.actions(), [boost(Boost::Io)], "the second has not been answered");
    world.handle(ECHO, 100 * US);
    assert_eq!(world.actions(), [boost(Boost::None)]);
}

/// A guest that takes longer than ever before, and one whose vCPU got no CPU: whoever is seen at last gets a
/// boost of its own.
#[test]
fn an_event_that_stays_unanswered_stays_pending() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.actions();
    let give_up = |world: &mut World| {
        world.packet(7);
        world.deliver();
        world.pass(10 * MS);
        world.engine.on_deadline(Time(world.now));
        assert_eq!(world.actions()[..2], [boost(Boost::Io), boost(Boost::None)]);
        // It waits for its turn.
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: true });
        world.pass(200 * MS);
        world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
    };
    for _ in 0..2 {
        give_up(&mut world);
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
        assert_eq!(world.actions(), [boost(Boost::Io)]);
        world.pass(200 * US);
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
        assert_eq!(world.actions(), [boost(Boost::None)]);
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
        assert_eq!(world.actions(), [], "once");
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    }
    let recent = world.engine.recent(VM, Time(world.now)).unwrap();
    assert_eq!((recent.unanswered.boosted, recent.unanswered.total()), (2, 2));
    // The guest went idle: nobody waits.
    give_up(&mut world);
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    assert_eq!(world.actions(), []);
}

#[test]
fn a_vcpu_that_halts_before_it_is_told_of_the_event_stays_boosted() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.actions();
    world.packet(7);
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    world.deliver();
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    assert_eq!(world.actions(), [boost(Boost::None)]);
}

/// How much the packets for the only port are believed to lead to an I/O-bound task.
fn counter(world: &World) -> u64 {
    world.engine.recent(VM, Time(world.now)).unwrap().packets[0].counter
}

/// Another device's interrupt wakes the vCPU, and it halts again, while the emulator thread is still handing
/// the packet over.
#[test]
fn a_vcpu_that_halts_while_a_packet_is_handed_over_stays_boosted() {
    let (vcpu, emulator) = (Thread::Vcpu(0), Thread::Emulator(0));
    let wakes = |world: &mut World, vector: u8| {
        world.feed(EventKind::Wake { vm: VM, thread: vcpu, by: None });
        world.feed(EventKind::Run { vm: VM, thread: vcpu, pcpu: 0 });
        world.feed(EventKind::Resume { vm: VM, vcpu: 0 });
        world.feed(EventKind::Interrupt { vm: VM, vcpu: 0, vector });
        world.pass(10 * US);
    };
    let sleeps = |world: &mut World| {
        world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
        world.feed(EventKind::Stop { vm: VM, thread: vcpu, runnable: false });
    };
    let disturbed = |world: &mut World| {
        world.packet(7);
        world.feed(EventKind::Run { vm: VM, thread: emulator, pcpu: 1 });
        wakes(world, 0x35);
        sleeps(world);
        assert_eq!(world.actions(), [boost(Boost::Io)]);
    };
    let mut world = World::new(Config::default());
    world.learn_echo();
    sleeps(&mut world);
    world.actions();
    // Again and again: that it halted says nothing about whom the packets wake.
    for _ in 0..8 {
        disturbed(&mut world);
        wakes(&mut world, 0x33);
        world.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
        assert_eq!(world.actions(), []);
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
        world.pass(200 * US);
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
        assert_eq!(world.actions(), [boost(Boost::None)]);
        world.pass(50 * MS);
        sleeps(&mut world);
    }
    assert_eq!(counter(&world), 3);
    // It has not been woken for it when the emulator thread sleeps: nobody waits.
    disturbed(&mut world);
    world.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
    assert_eq!(world.actions(), [boost(Boost::None)]);
    let explained = world.engine.explain(VM).unwrap();
    assert_eq!(explained.vcpus[0].expired, 0);
    // Of packets that never wake anybody that is learnt, whoever halts first.
    for _ in 0..4 {
        world.packet(7);
        world.feed(EventKind::Run { vm: VM, thread: emulator, pcpu: 1 });
        wakes(&mut world, 0x33);
        sleeps(&mut world);
        world.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
        world.pass(50 * MS);
    }
    assert_eq!(counter(&world), 0);
}
