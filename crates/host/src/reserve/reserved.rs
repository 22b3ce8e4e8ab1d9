//! A target with a reservation: its processes and threads, and who of them runs where.

use super::members::{MemberRole, MemberThread, MemberThreads};
use super::target::{Found, children, threads_of};
use super::threads::{Original, ReservedProcess, ReservedThread, TakeError};
use frontdesk_control_protocol::Target;
use frontdesk_engine::Time;
use frontdesk_engine::reservation::{Member, Reservation, TargetId};
use frontdesk_guardian::Guardian;
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_linux::sched::{SchedError, ThreadId};
use frontdesk_probes::meter::{Birth, MemberMeter};

/// A target with a reservation.
pub(super) struct ReservedTarget {
    pub(super) id: TargetId,
    pub(super) target: Target,
    pub(super) found: Found,
    pub(super) reservation: Reservation,
    /// When that was given: the first periods of all members begin then.
    pub(super) since: Time,
    /// Of each member.
    pub(super) cpus: Vec<u16>,
    pub(super) slots: Vec<usize>,
    pub(super) processes: Vec<ReservedProcess>,
    pub(super) threads: Vec<ReservedThread>,
    /// Whether its threads are to be on the CPUs of their members.
    pub(super) pins: bool,
    /// Whether its threads were put on the CPUs of their members.
    pub(super) pinned: bool,
    pub(super) paused: bool,
    pub(super) trouble: Option<String>,
}

impl ReservedTarget {
    pub(super) fn members(&self) -> impl Iterator<Item = Member> + use<> {
        let target = self.id;
        (0..).take(self.slots.len()).map(move |index| Member { target, index })
    }

    /// The threads of one of its members.
    pub(super) fn threads_of(&self, member: usize) -> MemberThreads {
        let own = self.threads.iter().filter(|held| held.member == member);
        let of = |held: &ReservedThread| MemberThread { thread: held.pinned().clone(), role: held.role };
        MemberThreads { all: own.map(of).collect() }
    }

    /// Takes the threads of its processes that it has not taken yet.
    pub(super) fn take_threads(&mut self, meter: &MemberMeter, guardian: &Guardian) -> Result<(), TakeError> {
        let pids: Vec<i32> = self.processes.iter().map(|process| process.pid).collect();
        for thread in pids.into_iter().flat_map(threads_of) {
            self.take_thread(thread, meter, guardian)?;
        }
        Ok(())
    }

    fn take_thread(
        &mut self,
        thread: ThreadId,
        meter: &MemberMeter,
        guardian: &Guardian,
    ) -> Result<(), TakeError> {
        if self.threads.iter().any(|held| held.id() == thread) {
            return Ok(());
        }
        let sibling = self.threads.iter().find(|held| held.id().pid == thread.pid).or(self.threads.first());
        let pinned = thread.pin();
        // One that came later has what its creator had from us, not what it would have without us.
        let original = match sibling.filter(|_| self.pinned) {
            Some(sibling) => Some(sibling.original()),
            None => Original::of(&pinned)?,
        };
        // It may have ended already.
        let Some(original) = original else { return Ok(()) };
        let part = self.found.part(thread);
        self.threads.push(ReservedThread::take(pinned.clone(), part, original, guardian)?);
        // Of a VM under `SCHED_DEADLINE` the emulator is anywhere, and not counted: a slot counts one CPU.
        if part.role == MemberRole::Worker || self.pins {
            meter.add(thread.tid, self.slots[part.member])?;
        }
        if self.pinned {
            pinned.set_affinity(&[self.cpus[part.member]]).or_else(if_alive)?;
        }
        Ok(())
    }

    /// Takes a thread that came into being as a member, with its process if that is new, too.
    pub(super) fn welcome(
        &mut self,
        birth: Birth,
        meter: &MemberMeter,
        guardian: &Guardian,
    ) -> Result<(), TakeError> {
        if !self.processes.iter().any(|process| process.pid == birth.pid) {
            let Some(mut process) = ReservedProcess::take(birth.pid) else { return Ok(()) };
            if let Some(parent) = self.processes.first() {
                process.came_with(parent, guardian)?;
            }
            if self.reservation.hard || self.paused {
                process.may_stop(guardian)?;
            }
            self.processes.push(process);
        }
        match ThreadId::of(birth.pid, birth.tid) {
            Some(thread) => self.take_thread(thread, meter, guardian),
            None => Ok(()),
        }
    }

    /// Takes threads and, where they belong to it, processes that there are by now and that nothing was heard
    /// of.
    pub(super) fn find_unheard(
        &mut self,
        own: &[i32],
        hierarchy: &Hierarchy,
        meter: &MemberMeter,
        guardian: &Guardian,
    ) -> Result<(), TakeError> {
        if self.found.family {
            // There may be none any more.
            let members = Found::find(&self.target, &[], own, hierarchy).map(|found| found.processes);
            let mut pids = members.unwrap_or_default();
            // Those that have a reservation may have been moved out of the group that the target is.
            pids.extend(self.processes.iter().flat_map(|process| children(process.pid)));
            pids.sort_unstable();
            pids.dedup();
            let slot = self.slots[0];
            for pid in pids {
                if !self.processes.iter().any(|process| process.pid == pid) {
                    self.welcome(Birth { slot, pid, tid: pid }, meter, guardian)?;
                }
            }
        }
        self.take_threads(meter, guardian)
    }

    /// Has each thread on the CPU of its member.
    pub(super) fn pin(&mut self) {
        self.pinned = true;
        for held in &self.threads {
            if let Err(error) = held.pinned().set_affinity(&[self.cpus[held.member]]).or_else(if_alive) {
                self.trouble = Some(error.to_string());
            }
        }
    }

    /// Its processes may be stopped from now on.
    pub(super) fn may_stop(&mut self, guardian: &Guardian) -> Result<(), TakeError> {
        self.processes.iter_mut().try_for_each(|process| process.may_stop(guardian))
    }
}

/// A thread that has ended needs nothing.
fn if_alive(error: SchedError) -> Result<(), SchedError> {
    match error {
        SchedError::Vanished { .. } => Ok(()),
        error => Err(error),
    }
}
