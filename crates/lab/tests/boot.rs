//! Boots real VMs with the plugin and looks at them from outside, as the daemon does.
//!
//! It needs QEMU, the package tools that fetch kernels, the static guest program and the plugin. The last two
//! are found by `FRONTDESK_GUEST` and `FRONTDESK_PLUGIN`, or where release builds leave them in the target
//! folder.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod vm;

use frontdesk_lab::{RunningVm, VmConfig, VmError};
use frontdesk_lab_guest::Work;
use frontdesk_ring::{Consumer, Entry, EntryKind, Interest};
use frontdesk_scenario::{Protocol, WorkloadKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use vm::{PATIENCE, config};

fn boot(config: &VmConfig) -> (RunningVm, Consumer) {
    let mut vm = RunningVm::boot(config).unwrap();
    vm.wait_ready(PATIENCE).unwrap();
    let ring = frontdesk_ring::find(vm.pid()).unwrap().expect("the plugin is loaded");
    let ring = Consumer::attach(ring).unwrap();
    assert_eq!(ring.vcpus(), config.vcpus);
    (vm, ring)
}

/// Drains all vCPUs until `enough` is satisfied with what came.
fn drain_until(ring: &mut Consumer, what: &str, mut enough: impl FnMut(u16, Entry) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut done = false;
    while !done {
        assert!(Instant::now() < deadline, "{what}: never seen");
        std::thread::sleep(Duration::from_millis(10));
        for vcpu in 0..ring.vcpus() {
            ring.drain(vcpu, usize::MAX, |entry| done |= enough(vcpu, entry));
        }
    }
}

/// The ring's eventfd, fetched from QEMU.
fn eventfd(vm: &RunningVm, ring: &Consumer) -> OwnedFd {
    let pidfd = pidfd_open(Pid::from_raw(vm.pid()).unwrap(), PidfdFlags::empty()).unwrap();
    pidfd_getfd(pidfd, ring.eventfd(), PidfdGetfdFlags::empty()).unwrap()
}

fn woken(eventfd: &OwnedFd, patience: Duration) -> bool {
    let timeout = Timespec::try_from(patience).unwrap();
    poll(&mut [PollFd::new(eventfd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

fn sees_the_tasks_of(kernel: &str) {
    let run_dir = tempfile::tempdir().unwrap();
    let (mut vm, mut ring) = boot(&config(&run_dir, kernel, 1));
    drain_until(&mut ring, "a halt while idle", |_, entry| entry.kind == EntryKind::Halt);

    ring.arm(0, Interest::TASKS);
    vm.start("first", WorkloadKind::Hog).unwrap();
    let eventfd = eventfd(&vm, &ring);
    assert!(woken(&eventfd, PATIENCE), "an armed vCPU wakes the consumer when it switches");
    vm.start("second", WorkloadKind::Hog).unwrap();

    // Two hogs take turns: each is switched to again and again.
    let mut seen = Vec::new();
    let mut last = 0;
    drain_until(&mut ring, "two hogs that take turns", |_, Entry { at_ns, kind }| {
        assert!(at_ns >= last, "time goes forward");
        last = at_ns;
        if let EntryKind::Switch { task } = kind {
            seen.push(task);
        }
        let tasks: HashSet<u64> = seen.iter().copied().collect();
        tasks.iter().filter(|task| seen.iter().filter(|other| other == task).count() >= 5).count() >= 2
    });
    assert!(seen.contains(&ring.current_task(0).unwrap()));

    vm.stop("first").unwrap();
    vm.stop("second").unwrap();
    ring.drain(0, usize::MAX, |_| ());
    drain_until(&mut ring, "a halt after the hogs", |_, entry| entry.kind == EntryKind::Halt);
    assert_eq!(ring.dropped(0), 0);
    vm.shutdown(PATIENCE).unwrap();
}

#[test]
fn sees_the_tasks_of_linux_6_1() {
    sees_the_tasks_of("6.1-cloud");
}

#[test]
fn sees_the_tasks_of_linux_6_12() {
    sees_the_tasks_of("6.12-cloud");
}

#[test]
fn sees_interrupts_between_vcpus() {
    let run_dir = tempfile::tempdir().unwrap();
    let (mut vm, mut ring) = boot(&config(&run_dir, "6.12-cloud", 2));
    // Two for each vCPU, so that both must switch.
    for hog in ["first", "second", "third", "fourth"] {
        vm.start(hog, WorkloadKind::Hog).unwrap();
    }
    let mut switched = HashSet::new();
    let mut ipis = 0;
    drain_until(&mut ring, "switches on both vCPUs and an IPI", |vcpu, entry| {
        match entry.kind {
            EntryKind::Switch { .. } => drop(switched.insert(vcpu)),
            EntryKind::Ipi { to, vector } => {
                assert!(to != 0 && to < 4, "there are two vCPUs: {to:#b}");
                assert!(vector >= 0x20, "vectors below are exceptions: {vector:#x}");
                ipis += 1;
            }
            EntryKind::Halt
            | EntryKind::Resume
            | EntryKind::Interrupt { .. }
            | EntryKind::IpiTaken
            | EntryKind::Access { .. } => {}
        }
        switched.len() == 2 && ipis > 0
    });
    vm.check().unwrap();
}

#[test]
fn work_is_measured_and_refusals_are_told() {
    let run_dir = tempfile::tempdir().unwrap();
    let mut vm = RunningVm::boot(&VmConfig { plugin: None, ..config(&run_dir, "6.12-cloud", 1) }).unwrap();
    vm.wait_ready(PATIENCE).unwrap();
    assert!(frontdesk_ring::find(vm.pid()).unwrap().is_none(), "no plugin, no ring");

    let short = vm.run(Work::Spin { steps: 1_000_000 }, PATIENCE).unwrap().elapsed;
    let long = vm.run(Work::Spin { steps: 100_000_000 }, PATIENCE).unwrap().elapsed;
    assert!(long > short, "a hundred times the work took {long:?} and {short:?}");
    assert!(vm.run(Work::Fork { rounds: 10 }, PATIENCE).unwrap().elapsed > Duration::ZERO);

    let echo = |protocol| WorkloadKind::Echo { protocol, port: 7, cost: Duration::ZERO };
    vm.start("tcp", echo(Protocol::Tcp)).unwrap();
    vm.start("udp", echo(Protocol::Udp)).unwrap();
    let refused = |result: Result<(), VmError>, text: &str| match result {
        Err(VmError::Refused { error, .. }) => assert!(error.contains(text), "{error}"),
        other => panic!("{other:?}"),
    };
    refused(vm.start("tcp", WorkloadKind::Hog), "runs already");
    refused(vm.start("another", echo(Protocol::Tcp)), "in use");
    refused(vm.stop("nobody"), "no workload called nobody");
    vm.check().unwrap();

    assert!(vm.is_alive());
    let pid = vm.pid();
    drop(vm);
    assert!(!PathBuf::from(format!("/proc/{pid}")).exists());
}

#[test]
fn a_panic_of_the_guest_is_told_with_its_console() {
    let run_dir = tempfile::tempdir().unwrap();
    let config = config(&run_dir, "6.12-cloud", 1);
    std::fs::write(&config.initrd, "no archive").unwrap();
    let mut vm = RunningVm::boot(&config).unwrap();
    match vm.wait_ready(PATIENCE) {
        Err(error @ VmError::Ended { .. }) => {
            assert!(error.to_string().contains("Kernel panic"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!vm.is_alive());
}
