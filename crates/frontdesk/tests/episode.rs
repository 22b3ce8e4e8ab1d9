//! A person starts something in a VM that computes: its vCPUs are unequal meanwhile, and whatever happens
//! then, each of its threads has again what it had.
//!
//! Needs root, QEMU, and what `make build` makes.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod operator;

use frontdesk_guardian::{GUARDIAN_ARGUMENT, Guardian};
use frontdesk_lab::{Kernel, RunningVm, VmConfig, write_initramfs};
use frontdesk_linux::cgroup::{Group, Hierarchy};
use frontdesk_linux::sched::Policy;
use frontdesk_scenario::WorkloadKind;
use operator::desk::built;
use operator::had::Had;
use operator::{Daemon, FRONTDESK, Qmp, boot, eventually, firmware};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Generous: emulated machines on a busy one are slow.
const PATIENCE: Duration = Duration::from_secs(600);
/// An episode that nobody ends lasts longer than this test. A vCPU with background work is slow at once.
const POLICY: &str = "[asymmetric]\nratio = 'high'\nmax_episode = '1000s'\nmin_fast = '0s'\n";
const VCPUS: usize = 2;

/// A VM with work for both of its vCPUs, and its threads as they were before frontdesk came.
struct Office<'a> {
    vm: RunningVm,
    group: &'a Group,
    before: Had,
    operator: Qmp,
}

impl Office<'_> {
    fn now(&self) -> Had {
        Had::by(self.vm.pid().cast_unsigned(), self.group)
    }

    /// Threads that yield to others more than they did.
    fn slow(&self) -> usize {
        let nice = |had: &Had, tid: &i32| match had.threads.get(tid)?.attributes.policy {
            Policy::Other { nice, .. } => Some(nice),
            _ => None,
        };
        let now = self.now();
        now.threads.keys().filter(|tid| nice(&now, tid) > nice(&self.before, tid).or(Some(0))).count()
    }

    /// Somebody presses Enter, again and again, until a vCPU is slow.
    fn begin_episode(&mut self) {
        let mut pressed = None::<Instant>;
        eventually("a vCPU with background work is slow", || {
            // Who works in the background is what was seen in the second before.
            if pressed.is_none_or(|at| at.elapsed() > Duration::from_secs(3)) {
                self.operator.press_enter();
                pressed = Some(Instant::now());
            }
            self.slow() > 0
        });
    }

    fn is_as_before(&self) -> bool {
        self.now() == self.before
    }
}

#[test]
fn an_episode_leaves_nothing_behind_however_it_ends() {
    // Which may have to be fetched.
    let kernel = Kernel::resolve("6.1-cloud", None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let guardian = Guardian::start(Path::new(FRONTDESK), GUARDIAN_ARGUMENT).unwrap();
    let root = Hierarchy::detect().unwrap().root_group();
    let group = |name: &str| {
        guardian.create_group(&root, &format!("frontdesk-{name}-{}", std::process::id())).unwrap()
    };
    let (offices, others) = (group("office"), group("other"));
    let initrd = home.join("initrd");
    let guest = built("x86_64-unknown-linux-gnu/release/frontdesk-lab-guest");
    write_initramfs(&kernel, &guest, &initrd, false).unwrap();
    let at = |name: &str| format!("unix:{}/{name},server=on,wait=off", home.display());
    let words = ["-smp", "maxcpus=3", "-qmp", &at("operator")].map(str::to_owned);
    let vm = RunningVm::boot(&VmConfig {
        vcpus: VCPUS.try_into().unwrap(),
        memory_mib: 160,
        plugin: Some(built("release/libfrontdesk_tcg_plugin.so")),
        arguments: words.to_vec(),
        cgroup_procs: vec![offices.procs_file()],
        ..VmConfig::new("office", &kernel, &initrd, home)
    });
    let mut vm = vm.unwrap();
    vm.wait_ready(PATIENCE).unwrap();
    // A build, or whatever else goes on.
    for vcpu in 0..VCPUS {
        vm.start(&format!("build-{vcpu}"), WorkloadKind::Hog).unwrap();
    }
    // Somebody else wants the CPUs, or nothing would have to be slow.
    let (firmware, operator) = (firmware(home), Qmp::connect(&home.join("operator")));
    let words = ["-smp", "2", "-bios", firmware.to_str().unwrap()];
    let (_other, _operator_of_other) = boot(home, &others, "other", &words);
    let before = Had::by(vm.pid().cast_unsigned(), &offices);
    let mut office = Office { vm, group: &offices, before, operator };

    let config = home.join("frontdesk.toml");
    fs::write(&config, format!("{POLICY}[vms]\nlibvirt = false\nqmp = ['{}/*.qmp']\n", home.display()))
        .unwrap();
    let start = || {
        let daemon = Daemon::start(home, &config, &["--socket", home.join("control.sock").to_str().unwrap()]);
        assert!(daemon.line.starts_with("following 2 VMs: "), "{}{}", daemon.line, daemon.log());
        daemon
    };

    let daemon = start();
    office.begin_episode();
    daemon.process.signal(Signal::KILL);
    eventually("all is as before, after kill -9", || office.is_as_before());
    drop(daemon);

    let mut daemon = start();
    office.begin_episode();
    office.operator.add_vcpu();
    daemon.says(&["office", "threads have changed", "vcpus=3"]);
    office.begin_episode();
    daemon.end();
    let mut now = office.now();
    // The thread that came is as QEMU made it.
    now.threads.retain(|tid, thread| {
        let is_new = !office.before.threads.contains_key(tid);
        assert!(!is_new || matches!(thread.attributes.policy, Policy::Other { nice: 0, .. }), "{thread:?}");
        !is_new
    });
    assert_eq!(now, office.before);
}
