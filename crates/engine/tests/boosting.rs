//! Whole-engine behaviour on scripted events: learning, boosting, revoking, limits.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod world;

use frontdesk_engine::{
    ActionKind, Boost, BoostTarget, Config, Engine, EventKind, Outcomes, Protocol, Reason, TaskId, Thread,
    Time, VmId,
};
use std::time::Duration;
use world::{ECHO, HOG, MS, US, VM, World, boost};

/// With the `pb_ratio` of TAVS §5.2.
fn paper() -> Config {
    let mut config = Config::default();
    config.tavs.pb_ratio = 0.125;
    config
}

#[test]
fn a_boost_begins_with_the_packet_and_ends_with_the_next_other_task() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.packet(7);
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    world.deliver();
    world.pass(50 * US);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    assert_eq!(world.actions(), []);
    world.pass(200 * US);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    assert_eq!(world.actions(), [boost(Boost::None)]);
    let vcpu = &world.engine.explain(VM).unwrap().vcpus[0];
    assert_eq!(vcpu.boosts, vcpu.hits);
    assert_eq!(vcpu.boosted_ns, 250 * US * vcpu.boosts);
}

#[test]
fn the_emulator_threads_are_boosted_before_the_vcpu_and_until_after_it() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    let emulators = |level| ActionKind::Boost { vm: VM, target: BoostTarget::Emulators, level };
    let watch = |on| ActionKind::Watch { vm: VM, vcpu: 0, on };
    world.packet(7);
    assert_eq!(world.all_actions(), [emulators(Boost::Io), boost(Boost::Io), watch(true)]);
    world.deliver();
    world.handle(ECHO, 200 * US);
    assert_eq!(world.all_actions(), [watch(false), boost(Boost::None), emulators(Boost::None)]);
}

#[test]
fn what_is_foreseen_is_what_is_decided() {
    let mut world = World::new(paper());
    let foreseen = |world: &World| world.engine.foresee(VM).map(|foreseen| foreseen.vcpus);
    assert_eq!(foreseen(&world), None, "no task is known to be I/O-bound");
    world.learn_echo();
    let [known, other] = [7, 9].map(|port| world.engine.awaits(VM, Protocol::Tcp, port));
    assert!(known && !other);
    assert_eq!(foreseen(&world), Some(vec![0]));
    world.packet(7);
    assert_eq!((world.actions(), foreseen(&world)), (vec![boost(Boost::Io)], None), "boosted already");
    world.deliver();
    world.handle(ECHO, 200 * US);
    assert_eq!((world.actions(), foreseen(&world)), (vec![boost(Boost::None)], Some(vec![0])));
    // Until what it may use is used up: then a packet is not boosted, either.
    let mut last = None;
    for _ in 0..200 {
        last = foreseen(&world);
        world.packet(7);
        assert_eq!(world.actions().is_empty(), last.is_none());
        world.deliver();
        world.handle(ECHO, 400 * US);
        world.actions();
    }
    assert_eq!((last, world.reason()), (None, Some(Reason::BudgetSpent)));
    assert_eq!(world.engine.foresee(VmId(9)), None, "not followed");
}

#[test]
fn nothing_is_boosted_before_the_inference_is_sure() {
    let mut world = World::new(Config::default());
    for _ in 0..5 {
        world.request(7, ECHO, 200 * US);
    }
    assert_eq!(world.actions(), [], "belief 25 now, but the port's counter is still low");
    assert_eq!(world.reason(), Some(Reason::NoIoBoundTask));
    world.request(7, ECHO, 200 * US);
    assert_eq!(world.reason(), Some(Reason::NotCorrelated));
}

#[test]
fn another_port_is_not_boosted() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.packet(9);
    assert_eq!(world.actions(), []);
    assert_eq!(world.reason(), Some(Reason::NotCorrelated));
}

#[test]
fn without_correlation_any_event_boosts() {
    let mut config = Config::default();
    config.tavs.correlation = false;
    let mut world = World::new(config);
    world.learn_echo();
    world.packet(9);
    assert_eq!(world.actions(), [boost(Boost::Io)]);
}

