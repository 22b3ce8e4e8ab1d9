//! What the dispatcher decides.

use super::terms::Member;
use serde::{Deserialize, Serialize};

/// What is to be done with a member from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    /// The member.
    pub member: Member,
    /// The CPU that it is to be on.
    pub cpu: u16,
    /// How it is to be scheduled.
    pub kind: DispatchKind,
}

/// How a member is to be scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DispatchKind {
    /// Before everything without a reservation, and before members on the CPU with a lower level (1 to
    /// [`LEVELS`](super::LEVELS)).
    Run {
        /// Its level.
        level: u8,
    },
    /// Only when nothing else wants the CPU.
    Leftover,
    /// Not at all.
    Stop,
}

impl DispatchKind {
    pub(super) fn is_run(self) -> bool {
        self.level().is_some()
    }

    pub(super) fn level(self) -> Option<u8> {
        match self {
            DispatchKind::Run { level } => Some(level),
            DispatchKind::Leftover | DispatchKind::Stop => None,
        }
    }
}
