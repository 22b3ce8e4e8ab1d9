//! The Ansible role on a host that has nothing of frontdesk yet: it installs the package, configures and
//! checks, as an operator has it done. A second time it finds nothing to do.

use crate::{
    host::{active_daemon, run_for_output, step, systemctl, type_in},
    init::{DEB, GUESTS, HOME},
    package_trial::{Alice, weight, weight_becomes},
};
use anyhow::{Context as _, Result, ensure};
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

/// On the kernel's command line: that this is what is to be tried.
pub(crate) const PARAMETER: &str = "trial.ansible";

/// Where Prometheus fetches.
const METRICS: &str = "127.0.0.1:9741";

pub(crate) fn ansible() -> Result<()> {
    let mut vm = Alice::start()?;
    run_for_output("tar", &["--extract", "--directory=/run", &format!("--file={GUESTS}/ansible.tar")])?;

    step("the role, for the first time");
    let told = play(50, "")?;
    ensure!(told.contains("VMs are followed"), "{told}");
    weight_becomes(50)?;
    let daemon = active_daemon()?;
    ensure!(systemctl(&["is-enabled", "frontdesk"])? == "enabled", "not enabled");
    let metrics = metrics()?;
    ensure!(metrics.contains("\nfrontdesk_"), "no metrics: {metrics}");

    step("the same once more");
    let told = play(50, "--tags configure,check")?;
    ensure!(told.contains("changed=0 "), "{told}");
    ensure!(told.contains("1 VMs are followed"), "{told}");

    step("a server, with two passwords");
    let passwords = "-e frontdesk_serve_password=correct-horse -e frontdesk_look_password=battery-staple";
    let told = play(50, &format!("--tags serve {passwords}"))?;
    // The passwords, the unit, and that it is started again.
    ensure!(told.contains("changed=4 "), "{told}");
    ensure!(!told.contains("correct-horse") && !told.contains("battery-staple"), "{told}");
    looks_in(&told)?;
    let told = play(50, &format!("--tags serve {passwords}"))?;
    ensure!(told.contains("changed=0 "), "{told}");
    let refused = play(50, "--tags serve -e frontdesk_serve_password=short").err().context("it is taken")?;
    ensure!(refused.to_string().contains("the password is too short"), "{refused}");

    step("another setting");
    let told = play(25, "--tags configure")?;
    // The configuration, and the reload.
    ensure!(told.contains("changed=2 "), "{told}");
    weight_becomes(25)?;

    step("a wrong setting");
    let refused = play(0, "--tags configure").err().context("a weight of 0 is taken")?.to_string();
    ensure!(refused.contains("weight = 0 is out of range"), "{refused}");
    run_for_output("frontdesk", &["run", "--check"])?;
    ensure!(weight()? == 25, "the former configuration does not hold");
    ensure!(active_daemon()? == daemon, "another daemon runs, which knows nothing of the VM's tasks");
    vm.runs_untouched()
}

/// Has the example done on this host, with such a weight for the VM. An emulated host lacks some of what
/// `frontdesk doctor` looks for.
fn play(weight: u32, more: &str) -> Result<String> {
    let settings = format!(
        r#"{{"frontdesk_settings": {{"control": {{"metrics": "{METRICS}"}}, "vms": {{"qmp": ["{HOME}/*.qmp"]}},
             "vm": {{"alice": {{"weight": {weight}}}}}}}}}"#
    );
    type_in(&format!(
        "LC_ALL=C.UTF-8 ansible-playbook -i localhost, -c local /run/ansible/site.yml \
         -e frontdesk_package={DEB} -e frontdesk_strict=false -e '{settings}' {more}"
    ))
}

/// Whoever has the password that looks in sees the VM, at the certificate that the role told.
fn looks_in(told: &str) -> Result<()> {
    let is_fingerprint =
        |word: &&str| word.len() == 95 && word.bytes().filter(|byte| *byte == b':').count() == 31;
    let mut words = told.split(|letter: char| letter.is_whitespace() || letter == '"');
    let fingerprint = words.find(is_fingerprint).with_context(|| format!("no fingerprint: {told}"))?;
    let status = type_in(&format!(
        "printf battery-staple | XDG_STATE_HOME=/run frontdesk status --host localhost --fingerprint {fingerprint} \
         --password-file /dev/stdin"
    ))?;
    ensure!(status.contains("alice"), "{status}");
    Ok(())
}

/// What Prometheus gets.
pub(crate) fn metrics() -> Result<String> {
    let mut stream = TcpStream::connect(METRICS)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
