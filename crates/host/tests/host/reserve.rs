//! Reservations: a daemon in a process of its own, and real processes as targets.

use crate::support::{Idler, eventually, give_up_signals, is_emulated, trial};
use anyhow::{Context as _, Result, bail, ensure};
use frontdesk_control_protocol::{
    Answer, ClientError, Query, RefusalKind, Reservation, Reservations, Reserve, Target, ask,
};
use frontdesk_host::config::Settings;
use frontdesk_host::{Daemon, DaemonConfig, ReserveMechanism};
use frontdesk_linux::cgroup::{Group, Hierarchy};
use frontdesk_linux::sched;
use frontdesk_linux::sched::{Attributes, Policy};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    sync::Arc,
    thread,
};
use tempfile::TempDir;

pub(crate) const MS: u64 = 1_000_000;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("reserve_keeps_a_process_and_puts_it_back", keeps_a_process_and_puts_it_back),
        trial("reserve_covers_new_threads_and_processes", covers_new_threads_and_processes),
        trial("reserve_finds_what_was_not_heard_of", finds_what_was_not_heard_of),
        trial("reserve_refuses_what_makes_no_sense", refuses_what_makes_no_sense),
        trial("reserve_ends_with_its_target", ends_with_its_target),
        trial("reserve_pauses_and_resumes", pauses_and_resumes),
        trial("reserve_tells_what_it_may_not_stop", tells_what_it_may_not_stop),
        trial("reserve_is_undone_when_the_daemon_is_killed", is_undone_when_the_daemon_is_killed),
        trial("reserve_gives_the_cpus_back_when_the_daemon_hangs", gives_the_cpus_back_when_the_daemon_hangs),
        trial("reserve_by_the_kernels_deadlines", by_the_kernels_deadlines),
    ]
}

/// The daemon's process: `reserving FOLDER MECHANISM SPARE`, until its standard input ends. With one more
/// argument it may not signal other users' processes.
pub(crate) fn main() -> ExitCode {
    let serve = || -> Result<()> {
        let mut arguments = env::args().skip(2);
        let home = PathBuf::from(arguments.next().context("no folder")?);
        let mut settings = Settings::default();
        settings.control.socket = home.join("control.sock");
        settings.vms.libvirt = false;
        if arguments.next().as_deref() == Some("deadline") {
            settings.reserve.mechanism = ReserveMechanism::Deadline;
        }
        settings.reserve.spare = arguments.next().context("no spare")?.parse()?;
        if arguments.next().is_some() {
            give_up_signals()?;
        }
        let (stop, stopped) = UnixStream::pair()?;
        let config = DaemonConfig {
            settings,
            act: true,
            record: None,
            guardian: (env::current_exe()?, crate::kills::guardian_word()),
            lock: home.join("daemon.lock"),
        };
        let mut daemon = Daemon::start(&config)?;
        println!("ready");
        thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            drop(stop);
        });
        daemon.run(stopped)?;
        Ok(daemon.finish()?)
    };
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

/// A target: computes; with each line of its standard input, another thread or, for "fork", another process
/// does.
pub(crate) fn target() -> ExitCode {
    let compute = || loop {
        std::hint::spin_loop();
    };
    thread::spawn(compute);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "fork" => drop(Command::new("sleep").arg("600").spawn()),
            // More than the kernel keeps until they are heard of.
            "flood" => {
                (0..3000).for_each(|_| drop(thread::spawn(|| ()).join()));
                drop(Command::new("sleep").arg("600").spawn());
                println!("flooded");
            }
            _ => drop(thread::spawn(compute)),
        }
    }
    ExitCode::SUCCESS
}

pub(crate) struct Process {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    pub(crate) fn start(arguments: &[&str]) -> Result<Process> {
        Process::with(arguments, &[])
    }

