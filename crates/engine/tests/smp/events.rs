//! Which vCPUs an event boosts, and how its boost moves.

use crate::world::{ECHO, MS, NET, THRESHOLD, US, VECTOR, VM, World, hog};
use frontdesk_engine::{Config, EventKind, Thread, Time};

#[test]
fn a_packet_boosts_who_takes_the_interrupt_and_where_the_task_ran_last() {
    let mut world = World::new(4);
    world.learn(2, true);
    world.packet();
    assert_eq!(world.boosted(), [0, 2]);
    world.deliver(true);
    world.ipi(2);
    assert_eq!(world.boosted(), [0, 2], "the first vCPU finishes its handler, whose locks the second needs");
    world.now += 10 * US;
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: hog(9) });
    assert_eq!(world.boosted(), [2], "now it has done its part");
    world.answer(2);
    assert_eq!(world.boosted(), []);
}

#[test]
fn who_handed_the_event_on_is_boosted_no_longer_than_who_serves_it_and_not_for_long() {
    let mut world = World::new(2);
    world.learn(1, true);
    world.packet();
    world.deliver(true);
    world.ipi(1);
    world.answer(1);
    assert_eq!(world.boosted(), []);
    world.packet();
    world.deliver(true);
    world.ipi(1);
    // It runs on, while the other one waits for a CPU.
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
    world.now += THRESHOLD / 8;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosted(), [1], "the other may wait for the CPU that it has");
    let hits = world.engine.explain(VM).unwrap().vcpus[0].hits;
    assert_eq!(hits, world.engine.explain(VM).unwrap().vcpus[0].boosts, "the event went where it should");
}

/// The one that takes the device's interrupt has interrupted the other before, which has had no CPU since:
/// whom the handler wakes there needs no second interrupt.
#[test]
fn an_event_is_handed_on_to_who_has_an_interrupt_to_take_already() {
    for (interrupted, taken, delivered) in
        [(true, false, true), (false, false, true), (true, true, true), (true, false, false)]
    {
        let mut world = World::new(2);
        world.learn(1, true);
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
        if interrupted {
            world.feed(EventKind::Ipi { vm: VM, vcpu: NET, to: 1 << 1, vector: 0xfb });
        }
        if taken {
            world.feed(EventKind::IpiTaken { vm: VM, vcpu: 1 });
        }
        world.packet();
        if delivered {
            world.deliver(true);
        } else {
            // Of another device: the packet is not there yet.
            world.feed(EventKind::Interrupt { vm: VM, vcpu: NET, vector: VECTOR + 1 });
        }
        assert_eq!(world.boosted(), [0, 1]);
        world.now += THRESHOLD / 8;
        world.engine.on_deadline(Time(world.now));
        let handed_on = interrupted && !taken && delivered;
        let expected: &[u16] = if handed_on { &[1] } else { &[0, 1] };
        assert_eq!(world.boosted(), expected, "{interrupted} {taken} {delivered}");
    }
}

/// Where the task ran last something else runs now, on the physical CPU of the one that takes the interrupt:
/// boosted at once, it could keep that from doing so for as long as the event is waited for.
#[test]
fn who_waits_for_the_handler_does_not_run_ahead_of_it_on_the_same_cpu() {
    for (pcpu, task, expected) in [(0, hog(1), &[0][..]), (1, hog(1), &[0, 1]), (0, ECHO, &[0, 1])] {
        let mut world = World::new(2);
        world.learn(1, true);
        world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(1), pcpu });
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 1, task });
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(NET), runnable: true });
        world.packet();
        assert_eq!(world.boosted(), expected, "{task:?} on CPU {pcpu}");
        world.deliver(true);
        world.ipi(1);
        assert_eq!(world.boosted(), [0, 1], "{task:?} on CPU {pcpu}: the event is handed on");
        world.answer(1);
        world.now += THRESHOLD / 8;
        world.engine.on_deadline(Time(world.now));
        assert_eq!(world.boosted(), [], "{task:?} on CPU {pcpu}");
    }
}

/// The handler wakes the task on the other vCPU without an interrupt that would tell.
#[test]
fn who_waits_for_the_handler_has_its_turn_after_it() {
    let mut world = World::new(2);
    world.learn(1, true);
    world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(1), pcpu: 0 });
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
    world.packet();
    world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(NET), pcpu: 0 });
    world.deliver(true);
    assert_eq!(world.boosted(), [0]);
    world.feed(EventKind::Halt { vm: VM, vcpu: NET });
    assert_eq!(world.boosted(), [1]);
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(NET), runnable: false });
    world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(1), pcpu: 0 });
    let boosts = |world: &World| world.engine.explain(VM).unwrap().vcpus[1].boosts;
    let before = boosts(&world);
    world.now += 100 * MS;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosted(), [], "its patience is over");
    assert_eq!(boosts(&world), before, "it has one turn");
}

