//! `frontdesk run` beside VMs that an operator starts, resets, extends and ends by hand while it runs.
//!
//! Needs root and QEMU. The guests have no system but QEMU's firmware, which is enough to be followed.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod operator;

use frontdesk_engine::EventKind;
use frontdesk_guardian::{GUARDIAN_ARGUMENT, Guardian};
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_record::{Record, read_recording};
use operator::{Daemon, FRONTDESK, Qmp, boot, eventually};
use rustix::process::Signal;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn vms_are_followed_through_all_that_happens_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let guardian = Guardian::start(Path::new(FRONTDESK), GUARDIAN_ARGUMENT).unwrap();
    let root = Hierarchy::detect().unwrap().root_group();
    let group = |name: &str| {
        guardian.create_group(&root, &format!("frontdesk-{name}-{}", std::process::id())).unwrap()
    };
    let (alices, bobs) = (group("alice"), group("bob"));

    let (config, recording) = (home.join("frontdesk.toml"), home.join("recording"));
    fs::write(&config, format!("[vms]\nqmp = ['{}/*.qmp']\n", home.display())).unwrap();
    let mut daemon = Daemon::start(home, &config, &["--record", recording.to_str().unwrap()]);
    assert_eq!(daemon.line, "following no VM yet: waiting for one\n", "{}", daemon.log());

    let (_alice, mut operator) = boot(home, &alices, "alice", &["-smp", "1,maxcpus=2"]);
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
    operator.add_vcpu();
    daemon.says(&["alice", "threads have changed", "vcpus=2"]);

    let (mut bob, mut operator_of_bob) = boot(home, &bobs, "bob", &[]);
    daemon.says(&["following the VM", "\"bob\""]);
    // Somebody else needs the socket that frontdesk holds, and gets his turn.
    drop(Qmp::connect(&home.join("bob.qmp")));
    operator_of_bob.execute("quit", &json!({}));
    bob.0.wait().unwrap();
    daemon.says(&["bob", "the VM has ended"]);

    fs::write(&config, "[tavs]\npb_ratio = 7\n").unwrap();
    daemon.process.signal(Signal::HUP);
    daemon.says(&["stays as it was", "tavs.pb_ratio = 7 is out of range: allowed is 0 to 1"]);
    let new = format!("[vms]\nqmp = ['{}/*.qmp']\n[vm.alice]\nweight = 200\n", home.display());
    fs::write(&config, new).unwrap();
    daemon.process.signal(Signal::HUP);
    eventually("alice has her weight", || alices.weight().unwrap() == 2048);
    let second = Command::new(FRONTDESK).args(["run", "--observe"]).output().unwrap();
    let refusal = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{refusal}");
    assert!(refusal.contains(&format!("process {} since", daemon.process.0.id())), "{refusal}");

    daemon.end();
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