#[test]
fn pb_ratio_bounds_boosted_time_and_zero_turns_it_off() {
    for (ratio, allowed) in [(0.125, true), (0.01, false), (0.0, false)] {
        let mut config = Config::default();
        config.tavs.pb_ratio = ratio;
        let mut world = World::new(config);
        world.learn_echo();
        let before = world.engine.explain(VM).unwrap().vcpus[0].boosts;
        for _ in 0..200 {
            // 0.4 ms of boost in every 4.5 ms: 8.9 %.
            world.packet(7);
            world.deliver();
            world.handle(ECHO, 400 * US);
            world.pass(4 * MS);
        }
        let vm = world.engine.explain(VM).unwrap();
        assert!(vm.pb_used_ratio <= ratio + 0.01, "ratio {ratio}: {}", vm.pb_used_ratio);
        let vcpu = &vm.vcpus[0];
        assert_eq!(vcpu.boosts - before == 200, allowed, "ratio {ratio}: {} boosts", vcpu.boosts);
    }
}

/// A guest finishes its tick before it lets the woken task run. If the task runs then, that is not held
/// against it.
#[test]
fn what_a_guest_runs_before_the_woken_task_is_not_of_its_pb_ratio() {
    let boosts = |answers: bool| {
        let mut world = World::new(paper());
        world.learn_echo();
        let before = world.engine.explain(VM).unwrap().vcpus[0].boosts;
        for _ in 0..100 {
            world.packet(7);
            world.deliver();
            world.pass(2 * MS);
            if answers {
                world.handle(ECHO, 200 * US);
            }
            world.pass(4 * MS);
        }
        world.engine.explain(VM).unwrap().vcpus[0].boosts - before
    };
    assert_eq!(boosts(true), 100, "2.2 ms of boost in every 6.2 ms, of which 3 % count");
    assert!(boosts(false) < 50, "nobody was waited for");
}

#[test]
fn a_task_that_turns_cpu_bound_loses_its_boosts() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    for _ in 0..3 {
        world.request(7, ECHO, 5 * MS);
    }
    world.actions();
    world.packet(7);
    assert_eq!(world.actions(), []);
    assert_eq!(world.reason(), Some(Reason::NoIoBoundTask));
}

#[test]
fn reads_requested_by_an_io_bound_task_boost_and_others_do_not() {
    let mut config = Config::default();
    config.tavs.inspection_window = 1;
    let mut world = World::new(config);
    world.learn_echo();
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(EventKind::BlockRead { vm: VM, request: 100 });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    world.feed(EventKind::BlockRead { vm: VM, request: 200 });
    world.feed(EventKind::BlockDone { vm: VM, request: 200 });
    assert_eq!(world.actions(), []);
    world.feed(EventKind::BlockDone { vm: VM, request: 100 });
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    world.feed(EventKind::BlockDone { vm: VM, request: 300 });
    assert_eq!(world.reason(), Some(Reason::NotCorrelated), "a read never heard of boosts nothing");
}

/// Two reads are in flight, and what woke the thread says not which has ended: with the window of §3.3.1 wide
/// or narrow, only one is the I/O-bound task's.
#[test]
fn a_read_about_to_end_boosts_only_if_all_in_flight_are_an_io_bound_tasks() {
    let mut config = Config::default();
    config.tavs.inspection_window = 1;
    let mut world = World::new(config);
    world.learn_echo();
    world.feed(EventKind::BlockRead { vm: VM, request: 200 });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(EventKind::BlockRead { vm: VM, request: 100 });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    world.feed(EventKind::BlockPending { vm: VM });
    assert_eq!((world.actions(), world.reason()), (vec![], Some(Reason::NotCorrelated)));
    world.feed(EventKind::BlockDone { vm: VM, request: 200 });
    world.feed(EventKind::BlockPending { vm: VM });
    assert_eq!(world.actions(), [boost(Boost::Io)]);
}

