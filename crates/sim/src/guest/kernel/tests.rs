use super::*;
use crate::guest::Stuck;
use crate::queue::NEVER;
use frontdesk_engine::Protocol;
use std::time::Duration;

const US: Nanos = 1_000;
const MS: Nanos = 1_000_000;

/// Runs a vCPU that has a physical CPU of its own for so long, and returns the effects with their times.
fn run(guest: &mut GuestKernel, vcpu: usize, mut now: Nanos, until: Nanos) -> Vec<(Nanos, Effect)> {
    let mut all = Vec::new();
    while now < until {
        let step = guest.next(vcpu).min(until - now);
        now += step;
        guest.ran(vcpu, step);
        let flow = guest.reached(vcpu, now);
        all.extend(guest.effects.drain(..).map(|effect| (now, effect)));
        if flow == Flow::Block {
            break;
        }
    }
    all
}

fn switches(effects: &[(Nanos, Effect)]) -> Vec<TaskId> {
    let spaces = effects.iter().filter_map(|(_, effect)| match effect {
        Effect::Switch { space, .. } => Some(*space),
        _ => None,
    });
    spaces.collect()
}

fn packet(port: u16) -> Interrupt {
    Interrupt::Packet(Packet {
        protocol: Some(Protocol::Tcp),
        port,
        bytes: 40,
        client: 0,
        arrived: 0,
        effort: 1_000,
    })
}

/// A hog, and a task that answers.
fn mixed() -> GuestKernel {
    let mut guest = GuestKernel::new(1, &GuestCosts::default());
    let socket = guest.add_socket(Some(Protocol::Tcp), 7);
    guest.add_task(0, &[Step::Compute(10 * MS)], false);
    guest.add_task(1, &[Step::Receive { socket, shift: None }, Step::Compute(20 * US), Step::Reply], true);
    guest
}

#[test]
fn who_wakes_after_a_sleep_preempts_and_the_interrupt_is_on_the_others_time() {
    let mut guest = mixed();
    run(&mut guest, 0, 0, 20 * MS);
    let hog = guest.tasks[0].space;
    guest.cpus[0].pending.push_back(packet(7));
    let effects = run(&mut guest, 0, 20 * MS, 21 * MS);
    assert_eq!(switches(&effects), [guest.tasks[1].space, hog]);
    // Until the packet is at the socket the hog's address space is loaded.
    let (at, _) = effects.iter().find(|(_, effect)| matches!(effect, Effect::Switch { .. })).unwrap();
    assert_eq!(*at, 20 * MS + 10 * US);
    assert!(effects.iter().any(|(_, effect)| matches!(effect, Effect::Reply { .. })));
}

#[test]
fn since_linux_6_6_who_wakes_in_the_middle_of_a_slice_waits_for_the_tick_after_it() {
    let mut guest = mixed().with_eevdf(Some(2 * MS));
    run(&mut guest, 0, 0, 10 * MS);
    guest.cpus[0].pending.push_back(Interrupt::Tick);
    run(&mut guest, 0, 10 * MS, 20 * MS);
    let (hog, server) = (guest.tasks[0].space, guest.tasks[1].space);
    guest.cpus[0].pending.push_back(packet(7));
    let effects = run(&mut guest, 0, 20 * MS, 21 * MS);
    assert_eq!(switches(&effects), [server, hog], "the hog has used its slice up long ago");
    guest.cpus[0].pending.push_back(packet(7));
    assert!(switches(&run(&mut guest, 0, 21 * MS, 22 * MS)).is_empty());
    guest.cpus[0].pending.push_back(Interrupt::Tick);
    assert!(switches(&run(&mut guest, 0, 22 * MS, 26 * MS)).is_empty(), "its slice was not over at the tick");
    guest.cpus[0].pending.push_back(Interrupt::Tick);
    assert_eq!(switches(&run(&mut guest, 0, 26 * MS, 27 * MS)), [server, hog]);
}

#[test]
fn an_interrupt_waits_until_the_vcpu_runs() {
    let mut guest = mixed();
    run(&mut guest, 0, 0, 20 * MS);
    guest.cpus[0].pending.push_back(packet(7));
    assert!(guest.tasks[1].request.is_none());
    assert_eq!(guest.next(0), 0, "it is the first thing when the vCPU runs");
}

#[test]
fn an_acknowledgement_takes_time_and_wakes_nobody() {
    let mut guest = mixed();
    run(&mut guest, 0, 0, 20 * MS);
    let Interrupt::Packet(packet) = packet(7) else { unreachable!() };
    guest.cpus[0].pending.push_back(Interrupt::Packet(Packet { bytes: 0, ..packet }));
    assert!(switches(&run(&mut guest, 0, 20 * MS, 20 * MS + 9 * US)).is_empty());
    assert!(guest.cpus[0].working.is_some(), "the kernel is at it for 10 us");
    assert!(switches(&run(&mut guest, 0, 20 * MS + 9 * US, 21 * MS)).is_empty());
    assert!(guest.tasks[1].request.is_none());
}

