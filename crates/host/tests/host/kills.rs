//! Daemon, guardian or both killed after each single record of what they change, and at random.
//!
//! The owner's guardian is then a *killer*: it stands between the owner and the true guardian, passes on what
//! they say, and kills before a certain acknowledgement reaches the owner.

use crate::reserve::{self, MS, Service};
use crate::support::{Idler, eventually, trial};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use frontdesk_control_protocol::Target;
use frontdesk_engine::{Boost, BoostTarget, VmId};
use frontdesk_guardian::{GUARDIAN_ARGUMENT, Guardian};
use frontdesk_host::share::ShareControl;
use frontdesk_host::threads::Threads;
use frontdesk_linux::cgroup::{Group, Hierarchy};
use frontdesk_linux::realtime;
use frontdesk_linux::sched::{self, Attributes, Policy, ThreadId};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, getppid, kill_process};
use std::{
    env,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::Shutdown,
    os::fd::{AsFd as _, OwnedFd},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Names the word with which the owner starts its guardian.
pub(crate) const GUARDIAN_WORD: &str = "FRONTDESK_TEST_GUARDIAN";
const WHOM: [&str; 3] = ["daemon", "guardian", "both"];
/// More than any of the owners has to say.
const MOST_MESSAGES: usize = 100;
/// Of the nightly trial.
const RANDOM_KILLS: usize = 1000;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("guardian_kills_at_each_record_of_boosts_and_shares", at_each_record_of_boosts_and_shares),
        trial("guardian_kills_at_each_record_of_a_reservation", at_each_record_of_a_reservation),
        trial("guardian_kills_at_random", at_random).with_ignored_flag(true),
    ]
}

/// The word of the guardian of this process.
pub(crate) fn guardian_word() -> String {
    env::var(GUARDIAN_WORD).unwrap_or_else(|_| GUARDIAN_ARGUMENT.into())
}

/// `kill-WHOM-COUNT` as a guardian: kills in place of the acknowledgement with that number.
pub(crate) fn killer(word: &str) -> ExitCode {
    match pass_on(word) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e:?}");
            ExitCode::FAILURE
        }
    }
}

