//! The command line of the reporter.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_frontdesk-guest")).args(arguments).output().unwrap()
}

#[test]
fn help_says_what_it_does_and_needs() {
    let help = run(&["--help"]);
    assert!(help.status.success());
    let text = String::from_utf8(help.stdout).unwrap();
    for part in ["--port PATH", "/dev/virtio-ports/org.frontdesk.tasks.0", "CAP_PERFMON", "tracefs"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn a_mistake_is_told() {
    for (arguments, complaint) in [
        (&["--prot", "x"][..], "--prot"),
        (&["--port"], "missing argument"),
        (&["port"], "unexpected argument"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(complaint) && text.contains("--help"), "{text}");
    }
}

/// Without the port, or where the kernel does not let it, it says what to do.
#[test]
fn what_is_missing_is_told() {
    let output = run(&["--port", "/dev/no-such-port"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    let advice = [
        "-device virtserialport,chardev=tasks,name=org.frontdesk.tasks.0",
        "mount -t tracefs",
        "CAP_PERFMON",
    ];
    assert!(advice.iter().any(|advice| text.contains(advice)), "{text}");
}
