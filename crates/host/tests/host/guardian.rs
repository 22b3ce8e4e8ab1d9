//! The guardian as a process, with owners that finish and owners that are killed.

use crate::support::{Idler, eventually, start_guardian, trial};
use anyhow::{Context as _, Result, ensure};
use frontdesk_engine::{Boost, BoostTarget, VmId};
use frontdesk_host::{
    cgroup::{Group, Hierarchy},
    guardian::{Guardian, GuardianError, Report, Undo},
    sched::{self, Attributes, Policy, ThreadId},
    threads::Threads,
};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("guardian_undoes_when_its_owner_finishes", undoes_when_its_owner_finishes),
        trial("guardian_undoes_when_its_owner_is_killed", undoes_when_its_owner_is_killed),
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
    ensure!(report == Report { undone: 1, gone: 1, failed: Vec::new() }, "{report:?}");
    ensure!(!tree.exists() && own.exists());
    Ok(())
}

/// What the killed owner does: hold all that can be held of a VM's threads and of a share, make a control group with a process in it, say
/// so, and wait.
pub(crate) fn owner() -> ExitCode {
    match own() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e:?}");
            ExitCode::FAILURE
        }
    }
}

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
        share.insert(group.control_share(&guardian)?).set_permille(1700, &guardian)?;
    }
    let (mut group, mut inside) = (None, None);
    if let Ok(hierarchy) = Hierarchy::detect() {
        let made =
            hierarchy.root_group().create(&format!("frontdesk-test-{}", std::process::id()), &guardian)?;
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
            let group = hierarchy.root_group().create(&name, &keeper)?;
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
    ensure!(open == 4, "it holds {open} descriptors: its standard ones and a copy of its input are enough");
    ensure!(guardian.finish()?.failed.is_empty());
    Ok(())
}

fn dead_is_noticed() -> Result<()> {
    let guardian = start_guardian()?;
    kill_process(Pid::from_raw(guardian.pid().cast_signed()).context("pid")?, Signal::KILL)?;
    let undo = Undo::ControlGroup { path: "/nonexistent".into() };
    ensure!(matches!(guardian.record(undo), Err(GuardianError::Silent { .. })));
    ensure!(matches!(guardian.finish(), Err(GuardianError::Silent { .. })));
    Ok(())
}

fn must_be_one() -> Result<()> {
    for program in ["/bin/false", "/nonexistent/frontdesk"] {
        let error = Guardian::start(Path::new(program), "guardian").err().context("not refused")?;
        ensure!(error.to_string().contains(program), "{error}");
    }
    Ok(())
}
