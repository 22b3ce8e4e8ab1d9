//! Interrupts of devices and between vCPUs, as the plugin tells them of real VMs that answer requests.
//!
//! The static guest program and the plugin are found as in `boot.rs`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod vm;

use frontdesk_lab::{RunningVm, TapConfig, VmConfig};
use frontdesk_ring::{Consumer, Entry, EntryKind};
use frontdesk_scenario::{Protocol, WorkloadKind};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;
use vm::{PATIENCE, config};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const TAP: &str = "interrupts";
const FIRST_PORT: u16 = 7000;
/// To each server.
const REQUESTS: u8 = 25;
const THINK_NS: u64 = 20_000_000;
const THINK: Duration = Duration::from_nanos(THINK_NS);

/// Puts this thread, and the VM that it starts, into a network of its own.
fn make_network() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    let address = format!("addr add {HOST}/24 dev {TAP}");
    let tap =
        [&format!("tuntap add {TAP} mode tap"), &address, &format!("link set {TAP} addrgenmode none up")];
    for command in tap {
        let status = Command::new("ip").args(command.split(' ')).status().unwrap();
        assert!(status.success(), "ip {command}: it needs root, iproute2 and /dev/net/tun");
    }
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// What happened on the vCPUs, in order, while requests were answered.
struct Seen {
    /// From then on, who takes one has been seen to be sent it.
    begin: u64,
    entries: Vec<(u64, u16, EntryKind)>,
    /// From each request to its answer.
    requests: Vec<(u64, u64)>,
}

impl Seen {
    fn between(&self, (from, to): (u64, u64)) -> impl Iterator<Item = &(u64, u16, EntryKind)> {
        self.entries.iter().filter(move |(at, ..)| (from..=to).contains(at))
    }
}

/// Interrupts that a vCPU was sent by others.
#[derive(Default)]
struct Sent {
    all: u32,
    taken: u32,
    /// Vectors of those that wait.
    waiting: BTreeSet<u8>,
}

