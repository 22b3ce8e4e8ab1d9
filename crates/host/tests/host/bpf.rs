//! The BPF source against real threads and a real tap.

use crate::support::{eventually, trial};
use crate::wire::{ACK, FIN, SYN, Wire, datagram, ethernet, ipv4, ipv6, segment, tcp, udp};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use frontdesk_engine::{Event, EventKind, Protocol, Thread, VmId};
use frontdesk_linux::Tap;
use frontdesk_linux::{monotonic_ns, realtime};
use frontdesk_probes::{MAX_TAPS, bpf::BpfSource};
use libtest_mimic::Trial;
use rustix::{
    event::epoll,
    thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity},
};
use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::atomic::{AtomicBool, Ordering},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("bpf_hears_a_thread_sleep_and_wake", hears_a_thread_sleep_and_wake),
        trial("bpf_tells_preemption_from_sleep", tells_preemption_from_sleep),
        trial("bpf_tells_a_doorbell_also_on_an_idle_cpu", tells_a_doorbell_also_on_an_idle_cpu),
        trial("bpf_refuses_a_thread_of_another_vm", refuses_a_thread_of_another_vm),
        trial("bpf_goes_on_without_the_taps_of_another_vm", goes_on_without_the_taps_of_another_vm),
        trial("bpf_hears_packets_towards_a_tap", hears_packets_towards_a_tap),
        trial("bpf_hears_the_reply_to_a_packet", hears_the_reply_to_a_packet),
        trial("bpf_guards_against_a_flood", guards_against_a_flood),
        trial("bpf_leaves_room_for_other_vms", leaves_room_for_other_vms),
        trial("bpf_counts_what_a_full_ring_loses", counts_what_a_full_ring_loses),
    ]
}

const VM: VmId = VmId(7);

fn own_tid() -> i32 {
    gettid().as_raw_nonzero().get()
}

fn drain(source: &mut BpfSource) -> Result<Vec<EventKind>> {
    let mut events = Vec::new();
    source.drain(&mut events)?;
    ensure!(events.is_sorted_by_key(|e: &Event| e.at.0 / 1_000_000_000), "timestamps jump");
    Ok(events.into_iter().map(|e| e.kind).collect())
}

/// Everything heard until it is enough.
fn drain_until(
    source: &mut BpfSource,
    what: &str,
    enough: impl Fn(&[EventKind]) -> bool,
) -> Result<Vec<EventKind>> {
    let (mut heard, mut result) = (Vec::new(), Ok(()));
    eventually(what, || {
        result = drain(source).map(|more| heard.extend(more));
        result.is_err() || enough(&heard)
    })?;
    result.map(|()| heard)
}

fn hears_a_thread_sleep_and_wake() -> Result<()> {
    let mut source = BpfSource::open()?;
    let thread = Thread::Vcpu(3);
    source.follow(VM, &[(own_tid(), thread)], &[])?;
    let asleep = EventKind::Stop { vm: VM, thread, runnable: false };
    // Waiting is sleeping.
    let heard = drain_until(&mut source, "it has slept three times", |heard| {
        heard.iter().filter(|kind| **kind == asleep).count() >= 3
    })?;
    let (mut running, mut runnable) = (true, true);
    for kind in &heard {
        match *kind {
            EventKind::Stop { runnable: still, .. } if running => (running, runnable) = (false, still),
            EventKind::Run { .. } if !running && runnable => running = true,
            // One that was preempted on its way to sleep may be woken, too.
            EventKind::Wake { vm: VM, thread: woken, by: None } if !running && woken == thread => {
                runnable = true
            }
            other => bail!("{other:?} out of order in {heard:?}, {:?}", source.stats()?),
        }
    }
    source.unfollow(VM);
    // It may have been preempted just before; nothing comes after that.
    drain(&mut source)?;
    thread::sleep(Duration::from_millis(2));
    ensure!(drain(&mut source)?.is_empty(), "heard after unfollow");
    Ok(())
}

fn tells_preemption_from_sleep() -> Result<()> {
    let mut source = BpfSource::open()?;
    let (tids, received) = std::sync::mpsc::channel();
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            let (tids, stop) = (tids.clone(), &stop);
            scope.spawn(move || {
                let mut first = CpuSet::new();
                first.set(0);
                let pinned = sched_setaffinity(None, &first);
                let _ = tids.send(own_tid());
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                pinned
            });
        }
        let result = (|| {
            let thread = Thread::Emulator(0);
            source.follow(VM, &[(received.recv()?, thread)], &[])?;
            let preempted = EventKind::Stop { vm: VM, thread, runnable: true };
            // Two spinning threads on one CPU: the followed one is preempted as soon as its slice ends.
            drain_until(&mut source, "it is preempted", |heard| heard.contains(&preempted)).map(drop)
        })();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        result
    })
}

