//! Asks the daemon for `top` in a thread of its own: keys work while another host takes its time.

use crate::connect::Daemon;
use crate::words;
use anyhow::{Context, bail};
use frontdesk_control_protocol::{Answer, Query, Refusal, Status};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// What the daemon says: an answer, why it refuses, or why there is neither.
pub(super) type Said<T> = anyhow::Result<Result<T, Refusal>>;

/// What is asked for.
pub(super) struct Look {
    /// Everything about this VM, or all VMs if none.
    pub(super) vm: Option<String>,
    /// The reservations, or a change of one.
    pub(super) reservations: Option<Query>,
}

/// What came of it.
pub(super) struct Told {
    pub(super) status: Said<Status>,
    /// After a change, how things are then, too.
    pub(super) reservations: Vec<Said<Answer>>,
}

/// The thread. It ends with this, or with the program if it waits for an answer then.
pub(super) struct Asker {
    looks: SyncSender<Look>,
    told: Receiver<Told>,
    asked: bool,
}

impl Asker {
    pub(super) fn start(mut daemon: Daemon) -> anyhow::Result<Asker> {
        let (looks, to_look) = sync_channel::<Look>(1);
        let (tell, told) = sync_channel(1);
        let work = move || {
            for look in to_look {
                if tell.send(of(&mut daemon, look)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().spawn(work).context(words::NO_THREAD)?;
        Ok(Asker { looks, told, asked: false })
    }

    /// Whether nothing is being asked.
    pub(super) fn is_free(&self) -> bool {
        !self.asked
    }

    /// Asks; only who [is free](Self::is_free) does.
    pub(super) fn ask(&mut self, look: Look) {
        // Without the thread the next answer is an error.
        self.asked = true;
        let _ = self.looks.try_send(look);
    }

    /// The answer, when it has come.
    ///
    /// # Errors
    /// If the thread has ended, which it does in a panic only.
    pub(super) fn answer(&mut self) -> anyhow::Result<Option<Told>> {
        match self.told.try_recv() {
            Ok(told) => {
                self.asked = false;
                Ok(Some(told))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("asking the daemon failed"),
        }
    }
}

fn of(daemon: &mut Daemon, look: Look) -> Told {
    let status = status(daemon, look.vm);
    let mut reservations = Vec::new();
    if let Some(query) = look.reservations {
        reservations.push(daemon.ask(&query));
        if query.changes() && matches!(reservations.last(), Some(Ok(Ok(_)))) {
            reservations.push(daemon.ask(&Query::Reservations {}));
        }
    }
    Told { status, reservations }
}

/// The daemon's state; if a VM is named, with everything about it.
pub(super) fn status(daemon: &mut Daemon, vm: Option<String>) -> Said<Status> {
    match daemon.ask(&Query::Status { vm })? {
        Ok(Answer::Status(status)) => Ok(Ok(*status)),
        Ok(_) => bail!("the daemon answered something else"),
        Err(refusal) => Ok(Err(refusal)),
    }
}

/// Why it refuses, as an error.
pub(super) fn refused(refusal: Refusal) -> anyhow::Error {
    anyhow::anyhow!("the daemon refuses: {}", refusal.message)
}
