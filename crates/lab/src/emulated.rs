//! A host that is emulated: a VM with an AMD processor that can run VMs itself, so that the guests of a
//! scenario run under KVM, whatever this machine can do.
//!
//! The lab that runs there is this program once more. It gets its order on a disk, tells its progress on the
//! console, and leaves what came out on the disk.

mod inside;
mod order;

pub use inside::{INSIDE_ARGUMENT, inside};

use crate::cache::{Image, make_image};
use crate::daemon::log_beside;
use crate::debian::{Release, debian, size};
use crate::lab::{self, Made, interrupted, make_run_dir};
use crate::machine::Busy;
use crate::{
    DiskConfig, DiskKind, Kernel, LabConfig, LabError, Progress, RunningVm, VmConfig, command, machine,
    write_initramfs_with,
};
use frontdesk_guardian::{Guardian, Undo};
use frontdesk_lab_guest::HANDOVER;
use frontdesk_linux::sched::process_start_time;
use frontdesk_scenario::{HostInfo, Machine, Outcome, Scenario, Timeline, Violation};
use order::{Failure, Order, PROGRESS, Product};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What the host's system has beside the essential packages: QEMU, and what the lab and the daemon run and
/// load.
const PACKAGES: [&str; 6] = ["e2fsprogs", "iproute2", "kmod", "libelf1", "qemu-system-x86", "zlib1g"];

/// What its kernel must be able to do.
const MODULES: [&str; 6] = ["virtio_pci", "virtio_blk", "ext4", "kvm_amd", "tun", "vhost_net"];

/// Its processor's counter is this machine's and always usable as a clock, but emulated so slowly that Linux
/// would doubt it. Guests' pages stay as they are: khugepaged once hung for good while it merged those of one
/// with two vCPUs.
const PARAMETERS: [&str; 3] = ["clocksource=tsc", "tsc=reliable", "transparent_hugepage=never"];

/// Memory that the host needs beside that of its VMs, in MiB.
const HOST_MIB: u64 = 1536;

/// Memory that QEMU takes beside the host's, in MiB: code that it translated, above all.
const QEMU_MIB: u64 = 1536;

/// Room on the disk for what comes out.
const ROOM_BYTES: u64 = 1 << 30;

/// A host that says nothing for so long, beside the time of a repeat, is stuck.
const SILENCE: Duration = Duration::from_secs(420);

/// What a host's kernel says when one of its CPUs has done nothing for 21 s: nothing was seen to come
/// after it.
const STALL: &str = "rcu_preempt detected stalls on CPUs/tasks";

/// Hosts that a run is made in, at most.
const HOSTS: usize = 3;

/// How often is looked what the host says.
const LOOK: Duration = Duration::from_millis(100);

/// What process 1 of the host does before it runs this program, and afterwards.
const INIT: [&str; 2] = [
    "\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
",
    "
sync
echo o >/proc/sysrq-trigger
sleep 60
",
];

/// Runs a scenario on the machine that it names. The calling thread may be in a network namespace of the
/// run's own afterwards, and must live as long as the run.
///
/// # Errors
/// The run could not be made; nothing that it started is left.
pub fn run(
    scenario: &Scenario,
    config: &LabConfig,
    progress: &dyn Fn(&Progress),
) -> Result<(Outcome, Vec<Timeline>), LabError> {
    match scenario.host.machine {
        Machine::This => lab::run(scenario, config, Vec::new(), &|_, _| Ok(()), progress),
        Machine::Kvm => {
            let ((mut outcome, timelines), lost) =
                in_hosts(|made| run_emulated(scenario, config, made, progress))?;
            // The report says so beside the repeat that it was lost in.
            for (number, lost) in lost {
                let arm = outcome.arms.values_mut().nth(number % scenario.arms.len());
                let repeat = arm.and_then(|arm| arm.repeats.get_mut(number / scenario.arms.len()));
                repeat.into_iter().for_each(|repeat| repeat.voided.push(lost.clone()));
            }
            Ok((outcome, timelines))
        }
    }
}

/// Makes a run, and has another host go on with it if its host died or was stuck in it, or its guests were,
/// time and again: they may be without a word, for its processor is only emulated. `run` is given what was
/// made in hosts before, and adds what is left of one that was lost. Returns how those ended, too, and after
/// how many repeats.
fn in_hosts<T, M>(
    mut run: impl FnMut(&mut Vec<M>) -> Result<T, LabError>,
) -> Result<(T, Vec<(usize, String)>), LabError> {
    let (mut made, mut lost) = (Vec::new(), Vec::new());
    loop {
        match run(&mut made) {
            Err(error) if error.is_of_lost_vm() && lost.len() + 1 < HOSTS => {
                tracing::warn!("another host goes on after {} repeats: {error}", made.len());
                lost.push((made.len(), error.to_string()));
            }
            result => return Ok((result?, lost)),
        }
    }
}

