//! The guardian as a process, with owners that finish and owners that are killed.

use crate::support::{Idler, eventually, start_guardian, trial};
use anyhow::{Context as _, Result, anyhow, ensure};
use frontdesk_engine::{Boost, BoostTarget, VmId};
use frontdesk_guardian::{Guardian, GuardianError, Promiser, Undo, UndoReport};
use frontdesk_host::budget::RealTimeBudgets;
use frontdesk_host::share::ShareControl;
use frontdesk_host::threads::Threads;
use frontdesk_linux::cgroup::{Group, Hierarchy};
use frontdesk_linux::realtime;
use frontdesk_linux::sched::{self, Attributes, Policy, ThreadId};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs, hint,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("guardian_undoes_when_its_owner_finishes", undoes_when_its_owner_finishes),
        trial("guardian_undoes_when_its_owner_is_killed", undoes_when_its_owner_is_killed),
        trial("guardian_undoes_what_is_held_of_many", undoes_what_is_held_of_many),
        trial("guardian_undoes_when_no_cpu_is_left", undoes_when_no_cpu_is_left),
        trial("guardian_revives_who_does_not_come_back", revives_who_does_not_come_back),
        trial("guardian_ends_boosts_of_who_hangs", ends_boosts_of_who_hangs),
        trial("realtime_without_a_pause_ends", without_a_pause_ends),
        trial("guardian_ignores_signals_meant_for_its_owner", ignores_signals_meant_for_its_owner),
        trial("guardian_dead_is_noticed", dead_is_noticed),
        trial("guardian_must_be_one", must_be_one),
    ]
}

fn undoes_when_its_owner_finishes() -> Result<()> {
    let home = tempfile::tempdir()?;
    let guardian = start_guardian()?;
    let tree = home.path().join("frontdesk-run");
    guardian.record(Undo::tree(&tree)?)?;
    fs::create_dir(&tree)?;
    guardian.record(Undo::ControlGroup { path: home.path().join("never-made") })?;
    let own = home.path().join("frontdesk-kept");
    let kept = guardian.record(Undo::tree(&own)?)?;
    fs::create_dir(&own)?;
    guardian.forget(kept)?;
    let report = guardian.finish()?;
    ensure!(report == UndoReport { undone: 1, gone: 1, failed: Vec::new() }, "{report:?}");
    ensure!(!tree.exists() && own.exists());
    Ok(())
}

/// Who is killed, and whom it holds something of.
pub(crate) fn owner() -> ExitCode {
    let result = match env::args().nth(2).as_deref() {
        Some("crowd") => crowd(),
        Some("late") => be_late(),
        Some("hung") => hang(),
        Some("spinning") => spin(),
        Some("many") => own_many(),
        Some("computing") => loop {
            hint::spin_loop();
        },
        _ => own(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e:?}");
            ExitCode::FAILURE
        }
    }
}

/// Promises to be back, and computes under `SCHED_DEADLINE` instead.
fn be_late() -> Result<()> {
    let guardian = Guardian::start(&env::current_exe()?, "guardian")?;
    let policy = Policy::Deadline {
        runtime_ns: 10_000_000,
        deadline_ns: 1_000_000_000,
        period_ns: 1_000_000_000,
        flags: 0,
    };
    sched::set(0, Attributes { policy, reset_on_fork: true })?;
    guardian.promise(Promiser::Dispatchers)?.until(1);
    println!("late");
    std::io::stdout().flush()?;
    loop {
        hint::spin_loop();
    }
}

/// The kernel may have forgotten who runs under `SCHED_DEADLINE`: as an ordinary thread it runs, or can be
/// killed.
fn revives_who_does_not_come_back() -> Result<()> {
    let (owner, _) = start_owner(&["late"], &[])?;
    eventually("it is an ordinary thread", || {
        sched::get(owner.pid()).is_ok_and(|found| matches!(found.policy, Policy::Other { .. }))
    })
}

/// Boosts a thread, promises to be back, and is not.
fn hang() -> Result<()> {
    let pid = env::args().nth(3).context("which process?")?.parse()?;
    let thread = ThreadId::of(pid, pid).context("no such process")?;
    let guardian = Guardian::start(&env::current_exe()?, "guardian")?;
    let mut threads = Threads::by_real_time();
    threads.adopt(VmId(0), 1024, &[(0, thread)], &[], &guardian)?;
    threads.boost(VmId(0), BoostTarget::Vcpu(0), Boost::Io)?;
    println!("{:?}", sched::get(pid)?.policy);
    guardian.promise(Promiser::Loop)?.until(1);
    thread::sleep(Duration::from_secs(600));
    Ok(())
}

