//! What a person waits for comes first on a disk that `frontdesk disk` serves, in a real VM beside a real
//! daemon; and the disk goes on when either ends.
//!
//! Needs root, QEMU, and what `make build` makes.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod operator;

use frontdesk_guardian::{GUARDIAN_ARGUMENT, Guardian};
use frontdesk_lab::{Kernel, RunningVm, VmConfig, data_disk, write_initramfs};
use frontdesk_lab_guest::DATA_PARAMETER;
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_scenario::WorkloadKind;
use operator::desk::built;
use operator::{Daemon, FRONTDESK, Process, Qmp, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Generous: emulated machines on a busy one are slow.
const PATIENCE: Duration = Duration::from_secs(600);

/// What is read before an input and after it counts, 4 s each: so long, and some, until an input has been
/// counted.
const COUNTED: Duration = Duration::from_secs(9);

/// Starts `frontdesk disk`, and waits until it serves.
fn serve(home: &Path, number: u32) -> Process {
    let log = home.join(format!("disk-{number}.log"));
    let mut command = Command::new(FRONTDESK);
    command.arg("disk").arg("--vm").arg(format!("alice={},readonly", home.join("data").display()));
    command.arg("--socket-dir").arg(home).arg("--daemon").arg(home.join("control.disk"));
    command.env("RUST_LOG", "info").stdin(Stdio::null()).stderr(File::create(&log).unwrap());
    let process = Process(command.spawn().unwrap());
    eventually("the disk is served", || fs::read_to_string(&log).unwrap().contains("serving"));
    process
}

/// The VM's disk, as `frontdesk status` tells it, and when.
fn disk(home: &Path) -> Option<(Value, u64)> {
    let mut command = Command::new(FRONTDESK);
    command.args(["status", "--json", "--socket"]).arg(home.join("control.sock"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    let disk = status["vms"].get(0)?["disks"].get(0)?.clone();
    Some((disk, status["at_ns"].as_u64()?))
}

/// What was served in the classes `High` and `Common`, of all or of an application.
fn served(of: &Value) -> [u64; 2] {
    [0, 1].map(|class| of["served"][class].as_u64().unwrap())
}

#[test]
fn what_a_person_waits_for_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let guardian = Guardian::start(Path::new(FRONTDESK), GUARDIAN_ARGUMENT).unwrap();
    let root = Hierarchy::detect().unwrap().root_group();
    let group = guardian.create_group(&root, &format!("frontdesk-disk-{}", std::process::id())).unwrap();
    let kernel = Kernel::resolve("6.12-cloud", None).unwrap();
    let initrd = home.join("initrd");
    write_initramfs(&kernel, &built("x86_64-unknown-linux-gnu/release/frontdesk-lab-guest"), &initrd, true)
        .unwrap();
    fs::copy(data_disk(64, 256).unwrap(), home.join("data")).unwrap();

    let mut back_end = serve(home, 0);
    let config = home.join("frontdesk.toml");
    let socket = home.join("control.sock");
    let settings =
        format!("[control]\nsocket = '{}'\n[vms]\nqmp = ['{}/*.qmp']\n", socket.display(), home.display());
    fs::write(&config, settings).unwrap();
    let mut daemon = Daemon::start(home, &config, &["--observe"]);

    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
    let mut arguments = words("-object memory-backend-memfd,id=memory,size=256M,share=on".into());
    arguments.extend(words(
        "-machine memory-backend=memory -device vhost-user-blk-pci,chardev=disk,num-queues=2".into(),
    ));
    arguments
        .extend(words(format!("-chardev socket,id=disk,path={}/alice.sock,reconnect=1", home.display())));
    arguments.extend(words(format!("-qmp unix:{}/operator,server=on,wait=off", home.display())));
    let mut vm = RunningVm::boot(&VmConfig {
        memory_mib: 256,
        vcpus: 2,
        plugin: Some(built("release/libfrontdesk_tcg_plugin.so")),
        parameters: vec![format!("{DATA_PARAMETER}=vda")],
        arguments,
        cgroup_procs: vec![group.procs_file()],
        ..VmConfig::new("alice", &kernel, &initrd, home)
    })
    .unwrap();
    vm.wait_ready(PATIENCE).unwrap();
    let reads = || WorkloadKind::ReadBurn { cost: Duration::from_millis(2) };
    // It takes the vCPU of whoever waits for its read.
    vm.start("hog", WorkloadKind::Hog).unwrap();
    vm.start("other-hog", WorkloadKind::Hog).unwrap();
    vm.start("backup", reads()).unwrap();
    // For longer than an input is thought to matter.
    let mut began = None;
    eventually("the backup reads", || {
        let told = disk(home).filter(|(disk, _)| served(&disk["report"])[1] > 100);
        told.is_some_and(|(_, at)| at > *began.get_or_insert(at) + 6_000_000_000)
    });
    let (before, _) = disk(home).unwrap();
    assert_eq!(served(&before["report"])[0], 0, "nobody has done anything: {before}");

    let mut operator = Qmp::connect(&home.join("operator"));
    vm.start("opened", reads()).unwrap();
    operator.execute("send-key", &json!({"keys": [{"type": "qcode", "data": "ret"}]}));
    eventually("what was opened comes first", || {
        disk(home).is_some_and(|(disk, _)| served(&disk["report"])[0] > 20)
    });
    vm.stop("opened").unwrap();
    let (after, _) = disk(home).unwrap();
    assert_eq!(after.get("trouble"), None, "{after}");
    let applications = after["report"]["applications"].as_array().unwrap();
    let backup = applications.iter().max_by_key(|one| served(one)[1]).unwrap();
    let others = applications.iter().filter(|one| one["task"] != backup["task"]);
    let interactive: Vec<&Value> = others.filter(|one| served(one)[0] > 20).collect();
    assert_eq!(interactive.len(), 1, "{after}");
    assert_eq!(interactive[0]["interactive"], true, "{after}");
    let [high, common] = served(&after["report"]);
    // Not those who run while it waits; a few are of the guest's boot.
    let of_both: u64 = [backup, interactive[0]].into_iter().flat_map(served).sum();
    assert!(of_both * 10 > (high + common) * 9, "who asks is mistaken: {after}");
    // On a busy machine it may have read more after the input than before: the next inputs tell.
    let mut told = backup.clone();
    for _ in 0..5 {
        if told["interactive"] == false {
            break;
        }
        operator.execute("send-key", &json!({"keys": [{"type": "qcode", "data": "ret"}]}));
        std::thread::sleep(COUNTED);
        let (now, _) = disk(home).unwrap();
        let mut applications = now["report"]["applications"].as_array().unwrap().iter();
        told = applications.find(|one| one["task"] == backup["task"]).unwrap().clone();
    }
    assert_eq!(told["interactive"], false, "{after}, and then {told}");

    // The daemon dies, and another comes: the disk goes on, and hears of it.
    daemon.process.signal(Signal::KILL);
    daemon.process.0.wait().unwrap();
    let mut daemon = Daemon::start(home, &config, &["--observe"]);
    let reads_again = |what: &str| {
        let mut first = None;
        eventually(what, || {
            let known = disk(home).and_then(|(disk, _)| disk["report"]["known"].as_u64());
            known.is_some_and(|known| known > *first.get_or_insert(known))
        });
    };
    reads_again("another daemon tells who asks");
    // The back end dies, and another comes.
    back_end.0.kill().unwrap();
    back_end.0.wait().unwrap();
    let _back_end = serve(home, 1);
    reads_again("another back end is told who asks");
    drop(vm);
    daemon.end();
}
