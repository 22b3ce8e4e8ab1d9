//! What changes while a VM is followed: its guest is reset, its vCPUs come and go, it is paused, and
//! operators change their minds.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod world;

use frontdesk_engine::{Boost, Config, EventKind, Reason, TaskId, Thread, VmPolicy};
use world::{ECHO, HOG, MS, US, VM, World, boost};

#[test]
fn a_reset_guest_has_to_be_learnt_again_but_its_ports_are_known() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.packet(7);
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    let before = world.engine.explain(VM).unwrap();
    world.feed(EventKind::VmReset { vm: VM });
    assert_eq!(world.actions(), [boost(Boost::None)], "whom it was for is gone");
    let after = world.engine.explain(VM).unwrap();
    assert_eq!(after.tasks.len(), 0);
    assert_eq!((after.ports, after.vcpus[0].ran_ns), (before.ports, before.vcpus[0].ran_ns));
    world.packet(7);
    assert_eq!(world.reason(), Some(Reason::NoIoBoundTask));
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    world.learn_echo();
    world.packet(7);
    assert_eq!(world.reason(), Some(Reason::Boosted));
}

#[test]
fn a_paused_vm_is_not_boosted() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.packet(7);
    world.feed(EventKind::VmPaused { vm: VM });
    assert_eq!(world.actions(), [boost(Boost::Io), boost(Boost::None)]);
    world.packet(7);
    assert_eq!((world.actions(), world.reason()), (vec![], Some(Reason::Paused)));
    world.feed(EventKind::VmResumed { vm: VM });
    world.packet(7);
    assert_eq!(world.actions(), [boost(Boost::Io)]);
}

#[test]
fn vcpus_come_and_go_and_the_others_keep_what_is_known() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.feed(EventKind::VcpuAdded { vm: VM, vcpu: 2 });
    let known = |world: &World| {
        let explain = world.engine.explain(VM).unwrap();
        let current: Vec<_> = explain.vcpus.iter().map(|vcpu| vcpu.current).collect();
        (explain.task_count, current)
    };
    assert_eq!(known(&world), (2, vec![Some(HOG), None, None]));
    world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(2), pcpu: 1 });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 2, task: TaskId(9) });
    assert_eq!(known(&world), (3, vec![Some(HOG), None, Some(TaskId(9))]));
    world.feed(EventKind::VcpuRemoved { vm: VM, vcpu: 2 });
    assert_eq!(known(&world), (3, vec![Some(HOG), None]), "tasks belong to the VM, wherever they ran");
    world.packet(7);
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    world.feed(EventKind::VcpuRemoved { vm: VM, vcpu: 0 });
    assert_eq!(world.actions(), [boost(Boost::None)]);
    assert_eq!(known(&world), (3, vec![None, None]), "one in the middle keeps its place");
    let unknown = world.engine.troubles().unknown;
    world.feed(EventKind::VcpuRemoved { vm: VM, vcpu: 7 });
    assert_eq!(world.engine.troubles().unknown, unknown + 1);
}

#[test]
fn a_vm_that_is_off_is_never_boosted_and_one_with_its_own_ratio_by_that() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.packet(7);
    world.engine.configure_vm(VM, VmPolicy { off: true, pb_ratio: None }).unwrap();
    assert_eq!(world.actions(), [boost(Boost::Io), boost(Boost::None)]);
    world.packet(7);
    assert_eq!(world.reason(), Some(Reason::Off));
    world.engine.configure_vm(VM, VmPolicy { off: false, pb_ratio: Some(0.0) }).unwrap();
    world.packet(7);
    assert_eq!(world.reason(), Some(Reason::Off));
    let wrong = VmPolicy { off: false, pb_ratio: Some(1.5) };
    assert!(world.engine.configure_vm(VM, wrong).unwrap_err().to_string().contains("pb_ratio = 1.5"));
    world.engine.configure_vm(VM, VmPolicy::default()).unwrap();
    world.packet(7);
    assert_eq!(world.reason(), Some(Reason::Boosted));
}

#[test]
fn other_parameters_hold_at_once_and_keep_what_is_known() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    let mut config = Config::default();
    config.tavs.belief_threshold = 200;
    world.engine.configure(config.clone()).unwrap();
    world.packet(7);
    assert_eq!(world.reason(), Some(Reason::NoIoBoundTask), "not sure enough any more");
    config.tavs.belief_threshold = 20;
    world.engine.configure(config.clone()).unwrap();
    world.packet(7);
    assert_eq!(world.reason(), Some(Reason::Boosted));
    config.tavs.pb_ratio = -1.0;
    assert!(world.engine.configure(config).is_err());
    world.pass(50 * MS);
    world.request(7, ECHO, 200 * US);
    assert_eq!(world.reason(), Some(Reason::Boosted), "the former parameters stay");
}