/// Runs a scenario in an emulated host, or what is not `made` of it.
fn run_emulated(
    scenario: &Scenario,
    config: &LabConfig,
    made: &mut Vec<Made>,
    progress: &dyn Fn(&Progress),
) -> Result<(Outcome, Vec<Timeline>), LabError> {
    let memory_mib = scenario.memory_mib() + HOST_MIB;
    fits(memory_mib)?;
    let guardian = Guardian::start(&config.frontdesk, frontdesk_guardian::GUARDIAN_ARGUMENT)?;
    let run_dir = make_run_dir(&guardian)?;
    let total = u32::try_from(scenario.arms.len()).unwrap_or(u32::MAX).saturating_mul(scenario.repeats);
    let report = |doing: String| progress(&Progress { done: 0, total, doing, measuring: false });
    report("fetching the kernels of the host and its guests".to_owned());
    let kernel = Kernel::resolve(&scenario.host.kernel, None)?;
    let guest_kernel = Kernel::resolve(&scenario.guest.kernel, None)?;
    let system = debian(Release::Bookworm, &PACKAGES.map(str::to_owned), &[], &report)?;
    report("packing what the host takes in".to_owned());
    let initrd = run_dir.join("initrd");
    let module = |name| match name {
        "kvm_amd" if !scenario.host.nested_paging => "kvm_amd npt=0",
        name => name,
    };
    write_initramfs_with(&kernel, &config.guest, &MODULES.map(module), &initrd)?;
    let order = Order {
        made: made.clone(),
        scenario: scenario.clone(),
        recordings: config.recordings.keys().cloned().collect(),
        release: guest_kernel.release_and_root()?.0.to_string_lossy().into_owned(),
    };
    let disk = pack(&run_dir, config, &guest_kernel, &order)?;
    report("booting the emulated host".to_owned());
    let mut vm = RunningVm::boot(&VmConfig {
        vcpus: scenario.host.cpus().max(2),
        memory_mib: u32::try_from(memory_mib).unwrap_or(u32::MAX),
        disks: vec![
            DiskConfig { image: system.image, kind: DiskKind::Debian },
            DiskConfig { image: disk.clone(), kind: DiskKind::Handover },
        ],
        parameters: PARAMETERS.map(str::to_owned).to_vec(),
        ..VmConfig::new("host", &kernel, &initrd, &run_dir)
    })?;
    if let Some(started) = process_start_time(vm.pid()) {
        guardian.record(Undo::Process { pid: vm.pid(), started })?;
    }
    let patience = (scenario.duration + scenario.warmup).mul_f64(scenario.host.dilation) + SILENCE;
    let followed = follow(&mut vm, scenario.host.disturb, config, patience, progress);
    let product = followed.and_then(|()| {
        unpack(&run_dir, &disk)?;
        read_product(&run_dir, &mut vm)
    });
    // What was recorded up to its end may tell why a host died.
    let kept = if product.is_ok() { Ok(()) } else { unpack(&run_dir, &disk) };
    let kept = kept.and_then(|()| keep_recordings(&run_dir, config));
    made.extend((made.len()..).map_while(|number| read_made(&run_dir, number)));
    drop(vm);
    let left = guardian.finish()?.failed;
    let (mut outcome, timelines) = product?;
    kept?;
    outcome.host.emulated_on =
        Some(Box::new(HostInfo { qemu: machine::qemu_version(), ..machine::host_info() }));
    if left.is_empty() { Ok((outcome, timelines)) } else { Err(LabError::Left(left.join("; "))) }
}

/// Checks that the machine has the memory that the host needs.
fn fits(memory_mib: u64) -> Result<(), LabError> {
    let available = machine::mem_available_mib().map_err(failed("examining the machine"))?;
    if memory_mib + QEMU_MIB <= available {
        return Ok(());
    }
    Err(LabError::Scenario(Violation {
        key: "vm".to_owned(),
        value: format!("VMs for which an emulated host needs {memory_mib} MiB"),
        allowed: format!("what fits with {QEMU_MIB} MiB for QEMU in the {available} MiB that are available"),
    }))
}

