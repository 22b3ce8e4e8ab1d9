//! The guardian as a process, with owners that finish and owners that are killed.

use crate::support::{Idler, eventually, start_guardian, trial};
use anyhow::{Context as _, Result, ensure};
use frontdesk_engine::{Boost, BoostTarget, VmId};
use frontdesk_host::{
    boost::Booster,
    cgroup::Hierarchy,
    guardian::{Guardian, GuardianError, Report, Undo},
    sched::{self, Policy, ThreadId},
};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
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

/// What the killed owner does: boost a process, make a control group with a process in it, say so, and wait.
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
    let target: i32 = env::args().nth(2).context("which process?")?.parse()?;
    let target = ThreadId::of(target, target).context("no such process")?;
    let guardian = Guardian::start(&env::current_exe()?, "guardian")?;
    let mut booster = Booster::new();
    booster.adopt(VmId(0), &[(0, target)], &[], &guardian)?;
    booster.apply(VmId(0), BoostTarget::Vcpu(0), Boost::Io)?;
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
    drop(inside);
    Ok(())
}

fn undoes_when_its_owner_is_killed() -> Result<()> {
    let target = Idler::start()?;
    let before = sched::get(target.pid())?;
    let mut owner = Command::new(env::current_exe()?)
        .args(["owner", &target.pid().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let read = BufReader::new(owner.stdout.take().context("stdout")?).read_line(&mut line);
    let boosted = sched::get(target.pid());
    let group = Path::new(line.trim()).to_owned();
    let group_was_there = group.as_os_str().is_empty() || group.is_dir();
    owner.kill()?;
    owner.wait()?;
    read?;
    ensure!(line.ends_with('\n'), "the owner failed: see above");
    ensure!(matches!(boosted?.policy, Policy::Fifo { .. }), "the owner did not boost");
    ensure!(group_was_there, "the owner made no group {}", group.display());
    eventually("the boosted process is ordinary again", || {
        sched::get(target.pid()).is_ok_and(|a| a == before)
    })?;
    eventually("the control group is gone", || !group.is_dir())
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
