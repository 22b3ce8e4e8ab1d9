//! What is done and looked at on the Debian system.

use crate::{init::HOME, support::eventually};
use anyhow::{Context as _, Result, ensure};
use std::{
    fs,
    process::{Command, Stdio},
};

/// Tells what comes next, and when, in seconds since the system was booted.
pub(crate) fn step(name: &str) {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    println!("trial, at {}: {name}", uptime.split('.').next().unwrap_or_default());
}

/// What the daemon tells of a VM.
pub(crate) fn status_of(vm: &str) -> Result<serde_json::Value> {
    let status = run_for_output("frontdesk", &["status", "--why", vm, "--json"])?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let vms = status["vms"].as_array().into_iter().flatten();
    vms.into_iter().find(|told| told["name"] == vm).cloned().with_context(|| format!("{vm} is not followed"))
}

/// The process id of the daemon, which is up and running.
pub(crate) fn active_daemon() -> Result<String> {
    ensure!(systemctl(&["is-active", "frontdesk"])? == "active", "not active");
    systemctl(&["show", "--property=MainPID", "--value", "frontdesk"])
}

/// Waits until a daemon with another process id is up and running.
pub(crate) fn another_daemon(than: String) -> Result<String> {
    let mut now = None;
    eventually("another daemon runs", || {
        // 0 is none: it may have ended between two questions.
        now = active_daemon().ok().filter(|daemon| *daemon != than && daemon != "0");
        now.is_some()
    })?;
    now.context("no daemon")
}

/// Neither the daemon nor its guardian.
pub(crate) fn no_process_is_left() -> Result<()> {
    let mut left = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let exe = fs::read_link(entry?.path().join("exe"));
        left.extend(exe.ok().filter(|exe| exe.starts_with("/usr/bin/frontdesk")));
    }
    ensure!(left.is_empty(), "still running: {left:?}");
    Ok(())
}

pub(crate) fn systemctl(arguments: &[&str]) -> Result<String> {
    run_for_output("systemctl", arguments)
}

/// What a line of the shell prints in the trial's folder, if it succeeds.
pub(crate) fn type_in(line: &str) -> Result<String> {
    run_for_output("sh", &["-c", &format!("cd {HOME} && {line}")])
}

/// What a program prints, if it succeeds.
pub(crate) fn run_for_output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {program}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{program} {arguments:?}: {}\n{said}\n{complained}", output.status);
    Ok(said)
}
