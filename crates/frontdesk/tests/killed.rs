//! `kill -9` of the daemon in the middle of all that it does: each VM has again what it had.
//!
//! Needs root, QEMU, and what `make build` makes. Prints how long each VM took; `-- --nocapture` shows it.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod operator;

use frontdesk_guardian::{GUARDIAN_ARGUMENT, Guardian};
use frontdesk_lab::{Kernel, write_initramfs};
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_linux::sched::{self, Attributes, Policy};
use operator::desk::{Desk, IdentitySource, built};
use operator::had::Had;
use operator::{Daemon, FRONTDESK, boot, eventually, firmware};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// As in `scenarios/echo-mixed.toml`, where the reasons are.
const POLICY: &str = "[tavs]\nio_threshold = '3ms'\npb_ratio = 0.5\n";
/// One that is boosted, one that somebody gave a nice value, one whose share changes because its vCPUs are
/// unequal, and one with a reservation.
const VMS: [&str; 4] = ["desk-1", "nice", "uneven", "kept"];
const DESK: usize = 0;
const NICE: usize = 1;
const UNEVEN: usize = 2;
const KEPT: usize = 3;

/// The throttle of real time, which reservations change for the whole host.
fn throttle() -> String {
    fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap()
}

#[test]
fn all_is_as_it_was_whatever_was_held() {
    // Which may have to be fetched.
    let kernel = Kernel::resolve("6.1-cloud", None).unwrap();
    // The tap is gone when this thread and the VM are.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let guardian = Guardian::start(Path::new(FRONTDESK), GUARDIAN_ARGUMENT).unwrap();
    let root = Hierarchy::detect().unwrap().root_group();
    let groups = VMS.map(|vm| {
        guardian.create_group(&root, &format!("frontdesk-killed-{vm}-{}", std::process::id())).unwrap()
    });
    let (initrd, firmware) = (home.join("initrd"), firmware(home));
    let guest = built("x86_64-unknown-linux-gnu/release/frontdesk-lab-guest");
    write_initramfs(&kernel, &guest, &initrd, false).unwrap();
    let mut desk = Desk::boot(home, &initrd, &kernel, &groups[DESK], 1, IdentitySource::Plugin);
    desk.begin(IdentitySource::Plugin);
    let computes = |vm: usize, vcpus| {
        boot(home, &groups[vm], VMS[vm], &["-smp", vcpus, "-bios", firmware.to_str().unwrap()])
    };
    let (nice, mut nice_qmp) = computes(NICE, "1");
    let (uneven, mut uneven_qmp) = computes(UNEVEN, "2");
    let (kept, _kept_qmp) = computes(KEPT, "1");
    let pids = [desk.vm.pid().cast_unsigned(), nice.0.id(), uneven.0.id(), kept.0.id()];
    let now = || [DESK, NICE, UNEVEN, KEPT].map(|vm| Had::by(pids[vm], &groups[vm]));
    let (mut before, throttled) = (now(), throttle());

    let (config, socket) = (home.join("frontdesk.toml"), home.join("control.sock"));
    let text = format!("{POLICY}[vms]\nlibvirt = false\nqmp = ['{}/*.qmp']\n", home.display());
    fs::write(&config, format!("{text}[reserve]\nspare = 0.2\n")).unwrap();
    let daemon = Daemon::start(home, &config, &["--socket", socket.to_str().unwrap()]);
    assert!(daemon.line.starts_with("following 4 VMs: "), "{}{}", daemon.line, daemon.log());
    // What somebody sets beside the daemon is what the VM had.
    before[NICE].renice(nice_qmp.vcpus()[0], 5);
    before[UNEVEN].renice(uneven_qmp.vcpus()[1], 10);
    for vm in [NICE, UNEVEN] {
        daemon.says(&["a vCPU has another weight inside its VM", &format!("{:?}", VMS[vm])]);
    }
    let terms = ["--period", "20ms", "--slice", "4ms", "--hard", "--socket", socket.to_str().unwrap()];
    let reserved = Command::new(FRONTDESK).args(["reserve", VMS[KEPT]]).args(terms).output().unwrap();
    assert!(reserved.status.success(), "{reserved:?}");
    desk.keep_asking();

    let is_held = |now: &[Had; 4]| {
        let held = [
            now[DESK].is_boosted(),
            now[UNEVEN].share != before[UNEVEN].share,
            now[KEPT].is_other_than(&before[KEPT]),
        ];
        println!("held are boost, share, reservation: {held:?}");
        held == [true; 3]
    };
    let kill = || {
        // Just below the guardian, which has 60: whoever has the CPUs, this goes on.
        sched::set(0, Attributes::fifo(59)).unwrap();
        eventually("all of it is held at once", || {
            // Without files: a boost may last for a millisecond.
            let policy = |tid: &i32| sched::get(*tid).map(|now| now.policy);
            if !before[DESK].threads.keys().any(|tid| matches!(policy(tid), Ok(Policy::Fifo { .. }))) {
                return false;
            }
            // With nobody to end it, a boost lasts; but it may have ended between the two.
            daemon.process.signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(20));
            let held = is_held(&now());
            if !held {
                daemon.process.signal(Signal::CONT);
            }
            held
        });
        let killed = Instant::now();
        daemon.process.signal(Signal::KILL);
        let mut took = [None; VMS.len()];
        let mut throttle_took = None;
        let note = |is_back: bool, took: &mut Option<Duration>| match is_back {
            true => _ = took.get_or_insert_with(|| killed.elapsed()),
            false => *took = None,
        };
        eventually("all is as it was", || {
            for (vm, took) in took.iter_mut().enumerate() {
                note(Had::by(pids[vm], &groups[vm]) == before[vm], took);
            }
            note(throttle() == throttled, &mut throttle_took);
            took.iter().chain([&throttle_took]).all(Option::is_some)
        });
        (took.map(Option::unwrap), throttle_took.unwrap())
    };
    let (took, throttle_took) = std::thread::scope(|scope| scope.spawn(kill).join().unwrap());
    for ((vm, held), took) in VMS.into_iter().zip(["boost", "nice", "share", "reservation"]).zip(took) {
        println!("measured: {vm} ({held}) is as it was {took:?} after kill -9");
    }
    println!("measured: the throttle of real time is as it was {throttle_took:?} after kill -9");
}
