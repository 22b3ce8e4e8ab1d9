//! The KVM source against real guests, tiny ones.

use crate::{
    askers::{self, Seen},
    kvm_guest::{Between, Guest, Halts, Program, STEP_PORT, TASKS, pinned},
    support::eventually,
};
use anyhow::{Context as _, Result, ensure};
use frontdesk_disk_protocol::AskersMemory;
use frontdesk_engine::{Event, EventKind, TaskId, VmId};
use frontdesk_probes::kvm::{KvmSource, Method};
use frontdesk_ring::Interest;
use libtest_mimic::{Failed, Trial};
use rustix::{event::epoll, thread::gettid};
use std::{os::fd::AsRawFd as _, thread, time::Duration};
use vmm_sys_util::eventfd::EventFd;

const VM: VmId = VmId(7);
const VCPU: u16 = 3;

/// Visits each task, one of them twice in a row, which is one visit.
const STEPS: [u32; 6] = [TASKS[0], TASKS[1], TASKS[0], TASKS[2], TASKS[2], TASKS[1]];

/// The trials that make sense with each of these methods on this host. The names tell the method.
pub(crate) fn trials(methods: &[Method]) -> Vec<Trial> {
    type Test = fn(Method) -> Result<()>;
    let all: [(&str, Test, &[Method]); 8] = [
        (
            "follows_a_guest_from_task_to_task",
            follows_from_task_to_task,
            &[Method::Trap, Method::Exit, Method::Switch],
        ),
        ("hears_halts_and_wake_ups", hears_halts, &[Method::Trap, Method::Exit, Method::Switch]),
        (
            "hears_nothing_of_other_threads",
            hears_nothing_of_others,
            &[Method::Trap, Method::Exit, Method::Switch],
        ),
        ("hears_every_task_at_exits", hears_every_task_at_exits, &[Method::Trap, Method::Exit]),
        ("hears_every_load", hears_every_load, &[Method::Trap]),
        ("guards_against_a_flood", guards_against_a_flood, &[Method::Exit]),
        (
            "shows_who_notifies_a_disk",
            shows_who_notifies_a_disk,
            &[Method::Trap, Method::Exit, Method::Switch],
        ),
        ("refuses_a_thread_of_another_vm", refuses_a_thread_of_another_vm, &[Method::Switch]),
    ];
    let mut trials = Vec::new();
    for &method in methods {
        for (name, test, _) in all.iter().filter(|(_, _, fit)| fit.contains(&method)) {
            let (name, test) = (format!("kvm_{name}_by_{method:?}").to_lowercase(), *test);
            trials.push(Trial::test(name, move || {
                pinned(|| test(method)).map_err(|e| Failed::from(format!("{e:?}")))
            }));
        }
    }
    trials
}

fn drain(source: &mut KvmSource) -> Result<Vec<EventKind>> {
    let mut events = Vec::new();
    source.drain(&mut events)?;
    ensure!(events.is_sorted_by_key(|event: &Event| event.at), "of one vCPU, in order");
    Ok(events.into_iter().map(|event| event.kind).collect())
}

/// What is heard of a task that runs: that it was switched to, or that it was seen.
fn runs(method: Method, task: u32) -> EventKind {
    let (vm, vcpu, task) = (VM, VCPU, TaskId(task.into()));
    if method.is_exact() {
        EventKind::TaskSwitch { vm, vcpu, task }
    } else {
        EventKind::TaskSeen { vm, vcpu, task }
    }
}

/// Without a task being seen again.
fn changes(heard: Vec<EventKind>) -> Vec<EventKind> {
    let mut last = None;
    let is_news =
        |kind: &EventKind| !matches!(kind, EventKind::TaskSeen { .. }) || last.replace(*kind) != Some(*kind);
    heard.into_iter().filter(is_news).collect()
}

/// Checks that exactly this was heard.
fn check(heard: &[EventKind], expected: &[EventKind]) -> Result<()> {
    let agree = heard.iter().zip(expected).take_while(|(heard, expected)| heard == expected).count();
    let (heard_next, expected_next) = (heard.get(agree), expected.get(agree));
    ensure!(
        heard_next == expected_next,
        "after {agree} as expected, heard {heard_next:?} instead of {expected_next:?}"
    );
    Ok(())
}