    fn with(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Process> {
        let mut command = Command::new(env::current_exe()?);
        let command = command.args(arguments).envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start")?;
        let stdin = child.stdin.take();
        Ok(Process { child, stdin })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("no input")?;
        Ok(writeln!(stdin, "{line}")?)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_raw(self.pid()).context("pid")?, signal)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Service {
    pub(crate) process: Process,
    home: Arc<TempDir>,
}

impl Service {
    pub(crate) fn start(mechanism: &str) -> Result<Service> {
        Service::with_spare(mechanism, 0.05)
    }

    pub(crate) fn with_spare(mechanism: &str, spare: f64) -> Result<Service> {
        let home = tempfile::tempdir()?;
        let folder = home.path().to_str().context("folder")?.to_owned();
        Service::told(home, &["reserving", &folder, mechanism, &spare.to_string()])
    }

    /// One that may not signal other users' processes.
    fn without_signals() -> Result<Service> {
        let home = tempfile::tempdir()?;
        let folder = home.path().to_str().context("folder")?.to_owned();
        Service::told(home, &["reserving", &folder, "user", "0.05", "without-signals"])
    }

    /// One whose guardian is started with this word.
    pub(crate) fn guarded(home: Arc<TempDir>, word: &str) -> Result<Service> {
        let folder = home.path().to_str().context("folder")?.to_owned();
        let arguments = ["reserving", &folder, "user", "0.05"];
        Service::of(home, Process::with(&arguments, &[(crate::kills::GUARDIAN_WORD, word)])?)
    }

    fn told(home: TempDir, arguments: &[&str]) -> Result<Service> {
        Service::of(Arc::new(home), Process::start(arguments)?)
    }

    fn of(home: Arc<TempDir>, mut process: Process) -> Result<Service> {
        let mut line = String::new();
        BufReader::new(process.child.stdout.take().context("stdout")?).read_line(&mut line)?;
        ensure!(line == "ready\n", "the daemon failed: see above");
        Ok(Service { process, home })
    }

    fn ask(&self, query: &Query) -> Result<Answer, ClientError> {
        ask(&self.home.path().join("control.sock"), query)
    }

    fn about(&self, query: &Query) -> Result<Reservation> {
        match self.ask(query)? {
            Answer::Reservation(reservation) => Ok(*reservation),
            other => bail!("{other:?}"),
        }
    }

    pub(crate) fn reserve(
        &self,
        target: Target,
        period_ns: u64,
        slice_ns: u64,
        hard: bool,
    ) -> Result<Reservation> {
        self.reserve_as(Reserve { target, period_ns, slice_ns, hard, phase_ns: None })
    }

    pub(crate) fn reserve_as(&self, reserve: Reserve) -> Result<Reservation> {
        self.about(&Query::Reserve(reserve))
    }

    fn refused(&self, target: Target, period_ns: u64, slice_ns: u64) -> Result<(RefusalKind, String)> {
        let reserve = Reserve { target, period_ns, slice_ns, hard: false, phase_ns: None };
        match self.ask(&Query::Reserve(reserve)) {
            Err(ClientError::Refused(refusal)) => Ok((refusal.kind, refusal.message)),
            other => bail!("not refused: {other:?}"),
        }
    }

    pub(crate) fn list(&self) -> Result<Reservations> {
        match self.ask(&Query::Reservations {})? {
            Answer::Reservations(all) => Ok(*all),
            other => bail!("{other:?}"),
        }
    }

    pub(crate) fn release(&self, target: Target) -> Result<Reservation> {
        self.about(&Query::Release { target })
    }

    /// Ends it; everything was put back.
    pub(crate) fn end(mut self) -> Result<()> {
        drop(self.process.stdin.take());
        ensure!(self.process.child.wait()?.success(), "the daemon failed: see above");
        Ok(())
    }
}

/// How all threads of a process are scheduled, and where they are.
#[derive(Debug, PartialEq)]
pub(crate) struct Place {
    threads: Vec<(i32, Attributes, Vec<u16>)>,
    group: Group,
    pub(crate) stopped: bool,
}

pub(crate) fn place(pid: i32) -> Result<Place> {
    let mut threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let tid = task.file_name().to_string_lossy().parse()?;
        threads.push((tid, sched::get(tid)?, sched::affinity(tid)?));
    }
    threads.sort_by_key(|(tid, ..)| *tid);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let stopped = stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'));
    Ok(Place { threads, group: Hierarchy::detect()?.group_of(pid)?, stopped })
}

/// CPU time of all its threads so far, in nanoseconds.
fn ran(pid: i32) -> Result<u64> {
    let mut ran = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let text = fs::read_to_string(task.path().join("schedstat"))?;
        ran += text.split(' ').next().context("schedstat")?.parse::<u64>()?;
    }
    Ok(ran)
}

pub(crate) fn throttle() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us")?)
}

/// What limits real time on this host, the throttle and, where groups have one, the root's budget.
fn limits() -> Result<(String, Option<String>)> {
    let budget = Hierarchy::detect()?.mount().join("cpu.rt_runtime_us");
    Ok((throttle()?, fs::read_to_string(budget).ok()))
}

/// A target that computes in a thread beside its main one.
pub(crate) fn computing() -> Result<Process> {
    let process = Process::start(&["target"])?;
    eventually("it has its thread", || place(process.pid()).is_ok_and(|place| place.threads.len() == 2))?;
    Ok(process)
}

