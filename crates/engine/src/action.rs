//! What the engine decides: actions for the actuators.

use crate::event::{Time, VmId};
use serde::{Deserialize, Serialize};

/// Dispatch preference of a vCPU and of its VM's I/O threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Boost {
    /// Ordinary scheduling.
    None,
    /// Ahead of everything that is not boosted: a partial boost (TAVS §3.2).
    Io,
}

/// A decision. Actuators apply it as it is; each is idempotent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// The time of the event that led to it.
    pub at: Time,
    /// What to do.
    pub kind: ActionKind,
}

/// The kinds of [`Action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActionKind {
    /// Set the dispatch preference of a vCPU.
    Boost {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
        /// The preference from now on.
        level: Boost,
    },
    /// Set a VM's share to this fraction of its weight, in permille (1 to 1000).
    Share {
        /// The VM.
        vm: VmId,
        /// The fraction.
        permille: u16,
    },
}