/// Makes the disk that the host is handed over to.
fn pack(run_dir: &Path, config: &LabConfig, kernel: &Kernel, order: &Order) -> Result<PathBuf, LabError> {
    let tree = run_dir.join("handover");
    let modules = tree.join(order::KERNEL).join("lib/modules");
    for folder in [&modules, &tree.join(order::OUT)] {
        std::fs::create_dir_all(folder).map_err(failed("making the host's disk"))?;
    }
    let mut command = Command::new("cp");
    command::run(command.arg("-a").arg(&kernel.modules).arg(&modules), |_| ())?;
    let reporter = config.reporter.as_ref().map(|program| (program, order::REPORTER.to_owned()));
    let programs = [
        (&config.frontdesk, order::FRONTDESK.to_owned()),
        (&config.guest, order::GUEST.to_owned()),
        (&kernel.image, format!("{}/{}", order::KERNEL, order::IMAGE)),
    ];
    for (from, to) in programs.into_iter().chain(reporter) {
        std::fs::copy(from, tree.join(to)).map_err(failed(&format!("copying {}", from.display())))?;
    }
    let write = |name: &str, text: &[u8]| {
        std::fs::write(tree.join(name), text).map_err(failed("writing the host's order"))
    };
    write(order::ORDER, &serde_json::to_vec(order).map_err(failed("the host's order"))?)?;
    let [before, after] = INIT;
    let program = format!("{HANDOVER}/{} {INSIDE_ARGUMENT}", order::FRONTDESK);
    write("init", format!("{before}{program}{after}").as_bytes())?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tree.join("init"), mode).map_err(failed("the host's first program"))?;
    let (bytes, inodes) = size(&tree).map_err(failed("measuring the host's disk"))?;
    let to = run_dir.join("handover.img");
    let inodes = inodes + 1000;
    make_image(&Image {
        tree: &tree,
        to: &to,
        bytes: bytes + bytes / 8 + inodes * 256 + ROOM_BYTES,
        inodes,
    })?;
    std::fs::remove_dir_all(&tree).map_err(failed("removing what is packed"))?;
    Ok(to)
}

/// Passes on what the host says until it has ended, with busy loops beside it while it measures.
fn follow(
    vm: &mut RunningVm,
    disturb: u16,
    config: &LabConfig,
    patience: Duration,
    progress: &dyn Fn(&Progress),
) -> Result<(), LabError> {
    let mut console = std::fs::File::open(vm.console()).ok();
    let cpus = machine::online_cpus().map_err(failed("examining the machine"))?;
    let loops: Vec<u16> = cpus.into_iter().cycle().take(usize::from(disturb)).collect();
    let mut busy = None;
    let (mut said, mut heard) = (Vec::new(), Instant::now());
    while vm.is_alive() {
        interrupted(&config.stop)?;
        std::thread::sleep(LOOK);
        // QEMU makes the file when it starts.
        let Some(file) = &mut console else {
            console = std::fs::File::open(vm.console()).ok();
            continue;
        };
        file.read_to_end(&mut said).map_err(failed("reading the host's console"))?;
        while let Some(end) = said.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = said.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if line.contains(STALL) {
                return Err(vm.stuck("go on (one of its CPUs stands still)", heard.elapsed()).into());
            }
            let step: Option<Progress> =
                line.trim().strip_prefix(PROGRESS).and_then(|text| serde_json::from_str(text).ok());
            if let Some(step) = step {
                heard = Instant::now();
                busy = if step.measuring { busy.or_else(|| Some(Busy::start(&loops))) } else { None };
                progress(&step);
            }
        }
        if heard.elapsed() > patience {
            return Err(vm.stuck("go on with the scenario", patience).into());
        }
    }
    Ok(())
}

/// Takes what came out from the disk, in whatever state it is.
fn unpack(run_dir: &Path, disk: &Path) -> Result<(), LabError> {
    let request = format!("rdump /{} {}", order::OUT, run_dir.display());
    Ok(command::run(Command::new("debugfs").arg("-R").arg(request).arg(disk), |_| ())?)
}

fn read_product(run_dir: &Path, vm: &mut RunningVm) -> Result<(Outcome, Vec<Timeline>), LabError> {
    let file = run_dir.join(order::OUT).join(order::PRODUCT);
    let Ok(text) = std::fs::read(&file) else {
        return Err(vm.ended("leave a result").into());
    };
    let product: Product = serde_json::from_slice(&text).map_err(failed("the host's result"))?;
    product.map_err(|Failure { said, lost }| LabError::Inside { said, lost })
}