/// A guest can have its vCPUs interrupt each other for ever, each as if it handled the event: that lasts as
/// long as an event may, not so long anew for each of them.
#[test]
fn an_event_that_is_handed_on_for_ever_is_over_in_its_time() {
    let mut world = World::new(2);
    world.learn(1, true);
    world.packet();
    world.deliver(true);
    let begun = world.now;
    let mut last = begun;
    for round in 0..10_000 {
        let (from, to) = (round % 2, (round + 1) % 2);
        world.feed(EventKind::Interrupt { vm: VM, vcpu: from, vector: VECTOR });
        world.feed(EventKind::Ipi { vm: VM, vcpu: from, to: 1 << to, vector: 0xfd });
        world.now += 20 * US;
        world.engine.on_deadline(Time(world.now));
        if !world.boosted().is_empty() {
            last = world.now;
        }
    }
    assert!(last > begun && last - begun <= 40 * MS, "boosted for {} us", (last - begun) / US);
}

/// The vCPU of the server woke for an interrupt of before, found nothing to do and sleeps again when the
/// other one interrupts it for the event that it was boosted for.
#[test]
fn an_event_is_handed_on_to_who_slept_since_it_came() {
    let mut world = World::new(2);
    world.learn(1, true);
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: true });
    world.packet();
    assert_eq!(world.boosted(), [0, 1]);
    world.deliver(false);
    world.feed(EventKind::Halt { vm: VM, vcpu: 1 });
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: false });
    assert_eq!(world.boosted(), [0]);
    world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
    world.feed(EventKind::Ipi { vm: VM, vcpu: 0, to: 1 << 1, vector: 0xfb });
    world.feed(EventKind::Interrupt { vm: VM, vcpu: 0, vector: VECTOR });
    assert_eq!(world.boosted(), [0, 1]);
    world.now += THRESHOLD / 8;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosted(), [1], "the first has done its part");
}

/// The task still runs for the request before when the next packet comes, which another vCPU takes: that it
/// sleeps then is no answer.
#[test]
fn who_sleeps_after_the_request_before_leaves_the_event_to_its_taker() {
    let mut world = World::new(2);
    world.learn(1, true);
    for _ in 0..20 {
        world.packet();
        world.deliver(true);
        world.ipi(1);
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 1, task: ECHO });
        world.now += 100 * US;
        world.feed(EventKind::Wake { vm: VM, thread: Thread::Emulator(0), by: Some(1) });
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Emulator(0), runnable: false });
        world.answer(1);
        world.now += 100 * MS;
        world.engine.on_deadline(Time(world.now));
    }
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 1, task: ECHO });
    world.packet();
    assert_eq!(world.boosted(), [0, 1]);
    world.deliver(false);
    world.feed(EventKind::Halt { vm: VM, vcpu: 1 });
    assert_eq!(world.boosted(), [0]);
}

/// A guest that idles keeps the last task's address space: its interrupt handler looks like that task, and
/// wakes it elsewhere.
#[test]
fn what_was_loaded_when_a_vcpu_was_halted_does_not_keep_the_event() {
    let mut world = World::new(2);
    world.learn(0, true);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    world.packet();
    world.feed(EventKind::Resume { vm: VM, vcpu: 0 });
    world.deliver(true);
    assert_eq!(world.boosted(), [0]);
    world.ipi(1);
    assert_eq!(world.boosted(), [0, 1]);
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    assert_eq!(world.boosted(), [1]);
    world.answer(1);
    assert_eq!(world.boosted(), []);
}

/// The vCPU that takes the interrupt is idle with another task's address space: that is nobody whom the
/// packet woke.
#[test]
fn the_port_of_a_server_is_learnt_in_a_guest_that_idles() {
    let mut world = World::new(2);
    let sleep = |world: &mut World, vcpu| {
        world.feed(EventKind::Halt { vm: VM, vcpu });
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(vcpu), runnable: false });
    };
    let wake = |world: &mut World, vcpu| {
        world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(vcpu), pcpu: vcpu });
        world.feed(EventKind::Resume { vm: VM, vcpu });
    };
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 1, task: ECHO });
    (0..2).for_each(|vcpu| sleep(&mut world, vcpu));
    for _ in 0..10 {
        world.packet();
        world.deliver(false);
        wake(&mut world, NET);
        world.feed(EventKind::Interrupt { vm: VM, vcpu: NET, vector: VECTOR });
        world.ipi(1);
        wake(&mut world, 1);
        world.now += 200 * US;
        sleep(&mut world, 1);
        sleep(&mut world, NET);
        world.now += 100 * MS;
        world.engine.on_deadline(Time(world.now));
    }
    assert_eq!(world.engine.explain(VM).unwrap().ports[0].counter, 3);
    world.boosts();
    world.packet();
    assert_eq!(world.boosted(), [0, 1]);
}