/// The thread that is woken has a CPU to itself, if there are two: the kernel has that CPU carry out the
/// wake-up.
fn tells_a_doorbell_also_on_an_idle_cpu() -> Result<()> {
    const DOORBELLS: usize = 20;
    let before = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu)).collect();
    let result = thread::scope(|scope| {
        let (ring, doorbell) = std::sync::mpsc::channel();
        let (tell_tid, tid) = std::sync::mpsc::channel();
        let last = cpus.last();
        scope.spawn(move || {
            let pinned = pin(last);
            let _ = tell_tid.send(own_tid());
            while doorbell.recv().is_ok() {}
            pinned
        });
        pin(cpus.first())?;
        doorbells_heard(DOORBELLS, tid.recv()?, &ring)
    });
    sched_setaffinity(None, &before)?;
    let by = result?;
    ensure!(by.iter().all(|by| *by == Some(VCPU)) && by.len() >= DOORBELLS / 2, "woken by {by:?}");
    Ok(())
}

const VCPU: u16 = 4;

fn pin(cpu: Option<&usize>) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(*cpu.context("no CPU")?);
    Ok(sched_setaffinity(None, &one)?)
}

/// Who is told to have woken the thread `tid` when this one did.
fn doorbells_heard(count: usize, tid: i32, ring: &std::sync::mpsc::Sender<()>) -> Result<Vec<Option<u16>>> {
    let emulator = Thread::Emulator(1);
    let mut source = BpfSource::open()?;
    source.follow(VM, &[(own_tid(), Thread::Vcpu(VCPU)), (tid, emulator)], &[])?;
    for _ in 0..count {
        // Time to go to sleep.
        thread::sleep(Duration::from_millis(5));
        ring.send(())?;
    }
    thread::sleep(Duration::from_millis(5));
    let by = |kind| match kind {
        EventKind::Wake { thread, by, .. } if thread == emulator => Some(by),
        _ => None,
    };
    Ok(drain(&mut source)?.into_iter().filter_map(by).collect())
}

fn refuses_a_thread_of_another_vm() -> Result<()> {
    let mut source = BpfSource::open()?;
    let tid = own_tid();
    source.follow(VM, &[(tid, Thread::Vcpu(0))], &[])?;
    let error = source.follow(VmId(8), &[(tid, Thread::Vcpu(0))], &[]).err().context("not refused")?;
    ensure!(error.to_string().contains("another VM"), "{error}");
    ensure!(source.follow(VM, &[(tid, Thread::Vcpu(0))], &[]).is_ok(), "following afresh");
    ensure!(source.follow(VM, &[(0, Thread::Vcpu(0))], &[]).is_err(), "thread 0 is the idle task");
    Ok(())
}

/// Runs `test` on a thread with a [`Wire`], so that the namespace ends with it.
fn on_a_wire(test: fn(&Wire, &mut BpfSource) -> Result<()>) -> Result<()> {
    thread::spawn(move || {
        let wire = Wire::new()?;
        let mut source = BpfSource::open()?;
        source.follow(VM, &[], &[wire.tap()])?;
        // What the kernel itself sends when an interface comes up (IPv6 autoconfiguration) is neither TCP nor
        // UDP.
        test(&wire, &mut source)
    })
    .join()
    .unwrap_or_else(|_| bail!("the test's thread panicked"))
}

/// Which taps a VM has it says itself. What it says wrongly must not cost another one more than that tap.
fn goes_on_without_the_taps_of_another_vm() -> Result<()> {
    let mut source = BpfSource::open()?;
    let tap = |ifname: String| Tap { netns: 1, ifname };
    let claims: Vec<Tap> = (0..=MAX_TAPS).map(|number| tap(format!("claimed{number}"))).collect();
    let left_out = source.follow(VmId(8), &[], &claims)?;
    ensure!(left_out.len() == 1, "{left_out:?}");
    let left_out =
        source.follow(VM, &[(own_tid(), Thread::Vcpu(0))], &[claims[0].clone(), tap("own".into())])?;
    ensure!(left_out.len() == 1 && left_out[0].to_string().contains("another VM"), "{left_out:?}");
    drain_until(&mut source, "its thread is heard", |heard| {
        heard.iter().any(|kind| matches!(kind, EventKind::Stop { vm: VM, .. }))
    })?;
    // Whoever comes once the other has gone has it.
    source.unfollow(VmId(8));
    let left_out = source.refollow(VM, &[], &[claims[0].clone()])?;
    ensure!(left_out.is_empty(), "{left_out:?}");
    Ok(())
}

