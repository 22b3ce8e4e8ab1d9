//! The guardian's own process.

use super::{
    journal::{self, Journal},
    undo::{Undo, UndoOutcome},
    wire::{self, JournalMessage},
};
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_linux::monotonic_ns;
use frontdesk_linux::sched::{self, Attributes, Policy, SchedError, ThreadId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::{self, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, FromRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    process::{self, ExitCode},
    ptr, thread,
    time::{Duration, Instant},
};

/// Above every thread that frontdesk boosts, so that they cannot keep it from undoing their boost.
pub(super) const AHEAD: Attributes = Attributes::fifo(60);
/// How often it is looked whether the owner keeps its promise.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
/// How long what the kernel calls busy is tried. It takes no longer periods for `SCHED_DEADLINE` than 4.2 s
/// (`sched_deadline_period_max_us`, 2^22).
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two rounds of undoing when the first undid nothing.
const ROUND: Duration = Duration::from_millis(5);
/// The first descriptor behind standard input, output and error.
const FIRST_OWN: u32 = 3;

/// What was undone at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoReport {
    /// Undos that were run.
    pub undone: usize,
    /// Undos of what no longer existed.
    pub gone: usize,
    /// Undos that failed, told for people.
    pub failed: Vec<String>,
}

/// Is the guardian: undoes what the journal on standard output still holds, keeps in it what arrives on
/// standard input and, when that closes, undoes what it holds. To be called first thing in `main`, before any
/// file is opened or thread started. Returns success if everything was undone, and says on standard error
/// what was not.
#[must_use]
pub fn run() -> ExitCode {
    let owner = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    let owner = owner.and_then(|pid| ThreadId::of(pid, pid));
    let settled = settle_in().and_then(|(stream, file)| Ok((stream, death()?, take_over(file)?)));
    match settled.and_then(|(stream, death, journal)| {
        guard(&stream, &stream, journal, |undos, promise| wait(&stream, &death, owner, undos, promise))
    }) {
        Ok(report) if report.failed.is_empty() => ExitCode::SUCCESS,
        Ok(report) => {
            for failure in report.failed {
                eprintln!("frontdesk guardian: {failure}");
            }
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!(
                "frontdesk guardian: cannot start: {e}; it is started by frontdesk itself, not by hand"
            );
            ExitCode::FAILURE
        }
    }
}

/// Leaves the owner's session and whatever else could end, delay or encumber it.
fn settle_in() -> io::Result<(UnixStream, File)> {
    // A pipe that leaked into the owner must not be kept open here.
    // SAFETY: called before this process has opened anything itself.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST_OWN, u32::MAX, 0) };
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    stream.peer_addr()?;
    let journal = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // Fails if it leads a session already, which is as good.
    let _ = rustix::process::setsid();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    env::set_current_dir("/")?;
    // The rest makes it likelier to act in time under pressure; without it, it still acts.
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    let _ = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
    get_ahead();
    Ok((stream, journal))
}

/// Undoes what a former owner and its guardian left in the journal, and empties it.
fn take_over(file: File) -> io::Result<Journal> {
    let left = journal::read(&file)?;
    let report = undo_all(left.undos.values());
    if report != UndoReport::default() || !left.unknown.is_empty() {
        eprintln!(
            "frontdesk guardian: frontdesk and its former guardian were killed: undone now: {}, gone: {}",
            report.undone, report.gone
        );
    }
    for failure in left.unknown.iter().chain(&report.failed) {
        eprintln!("frontdesk guardian: left by a former frontdesk: {failure}");
    }
    Journal::new(file)
}

/// What is readable once the thread that started this process has ended. The connection closes only when the
/// owner's last thread has ended, which an ordinary one that is killed does not before it gets a CPU: up to a
/// second later if real-time threads have them all.
fn death() -> io::Result<OwnedFd> {
    let signal = libc::SIGRTMIN();
    let mut signals = MaybeUninit::uninit();
    // SAFETY: the set is on this stack, and made before it is used; the descriptor is nobody else's.
    unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), signal);
        libc::sigprocmask(libc::SIG_BLOCK, signals.as_ptr(), ptr::null_mut());
        let death = libc::signalfd(-1, signals.as_ptr(), libc::SFD_CLOEXEC);
        if death < 0 || libc::prctl(libc::PR_SET_PDEATHSIG, signal) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(death))
    }
}

