//! `frontdesk run` beside VMs that an operator starts, resets, extends and ends by hand while it runs.
//!
//! Needs root and QEMU. The guests have no system but QEMU's firmware, which is enough to be followed.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_engine::EventKind;
use frontdesk_host::cgroup::{Group, Hierarchy};
use frontdesk_host::guardian::Guardian;
use frontdesk_host::{GUARDIAN_ARGUMENT, Record, read_recording};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const FRONTDESK: &str = env!("CARGO_BIN_EXE_frontdesk");
/// Generous: emulated machines on a busy one are slow.
const PATIENCE: Duration = Duration::from_secs(120);

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.0.id().to_string()]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A QMP client of the operator's.
struct Qmp(BufReader<UnixStream>);

impl Qmp {
    /// Connects, and waits until it is its turn.
    fn connect(path: &Path) -> Qmp {
        eventually("the socket is there", || UnixStream::connect(path).is_ok());
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut qmp = Qmp(BufReader::new(stream));
        let mut greeting = String::new();
        qmp.0.read_line(&mut greeting).unwrap();
        assert!(greeting.contains("QMP"), "{greeting}");
        qmp.execute("qmp_capabilities", &json!({}));
        qmp
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Value {
        let line = json!({"execute": command, "arguments": arguments});
        writeln!(self.0.get_mut(), "{line}").unwrap();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer.get("event").is_none() {
                assert!(answer.get("return").is_some(), "{command}: {answer}");
                return answer["return"].clone();
            }
        }
    }
}

/// A VM in a group of its own, with one socket for frontdesk and one for the operator.
fn boot(home: &Path, group: &Group, name: &str) -> (Process, Qmp) {
    let file = |suffix: &str| home.join(format!("{name}.{suffix}"));
    let server = |socket: PathBuf| format!("unix:{},server=on,wait=off", socket.display());
    // The shell is in the group before it becomes QEMU.
    let mut command = Command::new("sh");
    command.args(["-c", "echo 0 > \"$0\" && exec \"$@\""]).arg(group.procs_file());
    command.args(["qemu-system-x86_64", "-nodefaults", "-display", "none", "-m", "32", "-machine", "q35"]);
    command.args(["-accel", "tcg,thread=multi", "-smp", "1,maxcpus=2", "-name", name, "-qmp"]);
    command.arg(server(file("qmp"))).arg("-qmp").arg(server(file("operator")));
    let vm = Process(command.stdin(Stdio::null()).spawn().unwrap());
    (vm, Qmp::connect(&file("operator")))
}

struct Daemon {
    process: Process,
    log: PathBuf,
}

impl Daemon {
    fn said(&self, words: &[&str]) -> bool {
        let log = fs::read_to_string(&self.log).unwrap();
        log.lines().any(|line| words.iter().all(|word| line.contains(word)))
    }

    fn says(&self, words: &[&str]) {
        eventually(&format!("the daemon says {words:?}"), || self.said(words));
    }
}

#[test]
fn vms_are_followed_through_all_that_happens_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let keeper = Guardian::start(Path::new(FRONTDESK), GUARDIAN_ARGUMENT).unwrap();
    let root = Hierarchy::detect().unwrap().root_group();
    let group =
        |name: &str| root.create(&format!("frontdesk-{name}-{}", std::process::id()), &keeper).unwrap();
    let (alices, bobs) = (group("alice"), group("bob"));

    let (config, recording, log) = (home.join("frontdesk.toml"), home.join("recording"), home.join("log"));
    fs::write(&config, format!("[vms]\nqmp = ['{}/*.qmp']\n", home.display())).unwrap();
    let mut command = Command::new(FRONTDESK);
    command.args(["run", "--config"]).arg(&config).arg("--record").arg(&recording).stdin(Stdio::null());
    let stderr = fs::File::create(&log).unwrap();
    let mut process = Process(command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut daemon = Daemon { process, log };
    assert_eq!(
        line,
        "following no VM yet: waiting for one\n",
        "{}",
        fs::read_to_string(&daemon.log).unwrap()
    );

    let (_alice, mut operator) = boot(home, &alices, "alice");
    daemon.says(&["following the VM", "\"alice\"", "vcpus=1"]);
    // One that comes while frontdesk lets others have its turn is not heard.
    let mut looks = 0;
    eventually("the daemon hears of a reset", || {
        if !daemon.said(&["alice", "the guest was reset"]) && looks % 200 == 0 {
            operator.execute("system_reset", &json!({}));
        }
        looks += 1;
        daemon.said(&["alice", "the guest was reset"])
    });
    operator.execute("stop", &json!({}));
    daemon.says(&["alice", "paused"]);
    operator.execute("cont", &json!({}));
    daemon.says(&["alice", "running"]);
    let slots = operator.execute("query-hotpluggable-cpus", &json!({}));
    let slot = slots.as_array().unwrap().iter().find(|slot| slot.get("qom-path").is_none()).unwrap();
    let mut device = slot["props"].clone();
    device["driver"] = slot["type"].clone();
    device["id"] = json!("second");
    operator.execute("device_add", &device);
    daemon.says(&["alice", "threads have changed", "vcpus=2"]);

    let (mut bob, mut operator_of_bob) = boot(home, &bobs, "bob");
    daemon.says(&["following the VM", "\"bob\""]);
    // Somebody else needs the socket that frontdesk holds, and gets his turn.
    drop(Qmp::connect(&home.join("bob.qmp")));
    operator_of_bob.execute("quit", &json!({}));
    bob.0.wait().unwrap();
    daemon.says(&["bob", "the VM has ended"]);

    fs::write(&config, "[tavs]\npb_ratio = 7\n").unwrap();
    daemon.process.signal("HUP");
    daemon.says(&["stays as it was", "tavs.pb_ratio = 7 is out of range: allowed is 0 to 1"]);
    let new = format!("[vms]\nqmp = ['{}/*.qmp']\n[vm.alice]\nweight = 200\n", home.display());
    fs::write(&config, new).unwrap();
    daemon.process.signal("HUP");
    eventually("alice has her weight", || alices.weight().unwrap() == 2048);
    let second = Command::new(FRONTDESK).args(["run", "--observe"]).output().unwrap();
    let refusal = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{refusal}");
    assert!(refusal.contains(&format!("process {} since", daemon.process.0.id())), "{refusal}");

    daemon.process.signal("TERM");
    assert!(daemon.process.0.wait().unwrap().success());
    assert_eq!(alices.weight().unwrap(), 1024, "given back");
    let events = read_recording(&recording).unwrap().into_iter().filter_map(|record| match record {
        Record::Event(event) => Some(event.kind),
        _ => None,
    });
    let events: Vec<EventKind> = events.collect();
    let count = |is: fn(&EventKind) -> bool| events.iter().filter(|kind| is(kind)).count();
    assert_eq!(count(|kind| matches!(kind, EventKind::VmAdded { vcpus: 1, .. })), 2);
    assert!(count(|kind| matches!(kind, EventKind::VmReset { .. })) > 0);
    assert_eq!(count(|kind| matches!(kind, EventKind::VcpuAdded { vcpu: 1, .. })), 1);
    assert_eq!(count(|kind| matches!(kind, EventKind::VmRemoved { .. })), 1);
    assert!(count(|kind| matches!(kind, EventKind::Run { .. })) > 0, "its threads are heard of");
}
