//! How members are made to run when the dispatcher says so.

use super::members::MemberThreads;
use frontdesk_engine::reservation::{Dispatch, Member, Reservation};
use frontdesk_linux::sched::{Attributes, SchedError};

/// Ahead of all but `SCHED_DEADLINE`.
pub(super) const AHEAD: Attributes = Attributes::fifo(99);

/// Schedules the threads of members.
pub(super) trait Enforce: Send {
    /// How the thread that dispatches is to be scheduled itself, and how where the kernel refuses that.
    fn dispatcher(&self) -> [Attributes; 2];

    /// From now on these are the threads of a member, and this is its reservation.
    ///
    /// # Errors
    /// The kernel refuses.
    fn hold(
        &mut self,
        member: Member,
        reservation: Option<Reservation>,
        threads: MemberThreads,
    ) -> Result<(), SchedError>;

    /// Forgets a member, which goes on as it is; one that is stopped continues.
    fn forget(&mut self, member: Member);

    /// Schedules a member as the dispatcher says. One that is not held is no error.
    ///
    /// # Errors
    /// The kernel refuses; the next dispatch tries again. Threads that have ended need nothing.
    fn apply(&mut self, dispatch: Dispatch) -> Result<(), SchedError>;
}