fn ends_boosts_of_who_hangs() -> Result<()> {
    let idler = Idler::start()?;
    let before = sched::get(idler.pid())?;
    let (mut owner, line) = start_owner(&["hung"], &[idler.pid()])?;
    ensure!(line.starts_with("Fifo"), "{line}");
    eventually("it is as it was", || sched::get(idler.pid()).is_ok_and(|found| found == before))?;
    ensure!(owner.0.try_wait()?.is_none(), "the owner has ended");
    Ok(())
}

/// As the daemon is limited, with less patience.
fn spin() -> Result<()> {
    realtime::limit(Duration::from_millis(100))?;
    realtime::enter(1, &[])?;
    loop {
        hint::spin_loop();
    }
}

fn without_a_pause_ends() -> Result<()> {
    let mut owner = Idler(Command::new(env::current_exe()?).args(["owner", "spinning"]).spawn()?);
    let status = owner.0.wait()?;
    ensure!(status.signal() == Some(9), "{status}");
    Ok(())
}

/// What the killed owner does: hold all that can be held of a VM's threads and of a share, make a control
/// group with a process in it, say so, and wait.
fn own() -> Result<()> {
    let of_argument = |n: usize| -> Result<ThreadId> {
        let pid: i32 = env::args().nth(n).context("which process?")?.parse()?;
        ThreadId::of(pid, pid).context("no such process")
    };
    let guardian = Guardian::start(&env::current_exe()?, "guardian")?;
    let mut threads = Threads::by_real_time();
    let vm = VmId(0);
    let vcpus = [(0, of_argument(2)?), (1, of_argument(3)?)];
    threads.adopt(vm, 1024, &vcpus, &[of_argument(4)?], &guardian)?;
    for vcpu in [0, 1] {
        threads.weigh(vm, vcpu, 110)?;
    }
    for target in [BoostTarget::Emulators, BoostTarget::Vcpu(0)] {
        threads.boost(vm, target, Boost::Multimedia)?;
    }
    let mut share = None;
    if let Ok(hierarchy) = Hierarchy::detect() {
        let group = hierarchy.group_of(of_argument(5)?.pid)?;
        share.insert(ShareControl::take(&group, &guardian)?).set_permille(1700, &guardian)?;
    }
    let (mut group, mut inside) = (None, None);
    if let Ok(hierarchy) = Hierarchy::detect() {
        let made = guardian
            .create_group(&hierarchy.root_group(), &format!("frontdesk-test-{}", std::process::id()))?;
        let idler = Idler::start()?;
        let started = sched::process_start_time(idler.pid()).context("sleep has ended")?;
        guardian.record(Undo::Process { pid: idler.pid(), started })?;
        made.add(idler.0.id())?;
        (group, inside) = (Some(made.dir()), Some(idler));
    }
    println!("{}", group.unwrap_or_default().display());
    std::io::stdout().flush()?;
    thread::sleep(Duration::from_secs(600));
    drop((inside, share));
    Ok(())
}

fn undoes_when_its_owner_is_killed() -> Result<()> {
    let (vm, member) = ([Idler::start()?, Idler::start()?, Idler::start()?], Idler::start()?);
    let keeper = start_guardian()?;
    let shared = match Hierarchy::detect() {
        Ok(hierarchy) => {
            let name = format!("frontdesk-test-shared-{}", std::process::id());
            let group = keeper.create_group(&hierarchy.root_group(), &name)?;
            group.add(member.0.id())?;
            Some(group)
        }
        Err(_) => None,
    };
    for (idler, nice) in vm.iter().zip([0, 4, -2]) {
        let policy = Policy::Other { nice, slice_ns: 3_000_000 };
        sched::set(idler.pid(), Attributes { policy, reset_on_fork: false })?;
    }
    let now = || -> Result<_> {
        let threads =
            vm.iter().map(|idler| Ok(sched::get(idler.pid())?)).collect::<Result<Vec<Attributes>>>()?;
        Ok((threads, shared.as_ref().map(Group::weight).transpose()?))
    };
    let before = now()?;
    let pids = vm.iter().chain([&member]).map(|idler| idler.pid().to_string());
    let mut owner = Command::new(env::current_exe()?)
        .arg("owner")
        .args(pids)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let read = BufReader::new(owner.stdout.take().context("stdout")?).read_line(&mut line);
    let held = now();
    let group = Path::new(line.trim()).to_owned();
    let group_was_there = group.as_os_str().is_empty() || group.is_dir();
    owner.kill()?;
    let killed = Instant::now();
    owner.wait()?;
    read?;
    ensure!(line.ends_with('\n'), "the owner failed: see above");
    let (held, share) = held?;
    let policies: Vec<Policy> = held.iter().map(|attributes| attributes.policy).collect();
    ensure!(
        matches!(
            policies[..],
            [Policy::Fifo { priority: 3 }, Policy::Other { nice: 14, .. }, Policy::Fifo { priority: 4 }]
        ),
        "the owner did not hold the threads: {policies:?}"
    );
    ensure!(share.is_none() || share > before.1, "the owner did not hold the share: {share:?}");
    ensure!(group_was_there, "the owner made no group {}", group.display());
    eventually("all is as it was", || now().is_ok_and(|now| now == before))?;
    println!("measured: threads and share as before {:?} after kill -9", killed.elapsed());
    eventually("the control group is gone", || !group.is_dir())?;
    drop(member);
    ensure!(keeper.finish()?.failed.is_empty());
    Ok(())
}

