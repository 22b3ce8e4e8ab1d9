//! How members are made to run when the dispatcher says so.

use super::user::Threads;
use frontdesk_engine::reservation::{Dispatch, Member, Reservation};
use frontdesk_linux::cgroup::{Hierarchy, RealTimeRule};
use frontdesk_linux::sched::{Attributes, SchedError};
use serde::{Deserialize, Serialize};

/// Which mechanism is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReserveMechanism {
    /// By real-time priority, where the kernel lets processes in control groups be real-time at all; otherwise by `SCHED_DEADLINE`.
    #[default]
    Auto,
    /// By real-time priority, changed by frontdesk at the end of each slice and period.
    User,
    /// By the kernel's `SCHED_DEADLINE`, which enforces slices by its timer tick.
    Deadline,
}

impl ReserveMechanism {
    /// What it comes to on this host: `User` or `Deadline`.
    #[must_use]
    pub fn on(self, hierarchy: &Hierarchy) -> ReserveMechanism {
        match self {
            ReserveMechanism::Auto if hierarchy.real_time() == RealTimeRule::Refused => {
                ReserveMechanism::Deadline
            }
            ReserveMechanism::Auto => ReserveMechanism::User,
            chosen => chosen,
        }
    }

    /// Its name, as it is configured.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReserveMechanism::Auto => "auto",
            ReserveMechanism::User => "user",
            ReserveMechanism::Deadline => "deadline",
        }
    }
}

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
        threads: Threads,
    ) -> Result<(), SchedError>;

    /// Forgets a member, which goes on as it is; one that is stopped continues.
    fn forget(&mut self, member: Member);

    /// Schedules a member as the dispatcher says. One that is not held is no error.
    ///
    /// # Errors
    /// The kernel refuses. Threads that have ended need nothing.
    fn apply(&mut self, dispatch: Dispatch) -> Result<(), SchedError>;
}