const HALT: EventKind = EventKind::Halt { vm: VM, vcpu: VCPU };
const RESUME: EventKind = EventKind::Resume { vm: VM, vcpu: VCPU };

/// What is heard of so many rounds through [`STEPS`] with a halt after each.
fn rounds(method: Method, count: usize) -> Vec<EventKind> {
    let mut tasks = STEPS.to_vec();
    tasks.dedup();
    let round = || tasks.iter().map(|task| runs(method, *task)).chain([HALT, RESUME]);
    (0..count).flat_map(|_| round()).collect()
}

fn follows_from_task_to_task(method: Method) -> Result<()> {
    let mut source = KvmSource::with(method)?;
    let guest = Guest::new(Program::Obey, &[], Halts::InKvm)?;
    source.follow(VM, &[(VCPU, guest.tid)])?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&poll, source.fd(), epoll::EventData::new_u64(0), flags)?;
    let woken = |seconds| -> Result<bool> {
        let mut ready = Vec::with_capacity(1);
        let patience = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 };
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut ready), Some(&patience))?;
        Ok(!ready.is_empty())
    };
    guest.begin()?;
    let mut before = None;
    for (number, task) in [0, 1, 2, 0, 2, 1, 0].map(|index| TASKS[index]).into_iter().enumerate() {
        let armed = number % 2 == 1;
        if armed {
            source.arm(VM, VCPU, Interest::TASKS);
        }
        guest.command(task);
        if armed {
            ensure!(woken(30)?, "not woken for {task:#x}");
        }
        let mut heard: Vec<EventKind> = before.into_iter().collect();
        eventually("the task is heard of", || {
            heard.extend(drain(&mut source).unwrap_or_default());
            heard.last() == Some(&runs(method, task))
        })?;
        // What is seen of the one before may be seen again until then.
        let heard = changes(heard);
        let expected: Vec<EventKind> = before.into_iter().chain([runs(method, task)]).collect();
        ensure!(heard == expected, "for {task:#x}, heard {heard:?}");
        before = Some(runs(method, task));
        ensure!(armed || !woken(0)?, "woken for {task:#x}, which nobody asked for");
    }
    source.arm(VM, VCPU, Interest::TASKS);
    source.disarm(VM, VCPU);
    guest.command(TASKS[2]);
    eventually("the task is heard of", || {
        drain(&mut source).is_ok_and(|heard| heard.last() == Some(&runs(method, TASKS[2])))
    })?;
    ensure!(!woken(0)?, "woken although disarmed");
    source.unfollow(VM);
    // What was heard before is still there.
    drain(&mut source)?;
    guest.command(TASKS[1]);
    guest.end()?;
    let heard = drain(&mut source)?;
    ensure!(heard.is_empty(), "heard after unfollow: {heard:?}");
    Ok(())
}

/// Without the halts that the kernel broke off and took up again before the guest ran: KVM wakes a vCPU's
/// thread for work of its own, too. Only where each round is sure to begin with the first task.
fn of_the_guest(heard: &[EventKind], method: Method) -> Vec<EventKind> {
    let first = runs(method, STEPS[0]);
    let mut halts = heard.split_inclusive(|kind| *kind == HALT).peekable();
    let mut kept = Vec::new();
    while let Some(until_halt) = halts.next() {
        kept.extend(until_halt);
        while halts.next_if(|next| next.ends_with(&[HALT]) && !next.contains(&first)).is_some() {}
    }
    kept
}