fn pass_on(word: &str) -> Result<()> {
    let (whom, count) = word.trim_start_matches("kill-").split_once('-').context("kill-WHOM-COUNT")?;
    let count: usize = count.parse()?;
    let owner = getppid().context("owner")?;
    let owners = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (ours, theirs) = UnixStream::pair()?;
    let mut guardian = Command::new(env::current_exe()?)
        .arg(GUARDIAN_ARGUMENT)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()?;
    let (mut from, mut to) = (owners.try_clone()?, ours.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let (mut byte, mut acknowledged) = ([0], 0);
    while (&ours).read(&mut byte)? == 1 {
        acknowledged += usize::from(byte == *b"+");
        if acknowledged == count {
            if whom != "daemon" {
                guardian.kill()?;
                guardian.wait()?;
            }
            if whom != "guardian" {
                kill_process(owner, Signal::KILL)?;
            }
            if whom == "daemon" {
                break;
            }
            return Ok(());
        }
        (&owners).write_all(&byte)?;
    }
    // It undoes.
    guardian.wait()?;
    Ok(())
}

/// Starts an owner with such a guardian, and waits for its first line, or its end.
fn start(arguments: &[String], word: &str) -> Result<(Child, String)> {
    let mut command = Command::new(env::current_exe()?);
    let command = command.args(arguments).env(GUARDIAN_WORD, word);
    // What it says when it is killed is not asked for.
    let mut owner = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut line = String::new();
    BufReader::new(owner.stdout.take().context("stdout")?).read_line(&mut line)?;
    Ok((owner, line))
}

/// Has the next guardian with this journal undo what was left.
fn restore(journal: &Path) -> Result<()> {
    let report = Guardian::start_with_journal(&env::current_exe()?, GUARDIAN_ARGUMENT, journal)?.finish()?;
    ensure!(report.failed.is_empty(), "{report:?}");
    Ok(())
}

/// Three threads of a VM and the group of a fourth process.
struct Vm {
    threads: [Idler; 3],
    member: Idler,
    group: Group,
    keeper: Guardian,
}

impl Vm {
    fn start() -> Result<Vm> {
        let keeper = crate::support::start_guardian()?;
        let name = format!("frontdesk-test-kills-{}", std::process::id());
        let group = keeper.create_group(&Hierarchy::detect()?.root_group(), &name)?;
        let (threads, member) = ([Idler::start()?, Idler::start()?, Idler::start()?], Idler::start()?);
        group.add(member.0.id())?;
        for (idler, nice) in threads.iter().zip([0, 4, -2]) {
            let policy = Policy::Other { nice, slice_ns: 3_000_000 };
            sched::set(idler.pid(), Attributes { policy, reset_on_fork: false })?;
        }
        Ok(Vm { threads, member, group, keeper })
    }

    fn now(&self) -> Result<(Vec<Attributes>, u32)> {
        let threads = self.threads.iter().map(|idler| Ok(sched::get(idler.pid())?));
        Ok((threads.collect::<Result<_>>()?, self.group.weight()?))
    }

    fn arguments(&self, how: &str, journal: &Path) -> Vec<String> {
        let pids = self.threads.iter().chain([&self.member]).map(|idler| idler.pid().to_string());
        let words = ["steps".to_owned(), how.to_owned(), journal.display().to_string()];
        words.into_iter().chain(pids).collect()
    }

    fn end(self) -> Result<()> {
        drop((self.threads, self.member));
        ensure!(self.keeper.finish()?.failed.is_empty());
        Ok(())
    }
}

/// The owner: `steps once|on JOURNAL VCPU VCPU EMULATOR MEMBER` boosts, weighs, changes a share and puts all
/// back, once or until it is killed.
pub(crate) fn steps() -> ExitCode {
    let all = || -> Result<()> {
        let arguments: Vec<String> = env::args().skip(2).collect();
        let [how, journal, pids @ ..] = &arguments[..] else { bail!("steps once|on JOURNAL PIDS") };
        let thread = |n: usize| -> Result<ThreadId> {
            let pid = pids.get(n).context("pid")?.parse()?;
            ThreadId::of(pid, pid).context("no such process")
        };
        let guardian =
            Guardian::start_with_journal(&env::current_exe()?, &guardian_word(), Path::new(journal))?;
        if how == "on" {
            println!("{}", guardian.pid());
        }
        // As the daemon's loop is.
        realtime::enter(50, &[])?;
        let group = Hierarchy::detect()?.group_of(thread(3)?.pid)?;
        let (mut threads, vm) = (Threads::by_real_time(), VmId(0));
        loop {
            threads.adopt(vm, 1024, &[(0, thread(0)?), (1, thread(1)?)], &[thread(2)?], &guardian)?;
            let mut share = ShareControl::take(&group, &guardian)?;
            threads.weigh(vm, 0, 110)?;
            threads.boost(vm, BoostTarget::Emulators, Boost::Io)?;
            threads.boost(vm, BoostTarget::Vcpu(1), Boost::Io)?;
            share.set_permille(1700, &guardian)?;
            share.set_base(Some(share.base() / 2), &guardian)?;
            threads.boost(vm, BoostTarget::Vcpu(1), Boost::None)?;
            share.release(&guardian)?;
            threads.release(vm, &guardian)?;
            if how == "once" {
                println!("done");
                return Ok(());
            }
        }
    };
    match all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e:?}");
            ExitCode::FAILURE
        }
    }
}

fn at_each_record_of_boosts_and_shares() -> Result<()> {
    let (home, vm) = (tempfile::tempdir()?, Vm::start()?);
    let (journal, before) = (home.path().join("journal"), vm.now()?);
    let mut records = 0;
    for whom in WHOM {
        for count in 1..MOST_MESSAGES {
            let (mut owner, line) = start(&vm.arguments("once", &journal), &format!("kill-{whom}-{count}"))?;
            owner.wait()?;
            if whom == "both" {
                restore(&journal)?;
            }
            eventually("all is as it was", || vm.now().is_ok_and(|now| now == before)).with_context(
                || format!("{whom} killed at record {count}: {:?}, not {before:?}", vm.now()),
            )?;
            if line == "done\n" {
                records = count;
                break;
            }
            ensure!(count + 1 < MOST_MESSAGES, "the owner fails, whoever is killed");
        }
    }
    println!("measured: killed {WHOM:?} at each of {records} messages");
    ensure!(records >= 10, "only {records}");
    vm.end()
}