fn is_reserved(place: &Place) -> bool {
    place.threads.iter().all(|(_, attributes, cpus)| {
        let policy = attributes.policy;
        let known = matches!(policy, Policy::Fifo { .. } | Policy::RoundRobin { .. } | Policy::Idle { .. });
        known && cpus.len() == 1
    })
}

fn keeps_a_process_and_puts_it_back() -> Result<()> {
    let (limit, daemon, target) = (throttle()?, Service::start("user")?, computing()?);
    let before = place(target.pid())?;
    let name = Target::Process(target.pid());
    let told = daemon.reserve(name.clone(), 10 * MS, 3 * MS, true)?;
    ensure!(told.cpus.len() == 1 && told.trouble.is_none() && told.mechanism == "user", "{told:?}");
    // By its threads' own clocks, what it uses is its slices: without a limit it would be more than three
    // times as much. On a busy machine some slices are missed, and a time for which the machine stands still
    // counts as used; but in most spans it does not. Reading takes time, too: of 30 slices, one more or less.
    let now = || -> Result<_> { Ok((ran(target.pid())?, daemon.list()?.reservations.remove(0))) };
    let mut parts = Vec::new();
    for _ in 0..9 {
        let (ran_before, told) = now()?;
        let periods = told.periods + 30;
        eventually("periods pass", || now().is_ok_and(|(_, told)| told.periods >= periods))?;
        let (ran, later) = now()?;
        parts.push((ran - ran_before) as f64 / (later.reserved_ns - told.reserved_ns) as f64);
    }
    parts.sort_by(f64::total_cmp);
    // An emulated machine takes a millisecond and more to stop a process, and beside load it stands still in
    // most spans. There the limit is not judged: this machine's own run of this trial does that.
    let most = if is_emulated() { f64::INFINITY } else { 1.15 };
    ensure!((0.85..most).contains(&parts[4]), "{parts:?} of {:?}", now()?);
    // If the daemon got no CPU for long, it has given them back for a moment.
    eventually("it is reserved for", || place(target.pid()).is_ok_and(|place| is_reserved(&place)))?;
    let told = daemon.reserve(name.clone(), 20 * MS, 4 * MS, false)?;
    ensure!(
        (told.period_ns, told.slice_ns, told.hard) == (20 * MS, 4 * MS, false),
        "a change replaces: {told:?}"
    );
    daemon.release(name.clone())?;
    ensure!(place(target.pid())? == before, "{:?} instead of {before:?}", place(target.pid())?);
    ensure!(daemon.list()?.reservations.is_empty());
    ensure!(daemon.list()?.cpus.iter().all(|cpu| cpu.reserved_ratio == 0.0));
    let error = daemon.release(name).err().context("released twice")?.to_string();
    ensure!(error.contains("has no reservation"), "{error}");
    daemon.end()?;
    ensure!(throttle()? == limit, "the throttle is as it was");
    Ok(())
}

fn covers_new_threads_and_processes() -> Result<()> {
    let (daemon, mut target, root) =
        (Service::start("user")?, computing()?, Hierarchy::detect()?.root_group());
    let keeper = crate::support::start_guardian()?;
    let group = keeper.create_group(&root, &format!("frontdesk-unit-{}", target.pid()))?;
    group.add(target.pid().unsigned_abs())?;
    let before = place(target.pid())?;
    let name = Target::Cgroup(format!("/{}", group.path().display()));
    daemon.reserve(name.clone(), 10 * MS, 5 * MS, false)?;
    target.say("thread")?;
    eventually("the new thread is reserved for", || {
        place(target.pid()).is_ok_and(|place| place.threads.len() == 3 && is_reserved(&place))
    })?;
    target.say("fork")?;
    let children = format!("/proc/{0}/task/{0}/children", target.pid());
    let child = || fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse::<i32>().ok();
    eventually("the new process is reserved for", || {
        child().is_some_and(|child| place(child).is_ok_and(|place| is_reserved(&place)))
    })?;
    let child = child().context("no child")?;
    daemon.release(name)?;
    let (after, of_child) = (place(target.pid())?, place(child)?);
    for (_, attributes, cpus) in after.threads.iter().chain(&of_child.threads) {
        ensure!((attributes, cpus) == (&before.threads[0].1, &before.threads[0].2), "{after:?} {of_child:?}");
    }
    ensure!(after.group == group && of_child.group == group, "{after:?} {of_child:?}");
    kill_process(Pid::from_raw(child).context("pid")?, Signal::KILL)?;
    drop(target);
    daemon.end()
}