fn hears_halts(method: Method) -> Result<()> {
    const ROUNDS: u32 = 5;
    let mut source = KvmSource::with(method)?;
    let guest = Guest::new(Program::Steps(Between::Out), &STEPS, Halts::InKvm)?;
    source.follow(VM, &[(VCPU, guest.tid)])?;
    guest.begin()?;
    let mut heard = Vec::new();
    for round in 1..=ROUNDS {
        eventually("the guest halts", || {
            let halts = guest.halts();
            heard.extend(drain(&mut source).unwrap_or_default());
            halts == round && heard.last() == Some(&HALT)
        })
        .with_context(|| format!("in round {round}, heard {heard:?}"))?;
        if round == ROUNDS {
            guest.command(0);
        }
        guest.wake()?;
    }
    guest.wait()?;
    heard.extend(drain(&mut source)?);
    if method == Method::Switch {
        // Of the tasks, it is sure to hear of the one before the sleep only.
        let mut current = None;
        for kind in &heard {
            match *kind {
                EventKind::TaskSeen { .. } => current = Some(*kind),
                HALT => {
                    ensure!(current == STEPS.last().map(|task| runs(method, *task)), "halts in {current:?}")
                }
                _ => {}
            }
        }
        heard.retain(|kind| !matches!(kind, EventKind::TaskSeen { .. }));
        let halts = heard.iter().filter(|kind| **kind == HALT).count();
        // The kernel's own breaks of a halt cannot be told from the guest's.
        ensure!(halts >= usize::try_from(ROUNDS)?, "heard {heard:?}");
        check(&heard, &[HALT, RESUME].repeat(halts))
    } else {
        check(&changes(of_the_guest(&heard, method)), &rounds(method, usize::try_from(ROUNDS)?))
    }
}

fn hears_nothing_of_others(method: Method) -> Result<()> {
    let mut source = KvmSource::with(method)?;
    // The threads followed run no vCPU, and the vCPU that runs is not followed.
    let own = gettid().as_raw_nonzero().get();
    let idler = crate::support::Idler::start()?;
    source.follow(VM, &[(0, own), (1, idler.pid())])?;
    let guest = Guest::new(Program::Steps(Between::Out), &STEPS, Halts::InUserSpace(20))?;
    guest.begin()?;
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(1));
    }
    guest.wait()?;
    drop(idler);
    let heard = drain(&mut source)?;
    ensure!(heard.is_empty(), "heard {heard:?}");
    Ok(())
}

fn hears_every_task_at_exits(method: Method) -> Result<()> {
    const ROUNDS: u32 = 50;
    let mut source = KvmSource::with(method)?;
    let guest = Guest::new(Program::Steps(Between::Out), &STEPS, Halts::InUserSpace(ROUNDS))?;
    source.follow(VM, &[(VCPU, guest.tid)])?;
    guest.begin()?;
    guest.wait()?;
    let mut expected = rounds(method, usize::try_from(ROUNDS)?);
    if method == Method::Trap {
        // These halts are not KVM's.
        expected.retain(|kind| !matches!(*kind, HALT | RESUME));
    }
    let heard = drain(&mut source)?;
    let stats = source.stats()?;
    ensure!(stats.suppressed == 0 && stats.lost == 0, "{stats:?}");
    ensure!(stats.pushed == u64::try_from(heard.len())?, "{stats:?}, heard {}", heard.len());
    let heard = changes(heard);
    check(&heard, &expected)
}

/// Also those between which nothing leaves the guest.
fn hears_every_load(method: Method) -> Result<()> {
    let mut source = KvmSource::with(method)?;
    let guest = Guest::new(Program::Steps(Between::Nothing), &STEPS, Halts::InUserSpace(1))?;
    source.follow(VM, &[(VCPU, guest.tid)])?;
    guest.begin()?;
    guest.wait()?;
    let mut expected = rounds(method, 1);
    expected.truncate(expected.len() - 2);
    let heard = drain(&mut source)?;
    check(&heard, &expected)
}

fn guards_against_a_flood(method: Method) -> Result<()> {
    let mut source = KvmSource::with(method)?;
    let mut steps = Vec::new();
    while steps.len() < 1000 {
        steps.extend([TASKS[0], TASKS[1]]);
    }
    let guest = Guest::new(Program::Steps(Between::CpuId), &steps, Halts::InUserSpace(20))?;
    source.follow(VM, &[(VCPU, guest.tid)])?;
    let clock = std::time::Instant::now();
    guest.begin()?;
    guest.wait()?;
    let windows = u64::try_from(clock.elapsed().as_millis())? + 2;
    let stats = source.stats()?;
    let heard = drain(&mut source)?;
    ensure!(stats.suppressed > 0 && stats.lost == 0, "{stats:?}");
    ensure!(stats.pushed == u64::try_from(heard.len())?, "heard {}: {stats:?}", heard.len());
    ensure!(stats.pushed <= 16 * windows, "{windows} ms: {stats:?}");
    // The guest ends in the last task, and halts: what is held back is made good.
    let seen = |kind: &&EventKind| matches!(kind, EventKind::TaskSeen { .. });
    ensure!(heard.iter().rfind(seen) == Some(&runs(method, TASKS[1])), "at last {:?}", heard.last());
    Ok(())
}