/// Real time if that can be had: from the root control group where its own has no real-time budget.
fn get_ahead() {
    if let Err(SchedError::Denied { .. }) = sched::set(0, AHEAD) {
        let moved = Hierarchy::detect().and_then(|hierarchy| hierarchy.root_group().add(process::id()));
        if moved.is_err() || sched::set(0, AHEAD).is_err() {
            let nicest = Attributes { policy: Policy::Other { nice: -20, slice_ns: 0 }, reset_on_fork: true };
            let _ = sched::set(0, nicest);
        }
    }
}

/// Waits for the owner to say something. Meanwhile, if it is not back when it promised to be, undoes what
/// keeps others from running; and if the thread that started us has ended, everything. What is undone here is
/// undone again at the end, when failures are told: some of the owner's threads may still be about to change
/// something.
fn wait(
    stream: &UnixStream,
    death: &OwnedFd,
    owner: Option<ThreadId>,
    undos: &BTreeMap<u64, Undo>,
    journal: &Journal,
) {
    let mut broken = [0; 2];
    loop {
        let mut fds = [PollFd::new(stream, PollFlags::IN), PollFd::new(death, PollFlags::IN)];
        match poll(&mut fds, Some(&LOOK)) {
            Ok(0) => {}
            Ok(_) if fds[0].revents().is_empty() => {
                // It says nothing new, and once.
                let _ = rustix::io::read(death, &mut [0; size_of::<libc::signalfd_siginfo>()]);
                undo_all(undos.values());
                revive(owner);
            }
            Err(Errno::INTR) => continue,
            Ok(_) | Err(_) => return,
        }
        let promised = journal.promised();
        let now = monotonic_ns();
        let is_broken = |promise: u64| promise != 0 && now > promise;
        let mut anew = broken.iter_mut().zip(promised).filter(|(broken, promise)| **broken != *promise);
        if let Some((broken, promise)) = anew.find(|(_, promise)| is_broken(*promise)) {
            *broken = promise;
            eprintln!(
                "frontdesk guardian: frontdesk does not come back: threads have again what they had until it does"
            );
            let scheduling = |undo: &&Undo| matches!(undo, Undo::Thread { .. } | Undo::Continue { .. });
            undo_all(undos.values().filter(scheduling));
            revive(owner);
        }
    }
}

/// Makes ordinary what the owner has under `SCHED_DEADLINE` and wants to run. Linux may forget such a thread
/// for ever (seen with 6.18: it ran out of run time as it left that policy, and came back to it when the
/// timer that would have given it more had just found it gone). Then it does not dispatch, and does not even
/// end when it is killed; as an ordinary one it does. One that sleeps is left: of that, Linux 6.1 keeps what
/// it had reserved.
fn revive(owner: Option<ThreadId>) {
    let Some(owner) = owner.filter(ThreadId::is_alive) else { return };
    for thread in fs::read_dir(format!("/proc/{}/task", owner.pid)).into_iter().flatten().flatten() {
        let Some(tid) = thread.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let runnable = ThreadId::of(owner.pid, tid).filter(ThreadId::is_runnable).map(ThreadId::pin);
        let Some(thread) = runnable else { continue };
        if matches!(thread.get(), Ok(Attributes { policy: Policy::Deadline { .. }, .. })) {
            let ordinary = Policy::Other { nice: 0, slice_ns: 0 };
            // One that has ended needs nothing.
            let _ = thread.set(Attributes { policy: ordinary, reset_on_fork: true });
        }
    }
}

/// Keeps the journal until the owner's end closes, then undoes. `wait` is called before each message.
fn guard(
    mut from: impl Read,
    mut to: impl Write,
    mut journal: Journal,
    mut wait: impl FnMut(&BTreeMap<u64, Undo>, &Journal),
) -> io::Result<UndoReport> {
    let mut undos = BTreeMap::new();
    wire::acknowledge(&mut to)?;
    // A frame cut short was never acknowledged, so its change was not made.
    loop {
        wait(&undos, &journal);
        let Ok(Some(message)) = wire::read_frame(&mut from) else { break };
        let kept = match message {
            JournalMessage::Record { id, undo } => {
                let kept = journal.put(id, &undo);
                undos.insert(id, undo);
                kept
            }
            JournalMessage::Forget { id } => {
                undos.remove(&id);
                journal.remove(id)
            }
        };
        if let Err(error) = kept {
            // Not acknowledged, so that the owner ends, too.
            eprintln!("frontdesk guardian: cannot write the journal ({error}): every change is undone");
            break;
        }
        if wire::acknowledge(&mut to).is_err() {
            break;
        }
    }
    let report = undo_all(undos.values());
    // What failed is told, and not tried again behind the back of who mends it.
    journal.clear()?;
    // An owner that died does not read it.
    let _ = wire::write_frame(&mut to, &report);
    Ok(report)
}