/// The thread of the I/O path that is to complete the read waits for the CPU, too.
#[test]
fn a_read_about_to_end_boosts_if_an_io_bound_task_asked_for_it() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.feed(EventKind::BlockPending { vm: VM });
    assert_eq!(world.actions(), [], "nothing is in flight");
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(EventKind::BlockRead { vm: VM, request: 100 });
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    world.feed(EventKind::BlockPending { vm: VM });
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    world.feed(EventKind::BlockDone { vm: VM, request: 100 });
    assert_eq!(world.actions(), [], "boosted already");
}

/// What somebody has started reads its files, and they go on typing.
#[test]
fn reads_leave_half_of_the_budget_where_packets_are_answered() {
    for (asked, most) in [(false, 0.125), (true, 0.0625)] {
        let mut world = World::new(paper());
        world.learn_echo();
        // What it has run is told now and then.
        for _ in 0..30 {
            world.pass(100 * MS);
            world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
        }
        for round in 0..1000 {
            if asked && round % 100 == 0 {
                world.request(7, ECHO, 200 * US);
                assert_eq!(world.reason(), Some(Reason::Boosted), "round {round}");
            }
            world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
            world.feed(EventKind::BlockRead { vm: VM, request: round });
            world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
            world.pass(MS);
            world.feed(EventKind::BlockDone { vm: VM, request: round });
            world.handle(ECHO, 400 * US);
            world.pass(MS);
        }
        let used = world.engine.explain(VM).unwrap().pb_used_ratio;
        assert!(used > most - 0.02 && used < most + 0.01, "{used} of {most}");
        let reads = world.engine.recent(VM, Time(world.now)).unwrap().reads;
        assert!(reads.boosted > 100 && reads.budget_spent > 100, "{reads:?}");
    }
}

#[test]
fn an_idle_vm_is_boosted_beyond_its_pb_ratio_while_within_its_share() {
    let mut world = World::new(paper());
    world.learn_echo();
    // The hog is gone: from here on the VM does nothing but answer.
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: false });
    world.pass(3000 * MS);
    world.actions();
    for _ in 0..20 {
        world.packet(7);
        assert_eq!(world.actions()[0], boost(Boost::Io));
        for delivered in [false, true] {
            if delivered {
                world.feed(EventKind::Run { vm: VM, thread: Thread::Emulator(0), pcpu: 9 });
                world.feed(EventKind::Stop { vm: VM, thread: Thread::Emulator(0), runnable: false });
            }
            world.feed(EventKind::Wake { vm: VM, thread: Thread::Vcpu(0), by: None });
            world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
            world.feed(EventKind::Resume { vm: VM, vcpu: 0 });
            world.pass(200 * US);
            world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
            world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: false });
            let ended = if delivered { vec![boost(Boost::None)] } else { vec![] };
            assert_eq!(world.actions(), ended, "a clock tick is no answer; delivered: {delivered}");
        }
        world.pass(20 * MS);
    }
    assert!(world.engine.explain(VM).unwrap().pb_used_ratio < 0.01, "they are of no budget");
}

#[test]
fn removing_a_boosted_vm_takes_the_boost_back() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.packet(7);
    world.feed(EventKind::VmRemoved { vm: VM });
    assert_eq!(world.actions(), [boost(Boost::Io), boost(Boost::None)]);
    assert!(world.engine.explain(VM).is_none());
}

#[test]
fn lost_events_leave_no_false_evidence() {
    let mut world = World::new(Config::default());
    world.packet(7);
    world.deliver();
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    world.feed(EventKind::Lost { vm: None, count: 3 });
    world.pass(100 * MS);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    let explain = world.engine.explain(VM).unwrap();
    assert!(explain.tasks.iter().all(|task| task.belief == 0));
    assert_eq!(world.engine.troubles().lost, 3);
}

