//! Looks at one QMP socket, for as long as it is there.
//!
//! A socket serves one client at a time. Being connected is the only way to hear that a guest was reset, so
//! the thread stays connected; but somebody else may need the socket, too. So it hangs up every few seconds
//! and connects again, which puts it behind everybody who waits, and asks everything anew. What happens while
//! somebody else is connected is not heard; what has changed by then is.

use super::WatchContext;
use crate::notification::{Mailbox, Notification, VmOrigin};
use frontdesk_linux::sched::ThreadId;
use frontdesk_qemu::{self as qemu, QemuVm, QmpSession};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// A monitor that does not answer within this is taken for dead.
const QMP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the socket is held at a time.
const TURN: Duration = Duration::from_secs(15);
/// How often it is looked whether threads came or went.
const TICK: Duration = Duration::from_secs(1);
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

pub(super) struct SocketWatcher {
    path: PathBuf,
    context: WatchContext,
    /// Something changed at the path; disconnected when the thread is to end.
    pokes: Receiver<()>,
    round: Option<Arc<Round>>,
    /// What was said last about why there is no VM.
    said: Option<String>,
    /// The VM whose reads were seen to.
    probed: Option<ThreadId>,
}

/// Why a turn ended.
enum TurnEnd {
    Over,
    Lost,
    Dismissed,
}

impl SocketWatcher {
    pub(super) fn new(
        path: PathBuf,
        context: WatchContext,
        pokes: Receiver<()>,
        round: Option<Arc<Round>>,
    ) -> SocketWatcher {
        SocketWatcher { path, context, pokes, round, said: None, probed: None }
    }

    pub(super) fn run(mut self) {
        let mut pause = BACK_OFF.0;
        loop {
            match qemu::visit(&self.path, QMP_TIMEOUT) {
                Ok((vm, session)) => {
                    self.said = None;
                    pause = BACK_OFF.0;
                    match self.turn(vm, session) {
                        TurnEnd::Over => continue,
                        TurnEnd::Lost => {}
                        TurnEnd::Dismissed => return,
                    }
                }
                Err(error) => self.say(error.to_string()),
            }
            self.round = None;
            match self.pokes.recv_timeout(pause) {
                Ok(()) => pause = BACK_OFF.0,
                Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(BACK_OFF.1),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Tells of the VM, and then of what happens to it.
    fn turn(&mut self, vm: QemuVm, mut session: QmpSession) -> TurnEnd {
        let (main, pid, threads) = (vm.main_thread(), vm.pid, vm.thread_count());
        // A VM without a name goes by its socket's.
        let stem = self.path.file_stem().unwrap_or(self.path.as_os_str()).to_string_lossy();
        let name = vm.name.clone().unwrap_or_else(|| stem.into_owned());
        self.context.tell(VmOrigin::Qmp(self.path.clone()), &name, vm);
        self.round = None;
        if self.probed.replace(main) != Some(main) {
            self.context.probe(main);
        }
        let end = Instant::now() + TURN;
        while Instant::now() < end {
            match session.event(TICK) {
                Ok(Some(event)) => {
                    self.context.mailbox.post(Notification::Happened(main, event));
                    std::thread::sleep(EVENT_GAP);
                }
                Ok(None) if qemu::thread_count(pid) != threads => return TurnEnd::Over,
                Ok(None) => {}
                Err(_) => return TurnEnd::Lost,
            }
            match self.pokes.try_recv() {
                Ok(()) => return TurnEnd::Over,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return TurnEnd::Dismissed,
            }
        }
        TurnEnd::Over
    }

    /// Once, until there is something else to say.
    fn say(&mut self, reason: String) {
        if self.said.as_ref() != Some(&reason) {
            tracing::warn!("{reason}");
            self.said = Some(reason);
        }
    }
}
