//! The commands of an operator beside VMs that somebody else started, with work in them and questions from
//! outside.
//!
//! Needs root, QEMU, and what `make build` makes.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod operator;

use frontdesk_guardian::{GUARDIAN_ARGUMENT, Guardian};
use frontdesk_lab::{Kernel, add_to_initramfs, write_initramfs};
use frontdesk_linux::cgroup::Hierarchy;
use operator::FRONTDESK;
use operator::desk::{Desk, IdentitySource, built, reporter};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Generous: emulated machines on a busy one are slow.
const PATIENCE: Duration = Duration::from_secs(600);
/// As in `scenarios/echo-mixed.toml`, where the reasons are, but for machines that are half as fast as well:
/// there a server needs 2.5 ms for a request in a guest that also reports.
const POLICY: &str = "[tavs]\nio_threshold = '6ms'\npb_ratio = 0.5\n";

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn end(&mut self) {
        let status = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        assert!(status.unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Operator {
    socket: String,
}

impl Operator {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(FRONTDESK);
        command.args(arguments).arg("--socket").arg(&self.socket).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {err}");
        output
    }

    fn vm(&self, name: &str) -> Value {
        let status = self.run(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        let vms = status["vms"].as_array().unwrap();
        vms.iter().find(|vm| vm["name"] == name).unwrap_or_else(|| panic!("{name}: {status}")).clone()
    }
}

fn boosts(vm: &Value) -> u64 {
    vm["vcpus"][0]["boosts"].as_u64().unwrap()
}

fn io_bound(vm: &Value) -> impl Iterator<Item = &Value> {
    vm["tasks"].as_array().unwrap().iter().filter(|task| task["io_bound"] == true)
}

/// Has both asked until something is so.
fn ask_until(desks: &[Desk], what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        for _ in 0..5 {
            desks.iter().for_each(Desk::ask);
        }
    }
}

#[test]
fn an_operator_sees_what_frontdesk_does_for_vms_that_were_there_before() {
    // Which may have to be fetched.
    let kernel = Kernel::resolve("6.1-cloud", None).unwrap();
    // The taps are gone when this thread and the VMs are.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let guardian = Guardian::start(Path::new(FRONTDESK), GUARDIAN_ARGUMENT).unwrap();
    let root = Hierarchy::detect().unwrap().root_group();
    let initrd = home.join("initrd");
    let guest = built("x86_64-unknown-linux-gnu/release/frontdesk-lab-guest");
    write_initramfs(&kernel, &guest, &initrd, false).unwrap();
    add_to_initramfs(&initrd, &BTreeSet::from([reporter()])).unwrap();
    let kinds = [IdentitySource::Plugin, IdentitySource::Reporter];
    let boot = |number: u8, told| {
        let name = format!("frontdesk-desk-{number}-{}", std::process::id());
        Desk::boot(home, &initrd, &kernel, &guardian.create_group(&root, &name).unwrap(), number, told)
    };
    let mut desks: Vec<Desk> = (1..).zip(kinds).map(|(number, told)| boot(number, told)).collect();
    for (desk, told) in desks.iter_mut().zip(kinds) {
        desk.begin(told);
    }

    let (config, recording) = (home.join("frontdesk.toml"), home.join("some.fdsk"));
    fs::write(&config, format!("{POLICY}[vms]\nlibvirt = false\nqmp = ['{}/*.qmp']\n", home.display()))
        .unwrap();
    let operator = Operator { socket: home.join("control.sock").to_str().unwrap().to_owned() };
    let mut command = operator.command(&["run", "--config", config.to_str().unwrap()]);
    let log = fs::File::create(home.join("log")).unwrap();
    let mut daemon = Process(command.stdout(Stdio::piped()).stderr(log).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let log = fs::read_to_string(home.join("log")).unwrap();
    // In the order in which they were found.
    assert!(line.starts_with("following 2 VMs: desk-"), "{line}{log}");

    // The workloads of a lab VM are /proc/self/exe again, and only who reports tells so.
    let is_server = |task: &Value| task["name"] == "exe" && task["pid"].is_u64();
    ask_until(&desks, "both are boosted, for a task that is told of", || {
        let [one, other] = ["desk-1", "desk-2"].map(|name| operator.vm(name));
        let boosted = [&one, &other].iter().all(|vm| boosts(vm) > 20);
        boosted && io_bound(&one).count() > 0 && io_bound(&other).any(is_server)
    });
    let told = operator.vm("desk-1");
    assert_eq!(told["identity"]["exact"], true, "{told}");
    let told = operator.vm("desk-2");
    assert!(told["identity"]["source"].as_str().unwrap().contains("reporter"), "{told}");
    let why = String::from_utf8(operator.run(&["status", "--why", "desk-1"]).stdout).unwrap();
    assert!(why.contains("boost") && why.lines().all(|line| line.chars().count() <= 80), "{why}");

    let mut command = operator.command(&["record", recording.to_str().unwrap()]);
    let mut recorder = Process(command.stdout(Stdio::null()).spawn().unwrap());
    let before = boosts(&operator.vm("desk-1"));
    ask_until(&desks, "some boosts are recorded", || {
        recording.exists() && boosts(&operator.vm("desk-1")) > before + 50
    });
    recorder.end();
    let replay = Command::new(FRONTDESK).args(["replay", "--json"]).arg(&recording).output().unwrap();
    let replay: Value = serde_json::from_slice(&replay.stdout).unwrap();
    assert!(replay["mismatch"].is_null() && replay["events"].as_u64().unwrap() > 1000, "{replay}");

    daemon.end();
    for desk in &desks {
        let policies = desk.policies();
        assert!(policies.len() > 1 && policies.iter().all(|policy| *policy == 0), "{policies:?}");
    }
}
