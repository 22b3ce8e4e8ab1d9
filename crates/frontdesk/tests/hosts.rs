//! `frontdesk status --host`: the daemons of other hosts, one and several.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod served;

use frontdesk_control_protocol::Status;
use serde_json::Value;
use served::{LOOK_PASSWORD, PASSWORD, Served};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

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

/// A file with a password, as it has to be.
fn password_file(folder: &Path, password: &str) -> String {
    let path = folder.join(password.replace(' ', "-"));
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
    std::fs::write(&path, password).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn who_has_the_other_password_looks_in_and_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let password = password_file(home.path(), LOOK_PASSWORD);
    let one = host("alice");
    let at = ["--host", &one.address, "--fingerprint", &one.fingerprint, "--password-file", &password];
    let login = frontdesk(home.path(), &[&["login"], &at[..]].concat());
    assert!(login.status.success(), "{}", text(&login.stderr));
    let status = frontdesk(home.path(), &["status", "--host", &one.address]);
    assert!(text(&status.stdout).contains("alice"), "{}", text(&status.stderr));
    let reserve = ["reserve", "alice", "--period", "10ms", "--slice", "2ms", "--host", &one.address];
    let refused = frontdesk(home.path(), &reserve);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("may only look in"), "{}", text(&refused.stderr));
    assert!(one.daemon.asked().is_empty());
}

#[test]
fn a_page_shows_another_host_only_with_a_password_that_looks_in() {
    let home = tempfile::tempdir().unwrap();
    let (changes, looks) = (password_file(home.path(), PASSWORD), password_file(home.path(), LOOK_PASSWORD));
    let folder = home.path().join("serve");
    let serve = |more: &[&str]| {
        let output =
            frontdesk(home.path(), &[&["serve", "--folder", folder.to_str().unwrap()], more].concat());
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let one = host("alice");
    let (code, said) = serve(&["--add", &one.address, "--password-file", &looks]);
    assert!(code == Some(2) && said.contains("not set up") && !folder.exists(), "{said}");
    assert_eq!(serve(&["--setup", "--password-file", &changes, "--name", "localhost"]).0, Some(0));
    let (code, said) = serve(&["--add", &one.address, "--password-file", &looks]);
    assert!(code == Some(2) && said.contains(&one.fingerprint), "nobody to ask: {said}");
    let add = ["--add", &one.address, "--fingerprint", &one.fingerprint, "--password-file"];
    let (code, said) = serve(&[&add[..], &[&changes]].concat());
    assert!(code == Some(2) && said.contains("--setup --look"), "{said}");
    let (code, said) = serve(&["--remove", &one.address]);
    assert!(code == Some(2) && said.contains("is not shown"), "{said}");
    let (code, said) = serve(&[&add[..], &[&looks]].concat());
    assert!(code == Some(0) && said.contains("restart frontdesk-serve"), "{said}");
    let kept = std::fs::metadata(folder.join("hosts.json")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&kept) & 0o777, 0o600);
    assert_eq!(serve(&["--remove", &one.address]).0, Some(0));
    let other = host("bob").fingerprint.clone();
    let (code, said) = serve(&["--add", &one.address, "--fingerprint", &other, "--password-file", &looks]);
    assert!(code == Some(2) && said.contains("shows another certificate"), "{said}");
}

#[test]
fn several_hosts_are_told_side_by_side() {
    let home = tempfile::tempdir().unwrap();
    let password = password_file(home.path(), PASSWORD);
    let (one, other) = (host("alice"), host("bob"));
    for served in [&one, &other] {
        let login = ["login", "--host", &served.address, "--fingerprint", &served.fingerprint];
        let login = [&login[..], &["--password-file", &password]].concat();
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

/// In a terminal, as a person would: `script` gives it one.
#[test]
fn top_watches_another_host_until_q_is_pressed() {
    let home = tempfile::tempdir().unwrap();
    let password = password_file(home.path(), PASSWORD);
    let served = host("alice");
    let at = format!("--host {} --fingerprint {}", served.address, served.fingerprint);
    let top = format!(
        "stty rows 24 columns 120; {} top {at} --password-file {password}",
        env!("CARGO_BIN_EXE_frontdesk")
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &top, "/dev/null"]);
    script.env("XDG_STATE_HOME", home.path()).env("TERM", "xterm");
    let mut terminal = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut screen = terminal.stdout.take().unwrap();
    let mut shown = String::new();
    let mut until = |word: &str| {
        let mut part = [0; 4096];
        while !shown.contains(word) {
            let read = screen.read(&mut part).unwrap();
            assert!(read > 0, "no {word}: {shown}");
            shown += &text(&part[..read]);
        }
    };
    // Words only: what is blank already is not drawn.
    until(&served.address);
    until("alice");
    let mut keys = terminal.stdin.take().unwrap();
    // The reservations, which it asks for only now.
    keys.write_all(b"r").unwrap();
    until("Nothing");
    keys.write_all(b"q").unwrap();
    assert_eq!(terminal.wait().unwrap().code(), Some(0), "{shown}");
}

/// Where a thread's stack has no room, there is no thread.
#[test]
fn without_threads_each_host_says_so() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    command.args(["status", "--host", "one.invalid,two.invalid"]).env("XDG_STATE_HOME", home.path());
    let output = command.env("RUST_MIN_STACK", (1_u64 << 60).to_string()).output().unwrap();
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{told}{}", text(&output.stderr));
    assert_eq!(told.matches("cannot start a thread").count(), 2, "{told}");
}
