//! Reservations as an operator makes them, for VMs that he started by hand, a process and a unit, through all
//! that happens to them and to the daemon.
//!
//! Needs root and QEMU. The guests have no system: their vCPUs compute from the first instruction on.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod operator;

use frontdesk_guardian::{GUARDIAN_ARGUMENT, Guardian};
use frontdesk_linux::cgroup::{Group, Hierarchy};
use frontdesk_testing::{Need, leave_out};
use operator::{Daemon, FRONTDESK, Process, Qmp, boot, eventually, firmware};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const MS: u64 = 1_000_000;

/// How a thread is scheduled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    tid: u64,
    policy: u32,
    cpus: String,
}

/// All threads of a process.
fn threads(pid: u32) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let thread = |task: fs::DirEntry| {
        let read = |file| fs::read_to_string(task.path().join(file)).ok();
        let (stat, status) = (read("stat")?, read("status")?);
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        // The name may contain blanks; the policy is field 41, and the field after the name the third.
        let policy = stat.rsplit_once(')')?.1.split_whitespace().nth(38)?.parse().ok()?;
        Some(Thread { tid: task.file_name().to_str()?.parse().ok()?, policy, cpus: cpus.trim().to_owned() })
    };
    let mut threads: Vec<Thread> = tasks.filter_map(thread).collect();
    threads.sort();
    threads
}

/// Whether it is stopped, and the CPU time that it has used, in nanoseconds.
fn state(pid: u32) -> (bool, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    (fields[0] == "T", ticks * 10 * MS)
}

/// CPU time that its threads have used, by their own clocks, in nanoseconds.
fn ran(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let files = tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
    files.map(|text| text.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Whether all threads are stopped: one that waits for a CPU is so a little later than the others.
fn all_stopped(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.all(|stat| stat.rsplit_once(')').unwrap().1.starts_with(" T"))
}

/// `SCHED_FIFO`, `SCHED_RR` and `SCHED_IDLE`, on one CPU.
fn is_kept(thread: &Thread) -> bool {
    matches!(thread.policy, 1 | 2 | 5) && thread.cpus.parse::<u16>().is_ok()
}

/// A process with all that it has started.
struct Family(Process);

impl Drop for Family {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.0.0.id())]).status();
    }
}

/// A host with a daemon.
struct Host {
    home: tempfile::TempDir,
    daemon: Daemon,
    /// It removes the groups in the end.
    guardian: Guardian,
    _alone: MutexGuard<'static, ()>,
}

impl Host {
    fn start() -> Host {
        Host::start_with(&[])
    }

    /// With a daemon that is told more words.
    fn start_with(words: &[&str]) -> Host {
        // There is one daemon at a time.
        static HOST: Mutex<()> = Mutex::new(());
        let alone = HOST.lock().unwrap_or_else(PoisonError::into_inner);
        let home = tempfile::tempdir().unwrap();
        let path = home.path();
        let config = path.join("frontdesk.toml");
        let text =
            format!("[vms]\nlibvirt = false\nqmp = ['{}/*.qmp']\n[reserve]\nspare = 0.1\n", path.display());
        fs::write(&config, text).unwrap();
        let socket = path.join("control.sock");
        let daemon = Daemon::start(path, &config, &[&["--socket", socket.to_str().unwrap()], words].concat());
        let guardian = Guardian::start(Path::new(FRONTDESK), GUARDIAN_ARGUMENT).unwrap();
        Host { home, daemon, guardian, _alone: alone }
    }

    fn group(&self, name: &str) -> Group {
        let root = Hierarchy::detect().unwrap().root_group();
        self.guardian.create_group(&root, &format!("frontdesk-{}-{name}", std::process::id())).unwrap()
    }

