//! Looks at QMP sockets, for as long as they are there.
//!
//! A socket serves one client at a time. Being connected is the only way to hear that a guest was reset, so
//! it stays connected; but somebody else may need the socket, too. So it hangs up every few seconds and
//! connects again, which puts it behind everybody who waits, and asks everything anew. What happens while
//! somebody else is connected is not heard; what has changed by then is.
//!
//! Whoever listens may stall, or talk without end. Nobody is waited for, and whoever has said something rests
//! before more of it is read.

use super::WatchContext;
use crate::notification::{Mailbox, Notification, VmOrigin};
use frontdesk_linux::sched::ThreadId;
use frontdesk_qemu::{self as qemu, QemuVm, QmpSession, Visit};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A monitor that does not answer within this is taken for dead.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a socket is held at a time.
const TURN: Duration = Duration::from_secs(15);
/// How often it is looked whether threads came or went.
const LOOK: Duration = Duration::from_secs(1);
/// Between two parts of answers: an honest VM says what it is asked in ten.
const ANSWER_GAP: Duration = Duration::from_millis(2);
/// Between two events: a VM that resets itself without end only keeps itself waiting.
const EVENT_GAP: Duration = Duration::from_millis(20);
/// Between two attempts, first and at last.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Held by all who have something left to try in the first round.
pub(super) struct Round(Mailbox);

impl Round {
    pub(super) fn new(mailbox: Mailbox) -> Round {
        Round(mailbox)
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        self.0.post(Notification::Settled);
    }
}

/// A socket that is looked at.
pub(super) struct WatchedSocket {
    path: PathBuf,
    /// Device and inode: another one at the same place is another VM's.
    identity: (u64, u64),
    state: State,
    /// It is not read before.
    rests: Instant,
    /// Between the next two attempts.
    pause: Duration,
    round: Option<Arc<Round>>,
    /// What was said last about why there is no VM.
    said: Option<String>,
    /// The VM whose reads were seen to.
    probed: Option<ThreadId>,
}

enum State {
    /// Nobody is there, or nobody who is looked for. It is tried again then.
    Away(Instant),
    /// It is waited for answers until then.
    Visiting(Box<Visit>, Instant),
    Following(Following),
}

struct Following {
    session: QmpSession,
    main: ThreadId,
    threads: u64,
    /// There was an event, and there may be more of those that came with it.
    more: bool,
    /// It is looked at the threads.
    look: Instant,
    end: Instant,
}

impl WatchedSocket {
    pub(super) fn new(path: PathBuf, identity: (u64, u64), round: Option<Arc<Round>>) -> WatchedSocket {
        let now = Instant::now();
        let (state, pause) = (State::Away(now), BACK_OFF.0);
        WatchedSocket { path, identity, state, rests: now, pause, round, said: None, probed: None }
    }

    /// What is at the path; another socket is visited at once.
    pub(super) fn is(&mut self, identity: (u64, u64)) {
        if std::mem::replace(&mut self.identity, identity) != identity {
            (self.state, self.pause) = (State::Away(Instant::now()), BACK_OFF.0);
        }
    }

    /// What is waited for, if it may be read now.
    pub(super) fn readable(&self, now: Instant) -> Option<BorrowedFd<'_>> {
        if now < self.rests {
            return None;
        }
        match &self.state {
            State::Away(_) => None,
            State::Visiting(visit, _) => Some(visit.as_fd()),
            State::Following(following) => Some(following.session.as_fd()),
        }
    }

    /// When it is its turn although nothing came.
    pub(super) fn due(&self, now: Instant) -> Instant {
        let due = match &self.state {
            State::Away(at) => return *at,
            State::Visiting(_, until) => *until,
            State::Following(following) => following.look.min(following.end),
        };
        if now < self.rests { due.min(self.rests) } else { due }
    }

    /// Does what there is to do. Never waits.
    pub(super) fn turn(&mut self, now: Instant, came: bool, context: &WatchContext) {
        match std::mem::replace(&mut self.state, State::Away(now)) {
            State::Away(at) if now < at => self.state = State::Away(at),
            State::Away(_) => self.visit(now),
            State::Visiting(mut visit, until) if came => {
                self.rests = now + ANSWER_GAP;
                match visit.advance() {
                    Ok(Some(vm)) => self.state = self.follow(now, vm, visit.stay(), context),
                    Ok(None) => self.state = State::Visiting(visit, until),
                    Err(error) => self.give_up(now, error.to_string()),
                }
            }
            State::Visiting(visit, until) if now >= until => self.give_up(now, visit.stalled().to_string()),
            State::Following(following) => self.listen(now, came, following, context),
            visiting @ State::Visiting(..) => self.state = visiting,
        }
    }

    fn visit(&mut self, now: Instant) {
        match Visit::begin(&self.path) {
            Ok(visit) => self.state = State::Visiting(Box::new(visit), now + PATIENCE),
            Err(error) => self.give_up(now, error.to_string()),
        }
    }

    /// Tells of the VM.
    fn follow(&mut self, now: Instant, vm: QemuVm, session: QmpSession, context: &WatchContext) -> State {
        (self.said, self.pause) = (None, BACK_OFF.0);
        let (main, threads) = (vm.main_thread(), vm.thread_count());
        // A VM without a name goes by its socket's.
        let stem = self.path.file_stem().unwrap_or(self.path.as_os_str()).to_string_lossy();
        let name = vm.name.clone().unwrap_or_else(|| stem.into_owned());
        context.tell(VmOrigin::Qmp(self.path.clone()), &name, vm);
        self.round = None;
        if self.probed.replace(main) != Some(main) {
            context.probe(main);
        }
        // What came with the last answer is no longer to be read.
        State::Following(Following { session, main, threads, more: true, look: now + LOOK, end: now + TURN })
    }

    /// Tells what happens to the VM.
    fn listen(&mut self, now: Instant, came: bool, mut following: Following, context: &WatchContext) {
        if came || following.more && now >= self.rests {
            self.rests = now + EVENT_GAP;
            match following.session.event() {
                Ok(event) => {
                    following.more = event.is_some();
                    if let Some(event) = event {
                        context.mailbox.post(Notification::Happened(following.main, event));
                    }
                }
                Err(_) => return self.try_again(now),
            }
        }
        let mut over = now >= following.end;
        if now >= following.look {
            following.look = now + LOOK;
            over |= qemu::thread_count(following.main.pid) != following.threads;
        }
        if over {
            drop(following);
            self.visit(now);
        } else {
            self.state = State::Following(following);
        }
    }

    /// Says why there is no VM, once, until there is something else to say.
    fn give_up(&mut self, now: Instant, reason: String) {
        if self.said.as_ref() != Some(&reason) {
            tracing::warn!("{reason}");
            self.said = Some(reason);
        }
        self.round = None;
        self.try_again(now);
    }

    fn try_again(&mut self, now: Instant) {
        self.state = State::Away(now + self.pause);
        self.pause = (self.pause * 2).min(BACK_OFF.1);
    }
}
