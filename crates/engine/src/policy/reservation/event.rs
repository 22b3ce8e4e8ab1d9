//! What the dispatcher is told: all that its decisions follow from.

use super::{Member, Reservation};
use crate::Time;
use serde::{Deserialize, Serialize};

/// What the world says about a member at the time of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// CPU time that it ever used, in nanoseconds. It never falls.
    pub ran_ns: u64,
    /// Whether it runs or wants to.
    pub ready: bool,
    /// When it last began to want to, after a sleep.
    pub woken: Time,
}

/// Where readings come from.
pub trait Meter {
    /// What is known about a member. One that is not known has not run and does not want to.
    fn read(&self, member: Member) -> Reading;
}

/// Something that the dispatcher is told. Any sequence of events is legal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationEvent {
    /// When. One that is earlier than the latest decision is taken as happening then.
    pub at: Time,
    /// What members have done until then. Those that are not named are as they were.
    pub readings: Vec<(Member, Reading)>,
    /// What happened.
    pub kind: ReservationEventKind,
}

impl Default for ReservationEvent {
    /// An event to be filled.
    fn default() -> Self {
        ReservationEvent {
            at: Time::default(),
            readings: Vec::new(),
            kind: ReservationEventKind::Decide { tolerance_ns: 0 },
        }
    }
}

/// The kinds of [`ReservationEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReservationEventKind {
    /// A member is given a [valid](Reservation::validate) reservation on a CPU, in place of what it had. A
    /// period begins at once, or began earlier with those of the target's other members; if periods are
    /// aligned, it begins at once, ends at the next boundary and has its part of the slice. A reservation
    /// that stays the same is not touched. It is up to [`Admission`](super::Admission) that all of them fit.
    Set {
        /// The member.
        member: Member,
        /// The CPU that it is to be on.
        cpu: u16,
        /// What it is given.
        reservation: Reservation,
        /// When the first period of all members of its target began: their dispatchers hear of it at
        /// different times, and their periods are to be the same. Who hears later is as one that wakes up
        /// then. Without it, or if it is still to come, that is when the event is.
        #[serde(default)]
        since: Option<Time>,
    },
    /// A member is to be stopped altogether, or to go on. Its periods pass as before; while it is stopped
    /// nothing is missed, and when it goes on it is as one that wakes up.
    Pause {
        /// The member.
        member: Member,
        /// Whether it is to be stopped.
        paused: bool,
    },
    /// A member is to be forgotten. Whoever carries the decisions out puts it back as it was.
    Remove {
        /// The member.
        member: Member,
    },
    /// The wall clock was adjusted: periods from the next on follow it.
    Align {
        /// What it shows at [`Time`] zero, in nanoseconds.
        wall_offset_ns: u64,
    },
    /// A decision is due, or something has happened that may lead to one.
    Decide {
        /// What is due within so many nanoseconds is taken as due now; a slice of which no more is left is
        /// used up.
        tolerance_ns: u64,
    },
}