/// The task has a vCPU to itself, which runs nearly only when it is boosted.
#[test]
fn a_background_task_that_moves_between_vcpus_is_not_believed() {
    let mut world = World::new(2);
    // It moves to the first vCPU, and stays loaded on the second, which idles.
    world.feed(EventKind::Halt { vm: VM, vcpu: 1 });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: NET, task: hog(1) });
    let run = |runs| match runs {
        true => EventKind::Run { vm: VM, thread: Thread::Vcpu(1), pcpu: 1 },
        false => EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: false },
    };
    world.feed(run(false));
    for _ in 0..40 {
        world.packet();
        world.deliver(true);
        world.ipi(1);
        for kind in [run(true), EventKind::Resume { vm: VM, vcpu: 1 }] {
            world.feed(kind);
        }
        world.now += 50 * US;
        for kind in [EventKind::Halt { vm: VM, vcpu: 1 }, run(false)] {
            world.feed(kind);
        }
        world.now += 100 * MS;
        world.engine.on_deadline(Time(world.now));
    }
    assert_eq!(world.engine.explain(VM).unwrap().io_bound_count, 0);
}

#[test]
fn pb_ratio_is_for_the_whole_vm() {
    let mut world = World::new(2);
    world.learn(1, true);
    let before = world.engine.explain(VM).unwrap().vcpus[1].boosts;
    for _ in 0..100 {
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
        world.packet();
        world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(1), pcpu: 1 });
        world.deliver(true);
        world.ipi(1);
        world.answer(1);
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(1), runnable: true });
        world.now += 10 * MS;
        world.engine.on_deadline(Time(world.now));
    }
    let vm = world.engine.explain(VM).unwrap();
    assert_eq!(vm.vcpus[1].boosts - before, 100);
    assert!(vm.pb_used_ratio < Config::default().tavs.pb_ratio, "{}", vm.pb_used_ratio);
}

/// A guest may wake the task on another vCPU without an interrupt: one that is awake looks by itself.
#[test]
fn a_port_whose_task_runs_on_a_vcpu_that_is_not_observed_keeps_its_counter() {
    let mut world = World::new(2);
    world.learn(1, true);
    for _ in 0..20 {
        world.packet();
        world.deliver(true);
        world.answer(1);
        world.now += 100 * MS;
        world.engine.on_deadline(Time(world.now));
        assert_eq!(world.engine.explain(VM).unwrap().ports[0].counter, 3);
    }
}

#[test]
fn the_boost_follows_the_interrupt_that_wakes_the_task_elsewhere() {
    let mut world = World::new(4);
    world.learn(2, true);
    world.packet();
    world.deliver(true);
    world.ipi(3);
    assert_eq!(world.boosted(), [0, 2, 3]);
    world.now += 50 * US;
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 3, task: ECHO });
    assert_eq!(world.boosted(), [0, 3], "it was not to be where it ran last");
    world.now += 200 * US;
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 3, task: hog(3) });
    assert_eq!(world.boosted(), []);
}

#[test]
fn a_task_that_wakes_where_the_interrupt_is_taken_is_served_there() {
    let mut world = World::new(2);
    world.learn(1, true);
    world.packet();
    world.deliver(true);
    assert_eq!(world.boosted(), [0, 1]);
    world.now += 3 * MS;
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    assert_eq!(world.boosted(), [0]);
    world.now += 200 * US;
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: hog(0) });
    assert_eq!(world.boosted(), []);
}

#[test]
fn without_known_routes_halted_vcpus_are_boosted_too() {
    let mut world = World::new(4);
    world.learn(2, false);
    for vcpu in [1, 3] {
        world.feed(EventKind::Halt { vm: VM, vcpu });
    }
    world.packet();
    assert_eq!(world.boosted(), [1, 2, 3]);
    world.deliver(false);
    world.answer(2);
    assert_eq!(world.boosted(), []);
}

/// A task of several threads runs on two vCPUs at once; each is I/O-bound there.
#[test]
fn a_task_may_run_on_several_vcpus_at_once() {
    let mut world = World::new(2);
    world.learn(0, true);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 1, task: ECHO });
    world.packet();
    world.deliver(true);
    world.answer(0);
    assert_eq!(world.engine.explain(VM).unwrap().vcpus[1].current, Some(ECHO));
    world.now += 100 * MS;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosted(), []);
}

/// Interrupts of others, from a vCPU that handles no event, move nothing.
#[test]
fn an_interrupt_that_is_not_for_the_event_moves_no_boost() {
    let mut world = World::new(4);
    world.learn(2, true);
    world.packet();
    world.ipi(3);
    assert_eq!(world.boosted(), [0, 2], "the packet has not been delivered");
    world.feed(EventKind::Ipi { vm: VM, vcpu: 2, to: u64::MAX, vector: 0xfd });
    world.feed(EventKind::Ipi { vm: VM, vcpu: 9, to: 1, vector: 0xfd });
    assert_eq!(world.boosted(), [0, 2]);
    assert_eq!(world.engine.troubles().unknown, 1);
}
