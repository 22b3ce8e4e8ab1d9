//! Where the guest's replies are seen: an event lasts until its reply, whatever looks like an answer before.

use crate::world::{ECHO, MS, NET, US, VM, World, hog};
use frontdesk_engine::{EventKind, Protocol, Thread, Time};

impl World {
    fn reply(&mut self) {
        self.feed(EventKind::Reply { vm: VM, protocol: Protocol::Tcp, port: 7 });
    }

    fn thread(&mut self, vcpu: u16, kind: fn(Thread) -> EventKind) {
        self.feed(kind(Thread::Vcpu(vcpu)));
    }

    fn run(&mut self, vcpu: u16) {
        self.thread(vcpu, |thread| EventKind::Run { vm: VM, thread, pcpu: 0 });
    }

    fn sleep(&mut self, vcpu: u16) {
        self.thread(vcpu, |thread| EventKind::Stop { vm: VM, thread, runnable: false });
    }

    fn wake(&mut self, vcpu: u16) {
        self.thread(vcpu, |thread| EventKind::Wake { vm: VM, thread, by: None });
    }

    fn doorbell(&mut self, vcpu: u16) {
        let thread = Thread::Emulator(0);
        self.feed(EventKind::Wake { vm: VM, thread, by: Some(vcpu) });
        self.feed(EventKind::Stop { vm: VM, thread, runnable: false });
    }

    /// A guest whose server answers on a vCPU, with replies that are seen.
    fn replying(vcpus: u16, server: u16) -> World {
        let mut world = World::new(vcpus);
        for _ in 0..20 {
            world.packet();
            world.deliver(true);
            if server != NET {
                world.ipi(server);
            }
            world.answer(server);
            world.reply();
            world.now += 100 * MS;
            world.engine.on_deadline(Time(world.now));
        }
        world.boosts();
        world
    }

    /// The vCPU idles with the server's address space.
    fn idle_with_the_server(&mut self, vcpu: u16) {
        self.feed(EventKind::TaskSwitch { vm: VM, vcpu, task: ECHO });
        self.feed(EventKind::Halt { vm: VM, vcpu });
        self.sleep(vcpu);
    }

    /// It is woken, for a timer maybe, and runs for a moment.
    fn doze(&mut self, vcpu: u16) {
        self.wake(vcpu);
        self.run(vcpu);
        self.feed(EventKind::Resume { vm: VM, vcpu });
        self.now += 20 * US;
    }
}

#[test]
fn a_reply_ends_the_boosts_of_all_who_do_not_serve() {
    let mut world = World::replying(4, 2);
    world.packet();
    world.deliver(true);
    world.ipi(2);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 2, task: ECHO });
    world.doorbell(2);
    assert_eq!(world.boosted(), [0, 2], "a doorbell may be for anything");
    world.reply();
    assert_eq!(world.boosted(), [0, 2], "one finishes its handler, and the other runs until the task sleeps");
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 2, task: hog(2) });
    assert_eq!(world.boosted(), []);
}

/// Timers are armed with the same sign as a doorbell, and a vCPU that idles has the last task's address
/// space.
#[test]
fn an_idle_vcpu_that_rings_has_not_answered() {
    let mut world = World::replying(3, 1);
    world.idle_with_the_server(1);
    world.packet();
    assert_eq!(world.boosted(), [0, 1]);
    world.deliver(true);
    world.doze(1);
    world.doorbell(1);
    world.feed(EventKind::Halt { vm: VM, vcpu: 1 });
    world.sleep(1);
    assert_eq!(world.boosted(), [0], "its handler has not even woken the task");
    world.ipi(2);
    assert_eq!(world.boosted(), [0, 2]);
}

/// The thread of a halted vCPU wakes the emulator for reasons of its own.
#[test]
fn a_halted_vcpu_rings_no_doorbell() {
    let mut world = World::new(3);
    world.learn(1, true);
    world.idle_with_the_server(1);
    world.packet();
    world.deliver(true);
    world.feed(EventKind::Ipi { vm: VM, vcpu: NET, to: 1 << 1, vector: 0xfb });
    assert_eq!(world.boosted(), [0, 1]);
    world.wake(1);
    world.run(1);
    world.doorbell(1);
    assert_eq!(world.boosted(), [0, 1]);
}

/// The handler interrupts others than the one where the task wakes as well, and maybe first.
#[test]
fn every_vcpu_that_the_handler_interrupts_may_be_the_one() {
    let mut world = World::replying(4, 2);
    world.packet();
    world.deliver(true);
    world.ipi(1);
    world.ipi(3);
    assert_eq!(world.boosted(), [0, 1, 2, 3]);
    world.reply();
    assert_eq!(world.boosted(), []);
}

/// It was woken for the event, and its emulator has it wait before it has even gone on.
#[test]
fn a_halted_vcpu_that_sleeps_with_an_interrupt_pending_is_held_up() {
    let mut world = World::replying(4, 1);
    world.idle_with_the_server(1);
    world.thread(3, |thread| EventKind::Stop { vm: VM, thread, runnable: true });
    world.packet();
    world.deliver(true);
    world.feed(EventKind::Ipi { vm: VM, vcpu: NET, to: 1 << 1, vector: 0xfb });
    world.wake(1);
    world.run(1);
    world.sleep(1);
    assert!(!world.boosted().contains(&3));
    world.now += 200 * US;
    world.engine.on_deadline(Time(world.now));
    assert!(world.boosted().contains(&3), "it may have the lock");
}

/// The task was put on the run queue of a vCPU that runs something else: no interrupt says so.
#[test]
fn where_the_guest_owes_a_reply_and_nobody_serves_those_who_run_something_are_boosted_once() {
    let mut world = World::replying(3, 1);
    world.idle_with_the_server(1);
    world.packet();
    world.deliver(true);
    world.feed(EventKind::Halt { vm: VM, vcpu: NET });
    assert_eq!(world.boosted(), [1]);
    world.doze(1);
    world.feed(EventKind::Halt { vm: VM, vcpu: 1 });
    assert_eq!(world.boosted(), [2]);
    world.answer(2);
    assert_eq!(world.boosted(), [2], "what it has sent may yet be on its way");
    world.reply();
    assert_eq!(world.boosted(), []);
}

/// An emulator thread that could not deliver what it was woken for sleeps again, and its taker still sleeps.
#[test]
fn a_packet_that_wakes_nobody_is_not_delivered() {
    let mut world = World::replying(3, 1);
    world.feed(EventKind::Halt { vm: VM, vcpu: NET });
    world.sleep(NET);
    world.thread(2, |thread| EventKind::Stop { vm: VM, thread, runnable: true });
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Emulator(0), runnable: false });
    world.packet();
    world.deliver(false);
    assert!(!world.boosted().contains(&2));
    world.now += 200 * US;
    world.engine.on_deadline(Time(world.now));
    assert!(world.boosted().contains(&2), "it may have the emulator's lock");
}

/// A server that stopped replying is believed for some requests, and then judged as one whose replies are not
/// seen.
#[test]
fn who_no_longer_replies_is_judged_by_its_doorbells() {
    let mut world = World::replying(2, 0);
    let mut ended_by_doorbell = Vec::new();
    for _ in 0..6 {
        world.packet();
        world.deliver(true);
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
        world.doorbell(0);
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: hog(0) });
        ended_by_doorbell.push(!world.boosted().contains(&0));
        world.now += 100 * MS;
        world.engine.on_deadline(Time(world.now));
    }
    assert!(!ended_by_doorbell[0] && ended_by_doorbell[5], "{ended_by_doorbell:?}");
}
