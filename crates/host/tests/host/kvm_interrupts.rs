//! Interrupts under KVM, against a tiny guest with two vCPUs.

use crate::{
    kvm_guest::pinned,
    kvm_pair::{BY_HYPERCALL, CALL, Command, DEVICE, Pair, RESCHEDULE},
    support::eventually,
};
use anyhow::{Result, ensure};
use frontdesk_engine::{Event, EventKind, VmId};
use frontdesk_probes::kvm::{KvmSource, Method};
use frontdesk_ring::Interest;
use libtest_mimic::{Failed, Trial};
use rustix::event::epoll;
use std::{
    thread,
    time::{Duration, Instant},
};

const VM: VmId = VmId(7);
/// Indices of the vCPUs, which are neither KVM's numbers of them nor in their order.
const SENDER: u16 = 3;
const RECEIVER: u16 = 1;

/// The trials that make sense with each of these methods on this host. The names tell the method.
pub(crate) fn trials(methods: &[Method]) -> Vec<Trial> {
    type Test = fn(Method) -> Result<()>;
    let all: [(&str, Test); 4] = [
        ("tells_devices_interrupts", tells_devices),
        ("tells_interrupts_between_vcpus", tells_those_between_vcpus),
        ("wakes_for_interrupts_if_asked_to", wakes_if_asked_to),
        ("guards_against_a_flood_of_interrupts", guards_against_a_flood),
    ];
    let trial = |method: Method, name: &str, test: Test| {
        Trial::test(format!("kvm_{name}_by_{method:?}").to_lowercase(), move || {
            pinned(|| test(method)).map_err(|e| Failed::from(format!("{e:?}")))
        })
    };
    let of = |method: &Method| all.map(|(name, test)| trial(*method, name, test));
    methods.iter().flat_map(of).collect()
}

/// A guest that runs and is followed, and whose clock has ticked.
fn followed(method: Method) -> Result<(KvmSource, Pair)> {
    let mut source = KvmSource::with(method)?;
    ensure!(source.tells_interrupts(), "the kernel refuses the programs");
    let pair = Pair::new()?;
    source.follow(VM, &[(SENDER, pair.tids[0]), (RECEIVER, pair.tids[1])])?;
    pair.begin()?;
    eventually("the clock ticks", || pair.ticks() == 1)?;
    Ok((source, pair))
}

/// What was heard of interrupts, in the order in which it happened.
fn drain(source: &mut KvmSource) -> Result<Vec<EventKind>> {
    let mut events: Vec<Event> = Vec::new();
    source.drain(&mut events)?;
    events.sort_by_key(|event| event.at);
    let is_interrupt = |kind: &EventKind| {
        matches!(kind, EventKind::Interrupt { .. } | EventKind::Ipi { .. } | EventKind::IpiTaken { .. })
    };
    Ok(events.into_iter().map(|event| event.kind).filter(is_interrupt).collect())
}

fn tells_devices(method: Method) -> Result<()> {
    let (mut source, pair) = followed(method)?;
    let heard = drain(&mut source)?;
    ensure!(heard.is_empty(), "the clock is no device, heard {heard:?}");
    for round in 1..=3 {
        pair.interrupt(DEVICE)?;
        eventually("the guest takes it", || pair.taken(DEVICE) == round)?;
        let heard = drain(&mut source)?;
        let expected = [EventKind::Interrupt { vm: VM, vcpu: RECEIVER, vector: DEVICE }];
        ensure!(heard == expected, "in round {round}, heard {heard:?}");
    }
    source.unfollow(VM);
    pair.interrupt(DEVICE)?;
    eventually("the guest takes it", || pair.taken(DEVICE) == 4)?;
    let heard = drain(&mut source)?;
    ensure!(heard.is_empty(), "heard after unfollow: {heard:?}");
    pair.end()?;

    // With one vCPU there is no question which takes them.
    let pair = Pair::new()?;
    source.follow(VM, &[(RECEIVER, pair.tids[1])])?;
    pair.begin()?;
    // Before it has switched its controller on, it takes nothing.
    eventually("the clock ticks", || pair.ticks() == 1)?;
    pair.interrupt(DEVICE)?;
    eventually("the guest takes it", || pair.taken(DEVICE) == 1)?;
    let heard = drain(&mut source)?;
    ensure!(heard.is_empty(), "of one vCPU, heard {heard:?}");
    pair.end()
}

const fn once(destination: u32, low: u32) -> Command {
    Command { destination, low, times: 1 }
}

/// To the receiver by its number.
const TO_RECEIVER: Command = once(crate::kvm_pair::RECEIVER_ID, 0x4000 | RESCHEDULE as u32);

