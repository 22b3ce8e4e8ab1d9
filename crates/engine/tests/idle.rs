//! A VM that sleeps as a whole is boosted for any event, known or not, within its share.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod world;

use frontdesk_engine::{
    ActionKind, Boost, BoostTarget, Config, EventKind, Protocol, Reason, TaskId, Thread, VmId,
};
use world::{ECHO, HOG, MS, US, VM, World, boost};

const OTHER: VmId = VmId(2);

/// A guest with a server and nothing else, which sleeps.
fn asleep(config: Config) -> World {
    let mut world = World::new(config);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    sleep(&mut world);
    world.actions();
    world
}

fn sleep(world: &mut World) {
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: false });
}

/// The emulator thread delivers what has come, and wakes the vCPU, which runs.
fn wake(world: &mut World) {
    let (vcpu, emulator) = (Thread::Vcpu(0), Thread::Emulator(0));
    world.feed(EventKind::Wake { vm: VM, thread: emulator, by: None });
    world.feed(EventKind::Run { vm: VM, thread: emulator, pcpu: 0 });
    world.pass(50 * US);
    world.feed(EventKind::Wake { vm: VM, thread: vcpu, by: None });
    world.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
    world.feed(EventKind::Run { vm: VM, thread: vcpu, pcpu: 0 });
    world.feed(EventKind::Resume { vm: VM, vcpu: 0 });
}

/// The engine is told the time as it wants to be.
fn due(world: &mut World) {
    while let Some(due) = world.engine.next_deadline().filter(|due| due.0 <= world.now) {
        world.engine.on_deadline(due);
    }
}

#[test]
fn who_sleeps_is_boosted_although_no_task_of_it_is_known() {
    for (idle, boosts) in [(true, true), (false, false)] {
        let mut config = Config::default();
        config.tavs.idle = idle;
        let mut world = asleep(config);
        for port in 0..20 {
            world.packet(port);
            let emulators = ActionKind::Boost { vm: VM, target: BoostTarget::Emulators, level: Boost::Io };
            let actions = world.all_actions();
            assert_eq!(actions.contains(&emulators) && actions.contains(&boost(Boost::Io)), boosts);
            wake(&mut world);
            world.pass(200 * US);
            assert_eq!(world.actions(), [], "until it sleeps again");
            sleep(&mut world);
            assert_eq!(world.actions().contains(&boost(Boost::None)), boosts);
            world.pass(20 * MS);
        }
        let vcpu = &world.engine.explain(VM).unwrap().vcpus[0];
        assert_eq!((vcpu.boosts, vcpu.hits), if boosts { (20, 20) } else { (0, 0) });
    }
}

#[test]
fn an_event_nobody_is_known_to_wait_for_boosts_who_sleeps_and_nobody_who_works() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.packet(9);
    assert_eq!((world.actions(), world.reason()), (vec![], Some(Reason::NotCorrelated)));
    world.deliver();
    sleep(&mut world);
    world.packet(9);
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    wake(&mut world);
    // Work that takes long is no answer.
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    world.pass(11 * MS);
    due(&mut world);
    assert_eq!(world.actions(), [boost(Boost::None)]);
    let vcpu = &world.engine.explain(VM).unwrap().vcpus[0];
    assert_eq!((vcpu.boosts - vcpu.hits, vcpu.expired), (1, 1));
}

#[test]
fn of_several_vcpus_all_must_sleep() {
    let mut world = World::new(Config::default());
    let two = VmId(3);
    world.feed(EventKind::VmAdded { vm: two, vcpus: 2, weight: 1024 });
    let packet = EventKind::Packet { vm: two, protocol: Protocol::Tcp, port: 7 };
    world.feed(EventKind::Halt { vm: two, vcpu: 0 });
    world.feed(EventKind::Run { vm: two, thread: Thread::Vcpu(1), pcpu: 0 });
    world.feed(EventKind::TaskSwitch { vm: two, vcpu: 1, task: TaskId(5) });
    world.feed(packet);
    assert_eq!(world.actions(), []);
    world.feed(EventKind::Halt { vm: two, vcpu: 1 });
    world.feed(EventKind::Stop { vm: two, thread: Thread::Vcpu(1), runnable: false });
    world.feed(packet);
    assert_eq!(world.actions().len(), 2, "who takes the interrupt is not known");
}

/// What it gains by waking it repays like any boost, and while it owes, it waits its turn.
#[test]
fn who_had_more_than_its_share_is_not_boosted_for_sleeping() {
    let mut world = asleep(Config::default());
    world.feed(EventKind::VmAdded { vm: OTHER, vcpus: 1, weight: 1024 });
    world.feed(EventKind::TaskSwitch { vm: OTHER, vcpu: 0, task: TaskId(9) });
    world.feed(EventKind::Run { vm: OTHER, thread: Thread::Vcpu(0), pcpu: 0 });
    world.feed(EventKind::Stop { vm: OTHER, thread: Thread::Vcpu(0), runnable: true });
    let mut owed = false;
    for _ in 0..400 {
        world.packet(7);
        let boosted = world.actions().contains(&boost(Boost::Io));
        if world.engine.explain(VM).unwrap().debt_ns > 0 {
            owed = true;
            assert!(!boosted);
        }
        wake(&mut world);
        world.pass(9 * MS);
        sleep(&mut world);
        world.pass(MS);
        due(&mut world);
    }
    assert!(owed);
}