/// A repeat that the host has left, if it has left all of it.
fn read_made(run_dir: &Path, number: usize) -> Option<Made> {
    let text = std::fs::read(run_dir.join(order::OUT).join(order::made(number))).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Puts the recordings that there are, and the daemons' logs, where they are to be.
fn keep_recordings(run_dir: &Path, config: &LabConfig) -> Result<(), LabError> {
    for (index, to) in config.recordings.values().enumerate() {
        let from = run_dir.join(order::OUT).join(order::recording(index));
        for (from, to) in [(log_beside(&from), log_beside(to)), (from, to.clone())] {
            if from.exists() {
                std::fs::copy(&from, &to).map_err(failed(&format!("writing {}", to.display())))?;
            }
        }
    }
    Ok(())
}

fn failed<E: Into<std::io::Error>>(what: &str) -> impl FnOnce(E) -> LabError + use<E> {
    let what = what.to_owned();
    move |source| LabError::Io { what, source: source.into() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test that panics fails.

    use super::*;
    use crate::VmError;
    use crate::lab::LabError::{Inside, Vm};

    #[test]
    fn another_host_goes_on_where_one_died_or_was_stuck_and_nowhere_else() {
        fn stuck() -> LabError {
            let (name, what, tail) = ("host".to_owned(), "go on".to_owned(), String::new());
            Vm(VmError::Timeout { name, what, timeout: SILENCE, tail })
        }
        fn ended() -> LabError {
            let (name, what, tail) = ("host".to_owned(), "go on".to_owned(), String::new());
            Vm(VmError::Ended { name, what, status: "0".to_owned(), tail })
        }
        fn guest_did_not_boot() -> LabError {
            Inside { said: "VM mixed did not become ready".to_owned(), lost: true }
        }
        fn refused() -> LabError {
            Inside { said: "a mistake in the scenario".to_owned(), lost: false }
        }
        // Each makes one repeat.
        let outcome = |results: Vec<Result<u8, LabError>>| {
            let (all, mut left) = (results.len(), results.into_iter());
            let result = in_hosts(|made| {
                made.push(());
                left.next().unwrap()
            });
            (result.map_err(|error| error.to_string()), all - left.len())
        };
        assert_eq!(outcome(vec![Ok(1), Ok(2)]), (Ok((1, vec![])), 1));
        for lost in [stuck, ended, guest_did_not_boot] as [fn() -> LabError; 3] {
            let said = lost().to_string();
            let of_first = vec![(1, said.clone())];
            assert_eq!(outcome(vec![Err(lost()), Ok(2)]), (Ok((2, of_first.clone())), 2));
            let of_both = [of_first, vec![(2, said.clone())]].concat();
            assert_eq!(outcome(vec![Err(lost()), Err(lost()), Ok(3)]), (Ok((3, of_both)), 3));
            assert_eq!(outcome(vec![Err(lost()), Err(lost()), Err(lost()), Ok(4)]), (Err(said), 3));
        }
        assert_eq!(outcome(vec![Err(refused()), Ok(2)]), (Err(refused().to_string()), 1));
    }

    #[test]
    fn recordings_and_logs_are_kept_as_far_as_there_are_any() {
        let (run_dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let out = run_dir.path().join(order::OUT);
        std::fs::create_dir(&out).unwrap();
        let write = |name: String, text: &str| std::fs::write(out.join(name), text).unwrap();
        write(order::recording(0), "first");
        write(format!("{}.log", order::recording(0)), "its log");
        // The daemon died before it recorded anything.
        write(format!("{}.log", order::recording(1)), "its last words");
        let to = |arm: &str| ((arm.to_owned(), 1), kept.path().join(format!("{arm}.fdsk")));
        let config = LabConfig {
            guest: PathBuf::new(),
            reporter: None,
            plugin: None,
            frontdesk: PathBuf::new(),
            recordings: ["a", "b", "c"].map(to).into(),
            stop: Default::default(),
            dilation: 1.0,
        };
        keep_recordings(run_dir.path(), &config).unwrap();
        let read = |name: &str| std::fs::read_to_string(kept.path().join(name)).ok();
        assert_eq!(read("a.fdsk").as_deref(), Some("first"));
        assert_eq!(read("a.fdsk.log").as_deref(), Some("its log"));
        assert_eq!(read("b.fdsk.log").as_deref(), Some("its last words"));
        assert_eq!(std::fs::read_dir(kept.path()).unwrap().count(), 3);
    }
}
