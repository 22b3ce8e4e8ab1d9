//! What can go wrong with the threads of VMs.

use super::SchedulingError;
use frontdesk_engine::VmId;
use frontdesk_guardian::GuardianError;
use frontdesk_linux::sched::SchedError;
use frontdesk_probes::scx::ScxError;

/// The threads of a VM cannot be scheduled as they should.
#[derive(Debug, thiserror::Error)]
pub enum ThreadsError {
    /// A thread refuses.
    #[error("cannot change how VM {vm} is scheduled: {source}", vm = .vm.0)]
    Thread {
        /// The VM.
        vm: VmId,
        /// What failed.
        source: SchedulingError,
    },
    /// frontdesk's scheduler refuses.
    #[error(transparent)]
    Scx(#[from] ScxError),
    /// The change could not be made undoable, and was not made.
    #[error(transparent)]
    Guardian(#[from] GuardianError),
}

impl ThreadsError {
    pub(super) fn of(vm: VmId) -> impl Fn(SchedulingError) -> ThreadsError + Copy {
        move |source| match source {
            SchedulingError::Guardian(error) => ThreadsError::Guardian(error),
            source => ThreadsError::Thread { vm, source },
        }
    }

    pub(super) fn sched(vm: VmId) -> impl Fn(SchedError) -> ThreadsError + Copy {
        move |error| ThreadsError::Thread { vm, source: SchedulingError::Sched(error) }
    }
}