/// VMs of a large host, and threads of each.
const CROWDS: usize = 20;
const THREADS: usize = 20;

/// A process with so many threads.
fn crowd() -> Result<()> {
    for _ in 1..THREADS {
        thread::spawn(|| thread::sleep(Duration::from_secs(600)));
    }
    println!("ready");
    thread::sleep(Duration::from_secs(600));
    Ok(())
}

fn threads_of(pid: i32) -> Result<Vec<ThreadId>> {
    let mut threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let tid = task?.file_name().to_str().context("a number")?.parse()?;
        threads.push(ThreadId::of(pid, tid).context("it has ended")?);
    }
    Ok(threads)
}

/// Holds the threads of all these processes, half of them boosted, and the shares and real-time budgets of
/// their groups, and waits.
fn own_many() -> Result<()> {
    // A daemon has threads that are not real-time.
    for _ in 0..8 {
        thread::spawn(|| thread::sleep(Duration::from_secs(600)));
    }
    let pids = env::args().skip(3).map(|pid| Ok(pid.parse()?)).collect::<Result<Vec<i32>>>()?;
    let guardian = Guardian::start(&env::current_exe()?, "guardian")?;
    sched::set(0, Attributes::fifo(50))?;
    let hierarchy = Hierarchy::detect()?;
    let groups = pids.iter().map(|pid| Ok(hierarchy.group_of(*pid)?)).collect::<Result<Vec<Group>>>()?;
    let groups: Vec<Group> = groups.into_iter().filter(|group| !group.is_root()).collect();
    RealTimeBudgets::new(hierarchy).grant(&groups, &guardian)?;
    let mut shares = Vec::new();
    for group in groups {
        let mut share = ShareControl::take(&group, &guardian)?;
        share.set_permille(1700, &guardian)?;
        shares.push(share);
    }
    let mut threads = Threads::by_real_time();
    for (vm, pid) in (0..).map(VmId).zip(pids) {
        let vcpus: Vec<(u16, ThreadId)> = (0..).zip(threads_of(pid)?).collect();
        threads.adopt(vm, 1024, &vcpus, &[], &guardian)?;
        for (vcpu, _) in vcpus {
            threads.weigh(vm, vcpu, 110)?;
            if vcpu % 2 == 0 {
                threads.boost(vm, BoostTarget::Vcpu(vcpu), Boost::Io)?;
            }
        }
    }
    println!("all is held");
    thread::sleep(Duration::from_secs(600));
    drop(shares);
    Ok(())
}

fn undoes_what_is_held_of_many() -> Result<()> {
    of_many(0)
}

/// On each CPU a boosted thread computes: none of the owner's ordinary threads can run, not even to end.
fn undoes_when_no_cpu_is_left() -> Result<()> {
    of_many(thread::available_parallelism()?.get())
}