fn hears_packets_towards_a_tap() -> Result<()> {
    on_a_wire(|wire, source| {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&poll, source.fd(), epoll::EventData::new_u64(0), flags)?;
        let mut ready = Vec::with_capacity(1);
        let vlan = |inner: u16, packet: &[u8]| {
            ethernet(0x8100, &[&[0, 5], &inner.to_be_bytes()[..], packet].concat())
        };
        let frames = [
            (ethernet(0x0800, &ipv4(6, 0x4000, &tcp(22, ACK, b"k"))), Some((Protocol::Tcp, 22))),
            (ethernet(0x0800, &ipv4(6, 0, &tcp(23, ACK | FIN, b""))), Some((Protocol::Tcp, 23))),
            (ethernet(0x0800, &ipv4(17, 0x2000, &udp(53))), Some((Protocol::Udp, 53))),
            (ethernet(0x86dd, &ipv6(6, &tcp(5900, ACK, b"key"))), Some((Protocol::Tcp, 5900))),
            (ethernet(0x86dd, &ipv6(17, &udp(514))), Some((Protocol::Udp, 514))),
            (vlan(0x0800, &ipv4(17, 0, &udp(69))), Some((Protocol::Udp, 69))),
            (vlan(0x86dd, &ipv6(6, &tcp(80, ACK, b"GET"))), Some((Protocol::Tcp, 80))),
            // Wakes no task: a pure acknowledgement (with padding behind it), a handshake.
            (ethernet(0x0800, &ipv4(6, 0, &tcp(22, ACK, b""))), None),
            (ethernet(0x0800, &ipv4(6, 0, &tcp(22, SYN, b""))), None),
            (ethernet(0x86dd, &ipv6(6, &tcp(22, ACK, b""))), None),
            // Not ours: ICMP, a later fragment, ARP, a header cut short.
            (ethernet(0x0800, &ipv4(1, 0, &udp(1))), None),
            (ethernet(0x0800, &ipv4(17, 3, &udp(53))), None),
            (ethernet(0x0806, &[0; 28]), None),
            (ethernet(0x0800, &[0x4f; 46]), None),
        ];
        for (frame, expected) in frames {
            thread::sleep(Duration::from_millis(2));
            wire.send(&frame)?;
            let patience = rustix::fs::Timespec { tv_sec: i64::from(expected.is_some()) * 120, tv_nsec: 0 };
            ready.clear();
            epoll::wait(&poll, rustix::buffer::spare_capacity(&mut ready), Some(&patience))?;
            ensure!(
                ready.len() == usize::from(expected.is_some()),
                "woken for {expected:?}: {}",
                ready.len()
            );
            let expected: Vec<EventKind> = expected
                .into_iter()
                .map(|(protocol, port)| EventKind::Packet { vm: VM, protocol, port })
                .collect();
            let heard = drain(source)?;
            ensure!(heard == expected, "expected {expected:?}, heard {heard:?}");
        }
        let stats = source.stats()?;
        ensure!((stats.pushed, stats.woken, stats.no_payload) == (7, 7, 3) && stats.other >= 4, "{stats:?}");
        // Where they count, they are heard of like any other.
        let acknowledgement = ethernet(0x0800, &ipv4(6, 0, &tcp(22, ACK, b"")));
        let heard = |count| {
            thread::sleep(Duration::from_millis(2));
            source.count_acknowledgements(count)?;
            wire.send(&acknowledgement)?;
            drain(source)
        };
        let packet = EventKind::Packet { vm: VM, protocol: Protocol::Tcp, port: 22 };
        let counted = [true, false].into_iter().map(heard).collect::<Result<Vec<_>>>()?;
        ensure!(counted == [vec![packet], vec![]], "{counted:?}");
        Ok(())
    })
}

/// The guest sends what is written to the tap. Of that only the first new thing from the port that was asked
/// is told.
fn hears_the_reply_to_a_packet() -> Result<()> {
    on_a_wire(|wire, source| {
        let over_ip = |protocol, payload: &[u8]| ethernet(0x0800, &ipv4(protocol, 0, payload));
        let mut replies = |ask: Option<Vec<u8>>, answers: &[Vec<u8>]| -> Result<usize> {
            thread::sleep(Duration::from_millis(2));
            if let Some(ask) = ask {
                wire.send(&ask)?;
            }
            for answer in answers {
                (&wire.tap).write_all(answer)?;
            }
            let heard = drain(source)?;
            Ok(heard.into_iter().filter(|kind| matches!(kind, EventKind::Reply { .. })).count())
        };
        let ask = || Some(over_ip(6, &tcp(80, ACK, b"?")));
        let answer = |sequence| over_ip(6, &segment(80, 0x3039, sequence, ACK, b"!"));
        let cases = [
            ("nobody asked", None, vec![answer(1)], 0),
            ("an acknowledgement", ask(), vec![over_ip(6, &segment(80, 0x3039, 1, ACK, b""))], 0),
            ("from another port", None, vec![over_ip(6, &segment(81, 0x3039, 1, ACK, b"!"))], 0),
            ("by another protocol", None, vec![over_ip(17, &datagram(80, 0x3039))], 0),
            ("the first of several", None, vec![answer(5), answer(6)], 1),
            ("the last one again", ask(), vec![answer(5)], 0),
            ("and then the next", None, vec![answer(7)], 1),
            ("a datagram", Some(over_ip(17, &udp(53))), vec![over_ip(17, &datagram(53, 0x3039))], 1),
            (
                "over IPv6",
                Some(ethernet(0x86dd, &ipv6(17, &udp(53)))),
                vec![ethernet(0x86dd, &ipv6(17, &datagram(53, 9)))],
                1,
            ),
        ];
        for (name, ask, answers, expected) in cases {
            let heard = replies(ask, &answers)?;
            ensure!(heard == expected, "{name}: {heard} replies");
        }
        Ok(())
    })
}