/// Has a VM answer requests: more servers than vCPUs, so that some run elsewhere than where the network
/// interrupts.
fn watch(kernel: &str, vcpus: u16, arguments: &[&str]) -> Seen {
    let run_dir = tempfile::tempdir().unwrap();
    let config = config(&run_dir, kernel, vcpus);
    make_network();
    let mut vm = RunningVm::boot(&VmConfig {
        tap: Some(TapConfig {
            ifname: TAP.into(),
            mac: "52:54:00:fd:01:01".into(),
            guest_ip: GUEST,
            prefix: 24,
            vhost: false,
        }),
        arguments: arguments.iter().map(ToString::to_string).collect(),
        ..config
    })
    .unwrap();
    vm.wait_ready(PATIENCE).unwrap();
    let ports = FIRST_PORT..FIRST_PORT + 2 * vcpus;
    for port in ports.clone() {
        let echo = WorkloadKind::Echo { protocol: Protocol::Udp, port, cost: Duration::ZERO };
        vm.start(&format!("echo-{port}"), echo).unwrap();
    }
    let socket = UdpSocket::bind((HOST, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = |port, request: u8| {
        let sent = now();
        socket.send_to(&[request; 40], SocketAddr::from((GUEST, port))).unwrap();
        let mut answer = [0; 40];
        assert_eq!(socket.recv(&mut answer).unwrap(), 40);
        assert_eq!(answer, [request; 40]);
        (sent, now())
    };
    // The two sides get to know each other's addresses.
    ask(FIRST_PORT, u8::MAX);

    let mut ring = Consumer::attach(frontdesk_ring::find(vm.pid()).unwrap().unwrap()).unwrap();
    let mut seen = Seen { begin: now() + THINK_NS, entries: Vec::new(), requests: Vec::new() };
    let mut drain = || {
        for vcpu in 0..ring.vcpus() {
            ring.drain(vcpu, usize::MAX, |Entry { at_ns, kind }| seen.entries.push((at_ns, vcpu, kind)));
            assert_eq!(ring.dropped(vcpu), 0);
        }
    };
    for request in 0..REQUESTS {
        for port in ports.clone() {
            std::thread::sleep(THINK);
            seen.requests.push(ask(port, request));
            drain();
        }
    }
    std::thread::sleep(THINK);
    // One that is sent while the rings are drained may be seen to be taken, and not to be sent.
    let end = now();
    drain();
    vm.check().unwrap();
    seen.entries.retain(|(at, ..)| *at <= end);
    seen.entries.sort_by_key(|(at, ..)| *at);
    seen
}

fn tells_interrupts(kernel: &str, vcpus: u16, arguments: &[&str]) {
    let seen = watch(kernel, vcpus, arguments);

    // Whichever vCPU a vector belongs to: one of them comes with nearly every request.
    let mut vectors: BTreeMap<(u16, u8), usize> = BTreeMap::new();
    for request in &seen.requests {
        let interrupts = seen.between(*request).filter_map(|(_, vcpu, kind)| match kind {
            EntryKind::Interrupt { vector } => Some((*vcpu, *vector)),
            _ => None,
        });
        for interrupt in interrupts.collect::<BTreeSet<_>>() {
            *vectors.entry(interrupt).or_default() += 1;
        }
    }
    let ((taker, network), often) = vectors.iter().max_by_key(|(_, often)| **often).unwrap();
    let all = seen.requests.len();
    assert!(
        often * 100 >= all * 95,
        "vCPU {taker} took vector {network:#x} in {often} of {all} requests: {vectors:x?}"
    );

    // Interrupts between vCPUs are taken by those that they went to, and no more often than they were sent.
    let mut sent: BTreeMap<u16, Sent> = BTreeMap::new();
    let (mut targets, mut taken) = (0, 0);
    for (at, vcpu, kind) in &seen.entries {
        match *kind {
            EntryKind::Ipi { to, vector } => {
                assert!(to != 0 && to >> vcpus == 0, "{vector:#x} went to {to:#b} of {vcpus} vCPUs");
                for target in (0..vcpus).filter(|target| to & 1 << target != 0) {
                    let sent = sent.entry(target).or_default();
                    sent.all += 1;
                    // One that waits still is not sent again.
                    targets += u32::from(sent.waiting.insert(vector));
                }
            }
            EntryKind::IpiTaken => {
                let sent = sent.entry(*vcpu).or_default();
                if sent.taken == sent.all && *at < seen.begin {
                    // It was on its way when we began to look.
                    continue;
                }
                sent.taken += 1;
                let left = seen.entries.last().map_or(0, |(end, ..)| end - at);
                assert!(
                    sent.taken <= sent.all,
                    "vCPU {vcpu} took one that nobody had sent, {left} ns before the end"
                );
                // The highest comes first.
                taken += u32::from(sent.waiting.pop_last().is_some());
            }
            _ => {}
        }
    }
    assert!(taken * 100 >= targets * 95 && taken > 0, "{taken} of {targets} were taken");

    // Where the handler of the network's interrupt wakes a server on another vCPU, that takes the wake-up and
    // then goes on.
    let mut woken_elsewhere = 0;
    for request in &seen.requests {
        let mut during = seen.between(*request);
        let interrupt = EntryKind::Interrupt { vector: *network };
        if !during.any(|(_, vcpu, kind)| (vcpu, *kind) == (taker, interrupt)) {
            continue;
        }
        let Some(to) = during.find_map(|(_, vcpu, kind)| match kind {
            EntryKind::Ipi { to, .. } if vcpu == taker => Some(*to),
            _ => None,
        }) else {
            continue;
        };
        let took = during.any(|(_, vcpu, kind)| *kind == EntryKind::IpiTaken && to & 1 << vcpu != 0);
        woken_elsewhere += usize::from(took);
    }
    assert!(woken_elsewhere >= 5, "only {woken_elsewhere} of {all} requests woke another vCPU");
    println!(
        "{kernel}, {vcpus} vCPUs: vCPU {taker} took {network:#x} in {often} of {all} requests, {woken_elsewhere} woke another; {taken} of {targets} interrupts between vCPUs were taken"
    );
}

#[test]
fn two_vcpus_of_linux_6_1() {
    tells_interrupts("6.1-cloud", 2, &[]);
}

#[test]
fn four_vcpus_of_linux_6_1() {
    tells_interrupts("6.1-cloud", 4, &[]);
}

#[test]
fn two_vcpus_of_linux_6_12() {
    tells_interrupts("6.12-cloud", 2, &[]);
}

#[test]
fn four_vcpus_of_linux_6_12() {
    tells_interrupts("6.12-cloud", 4, &[]);
}

#[test]
fn four_vcpus_of_linux_7_3() {
    tells_interrupts("7.3-cloud", 4, &[]);
}

/// Without x2APIC the interrupt controller's registers are memory. And the controllers' numbers are not the
/// vCPUs': each socket has room for four cores, of which it has three, and the fourth vCPU is in the second
/// socket.
#[test]
fn four_vcpus_in_two_sockets_without_x2apic() {
    let arguments = ["-cpu", "EPYC,-x2apic", "-smp", "4,maxcpus=6,sockets=2,cores=3"];
    tells_interrupts("6.12-cloud", 4, &arguments);
}