#[test]
fn the_clock_is_set_after_a_tick_and_after_idling() {
    let sets = |mut guest: GuestKernel, interrupt| {
        run(&mut guest, 0, 0, 5 * MS);
        guest.cpus[0].pending.push_back(interrupt);
        let effects = run(&mut guest, 0, 5 * MS, 6 * MS).into_iter();
        effects
            .filter(|(_, effect)| matches!(effect, Effect::Clock { .. }))
            .map(|(at, _)| at)
            .collect::<Vec<_>>()
    };
    let ticking = GuestCosts { tick: Duration::from_millis(4), ..GuestCosts::default() };
    let busy = |costs| GuestKernel { costs: Costs::of(costs), ..mixed() };
    let idle = |costs| {
        let mut guest = GuestKernel::new(1, costs);
        let socket = guest.add_socket(Some(Protocol::Tcp), 7);
        guest.add_task(0, &[Step::Receive { socket, shift: None }, Step::Reply], true);
        guest
    };
    assert_eq!(sets(busy(&ticking), Interrupt::Tick), [5 * MS + 3 * US]);
    assert_eq!(sets(idle(&ticking), packet(7)), [5 * MS]);
    assert!(sets(busy(&ticking), packet(7)).is_empty());
    assert!(sets(idle(&GuestCosts::default()), packet(7)).is_empty());
}

#[test]
fn hogs_share_a_vcpu_by_time_slices() {
    let new = || GuestKernel::new(1, &GuestCosts::default());
    for mut guest in [new(), new().with_eevdf(None)] {
        (0..3).for_each(|number| {
            guest.add_task(number, &[Step::Compute(NEVER)], false);
        });
        for tick in 0..225 {
            guest.cpus[0].pending.push_back(Interrupt::Tick);
            run(&mut guest, 0, tick * 4 * MS, (tick + 1) * 4 * MS);
        }
        let used: Vec<_> = guest.tasks.iter().map(|task| task.vruntime / MS).collect();
        assert!(used.iter().all(|used| (290..=305).contains(used)), "{used:?}");
    }
}

#[test]
fn an_idle_vcpu_pulls_a_task_and_a_wake_up_elsewhere_is_an_ipi() {
    let mut guest = GuestKernel::new(2, &GuestCosts::default());
    guest.add_task(0, &[Step::Compute(NEVER)], false);
    guest.add_task(0, &[Step::Compute(MS), Step::End], false);
    guest.add_task(0, &[Step::Compute(NEVER)], false);
    run(&mut guest, 0, 0, MS / 2);
    run(&mut guest, 1, 0, 10 * MS);
    let placed: Vec<usize> = guest.tasks.iter().map(|task| task.vcpu).collect();
    assert_eq!(placed, [0, 1, 1], "{placed:?}");

    let mut guest = GuestKernel::new(2, &GuestCosts::default());
    let channel = guest.add_channel();
    guest.add_task(0, &[Step::Compute(MS), Step::Send { channel, messages: 1 }], false);
    guest.add_task(0, &[Step::Wait { channel, messages: 1 }, Step::Compute(US)], false);
    run(&mut guest, 1, 0, MS);
    let effects = run(&mut guest, 0, 0, 2 * MS);
    assert!(
        effects.iter().any(|(_, effect)| matches!(effect, Effect::Ipi { from: 0, to: 1 })),
        "{effects:?}"
    );
}

#[test]
fn tasks_that_wait_for_each_other_are_found() {
    let mut guest = GuestKernel::new(1, &GuestCosts::default());
    let (a, b) = (guest.add_channel(), guest.add_channel());
    let wait = |channel| Step::Wait { channel, messages: 1 };
    let send = |channel| Step::Send { channel, messages: 1 };
    guest.add_task(0, &[wait(a), send(b)], false);
    guest.add_task(0, &[wait(b), send(a)], false);
    guest.add_task(0, &[Step::Compute(NEVER)], false);
    run(&mut guest, 0, 0, MS);
    let stuck = |task, channel, by| Stuck { task, channel, since: 0, by: vec![by] };
    let first = guest.deadlocked();
    assert_eq!(
        first.iter().map(|one| Stuck { since: 0, ..one.clone() }).collect::<Vec<_>>(),
        [stuck(0, a, 1), stuck(1, b, 0)]
    );
    // The second one began to wait after the first one.
    assert!(first[0].since < first[1].since && first[1].since < MS, "{first:?}");
}

#[test]
fn in_one_step_a_guest_sleeps_before_whom_it_notifies_may_preempt_it() {
    let answered = |mut guest: GuestKernel| {
        let socket = guest.add_socket(Some(Protocol::Tcp), 7);
        guest.add_task(0, &[Step::Receive { socket, shift: None }, Step::Reply], true);
        run(&mut guest, 0, 0, MS);
        guest.cpus[0].pending.push_back(packet(7));
        let mut steps = Vec::new();
        loop {
            guest.ran(0, guest.next(0));
            let flow = guest.reached(0, MS);
            if guest.effects.drain(..).any(|effect| matches!(effect, Effect::Reply { .. })) {
                return flow;
            }
            steps.push(flow);
            assert!(steps.len() < 100, "{steps:?}");
        }
    };
    let guest = || GuestKernel::new(1, &GuestCosts::default());
    assert_eq!(answered(guest()), Flow::Continue);
    assert_eq!(answered(guest().in_one_step()), Flow::Block);
}