fn reserve_and_release(daemon: &Service, pid: i32) -> Result<()> {
    daemon.reserve(Target::Process(pid), 1000 * MS, MS, true)?;
    daemon.release(Target::Process(pid))?;
    Ok(())
}

fn at_each_record_of_a_reservation() -> Result<()> {
    let (limit, target) = (reserve::throttle()?, reserve::computing()?);
    let before = reserve::place(target.pid())?;
    let pen = Hierarchy::detect()?.mount().join("frontdesk-reserved");
    let mut records = 0;
    for whom in WHOM {
        for count in 1..MOST_MESSAGES {
            let home = Arc::new(tempfile::tempdir()?);
            let journal = home.path().join("daemon.journal");
            let word = format!("kill-{whom}-{count}");
            // It may be killed before it says that it is ready, and before it answers.
            let told = Service::guarded(Arc::clone(&home), &word).and_then(|daemon| {
                let done = reserve_and_release(&daemon, target.pid());
                // If it lives, it ends by itself, and puts everything back before.
                done.and(daemon.end())
            });
            if whom == "both" {
                restore(&journal)?;
            }
            let back = || {
                let place = reserve::place(target.pid()).is_ok_and(|place| place == before);
                place && reserve::throttle().is_ok_and(|now| now == limit) && !pen.exists()
            };
            eventually("all is as it was", back).with_context(|| {
                format!("{whom} killed at record {count}: {:?}", reserve::place(target.pid()))
            })?;
            if told.is_ok() {
                records = count;
                break;
            }
            ensure!(count + 1 < MOST_MESSAGES, "the daemon fails, whoever is killed");
        }
    }
    println!("measured: killed {WHOM:?} at each of {records} messages");
    ensure!(records > 10, "only {records}");
    Ok(())
}

/// The nightly one, on a thread just below the guardian: whatever else the host does, the clock is read when
/// all is as it was.
fn at_random() -> Result<()> {
    let below = || {
        realtime::enter(59, &[])?;
        kill_at_random()
    };
    thread::scope(|scope| scope.spawn(below).join()).map_err(|_| anyhow!("it panicked"))?
}

fn kill_at_random() -> Result<()> {
    let (home, vm) = (tempfile::tempdir()?, Vm::start()?);
    let (journal, before) = (home.path().join("journal"), vm.now()?);
    let mut random = u64::from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.subsec_nanos()) | 1;
    println!("seed {random}");
    let mut slowest = [Duration::ZERO; WHOM.len()];
    for kill in 0..RANDOM_KILLS {
        // Xorshift.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let whom = WHOM[kill % WHOM.len()];
        let (mut owner, line) = start(&vm.arguments("on", &journal), GUARDIAN_ARGUMENT)?;
        let guardian = Pid::from_raw(line.trim().parse()?).context("pid")?;
        thread::sleep(Duration::from_micros(random % 20_000));
        if whom != "daemon" {
            kill_process(guardian, Signal::KILL)?;
        }
        if whom != "guardian" {
            owner.kill()?;
        }
        let mut since = Instant::now();
        owner.wait()?;
        if whom == "both" {
            // Nobody is there to put anything back before the next start.
            since = Instant::now();
            restore(&journal)?;
        }
        eventually("all is as it was", || vm.now().is_ok_and(|now| now == before))
            .with_context(|| format!("kill {kill}, of {whom}: {:?}, not {before:?}", vm.now()))?;
        let slowest = &mut slowest[kill % WHOM.len()];
        *slowest = since.elapsed().max(*slowest);
    }
    println!("measured: {RANDOM_KILLS} kills of {WHOM:?}, all as before within {slowest:?}");
    vm.end()
}