    /// A VM that computes, once the daemon follows it.
    fn vm(&self, name: &str, vcpus: &str) -> (Process, Qmp, Group) {
        let (group, firmware) = (self.group(name), firmware(self.home.path()));
        let (vm, operator) =
            boot(self.home.path(), &group, name, &["-smp", vcpus, "-bios", firmware.to_str().unwrap()]);
        self.daemon.says(&["following the VM", &format!("\"{name}\"")]);
        (vm, operator, group)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(FRONTDESK);
        command.args(words).arg("--socket").arg(self.home.path().join("control.sock"));
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// What a command that succeeds answers.
    fn told(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?} {}", self.daemon.log());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Why a command is refused.
    fn refused(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["refused"].take()
    }

    fn list(&self) -> Value {
        serde_json::from_slice(&self.run(&["list", "--json"]).stdout).unwrap()
    }

    /// What the list says about a target.
    fn listed(&self, target: &str) -> Option<Value> {
        let list = self.list();
        list["reservations"].as_array().unwrap().iter().find(|one| one["target"] == target).cloned()
    }

    /// Waits until so many periods have passed.
    fn periods(&self, target: &str, more: u64) -> Value {
        let periods = || self.listed(target).unwrap()["periods"].as_u64().unwrap();
        let before = periods();
        eventually("periods pass", || periods() >= before + more);
        self.listed(target).unwrap()
    }

    /// What is reserved of all CPUs together.
    fn reserved(&self) -> f64 {
        self.list()["cpus"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cpu| cpu["reserved_ratio"].as_f64().unwrap())
            .sum()
    }
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key}: {value}"))
}

#[test]
fn a_vm_has_its_slices_until_it_is_released() {
    let host = Host::start();
    let (vm, mut operator, group) = host.vm("alice", "2");
    let pid = vm.0.id();
    let before = threads(pid);
    let ps = host.told(&["ps", "alice"]);
    assert_eq!(
        (&ps["targets"][0]["target"], &ps["targets"][0]["reserved"]),
        (&json!("vm:alice"), &json!(false))
    );

    let terms = ["--period", "20ms", "--slice", "4ms", "--hard"];
    let told = host.told(&[&["reserve", "alice"], &terms[..]].concat());
    let cpus: Vec<u64> = told["cpus"].as_array().unwrap().iter().map(|cpu| cpu.as_u64().unwrap()).collect();
    assert!(cpus.len() == 2 && cpus[0] != cpus[1] && told["trouble"].is_null(), "{told}");
    assert_eq!(host.told(&["ps", "alice"])["targets"][0]["reserved"], true);
    host.periods("vm:alice", 10);
    // If the daemon gets no CPU for long, it gives them back for a moment.
    eventually("all threads are kept", || threads(pid).iter().all(is_kept));
    let held = threads(pid);
    for (tid, cpu) in operator.vcpus().iter().zip(&cpus) {
        let thread = held.iter().find(|thread| thread.tid == *tid).unwrap();
        assert_eq!(thread.cpus, cpu.to_string(), "a vCPU runs where its slices are: {held:?}");
    }
    // By its threads' own clocks, what it uses is its slices. Without a limit it would be three times as much
    // even on a busy machine, and nearly twice as much if its vCPUs had periods at different times. A time
    // for which the machine stands still counts as used, so that single spans say nothing, but most do.
    let mut last = host.listed("vm:alice").unwrap();
    let mut parts = [(); 9].map(|()| {
        let (used, reserved) = (ran(pid), number(&last, "reserved_ns"));
        last = host.periods("vm:alice", 20);
        (ran(pid) - used) as f64 / (number(&last, "reserved_ns") - reserved) as f64
    });
    parts.sort_by(f64::total_cmp);
    assert!((0.8..1.2).contains(&parts[4]), "{parts:?}");

    let paused = host.run(&["pause", "alice"]);
    assert!(paused.status.success() && String::from_utf8_lossy(&paused.stdout).contains("vm:alice: paused"));
    eventually("all of it is stopped", || all_stopped(pid));
    let used = state(pid).1;
    host.periods("vm:alice", 20);
    assert_eq!(state(pid), (true, used), "who is paused uses nothing");
    assert!(String::from_utf8_lossy(&host.run(&["list"]).stdout).contains("4 ms (paused)"));
    host.told(&["resume", "alice"]);
    eventually("it goes on", || state(pid).1 > used);

    // A reboot changes nothing.
    operator.execute("system_reset", &json!({}));
    let used = state(pid).1;
    eventually("it goes on after a reboot", || state(pid).1 > used);
    let told = host.periods("vm:alice", 20);
    assert!(told["trouble"].is_null(), "{told}");

    let refusal = host.refused(&["reserve", &pid.to_string(), "--period", "20ms", "--slice", "1ms"]);
    assert_eq!(refusal["kind"], "unsuitable", "{refusal}");
    let refusal = host.refused(&["reserve", "alice", "--period", "20ms", "--slice", "19ms"]);
    assert_eq!(refusal["kind"], "infeasible", "{refusal}");
    let fit = format!("{}ns", number(&refusal["fit"], "slice_ns"));
    let told = host.told(&["reserve", "alice", "--period", "20ms", "--slice", &fit]);
    assert!(!told["hard"].as_bool().unwrap(), "what fits is had, and replaces what there was: {told}");
    assert_eq!(host.told(&["reserve", "alice", "--period", "20ms", "--slice", "2ms"])["slice_ns"], 2 * MS);

    host.told(&["release", "alice"]);
    assert_eq!(threads(pid), before);
    assert!(group.holds_only(&[vm.0.id().cast_signed()]).unwrap() && host.reserved() == 0.0);
    assert_eq!(host.refused(&["release", "alice"])["kind"], "not_reserved");
}

