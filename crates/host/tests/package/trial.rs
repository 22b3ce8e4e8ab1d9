//! What is tried in the Debian system.

use crate::{
    PASSED, ansible,
    bob::Bob,
    daemon_set, guest,
    host::{
        active_daemon, another_daemon, no_process_is_left, run_for_output, status_of, step, systemctl,
        type_in,
    },
    init::{DEB, HOME, parameter},
    many,
    support::eventually,
};
use anyhow::{Context as _, Result, ensure};
use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
};

pub(crate) const CONFIGURATION: &str = "/etc/frontdesk/frontdesk.toml";

/// Where the weight of the VM is.
const WEIGHT: &str = "/sys/fs/cgroup/system.slice/alice.scope/cpu.weight";

/// Does the trial, and tells how it went.
pub(crate) fn run() -> ExitCode {
    let is_asked = |name| matches!(parameter(name), Ok(Some(_)));
    let done = if is_asked(many::PARAMETER) {
        many::many()
    } else if is_asked(ansible::PARAMETER) {
        ansible::ansible()
    } else if is_asked(daemon_set::PARAMETER) {
        daemon_set::daemon_set()
    } else {
        package()
    };
    match done {
        Ok(()) => {
            println!("{PASSED}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let log = run_for_output("journalctl", &["--no-pager", "-o", "cat", "-u", "frontdesk"]);
            println!("the journal: {}", log.unwrap_or_else(|error| error.to_string()));
            println!("the trial failed: {error:?}");
            ExitCode::FAILURE
        }
    }
}

fn package() -> Result<()> {
    let mut vm = Alice::start()?;
    Bob::prepare()?;
    let (before, limits_before) = (files()?, limits()?);

    step("install");
    // The system leaves out manuals; this one is to be installed in full.
    let install = || run_for_output("dpkg", &["--path-include=/usr/share/man/*", "-i", DEB]);
    install()?;
    ensure!(systemctl(&["is-enabled", "frontdesk"])? == "enabled", "not enabled");
    active_daemon()?;
    for file in [
        "/usr/lib/frontdesk/libfrontdesk_tcg_plugin.so",
        "/usr/share/man/man1/frontdesk-run.1.gz",
        "/usr/share/man/man5/frontdesk.toml.5.gz",
        "/usr/share/bash-completion/completions/frontdesk",
        "/usr/share/frontdesk/grafana-dashboard.json",
        "/usr/share/frontdesk/guest/frontdesk-guest",
        "/usr/share/frontdesk/guest/frontdesk-guest.service",
        "/usr/share/doc/frontdesk/copyright",
    ] {
        ensure!(Path::new(file).is_file(), "{file} is not there");
    }
    run_for_output("systemd-analyze", &["verify", "--man=no", "/usr/lib/systemd/system/frontdesk.service"])?;
    // In tenths: of all that it could be denied, little is left that it does not need.
    run_for_output("systemd-analyze", &["security", "--threshold=40", "--no-pager", "frontdesk"])?;
    run_for_output("frontdesk", &["status"])?;

    step("reload");
    let shipped = fs::read_to_string(CONFIGURATION)?;
    let configure = |text: &str| {
        let (vms, bobs) = (format!("vms.qmp = ['{HOME}/*.qmp', '{HOME}/bob/*.qmp']"), guest::CONFIGURATION);
        fs::write(CONFIGURATION, format!("{vms}\nvm.alice.{text}\n{bobs}{shipped}"))
    };
    configure("weight = 50")?;
    systemctl(&["reload", "frontdesk"])?;
    weight_becomes(50)?;
    let alice = status_of("alice")?;
    ensure!(alice["pid"] == vm.0.id() && alice["trouble"].is_null(), "{alice:#}");

    step("a VM of another user");
    // What probes in QEMU take, and the unit does not have.
    fs::create_dir_all("/run/systemd/system/frontdesk.service.d")?;
    fs::write(
        "/run/systemd/system/frontdesk.service.d/reads.conf",
        "[Service]\nCapabilityBoundingSet=CAP_SYS_ADMIN\n",
    )?;
    systemctl(&["daemon-reload"])?;
    systemctl(&["restart", "frontdesk"])?;
    let first = active_daemon()?;
    let bob = Bob::start()?;
    let told = bob.0.is_followed()?;
    ensure!(told["identity"]["exact"] == true, "the plugin is not heard: {told:#}");
    bob.0.is_seen_and_boosted()?;
    bob.0.is_reserved_paused_and_released(type_in)?;

    step("reload of systemd");
    // It writes the weight that the scope was started with.
    systemctl(&["daemon-reload"])?;
    weight_becomes(50)?;

    step("reload of a bad configuration");
    configure("weight = 0")?;
    ensure!(systemctl(&["reload", "frontdesk"]).is_err(), "it is accepted");
    ensure!(active_daemon()? == first, "another daemon runs");
    ensure!(weight()? == 50, "the former configuration does not hold");

    step("death of the daemon");
    // The next one is to set another weight, so that it shows.
    configure("weight = 25")?;
    systemctl(&["kill", "--kill-who=main", "--signal=KILL", "frontdesk"])?;
    let second = another_daemon(first)?;
    weight_becomes(25)?;

    step("death of daemon and guardian");
    configure("weight = 30")?;
    systemctl(&["kill", "--kill-who=all", "--signal=KILL", "frontdesk"])?;
    let second = another_daemon(second)?;
    weight_becomes(30)?;

    step("a second daemon");
    // It takes nothing from the first one when it ends.
    ensure!(run_for_output("frontdesk", &["run"]).is_err(), "it is accepted");
    ensure!(Path::new("/run/frontdesk/daemon.lock").exists(), "the lock is gone");
    ensure!(active_daemon()? == second, "another daemon runs");

    step("stop");
    systemctl(&["stop", "frontdesk"])?;
    // What the last daemon found and has put back is what those before it had left to others to put back.
    ensure!(weight()? == 100, "the weight is {}", weight()?);
    no_process_is_left()?;

    step("a daemon that hangs");
    systemctl(&["start", "frontdesk"])?;
    let third = another_daemon(second)?;
    weight_becomes(30)?;
    // In microseconds: the kernel kills it if it runs in real time for as long without a pause.
    let bounds = fs::read_to_string(format!("/proc/{third}/limits"))?;
    let real_time = bounds.lines().find(|line| line.starts_with("Max realtime timeout"));
    ensure!(real_time.is_some_and(|line| line.contains(" 5000000 ")), "{real_time:?}");
    systemctl(&["kill", "--kill-who=main", "--signal=STOP", "frontdesk"])?;
    let fourth = another_daemon(third)?;
    weight_becomes(30)?;

    step("upgrade");
    install()?;
    let fifth = active_daemon()?;
    ensure!(fifth != fourth, "the former daemon still runs");
    weight_becomes(30)?;

    step("remove");
    run_for_output("dpkg", &["-r", "frontdesk"])?;
    ensure!(weight()? == 100, "the weight is {}", weight()?);
    no_process_is_left()?;
    ensure!(Path::new(CONFIGURATION).exists(), "the configuration is to stay");

    step("purge");
    run_for_output("dpkg", &["--purge", "frontdesk"])?;
    ensure!(!Path::new("/run/frontdesk").exists(), "/run/frontdesk is still there");
    let after = files()?;
    let left: Vec<_> = after.iter().filter(|(path, kind)| before.get(*path) != Some(kind)).collect();
    let gone: Vec<_> = before.keys().filter(|path| !after.contains_key(*path)).collect();
    ensure!(left.is_empty() && gone.is_empty(), "changed or left: {left:?}; gone: {gone:?}");
    ensure!(limits()? == limits_before, "{:?} instead of {limits_before:?}", limits()?);
    bob.0.is_untouched()?;
    vm.runs_untouched()
}

/// What the host lets real time have, and control groups of frontdesk's own.
fn limits() -> Result<(String, Vec<PathBuf>)> {
    let mut groups = vec![PathBuf::from("/sys/fs/cgroup")];
    let mut next = 0;
    while next < groups.len() {
        let below = fs::read_dir(&groups[next])?.flatten().map(|entry| entry.path());
        groups.extend(below.filter(|path| path.is_dir()));
        next += 1;
    }
    groups.retain(|group| group.to_string_lossy().contains("frontdesk"));
    Ok((fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us")?, groups))
}

/// A process that passes for a QEMU, in a control group of its own.
pub(crate) struct Alice(Child);

impl Alice {
    pub(crate) fn start() -> Result<Alice> {
        // What a process runs is to be a QEMU of root's.
        let program = format!("{HOME}/qemu-fake");
        fs::copy(format!("{HOME}/trial"), &program)?;
        // systemd-run becomes the process that it starts.
        let mut command = Command::new("systemd-run");
        command.args([
            "--quiet",
            "--scope",
            "--unit=alice",
            "--property=CPUWeight=100",
            &program,
            "fake-qemu",
        ]);
        let mut child = command.stdin(Stdio::piped()).spawn().context("start systemd-run")?;
        let orders = child.stdin.as_mut().context("no standard input")?;
        writeln!(orders, "listen {HOME}/alice.qmp alice")?;
        let alice = Alice(child);
        eventually("alice listens", || Path::new(HOME).join("alice.qmp").exists())?;
        ensure!(weight()? == 100, "alice has the weight {}", weight()?);
        Ok(alice)
    }

    pub(crate) fn runs_untouched(&mut self) -> Result<()> {
        ensure!(self.0.try_wait()?.is_none(), "the VM has ended");
        let pid = self.0.id();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let stat = fs::read_to_string(thread?.path().join("stat"))?;
            // The policy is field 41 of proc(5); the first after the name, which is in parentheses, is field
            // 3.
            let policy = stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(38));
            ensure!(policy == Some("0"), "a thread of the VM has another scheduling policy: {stat}");
        }
        Ok(())
    }
}

impl Drop for Alice {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn weight() -> Result<u32> {
    Ok(fs::read_to_string(WEIGHT)?.trim_end().parse()?)
}

pub(crate) fn weight_becomes(wanted: u32) -> Result<()> {
    eventually(&format!("the weight is {wanted}"), || weight().is_ok_and(|weight| weight == wanted))
}

/// Every file of the system outside of what dpkg, the journal and those who add users keep for themselves,
/// with its mode and size.
fn files() -> Result<BTreeMap<PathBuf, (u32, u64)>> {
    let device = fs::metadata("/")?.dev();
    let own = ["/var/lib/dpkg", "/var/log", "/tmp", "/var/tmp"].map(Path::new);
    let mut files = BTreeMap::new();
    let mut folders = vec![PathBuf::from("/")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            // What a file was before the last change to it: `/etc/passwd-`.
            let former = folder == Path::new("/etc") && path.as_os_str().as_encoded_bytes().ends_with(b"-");
            if metadata.dev() != device || own.contains(&path.as_path()) || former {
                continue;
            }
            // The size of a folder tells what was ever in it.
            let size = if metadata.is_dir() { 0 } else { metadata.size() };
            files.insert(path.clone(), (metadata.mode(), size));
            if metadata.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(files)
}
