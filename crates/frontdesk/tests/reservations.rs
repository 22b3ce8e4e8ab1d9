//! `frontdesk reserve`, `release`, `pause`, `resume`, `list` and `ps`, here and over the network, with a
//! daemon that is not a real one.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod served;

use frontdesk_control_protocol::Target;
use frontdesk_testing::{FakeDaemon, Need, leave_out};
use served::{PASSWORD, Served};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn frontdesk(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    command.args(arguments);
    command
}

/// What a command prints and its exit status.
fn say(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let code = output.status.code().unwrap();
    format!("{}{}exit status {code}\n", text(&output.stdout), text(&output.stderr))
}

/// Runs each of `commands`, with `rest` after its own arguments; all that they say.
fn transcript(commands: &[&str], rest: &[&str], home: &Path) -> String {
    let run = |command: &&str| {
        let arguments: Vec<&str> = command.split(' ').chain(rest.iter().copied()).collect();
        let output = frontdesk(&arguments).env("XDG_STATE_HOME", home).output().unwrap();
        format!("$ frontdesk {command}\n{}\n", say(&output))
    };
    commands.iter().map(run).collect()
}

const COMMANDS: [&str; 14] = [
    "list",
    "ps",
    "ps render.s",
    "ps none",
    "reserve alice --period 10ms --slice 2ms",
    "reserve pid:4711 --period 16ms --slice 7.2ms --hard",
    "reserve desk --period 10ms --slice 8ms",
    "reserve desk --period 10ms --slice 11ms",
    "reserve 99 --period 10ms --slice 1ms",
    "pause alice",
    "resume alice",
    "reserve alice --period 10min --slice 1min",
    "release alice",
    "release alice",
];

#[test]
fn reservations_are_made_and_changed_here() {
    let daemon = FakeDaemon::start();
    let socket = daemon.socket();
    let home = tempfile::tempdir().unwrap();
    let told = transcript(&COMMANDS, &["--socket", socket.to_str().unwrap()], home.path());
    insta::assert_snapshot!("commands", told);
    let render = daemon.reservation(&Target::Process(4711)).unwrap();
    assert!(render.hard && render.slice_ns == 7_200_000);
    let output = frontdesk(&["list", "--json", "--socket", socket.to_str().unwrap()]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["reservations"][0]["target"], "pid:4711");
    let refused = ["reserve", "desk", "--period", "10ms", "--slice", "9ms", "--json", "--socket"];
    let output = frontdesk(&refused).arg(&socket).output().unwrap();
    let refused: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &refused["refused"]["kind"]), (Some(1), &"infeasible".into()));
    assert_eq!(refused["refused"]["fit"]["slice_ns"], 4_500_000);
}

/// Word for word what they say here.
#[test]
fn and_from_elsewhere() {
    let served = Served::start();
    let home = tempfile::tempdir().unwrap();
    let password = home.path().join("password");
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&password).unwrap();
    std::fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    let address = served.address.as_str();
    let run = |arguments: &[&str]| {
        say(&frontdesk(arguments)
            .args(["--host", address])
            .env("XDG_STATE_HOME", home.path())
            .output()
            .unwrap())
    };
    let unknown = run(&["list"]);
    assert!(unknown.contains(&served.fingerprint) && unknown.ends_with("exit status 2\n"), "{unknown}");
    let nobody = run(&["list", "--fingerprint", &served.fingerprint]);
    assert!(nobody.contains("log in first") && nobody.ends_with("exit status 2\n"), "{nobody}");
    let password = password.to_str().unwrap();
    let other = "00:".repeat(31) + "00";
    let deceived = run(&["login", "--fingerprint", &other, "--password-file", password]);
    assert!(
        deceived.contains("shows another certificate") && deceived.ends_with("exit status 2\n"),
        "{deceived}"
    );
    let login = run(&["login", "--fingerprint", &served.fingerprint, "--password-file", password]);
    assert_eq!(login, format!("logged in at {address}\nexit status 0\n"));
    let told = transcript(&COMMANDS, &["--host", address], home.path());
    insta::assert_snapshot!("commands", told);
    assert_eq!(run(&["logout"]), "exit status 0\n");
    assert!(run(&["list"]).contains("is not known"));
    std::fs::set_permissions(password, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let open = run(&["list", "--fingerprint", &served.fingerprint, "--password-file", password]);
    assert!(open.contains("others can read the password"), "{open}");
}

#[test]
fn a_server_is_set_up_by_one_command_and_never_runs_as_root() {
    let folder = tempfile::tempdir().unwrap();
    let of_server = folder.path().join("serve");
    let serve = |more: &[&str]| {
        say(&frontdesk(&["serve", "--folder", of_server.to_str().unwrap()]).args(more).output().unwrap())
    };
    if rustix::process::geteuid().is_root() {
        let refused = serve(&[]);
        assert!(
            refused.contains("does not run as root") && refused.ends_with("exit status 2\n"),
            "{refused}"
        );
    } else {
        leave_out(
            "a part of a_server_is_set_up_by_one_command_and_never_runs_as_root",
            Need::Root,
            "it is root",
        );
    }
    let asked = serve(&["--setup"]);
    assert!(asked.contains("no terminal to ask for the password"), "{asked}");
    let password = folder.path().join("password");
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&password).unwrap();
    std::fs::write(&password, "short\n").unwrap();
    let set_up = ["--setup", "--password-file", password.to_str().unwrap(), "--name", "host.example"];
    let short = serve(&set_up);
    assert!(short.contains("too short") && short.ends_with("exit status 2\n"), "{short}");
    std::fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    let done = serve(&set_up);
    assert!(done.contains("made for this host") && done.ends_with("exit status 0\n"), "{done}");
    let again = serve(&set_up);
    let fingerprint =
        |text: &str| text.lines().find(|line| line.starts_with("  ")).map(str::to_owned).unwrap();
    assert!(again.contains("as it was") && fingerprint(&again) == fingerprint(&done), "{again}");
}