#[test]
fn a_vm_that_changes_or_ends_takes_its_reservation_along() {
    let host = Host::start();
    let (mut vm, mut operator, _group) = host.vm("bob", "1,maxcpus=2");
    host.told(&["reserve", "bob", "--period", "20ms", "--slice", "2ms"]);
    // With what deciding takes: 60 us in each period.
    assert!((host.reserved() - 0.103).abs() < 1e-6);
    operator.add_vcpu();
    eventually("the new vCPU has its slices, too", || {
        host.listed("vm:bob").is_some_and(|told| told["cpus"].as_array().unwrap().len() == 2)
    });
    assert!((host.reserved() - 0.206).abs() < 1e-6);
    operator.execute("quit", &json!({}));
    vm.0.wait().unwrap();
    eventually("the list says that it has ended", || {
        host.listed("vm:bob")
            .is_some_and(|told| told["trouble"].as_str().is_some_and(|why| why.contains("has ended")))
    });
    assert_eq!(host.run(&["list"]).status.code(), Some(1), "something is wrong");
    assert_eq!(host.reserved(), 0.0, "its room is free");
    assert_eq!(
        host.refused(&["reserve", "bob", "--period", "20ms", "--slice", "2ms"])["kind"],
        "unknown_target"
    );
}

#[test]
fn a_unit_has_its_slices_and_so_has_what_it_starts() {
    let host = Host::start();
    let group = host.group("render.service");
    let unit = group.path().to_str().unwrap().to_owned();
    let compute = "while :; do :; done";
    let mut command = Command::new("sh");
    // They end by themselves, too, after a minute of CPU time: nobody else ends them if this test is killed.
    command
        .args(["-c", &format!("ulimit -t 60; read _; ({compute}) & read _; ({compute}) & {compute}")])
        .process_group(0);
    let mut shell = Family(Process(command.stdin(Stdio::piped()).spawn().unwrap()));
    let (pid, mut input) = (shell.0.0.id(), shell.0.0.stdin.take().unwrap());
    group.add(pid).unwrap();
    let before = threads(pid);
    let children = || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().map(|child| child.parse().unwrap()).collect::<Vec<u32>>()
    };
    writeln!(input, "one that is there before").unwrap();
    eventually("it has a child", || children().len() == 1);
    let told = host.told(&["reserve", &unit, "--period", "20ms", "--slice", "5ms"]);
    let target = told["target"].as_str().unwrap().to_owned();
    assert!(target == format!("unit:{unit}") && told["cpus"].as_array().unwrap().len() == 1, "{told}");
    writeln!(input, "one that comes later").unwrap();
    let all_kept = || [pid].into_iter().chain(children()).flat_map(threads).all(|thread| is_kept(&thread));
    eventually("all of it has slices", || children().len() == 2 && all_kept());
    eventually("it uses its slices", || number(&host.listed(&target).unwrap(), "used_ns") > 0);
    let told = host.periods(&target, 30);
    assert!(told["trouble"].is_null(), "{told}");
    let part = format!("pid:{pid}");
    let refusal = host.refused(&["reserve", &part, "--period", "20ms", "--slice", "5ms"]);
    assert_eq!(refusal["kind"], "overlapping", "{refusal}");
    host.told(&["release", &unit]);
    for child in children() {
        let threads = threads(child);
        assert_eq!((threads[0].policy, &threads[0].cpus), (before[0].policy, &before[0].cpus));
    }
    assert_eq!(threads(pid), before);
}