fn of_many(computing: usize) -> Result<()> {
    let keeper = start_guardian()?;
    let root = Hierarchy::detect()?.root_group();
    let (mut crowds, mut groups) = (Vec::new(), Vec::new());
    for _ in 0..CROWDS {
        let (crowd, _) = start_owner(&["crowd"], &[])?;
        let group = keeper.create_group(&root, &format!("frontdesk-test-{}", crowd.pid()))?;
        group.add(crowd.0.id())?;
        crowds.push(crowd);
        groups.push(group);
    }
    for _ in 0..computing {
        crowds.push(Idler(Command::new(env::current_exe()?).args(["owner", "computing"]).spawn()?));
    }
    let pids: Vec<i32> = crowds.iter().map(Idler::pid).collect();
    let now = || -> Result<_> {
        let threads = pids.iter().map(|pid| threads_of(*pid)).collect::<Result<Vec<_>>>()?.concat();
        let attributes =
            threads.iter().map(|thread| Ok(sched::get(thread.tid)?)).collect::<Result<Vec<_>>>()?;
        let shares = groups.iter().map(|group| Ok(group.weight()?)).collect::<Result<Vec<_>>>()?;
        let budget = |group: &Group| fs::read_to_string(group.dir().join("cpu.rt_runtime_us")).ok();
        Ok((attributes, shares, groups.iter().map(budget).collect::<Vec<_>>()))
    };
    let before = now()?;
    let kill = || -> Result<()> {
        // Just below the guardian, which has 60: whoever has the CPUs, this goes on.
        sched::set(0, Attributes::fifo(59))?;
        let (mut owner, line) = start_owner(&["many"], &pids)?;
        ensure!(line == "all is held\n", "the owner failed: see above");
        let held = now()?;
        ensure!(held.0.iter().zip(&before.0).all(|(held, before)| held != before), "{held:?}");
        ensure!(held.1.iter().zip(&before.1).all(|(held, before)| held > before), "{:?}", held.1);
        let killed = Instant::now();
        owner.0.kill()?;
        eventually("all is as it was", || now().is_ok_and(|now| now == before))?;
        let (threads, vms, took) = (before.0.len(), before.1.len(), killed.elapsed());
        println!(
            "measured: {threads} threads and {vms} shares as before {took:?} after kill -9, {computing} computing"
        );
        Ok(())
    };
    let result = thread::scope(|scope| scope.spawn(kill).join());
    drop(crowds);
    ensure!(keeper.finish()?.failed.is_empty());
    result.map_err(|_| anyhow!("it panicked"))?
}

/// Starts a process that is or has an owner, and waits for its first line.
fn start_owner(what: &[&str], pids: &[i32]) -> Result<(Idler, String)> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("owner").args(what).args(pids.iter().map(ToString::to_string));
    let mut owner = Idler(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let mut line = String::new();
    BufReader::new(owner.0.stdout.take().context("stdout")?).read_line(&mut line)?;
    Ok((owner, line))
}

fn ignores_signals_meant_for_its_owner() -> Result<()> {
    let guardian = start_guardian()?;
    let pid = Pid::from_raw(guardian.pid().cast_signed()).context("pid")?;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        kill_process(pid, signal)?;
    }
    let own = rustix::process::getsid(None)?;
    ensure!(rustix::process::getsid(Some(pid))? != own, "it shares its owner's session");
    let attributes = sched::get(guardian.pid().cast_signed())?;
    ensure!(matches!(attributes.policy, Policy::Fifo { priority: 60 }), "{attributes:?}");
    let open = fs::read_dir(format!("/proc/{}/fd", guardian.pid()))?.count();
    ensure!(
        open == 6,
        "it holds {open} descriptors: its standard ones, copies of its input and its journal, one for signals"
    );
    ensure!(guardian.finish()?.failed.is_empty());
    Ok(())
}

fn dead_is_noticed() -> Result<()> {
    let home = tempfile::tempdir()?;
    let guardian = start_guardian()?;
    let tree = home.path().join("frontdesk-run");
    guardian.record(Undo::tree(&tree)?)?;
    fs::create_dir(&tree)?;
    kill_process(Pid::from_raw(guardian.pid().cast_signed()).context("pid")?, Signal::KILL)?;
    let undo = Undo::ControlGroup { path: "/nonexistent".into() };
    ensure!(matches!(guardian.record(undo), Err(GuardianError::Silent { .. })));
    ensure!(matches!(guardian.finish(), Err(GuardianError::Silent { .. })));
    ensure!(!tree.exists(), "its owner undoes instead");
    Ok(())
}

fn must_be_one() -> Result<()> {
    for program in ["/bin/false", "/nonexistent/frontdesk"] {
        let error = Guardian::start(Path::new(program), "guardian").err().context("not refused")?;
        ensure!(error.to_string().contains(program), "{error}");
    }
    Ok(())
}