fn guards_against_a_flood() -> Result<()> {
    on_a_wire(|wire, source| {
        // A window is a millisecond of the clock, and lets this many pass.
        const WINDOW: u64 = 16;
        const BURST: u64 = 20;
        let window = || monotonic_ns() / 1_000_000;
        let frame = ethernet(0x0800, &ipv4(17, 0, &udp(9)));
        let (first, mut heard, mut bursts) = (window(), 0, 0);
        // On a slow machine, or a busy one, few bursts are in one window.
        let start = Instant::now();
        while bursts < 500 {
            ensure!(start.elapsed() < Duration::from_secs(300), "{bursts} bursts in one window");
            for _ in 0..100 {
                let begun = window();
                (0..BURST).try_for_each(|_| wire.send(&frame))?;
                bursts += u64::from(window() == begun);
            }
            heard += u64::try_from(drain(source)?.len())?;
        }
        let windows = window() - first + 1;
        let stats = source.stats()?;
        ensure!(stats.pushed == heard && stats.lost == 0, "heard {heard}: {stats:?}");
        ensure!(stats.pushed + stats.suppressed + stats.other == stats.packets, "{stats:?}");
        ensure!(stats.pushed <= WINDOW * windows && stats.woken <= 4 * windows, "{windows} ms: {stats:?}");
        ensure!(stats.suppressed >= (BURST - WINDOW) * bursts, "{bursts} bursts in one window: {stats:?}");
        Ok(())
    })
}

/// Two threads of a VM take turns as fast as they can.
fn leaves_room_for_other_vms() -> Result<()> {
    const BUDGET: usize = 256;
    const CPUS: usize = 1;
    let mut source = BpfSource::open()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let (tell, told) = mpsc::channel();
        for _ in 0..2 {
            let (tell, stop) = (tell.clone(), &stop);
            scope.spawn(move || {
                let ready = realtime::enter(1, &[0]).map_err(|error| error.to_string());
                let _ = tell.send(ready.map(|()| own_tid()));
                while !stop.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            });
        }
        let result = (|| {
            let mut threads = Vec::new();
            for index in 0..2 {
                threads.push((told.recv()?.map_err(|error| anyhow!(error))?, Thread::Vcpu(index)));
            }
            source.follow(VM, &threads, &[])?;
            let (mut events, mut lost, mut windows) = (Vec::new(), 0, BTreeMap::<u64, usize>::new());
            eventually("its budget is used up in ten windows", || {
                let _ = source.drain(&mut events);
                events.drain(..).for_each(|event| *windows.entry(event.at.0 / 1_000_000).or_default() += 1);
                lost += source.take_lost().unwrap_or_default().iter().map(|(_, count)| count).sum::<u64>();
                windows.values().filter(|count| **count >= BUDGET).count() > 10
            })?;
            // One that was late counts to the next.
            let most = windows.values().max().copied().unwrap_or_default();
            ensure!(most <= BUDGET + CPUS, "{most} records in a millisecond");
            ensure!(lost > 0, "nothing was told as lost");
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn counts_what_a_full_ring_loses() -> Result<()> {
    let mut source = BpfSource::open()?;
    let yielder = VmId(9);
    source.follow(VM, &[], &[])?;
    source.follow(yielder, &[(own_tid(), Thread::Vcpu(0))], &[])?;
    ensure!(source.take_lost()?.is_empty());
    // Each sleep makes three records of 32 bytes; the ring holds 32768 of them.
    let mut lost = Vec::new();
    for _ in 0..40 {
        for _ in 0..1_000 {
            // What is over before it begins is no sleep to newer kernels.
            thread::sleep(Duration::from_micros(50));
        }
        lost = source.take_lost()?;
        if !lost.is_empty() {
            break;
        }
    }
    ensure!(matches!(lost[..], [(vm, count)] if vm == yielder && count > 0), "{lost:?}");
    let mut events = Vec::new();
    source.drain(&mut events)?;
    ensure!(events.len() > 20_000, "{} events", events.len());
    Ok(())
}