#[test]
fn all_is_ordinary_again_when_the_daemon_is_killed() {
    let mut host = Host::start();
    let (vm, _operator, group) = host.vm("alice", "1");
    let process = Process(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    let pids = [vm.0.id(), process.0.id()];
    let throttle = || fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
    let (before, throttled) = (pids.map(threads), throttle());
    let of_process = pids[1].to_string();
    for target in ["alice", &of_process] {
        // It is stopped nearly always.
        host.told(&["reserve", target, "--period", "1s", "--slice", "1ms", "--hard"]);
    }
    eventually("both are stopped", || pids.iter().all(|pid| state(*pid).0));
    host.daemon.process.0.kill().unwrap();
    host.daemon.process.0.wait().unwrap();
    eventually("both are as they were", || {
        pids.map(threads) == before && pids.iter().all(|pid| !state(*pid).0) && throttle() == throttled
    });
    eventually("the VM is in its group", || group.holds_only(&[vm.0.id().cast_signed()]).unwrap());
}

/// What `frontdesk replay` says about reservations of a recording in which everything is decided again as it
/// was.
fn replayed(file: &Path) -> Value {
    let output = Command::new(FRONTDESK).args(["replay", "--json"]).arg(file).output().unwrap();
    let mut told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{told}");
    let told = told["reservations"].take();
    assert!(number(&told, "decisions") > 50 && number(&told, "dispatches") > 20, "{told}");
    assert_eq!((number(&told, "differences"), number(&told, "lost")), (0, 0), "{told}");
    told
}

#[test]
fn a_recording_holds_what_was_decided_about_reservations() {
    let folder = tempfile::tempdir().unwrap();
    let (own, middle) = (folder.path().join("own.fdsk"), folder.path().join("middle.fdsk"));
    let mut host = Host::start_with(&["--record", own.to_str().unwrap()]);
    let start = || Process(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    let processes = [start(), start()];
    let pids = [0, 1].map(|index| processes[index].0.id().to_string());
    let names = [0, 1].map(|index| format!("pid:{}", pids[index]));
    for pid in &pids {
        host.told(&["reserve", pid, "--period", "10ms", "--slice", "2ms", "--hard"]);
    }
    host.periods(&names[0], 20);
    // A second recording, which begins while reservations are held.
    let mut recorder =
        Process(host.command(&["record", middle.to_str().unwrap()]).stderr(Stdio::null()).spawn().unwrap());
    eventually("it has begun", || fs::metadata(&middle).is_ok_and(|file| file.len() > 100));
    host.told(&["reserve", &pids[0], "--period", "7ms", "--slice", "1ms"]);
    host.periods(&names[0], 20);
    host.told(&["pause", &pids[1]]);
    host.periods(&names[0], 20);
    host.told(&["resume", &pids[1]]);
    let told = host.periods(&names[0], 20);
    recorder.signal(Signal::INT);
    assert!(recorder.0.wait().unwrap().success());
    for pid in &pids {
        host.told(&["release", pid]);
    }
    // With the last reservation the dispatcher has ended, and another one begins.
    host.told(&["reserve", &pids[1], "--period", "10ms", "--slice", "2ms"]);
    let again = host.periods(&names[1], 20);
    host.daemon.end();

    let of = |told: &Value, name: &str| -> Vec<u64> {
        let members = told["members"].as_array().unwrap().iter().filter(|member| member["target"] == name);
        members.map(|member| number(member, "periods")).collect()
    };
    let all = replayed(&own);
    assert!(of(&all, &names[0])[0] >= number(&told, "periods"), "{all}");
    assert!(of(&all, &names[1]).len() == 2 && of(&all, &names[1])[1] >= number(&again, "periods"), "{all}");
    let part = replayed(&middle);
    assert!(of(&part, &names[0])[0] >= 60 && of(&part, &names[0])[0] + 15 < of(&all, &names[0])[0], "{part}");
    assert!(number(&part, "decisions") < number(&all, "decisions"));
}

/// Where real time of groups is budgeted, VMs without a reservation have little of it while there are
/// reservations, and no longer.
#[test]
fn boosts_have_their_real_time_again_after_the_last_release() {
    let host = Host::start();
    let (_vm, _operator, group) = host.vm("alice", "1");
    let file = group.dir().join("cpu.rt_runtime_us");
    if !file.exists() {
        let test = "boosts_have_their_real_time_again_after_the_last_release";
        return leave_out(test, Need::Budgets, format_args!("there is no {}", file.display()));
    }
    let budget = || fs::read_to_string(&file).unwrap().trim().parse::<u64>().unwrap();
    eventually("she has a budget", || budget() > 0);
    let before = budget();
    let process = Process(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    let pid = process.0.id().to_string();
    for _ in 0..2 {
        host.told(&["reserve", &pid, "--period", "20ms", "--slice", "2ms"]);
        assert!(budget() < before / 2, "{} of {before}", budget());
        host.told(&["release", &pid]);
        eventually("she has it again", || budget() >= before);
    }
}

#[test]
fn top_shows_reservations_and_changes_them() {
    let host = Host::start();
    let (_vm, _operator, _group) = host.vm("alice", "1");
    host.told(&["reserve", "alice", "--period", "20ms", "--slice", "2ms"]);
    // On a terminal.
    let socket = host.home.path().join("control.sock");
    let top = format!("stty rows 30 cols 120; exec '{FRONTDESK}' top --socket '{}'", socket.display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &top, "/dev/null"]).env("TERM", "xterm");
    let mut terminal = Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let (mut keys, mut screen) = (terminal.0.stdin.take().unwrap(), terminal.0.stdout.take().unwrap());
    // It draws only what changes: hardly more than the first picture can be read.
    let mut picture = [0; 4096];
    assert!(screen.read(&mut picture).unwrap() > 0);
    // Nobody is to wait for us to read on.
    std::thread::spawn(move || std::io::copy(&mut screen, &mut std::io::sink()));
    keys.write_all(b"r").unwrap();
    // One per cent of the period more.
    keys.write_all(b"\x1b[C").unwrap();
    eventually("the slice is longer", || host.listed("vm:alice").unwrap()["slice_ns"] == 2 * MS + MS / 5);
    keys.write_all(b"p").unwrap();
    eventually("it is paused", || host.listed("vm:alice").unwrap()["paused"] == true);
    keys.write_all(b"x").unwrap();
    eventually("it is released", || host.listed("vm:alice").is_none());
    keys.write_all(b"q").unwrap();
    assert!(terminal.0.wait().unwrap().success());
}