/// A task notifies the disk, another one another device, and a third leaves the guest before it halts.
fn shows_who_notifies_a_disk(method: Method) -> Result<()> {
    // Flags of CR3, which the guest writes to the port as well.
    const DISK: u8 = 8;
    const OTHER: u8 = 16;
    let [asks, sends, last] = TASKS;
    let steps = [asks | u32::from(DISK), sends | u32::from(OTHER), last];
    let guest = Guest::new(Program::Steps(Between::Out), &steps, Halts::InKvm)?;
    let (disk, other) = (EventFd::new(libc::EFD_NONBLOCK)?, EventFd::new(libc::EFD_NONBLOCK)?);
    guest.ring_for(STEP_PORT, DISK, &disk)?;
    guest.ring_for(STEP_PORT, OTHER, &other)?;
    let mut source = KvmSource::with(method)?;
    ensure!(source.show_tasks(VM, &[]).is_err(), "it is not followed");
    source.follow(VM, &[(VCPU, guest.tid)])?;
    let shown = source.show_tasks(VM, &[number(&disk)?])?;
    let memory = AskersMemory::map(shown, VCPU + 1, askers::layout())?;
    ensure!(Seen::of(&memory, VCPU) == Seen { current: None, notified: None, notifications: 0 });
    guest.begin()?;
    let mut expected = Seen { current: Some(TaskId(last.into())), notified: None, notifications: 0 };
    let mut heard = Vec::new();
    for round in 1..=4 {
        eventually("the guest halts", || {
            heard.extend(drain(&mut source).unwrap_or_default());
            guest.halts() == round && heard.last() == Some(&HALT)
        })
        .with_context(|| format!("in round {round}, heard {heard:?}"))?;
        let of_both = (disk.read()?, other.read()?);
        ensure!(of_both == (1, 1), "in round {round}, the devices heard {of_both:?}");
        let by = [asks, asks, sends, sends][usize::try_from(round)? - 1];
        expected.notified = Some(TaskId(by.into()));
        // Nobody's notifications count in the last round.
        expected.notifications += u64::from(round < 4);
        let seen = Seen::of(&memory, VCPU);
        ensure!(seen == expected, "in round {round}, it shows {seen:?} instead of {expected:?}");
        let recorded = heard.iter().rfind(|kind| !matches!(**kind, HALT | RESUME));
        ensure!(recorded == Some(&runs(method, last)), "recorded {recorded:?}, shown {seen:?}");
        match round {
            // As when a vCPU was added.
            1 => source.follow(VM, &[(VCPU, guest.tid)])?,
            2 => _ = source.show_tasks(VM, &[number(&other)?])?,
            3 => _ = source.show_tasks(VM, &[])?,
            _ => guest.command(0),
        }
        guest.wake()?;
    }
    guest.wait()?;
    askers::seen_by_another(source.show_tasks(VM, &[])?, VCPU, &expected)?;
    source.unfollow(VM);
    drop(source);
    ensure!(Seen::of(&memory, VCPU) == expected, "it goes with whoever has it mapped");
    Ok(())
}

/// The kernel's number of an eventfd.
fn number(eventfd: &EventFd) -> Result<u32> {
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", eventfd.as_raw_fd()))?;
    let number = told.lines().find_map(|line| line.strip_prefix("eventfd-id:"));
    Ok(number.context("it has no number")?.trim().parse()?)
}

fn refuses_a_thread_of_another_vm(method: Method) -> Result<()> {
    let mut source = KvmSource::with(method)?;
    let own = gettid().as_raw_nonzero().get();
    source.follow(VM, &[(0, own)])?;
    let error = source.follow(VmId(8), &[(0, own)]).err().context("not refused")?;
    ensure!(error.to_string().contains("another VM"), "{error}");
    ensure!(source.follow(VM, &[(0, own)]).is_ok(), "following afresh");
    ensure!(source.follow(VM, &[(0, 0)]).is_err(), "thread 0 is the idle task");
    source.unfollow(VM);
    source.unfollow(VmId(8));
    ensure!(source.is_idle());
    Ok(())
}
