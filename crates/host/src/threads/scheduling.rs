//! A thread whose scheduling frontdesk changes: what it had, what it has, and that it gets back what it had.

use frontdesk_guardian::{Guardian, GuardianError, Undo, UndoId};
use frontdesk_linux::sched::{Attributes, PinnedThread, SchedError, ThreadId};

/// A thread's scheduling cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum SchedulingError {
    /// A scheduling call failed.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// The kernel accepted a setting, but the thread does not have it.
    #[error(
        "thread {tid} was set to {wanted:?} but has {found:?}; another program seems to manage it, and only one may"
    )]
    NotKept {
        /// The thread.
        tid: i32,
        /// What was set.
        wanted: Attributes,
        /// What was read back.
        found: Attributes,
    },
    /// The change could not be made undoable, and was not made.
    #[error(transparent)]
    Guardian(#[from] GuardianError),
}

/// A thread that is on the guardian's record, once, with what it had when it was taken.
#[derive(Debug)]
pub(crate) struct Scheduling {
    thread: PinnedThread,
    original: Attributes,
    /// What it was set to last, if that is known to have worked.
    now: Option<Attributes>,
    /// The nice value that it has by us, or had when it was taken or looked at.
    nice: Option<i32>,
    undo: UndoId,
}

/// How a thread is scheduled; `None` if it has ended.
pub(crate) fn attributes_of(thread: &PinnedThread) -> Result<Option<Attributes>, SchedError> {
    match thread.get() {
        Ok(attributes) => Ok(Some(attributes)),
        Err(SchedError::Vanished { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Scheduling {
    /// Records with the guardian what a thread had. Nothing is changed yet.
    pub(crate) fn take(
        thread: PinnedThread,
        original: Attributes,
        guardian: &Guardian,
    ) -> Result<Scheduling, GuardianError> {
        let undo = guardian.record(Undo::Thread { thread: thread.id(), attributes: original })?;
        Ok(Scheduling { thread, original, now: Some(original), nice: original.policy.nice(), undo })
    }

    pub(crate) fn thread(&self) -> ThreadId {
        self.thread.id()
    }

    pub(crate) fn pinned(&self) -> &PinnedThread {
        &self.thread
    }

    pub(crate) fn original(&self) -> Attributes {
        self.original
    }

    /// Gives it other attributes, and looks whether it has them. Those that it was given last cost nothing.
    /// One that has ended needs none. A nice value that somebody else has given it meanwhile it keeps.
    pub(crate) fn set(&mut self, wanted: Attributes) -> Result<(), SchedulingError> {
        if self.now == Some(wanted) {
            return Ok(());
        }
        self.now = None;
        let tid = self.thread.id().tid;
        let mut given = wanted;
        if let (Some((nice, _)), Some(others)) = (given.policy.fair_mut(), self.nice_by_others()?) {
            *nice = others;
        }
        let found = match self.thread.set(given).and_then(|()| self.thread.get()) {
            Err(SchedError::Vanished { .. }) => return Ok(()),
            result => result?,
        };
        if !given.agrees_with(found) {
            return Err(SchedulingError::NotKept { tid, wanted: given, found });
        }
        self.now = Some(wanted);
        if given == wanted {
            self.nice = wanted.policy.nice().or(self.nice);
        }
        Ok(())
    }

    /// Gives it what it had, whatever it was given meanwhile, and by whom.
    pub(crate) fn restore(&mut self) -> Result<(), SchedulingError> {
        (self.now, self.nice) = (None, None);
        self.set(self.original)
    }

    /// Looks whether somebody else has given it another nice value since it was last set: that is what it has
    /// from then on, as if it had had it when it was taken.
    pub(crate) fn look(&mut self, guardian: &Guardian) -> Result<(), SchedulingError> {
        let Some(found) = self.nice_by_others()? else { return Ok(()) };
        let mut attributes = self.original;
        if let Some((nice, _)) = attributes.policy.fair_mut() {
            *nice = found;
        }
        let undo = guardian.record(Undo::Thread { thread: self.thread.id(), attributes })?;
        guardian.forget(std::mem::replace(&mut self.undo, undo))?;
        (self.original, self.now, self.nice) = (attributes, None, Some(found));
        Ok(())
    }

    /// Its nice value, if somebody else has given it another one than it has by us; also while it is boosted,
    /// and `None` if it has ended.
    fn nice_by_others(&self) -> Result<Option<i32>, SchedError> {
        let Some(expected) = self.nice else { return Ok(None) };
        match self.thread.nice() {
            Err(SchedError::Vanished { .. }) => Ok(None),
            found => Ok(found.map(Some)?.filter(|found| *found != expected)),
        }
    }

    /// It has what it had, or has ended: the guardian needs not know of it any more.
    pub(crate) fn forget(self, guardian: &Guardian) -> Result<(), GuardianError> {
        guardian.forget(self.undo)
    }
}