/// When it is the turn of an undo. What keeps others from running comes first: while real-time threads have
/// all CPUs, moving a process takes more than 100 ms, for it waits until each CPU has switched.
fn turn(undo: &Undo) -> u8 {
    match undo {
        Undo::Thread { .. } | Undo::Affinity { .. } | Undo::Continue { .. } => 0,
        Undo::File { .. } => 1,
        Undo::Return { .. }
        | Undo::Process { .. }
        | Undo::ControlGroup { .. }
        | Undo::CpuController { .. }
        | Undo::Tree(_) => 2,
    }
}

/// Undoes all by [turns](turn), in each the latest first, and in rounds: nothing waits for anything. What
/// fails is tried again as long as that helps, for it may need another that was recorded before it (a control
/// group gives up its real-time budget only without real-time threads, and goes only when it is empty), or
/// time (a fair server gets back what a thread had by `SCHED_DEADLINE` only when that thread's period is
/// over).
pub(super) fn undo_all<'a>(journal: impl DoubleEndedIterator<Item = &'a Undo>) -> UndoReport {
    let until = Instant::now() + PATIENCE;
    let mut report = UndoReport::default();
    let mut left: Vec<&Undo> = journal.rev().collect();
    left.sort_by_key(|undo| turn(undo));
    loop {
        let (before, mut busy) = (left.len(), false);
        report.failed.clear();
        left.retain(|undo| match undo.run() {
            Ok(outcome) => {
                match outcome {
                    UndoOutcome::Done => report.undone += 1,
                    UndoOutcome::Gone => report.gone += 1,
                }
                false
            }
            Err(failure) => {
                busy |= failure.busy;
                report.failed.push(failure.message);
                true
            }
        });
        let helped = left.len() < before;
        if left.is_empty() || !(helped || busy && Instant::now() < until) {
            return report;
        }
        if !helped {
            thread::sleep(ROUND);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undo_that_needs_another_is_tried_again() {
        let home = tempfile::tempdir().unwrap();
        let outer = home.path().join("outer");
        fs::create_dir_all(outer.join("frontdesk-inner")).unwrap();
        // Recorded in the wrong order: the outer directory is not empty when it is tried first.
        let inner = Undo::tree(&outer.join("frontdesk-inner")).unwrap();
        let journal = BTreeMap::from([(0, inner), (1, Undo::ControlGroup { path: outer.clone() })]);
        let report = undo_all(journal.values());
        assert_eq!((report.undone, report.failed.len()), (2, 0), "{report:?}");
        assert!(!outer.exists());
    }

    #[test]
    fn undoes_in_reverse_what_is_not_forgotten() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("knob");
        fs::write(&path, "changed").unwrap();
        let undo = |content: &str| Undo::File { path: path.clone(), content: content.into() };
        let mut wire = Vec::new();
        for message in [
            JournalMessage::Record { id: 0, undo: undo("original") },
            JournalMessage::Record { id: 1, undo: undo("in between") },
            JournalMessage::Record { id: 2, undo: Undo::ControlGroup { path: home.path().join("gone") } },
            JournalMessage::Record {
                id: 3,
                undo: Undo::File { path: home.path().into(), content: "fails".into() },
            },
            JournalMessage::Record {
                id: 4,
                undo: Undo::File { path: "/proc/version".into(), content: "forgotten".into() },
            },
            JournalMessage::Forget { id: 4 },
        ] {
            wire::write_frame(&mut wire, &message).unwrap();
        }
        // The owner dies in the middle of a record.
        wire.extend([200, 0, 0, 0, b'{']);
        let mut answers = Vec::new();
        let file = journal::in_memory().unwrap();
        let journal = Journal::new(file.try_clone().unwrap()).unwrap();
        let report = guard(&wire[..], &mut answers, journal, |_, _| {}).unwrap();
        assert_eq!((report.undone, report.gone, report.failed.len()), (2, 1, 1), "{report:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "original");
        assert_eq!(journal::read(&file).unwrap().undos.len(), 0, "all was tried");
        assert_eq!(&answers[..7], b"+++++++", "ready, and one for each whole message");
        assert_eq!(wire::read_frame::<UndoReport>(&answers[7..]).unwrap(), Some(report));
    }
}