/// While the daemon does not listen, more threads come than the ring holds, and then a process.
fn finds_what_was_not_heard_of() -> Result<()> {
    let (daemon, mut target, root) =
        (Service::start("user")?, computing()?, Hierarchy::detect()?.root_group());
    let keeper = crate::support::start_guardian()?;
    let group = keeper.create_group(&root, &format!("frontdesk-unit-{}", target.pid()))?;
    group.add(target.pid().unsigned_abs())?;
    let name = Target::Cgroup(format!("/{}", group.path().display()));
    daemon.reserve(name.clone(), 10 * MS, 5 * MS, false)?;
    let mut said = BufReader::new(target.child.stdout.take().context("stdout")?);
    daemon.process.signal(Signal::STOP)?;
    target.say("flood")?;
    said.read_line(&mut String::new())?;
    daemon.process.signal(Signal::CONT)?;
    let child = || children_of(target.pid()).first().copied();
    eventually("the new process is reserved for", || {
        child().is_some_and(|child| place(child).is_ok_and(|place| is_reserved(&place)))
    })?;
    let child = child().context("no child")?;
    daemon.release(name)?;
    ensure!(!is_reserved(&place(child)?), "{:?}", place(child)?);
    kill_process(Pid::from_raw(child).context("pid")?, Signal::KILL)?;
    drop(target);
    daemon.end()
}

