//! `frontdesk status --host`: the daemons of other hosts, one and several.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod served;

use frontdesk_control_protocol::Status;
use serde_json::Value;
use served::{PASSWORD, Served};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// A host with a daemon that follows one VM of this name.
fn host(vm: &str) -> Served {
    let served = Served::start();
    let mut status: Status = serde_json::from_str(include_str!("../src/status/sample.json")).unwrap();
    status.vms.truncate(1);
    status.vms[0].name = vm.to_owned();
    status.vms[0].trouble = None;
    served.daemon.tell(status);
    served
}

fn frontdesk(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    command.args(arguments).env("XDG_STATE_HOME", home).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn several_hosts_are_told_side_by_side() {
    let home = tempfile::tempdir().unwrap();
    let password = home.path().join("password");
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&password).unwrap();
    std::fs::write(&password, PASSWORD).unwrap();
    let (one, other) = (host("alice"), host("bob"));
    for served in [&one, &other] {
        let login = ["login", "--host", &served.address, "--fingerprint", &served.fingerprint];
        let login = [&login[..], &["--password-file", password.to_str().unwrap()]].concat();
        let output = frontdesk(home.path(), &login);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let status =
        |hosts: &str, more: &[&str]| frontdesk(home.path(), &[&["status", "--host", hosts], more].concat());

    let alone = status(&one.address, &[]);
    assert_eq!(alone.status.code(), Some(0), "{}", text(&alone.stderr));
    assert!(text(&alone.stdout).contains("alice") && !text(&alone.stdout).contains("=="));

    let hosts = format!("{},{}", other.address, one.address);
    let both = status(&hosts, &[]);
    let told = text(&both.stdout);
    assert_eq!(both.status.code(), Some(0), "{told}");
    let place = |word: &str| told.find(word).unwrap_or_else(|| panic!("no {word}: {told}"));
    let order = ["host", &other.address, &one.address, "bob", "alice"];
    assert!(order.map(place).is_sorted(), "{told}");
    let line = |words: [&str; 2]| told.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(line(["bob", &other.address]) && line(["alice", &one.address]), "{told}");
    let refused = status(&hosts, &["--fingerprint", &one.fingerprint]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("there are several hosts"), "{}", text(&refused.stderr));

    // One does not answer, and one does not know us.
    let stranger = host("carol");
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let hosts = format!("{},{},{nowhere}", one.address, stranger.address);
    let some = status(&hosts, &["--json"]);
    assert_eq!(some.status.code(), Some(1), "{}", text(&some.stderr));
    let people = status(&hosts, &[]);
    assert!(text(&people.stdout).contains("no answer"), "{}", text(&people.stdout));
    let told: Vec<Value> = serde_json::from_slice(&some.stdout).unwrap();
    assert_eq!(told[0]["status"]["vms"][0]["name"], "alice");
    assert!(told[1]["error"].as_str().unwrap().contains("is not known"), "{told:?}");
    assert!(told[2]["error"].as_str().unwrap().contains(&nowhere), "{told:?}");
    let none = status(&format!("{nowhere},{}", stranger.address), &[]);
    assert_eq!(none.status.code(), Some(2), "{}", text(&none.stdout));

    // A VM is on one of them.
    let hosts = format!("{},{}", other.address, one.address);
    let why = status(&hosts, &["--why", "alice"]);
    assert_eq!(why.status.code(), Some(0), "{}", text(&why.stdout));
    assert!(text(&why.stdout).contains("no VM is called alice"));
    assert_eq!(status(&hosts, &["--why", "dave"]).status.code(), Some(1));
}
