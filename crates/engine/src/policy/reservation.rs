//! Periodic reservations (VSched §2.1): a target - a VM or a process - runs for `slice` in every `period`.
//!
//! [`Admission`] says whether a reservation fits, and where; the [`Dispatcher`] decides who runs when,
//! earliest deadline first, and keeps the [`MemberAccount`]s. A target with several vCPUs has a [`Member`]
//! for each of them, on different CPUs, with the same periods, so that they run in lock step. Periods can be
//! aligned to the wall clock, so that equal reservations on hosts with synchronised clocks run in lock step,
//! too.
//!
//! The dispatcher is of the engine's family: [`ReservationEvent`]s with the readings of their time in,
//! [`Dispatch`]es out.

mod account;
mod admission;
mod dispatch;
mod dispatcher;
mod event;
mod levels;
mod terms;

pub use account::{BUCKETS, Distribution, MemberAccount, RECENT, RecentPeriod};
pub use admission::{Admission, AdmissionError, Fit, Infeasible, MEMBERS_PER_CPU, Room};
pub use dispatch::{Dispatch, DispatchKind};
pub use dispatcher::{Dispatcher, Due, Eligible};
pub use event::{Meter, Reading, ReservationEvent, ReservationEventKind};
pub use levels::LEVELS;
pub use terms::{
    MAX_PERIOD_NS, MIN_PERIOD_NS, MIN_SLICE_NS, Member, Reservation, ReservationError, Span, TargetId,
    WHOLE_CPU,
};