fn children_of(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map_while(|child| child.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn refuses_what_makes_no_sense() -> Result<()> {
    let (daemon, target) = (Service::start("user")?, computing()?);
    let (before, before_limits) = (place(target.pid())?, limits()?);
    let name = || Target::Process(target.pid());
    for (target, period, slice, kind, words) in [
        (name(), 10 * MS, 0, RefusalKind::Invalid, "slice = 0ns is out of range"),
        (name(), 10 * MS, 11 * MS, RefusalKind::Invalid, "slice = 11ms is out of range"),
        (name(), 1, 1, RefusalKind::Invalid, "period = 1ns is out of range"),
        (name(), u64::MAX, MS, RefusalKind::Invalid, "allowed is 200us to 30d"),
        (name(), 10 * MS, 10 * MS, RefusalKind::Infeasible, "10ms / 9.44ms fits on cpu"),
        (Target::Process(daemon.process.pid()), 10 * MS, MS, RefusalKind::Unsuitable, "frontdesk itself"),
        (Target::Process(4_194_304), 10 * MS, MS, RefusalKind::UnknownTarget, "no process"),
        (Target::Vm("alice".into()), 10 * MS, MS, RefusalKind::UnknownTarget, "no VM"),
    ] {
        let (found, message) = daemon.refused(target, period, slice)?;
        ensure!(limits()? == before_limits, "refused, and real time has other limits: {:?}", limits()?);
        ensure!(found == kind && message.contains(words), "{found:?}: {message}");
    }
    ensure!(place(target.pid())? == before, "a refusal changes nothing");
    daemon.reserve(name(), 10 * MS, MS, false)?;
    let group = Hierarchy::detect()?.group_of(target.pid())?;
    let other_name = Target::Cgroup(format!("/{}", group.path().display()));
    let (kind, message) = daemon.refused(other_name, 10 * MS, MS)?;
    ensure!(kind == RefusalKind::Overlapping || group.is_root(), "{kind:?}: {message}");
    daemon.end()?;
    ensure!(place(target.pid())? == before, "the end of the daemon is the end of its reservations");
    Ok(())
}

fn ends_with_its_target() -> Result<()> {
    let (daemon, target) = (Service::start("user")?, computing()?);
    let name = Target::Process(target.pid());
    daemon.reserve(name.clone(), 10 * MS, 5 * MS, false)?;
    drop(target);
    let told = || {
        daemon.list().is_ok_and(|all| {
            let told = all.reservations.iter().find(|told| told.target == name);
            told.is_some_and(|told| {
                told.trouble.as_ref().is_some_and(|trouble| trouble.contains("has ended"))
            })
        })
    };
    eventually("it is told that the target has ended", told)?;
    ensure!(daemon.list()?.cpus.iter().all(|cpu| cpu.reserved_ratio == 0.0), "its room is free");
    daemon.end()
}

fn pauses_and_resumes() -> Result<()> {
    let (daemon, target) = (Service::start("user")?, computing()?);
    let before = place(target.pid())?;
    let name = Target::Process(target.pid());
    daemon.reserve(name.clone(), 10 * MS, 5 * MS, false)?;
    ensure!(daemon.about(&Query::Pause { target: name.clone() })?.paused);
    eventually("it is stopped", || place(target.pid()).is_ok_and(|place| place.stopped))?;
    ensure!(!daemon.about(&Query::Resume { target: name.clone() })?.paused);
    eventually("it goes on", || place(target.pid()).is_ok_and(|place| !place.stopped))?;
    daemon.about(&Query::Pause { target: name.clone() })?;
    daemon.release(name)?;
    eventually("release lets it go on", || place(target.pid()).is_ok_and(|place| place == before))?;
    daemon.end()
}

/// A pause that is answered has happened; one that has not is refused.
fn tells_what_it_may_not_stop() -> Result<()> {
    let (daemon, target) = (Service::without_signals()?, Idler::of_another_user()?);
    let before = place(target.pid())?;
    let name = Target::Process(target.pid());
    daemon.reserve(name.clone(), 10 * MS, 5 * MS, false)?;
    eventually("it is reserved for", || place(target.pid()).is_ok_and(|place| is_reserved(&place)))?;
    let refusal = match daemon.ask(&Query::Pause { target: name.clone() }) {
        Err(ClientError::Refused(refusal)) => refusal,
        other => bail!("not refused: {other:?}"),
    };
    let told = [refusal.message.contains("not permitted"), refusal.message.contains("CAP_KILL")];
    ensure!(refusal.kind == RefusalKind::Unavailable && told == [true; 2], "{refusal:?}");
    ensure!(!place(target.pid())?.stopped && daemon.list()?.reservations.iter().all(|told| !told.paused));
    daemon.release(name)?;
    ensure!(place(target.pid())? == before, "{:?} instead of {before:?}", place(target.pid())?);
    daemon.end()
}

fn is_undone_when_the_daemon_is_killed() -> Result<()> {
    let (limit, mut daemon, target) = (throttle()?, Service::start("user")?, computing()?);
    let before = place(target.pid())?;
    // It is stopped nearly always.
    daemon.reserve(Target::Process(target.pid()), 1000 * MS, MS, true)?;
    eventually("it is stopped", || place(target.pid()).is_ok_and(|place| place.stopped))?;
    daemon.process.child.kill()?;
    daemon.process.child.wait()?;
    eventually("it is as it was", || place(target.pid()).is_ok_and(|place| place == before))?;
    eventually("so is the throttle", || throttle().is_ok_and(|now| now == limit))?;
    let pen = Hierarchy::detect()?.mount().join("frontdesk-reserved");
    eventually("the group is gone", || !Path::new(&pen).exists())
}

fn gives_the_cpus_back_when_the_daemon_hangs() -> Result<()> {
    let (daemon, target) = (Service::start("user")?, computing()?);
    let before = place(target.pid())?;
    let name = Target::Process(target.pid());
    daemon.reserve(name.clone(), 10 * MS, 5 * MS, true)?;
    daemon.process.signal(Signal::STOP)?;
    let ordinary = |place: &Place| {
        let attributes = place.threads.iter().zip(&before.threads).all(|(now, then)| now.1 == then.1);
        attributes && !place.stopped
    };
    eventually("it is ordinary", || place(target.pid()).is_ok_and(|place| ordinary(&place)))?;
    daemon.process.signal(Signal::CONT)?;
    eventually("it is reserved for again", || place(target.pid()).is_ok_and(|place| !ordinary(&place)))?;
    daemon.release(name)?;
    ensure!(place(target.pid())? == before);
    daemon.end()
}

fn by_the_kernels_deadlines() -> Result<()> {
    let (daemon, target) = (Service::start("deadline")?, crate::support::Idler::start()?);
    let before = place(target.pid())?;
    let name = Target::Process(target.pid());
    // All that can be reserved of a CPU, which may be the only one: the dispatcher takes nothing of it.
    let told = daemon.reserve(name.clone(), 20 * MS, 19 * MS, true)?;
    ensure!(told.mechanism == "deadline" && told.trouble.is_none(), "{told:?}");
    let expected =
        Policy::Deadline { runtime_ns: 19 * MS, deadline_ns: 20 * MS, period_ns: 20 * MS, flags: 0 };
    ensure!(
        sched::get(target.pid())?.policy == expected,
        "{:?}: {:?}",
        sched::get(target.pid())?,
        daemon.list()?
    );
    daemon.release(name)?;
    ensure!(place(target.pid())? == before, "{:?}", place(target.pid())?);
    let several = computing()?;
    let (kind, message) = daemon.refused(Target::Process(several.pid()), 10 * MS, MS)?;
    ensure!(kind == RefusalKind::Unsuitable && message.contains("several threads"), "{message}");
    daemon.end()
}