#[test]
fn a_parameter_out_of_range_is_named() {
    let mut config = Config::default();
    config.tavs.pb_ratio = f64::NAN;
    let error = Engine::new(config).unwrap_err();
    assert_eq!(error.to_string(), "tavs.pb_ratio = NaN is out of range: allowed is 0 to 1");
    let mut config = Config::default();
    config.ledger.horizon = Duration::from_millis(10);
    assert_eq!(Engine::new(config).unwrap_err().allowed, "at least ledger.period");
}

#[test]
fn the_recent_decisions_say_what_boosted_and_what_did_not() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    world.pass(80_000 * MS);
    world.request(7, ECHO, 200 * US);
    world.request(80, HOG, 200 * US);
    let recent = world.engine.recent(VM, Time(world.now)).unwrap();
    let ports: Vec<_> = recent.packets.iter().map(|port| (port.port, port.counter, port.outcomes)).collect();
    let boosted = Outcomes { boosted: 1, ..Outcomes::default() };
    let not_correlated = Outcomes { not_correlated: 1, ..Outcomes::default() };
    assert_eq!(ports, [(7, 3, boosted), (80, 0, not_correlated)]);
    assert_eq!((recent.boosts_ended, recent.hits), (1, 1));
    assert_eq!(recent.decisions.last().unwrap().verdict, Reason::NotCorrelated);
    assert!(world.engine.recent(VmId(9), Time(0)).is_none());
}

#[test]
fn an_explanation_can_be_bounded_and_counts_what_it_leaves_out() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    for task in 0..50 {
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: TaskId(task) });
    }
    let explain = world.engine.explain_most(VM, 3).unwrap();
    assert_eq!((explain.tasks.len(), explain.task_count, explain.io_bound_count), (3, 52, 1));
    assert_eq!(explain.tasks[0].id, TaskId(49), "the latest first");
    assert_eq!(world.engine.explain(VM).unwrap().tasks.len(), 52);
}

/// The client acknowledges each answer with a segment that wakes nobody.
#[test]
fn where_acknowledgements_count_they_do_not_undo_what_requests_taught() {
    let reason = |acknowledgements| {
        let mut config = Config::default();
        // Boosts for acknowledgements are in vain, and use the budget up.
        (config.tavs.acknowledgements, config.tavs.pb_ratio) = (acknowledgements, 1.0);
        let mut world = World::new(config);
        for _ in 0..12 {
            world.request(7, ECHO, 200 * US);
            world.packet(7);
            world.deliver();
            world.pass(50 * MS);
            world.engine.on_deadline(Time(world.now));
        }
        world.packet(7);
        world.reason()
    };
    assert_eq!(reason(true), Some(Reason::Boosted));
    assert_eq!(
        reason(false),
        Some(Reason::NotCorrelated),
        "any packet that wakes nobody speaks against its port"
    );
}

/// TAVS §3.3.2: the map of ports is only updated if all packets before the time slice were for one port.
#[test]
fn packets_for_two_ports_before_the_guest_runs_teach_nothing_about_either() {
    let mut world = World::new(Config::default());
    world.learn_echo();
    let counter = |world: &World, port| {
        let ports = world.engine.explain(VM).unwrap().ports;
        ports.iter().find(|of| of.port == port).map_or(0, |of| of.counter)
    };
    let before = counter(&world, 7);
    let (vcpu, emulator) = (Thread::Vcpu(0), Thread::Emulator(0));
    for _ in 0..4 {
        world.feed(EventKind::Stop { vm: VM, thread: vcpu, runnable: true });
        // One after the other, each handed to the guest at once; the guest has not run meanwhile.
        for port in [7, 9] {
            world.packet(port);
            world.feed(EventKind::Run { vm: VM, thread: emulator, pcpu: 0 });
            world.pass(50 * US);
            world.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
        }
        world.feed(EventKind::Run { vm: VM, thread: vcpu, pcpu: 0 });
        world.handle(ECHO, 200 * US);
        world.pass(50 * MS);
    }
    assert_eq!((counter(&world, 7), counter(&world, 9)), (before, 0));
    // One that comes alone counts again.
    world.request(7, ECHO, 200 * US);
    assert_eq!(counter(&world, 7), 3);
}