fn tells_those_between_vcpus(method: Method) -> Result<()> {
    const RECEIVES: u64 = 1 << RECEIVER;
    const BOTH: u64 = RECEIVES | 1 << SENDER;
    let (mut source, pair) = followed(method)?;
    // The sender takes no interrupts, and so what it sends itself stays where it is.
    let commands = [
        ("by number", TO_RECEIVER, RESCHEDULE, RECEIVES),
        ("once more", TO_RECEIVER, RESCHEDULE, RECEIVES),
        ("another vector", once(5, 0x40fb), CALL, RECEIVES),
        ("by its bit", once(2, 0x48fd), RESCHEDULE, RECEIVES),
        ("by both bits", once(3, 0x48fd), RESCHEDULE, BOTH),
        ("all but the sender", once(0, 0xc_40fb), CALL, RECEIVES),
        ("all", once(0, 0x8_40fb), CALL, BOTH),
        ("by hypercall", Command { times: BY_HYPERCALL, ..once(0x21, CALL.into()) }, CALL, BOTH),
    ];
    for ((what, command, vector, to), taken) in commands.into_iter().zip(1..) {
        pair.send(command)?;
        eventually("the guest takes it", || pair.taken(vector) == taken)?;
        let heard = drain(&mut source)?;
        let sent = EventKind::Ipi { vm: VM, vcpu: SENDER, to, vector };
        let expected = [sent, EventKind::IpiTaken { vm: VM, vcpu: RECEIVER }];
        ensure!(heard == expected, "{what}: heard {heard:?}");
    }
    for (what, command) in [
        ("to a vCPU that is not there", once(9, 0x40fd)),
        ("to a bit that nobody has", once(0x80, 0x48fd)),
        ("an NMI", once(5, 0x4400)),
    ] {
        pair.send(command)?;
        let heard = drain(&mut source)?;
        ensure!(heard.is_empty(), "{what}: heard {heard:?}");
    }
    // A device's is still told from those.
    pair.interrupt(DEVICE)?;
    eventually("the guest takes it", || pair.taken(DEVICE) == 1)?;
    let heard = drain(&mut source)?;
    let expected = [EventKind::Interrupt { vm: VM, vcpu: RECEIVER, vector: DEVICE }];
    ensure!(heard == expected, "at last heard {heard:?}");
    pair.end()
}

fn wakes_if_asked_to(method: Method) -> Result<()> {
    let (mut source, pair) = followed(method)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&poll, source.fd(), epoll::EventData::new_u64(0), flags)?;
    let woken = || -> Result<bool> {
        let mut ready = Vec::with_capacity(1);
        let at_once = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut ready), Some(&at_once))?;
        Ok(!ready.is_empty())
    };
    // What it begins with is no news any more.
    pair.send(TO_RECEIVER)?;
    drain(&mut source)?;
    woken()?;
    let both = Interest { tasks: true, interrupts: true };
    for (interest, wakes) in [
        (None, false),
        (Some(Interest::TASKS), false),
        (Some(Interest::INTERRUPTS), true),
        (Some(both), true),
        (None, false),
    ] {
        if let Some(interest) = interest {
            source.arm(VM, SENDER, interest);
        }
        pair.send(TO_RECEIVER)?;
        ensure!(woken()? == wakes, "armed for {interest:?}");
        drain(&mut source)?;
    }
    source.arm(VM, SENDER, both);
    source.disarm(VM, SENDER);
    pair.send(TO_RECEIVER)?;
    ensure!(!woken()?, "woken although disarmed");
    pair.end()
}

fn guards_against_a_flood(method: Method) -> Result<()> {
    let (mut source, pair) = followed(method)?;
    drain(&mut source)?;
    let clock = Instant::now();
    pair.send(Command { times: 5000, ..TO_RECEIVER })?;
    let windows = usize::try_from(clock.elapsed().as_millis())? + 2;
    let stats = source.stats()?;
    let heard = drain(&mut source)?;
    ensure!(stats.suppressed > 0 && stats.lost == 0, "{stats:?}");
    // Each vCPU's own.
    ensure!(heard.len() <= 2 * 16 * windows, "{windows} ms: heard {}, {stats:?}", heard.len());
    // Afterwards all is as before.
    thread::sleep(Duration::from_millis(5));
    drain(&mut source)?;
    let before = pair.taken(CALL);
    pair.send(once(5, 0x40fb))?;
    eventually("the guest takes it", || pair.taken(CALL) > before)?;
    let heard = drain(&mut source)?;
    let sent = EventKind::Ipi { vm: VM, vcpu: SENDER, to: 1 << RECEIVER, vector: CALL };
    ensure!(heard.contains(&sent), "after the flood, heard {heard:?}");
    pair.end()
}
