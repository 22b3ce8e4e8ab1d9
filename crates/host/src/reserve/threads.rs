//! What was changed of the threads and processes of a target, and how it is put back.

use super::members::MemberRole;
use super::target::TargetThread;
use crate::threads::{Scheduling, SchedulingError, attributes_of};
use frontdesk_guardian::{GroupError, Guardian, GuardianError, Undo, UndoId};
use frontdesk_linux::cgroup::{CgroupError, Group, Hierarchy};
use frontdesk_linux::sched::{self, Attributes, PinnedThread, SchedError, ThreadId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;

/// A reservation cannot be carried out.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant passes on an error that describes itself.
pub(super) enum TakeError {
    #[error(transparent)]
    Sched(#[from] SchedError),
    #[error(transparent)]
    Thread(#[from] SchedulingError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Guardian(#[from] GuardianError),
    #[error(transparent)]
    Meter(#[from] frontdesk_probes::BpfError),
}

/// A thread with a reservation.
#[derive(Debug)]
pub(super) struct ReservedThread {
    pub(super) role: MemberRole,
    /// The index of its member.
    pub(super) member: usize,
    held: Scheduling,
    /// The CPUs that it had.
    cpus: Vec<u16>,
    affinity: UndoId,
}

/// How a thread was scheduled before.
#[derive(Clone, Debug)]
pub(super) struct Original {
    attributes: Attributes,
    cpus: Vec<u16>,
}

impl Original {
    /// `None` if the thread has ended.
    pub(super) fn of(thread: &PinnedThread) -> Result<Option<Original>, SchedError> {
        let Some(attributes) = attributes_of(thread)? else { return Ok(None) };
        match thread.affinity() {
            Ok(cpus) => Ok(Some(Original { attributes, cpus })),
            Err(SchedError::Vanished { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl ReservedThread {
    /// Records with the guardian what a thread had. Nothing is changed yet.
    pub(super) fn take(
        thread: PinnedThread,
        part: TargetThread,
        original: Original,
        guardian: &Guardian,
    ) -> Result<ReservedThread, TakeError> {
        let TargetThread { thread: id, role, member } = part;
        let Original { attributes, cpus } = original;
        let held = Scheduling::take(thread, attributes, guardian)?;
        let affinity = guardian.record(Undo::Affinity { thread: id, cpus: cpus.clone() })?;
        Ok(ReservedThread { role, member, held, cpus, affinity })
    }

    pub(super) fn id(&self) -> ThreadId {
        self.held.thread()
    }

    pub(super) fn pinned(&self) -> &PinnedThread {
        self.held.pinned()
    }

    pub(super) fn original(&self) -> Original {
        Original { attributes: self.held.original(), cpus: self.cpus.clone() }
    }

    /// Gives it back what it had. What fails stays on the guardian's record.
    pub(super) fn restore(mut self, guardian: &Guardian) -> Result<(), TakeError> {
        self.held.restore()?;
        match self.pinned().set_affinity(&self.cpus) {
            Ok(()) | Err(SchedError::Vanished { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.forget(guardian)
    }

    /// It has ended.
    pub(super) fn forget(self, guardian: &Guardian) -> Result<(), TakeError> {
        self.held.forget(guardian)?;
        Ok(guardian.forget(self.affinity)?)
    }
}

/// A process with a reservation.
#[derive(Debug)]
pub(super) struct ReservedProcess {
    pub(super) pid: i32,
    started: u64,
    pidfd: OwnedFd,
    /// The group it was in, if it was moved.
    from: Option<(Group, UndoId)>,
    /// What lets it go on if it is stopped.
    go_on: Option<UndoId>,
}

impl ReservedProcess {
    /// Pins a process; `None` if it has ended.
    pub(super) fn take(pid: i32) -> Option<ReservedProcess> {
        let started = sched::process_start_time(pid)?;
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        // The number may have got another owner before the descriptor pinned it.
        (sched::process_start_time(pid) == Some(started)).then_some(ReservedProcess {
            pid,
            started,
            pidfd,
            from: None,
            go_on: None,
        })
    }

    /// Readable when it has ended.
    pub(super) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
    }

    /// Moves it to another group.
    pub(super) fn move_to(
        &mut self,
        group: &Group,
        hierarchy: &Hierarchy,
        guardian: &Guardian,
    ) -> Result<(), TakeError> {
        let from = hierarchy.group_of(self.pid)?;
        if from == *group || self.from.is_some() {
            return Ok(());
        }
        let undo = Undo::Return { pid: self.pid, started: self.started, procs: from.procs_file() };
        self.from = Some((from, guardian.record(undo)?));
        self.add_to(group)
    }

    /// A control group takes a process by its number, which is somebody else's only after this one's end.
    fn add_to(&self, group: &Group) -> Result<(), TakeError> {
        if self.has_ended() {
            return Ok(());
        }
        Ok(group.add(self.pid.unsigned_abs())?)
    }

    /// A child of a process that was moved goes where its parent was.
    pub(super) fn came_with(
        &mut self,
        parent: &ReservedProcess,
        guardian: &Guardian,
    ) -> Result<(), TakeError> {
        if let Some((group, _)) = &parent.from {
            let undo = Undo::Return { pid: self.pid, started: self.started, procs: group.procs_file() };
            self.from = Some((group.clone(), guardian.record(undo)?));
        }
        Ok(())
    }

    /// It may be stopped from now on.
    pub(super) fn may_stop(&mut self, guardian: &Guardian) -> Result<(), TakeError> {
        if self.go_on.is_none() {
            self.go_on = Some(guardian.record(Undo::Continue { pid: self.pid, started: self.started })?);
        }
        Ok(())
    }

    /// Puts it back where it was, and lets it go on. What fails stays on the guardian's record.
    pub(super) fn restore(self, guardian: &Guardian) -> Result<(), TakeError> {
        if let Some((group, _)) = &self.from {
            self.add_to(group)?;
        }
        if self.go_on.is_some() {
            match pidfd_send_signal(&self.pidfd, Signal::CONT) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => {
                    let (pid, signal) = (self.pid, libc::SIGCONT);
                    return Err(SchedError::Signal { pid, signal, source: error.into() }.into());
                }
            }
        }
        let undos = self.from.into_iter().map(|(_, undo)| undo).chain(self.go_on);
        undos.into_iter().try_for_each(|undo| Ok(guardian.forget(undo)?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::members::tests::Stranger;
    use super::*;
    use frontdesk_testing::{Need, leave_out};

    #[test]
    fn who_has_a_processs_number_by_now_is_not_moved() {
        if !rustix::process::geteuid().is_root() {
            let test = "who_has_a_processs_number_by_now_is_not_moved";
            return leave_out(test, Need::Root, "it makes control groups");
        }
        let (gone, stranger) = (Stranger::start(), Stranger::start());
        let process = ReservedProcess { pid: stranger.pid(), ..ReservedProcess::take(gone.pid()).unwrap() };
        drop(gone);
        let name = format!("frontdesk-test-moves-{}", std::process::id());
        let root = Hierarchy::detect().unwrap().root_group();
        let group = root.create::<CgroupError>(&name, |_| Ok(())).unwrap();
        let moved = process.add_to(&group);
        let members = std::fs::read_to_string(group.procs_file()).unwrap();
        drop(stranger);
        std::fs::remove_dir(group.dir()).unwrap();
        moved.unwrap();
        assert_eq!(members, "");
    }
}
