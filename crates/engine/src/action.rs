//! What the engine decides: actions for the actuators.

use crate::event::{Time, VmId};
use serde::{Deserialize, Serialize};

/// Dispatch preference of a vCPU, or of the emulator threads of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Boost {
    /// Ordinary scheduling.
    #[default]
    None,
    /// Ahead of everything that is not boosted: a partial boost (TAVS §3.2).
    Io,
    /// Ahead of those, too: for what a person sees or hears (MM §5.3).
    Multimedia,
}

/// What a [`Boost`] is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BoostTarget {
    /// The vCPU with this index.
    Vcpu(u16),
    /// All emulator threads of the VM, which deliver what its vCPUs wait for.
    Emulators,
}

/// A boost that would be decided if a packet came now: what can be done about one at once, before the engine
/// hears of it and decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreseen {
    /// Indices of the vCPUs to boost, of which there is one at least; the emulator threads are boosted, too.
    pub vcpus: Vec<u16>,
    /// The preference.
    pub level: Boost,
    /// How long at most before the engine has decided, in nanoseconds.
    pub lasts_ns: u64,
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
    /// Set a dispatch preference. That of a vCPU says nothing about the emulator threads, nor the other way
    /// round.
    Boost {
        /// The VM.
        vm: VmId,
        /// What is preferred.
        target: BoostTarget,
        /// The preference from now on.
        level: Boost,
    },
    /// Set a VM's share to this fraction of its weight.
    Share {
        /// The VM.
        vm: VmId,
        /// The fraction in permille: 1 to 64,000, where 1000 is the weight itself.
        permille: u32,
    },
    /// Set the weight of a vCPU among the threads of its VM.
    Weight {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
        /// The weight in permille of an ordinary thread's: 1 to 64,000, where 1000 is ordinary.
        permille: u32,
    },
    /// Tell the engine promptly when a vCPU switches tasks or halts, or leave that to the next time that
    /// anything is told.
    Watch {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
        /// Whether from now on, or no more.
        on: bool,
    },
}

impl ActionKind {
    /// The VM that it is about.
    #[must_use]
    pub const fn vm(&self) -> VmId {
        match *self {
            ActionKind::Boost { vm, .. }
            | ActionKind::Share { vm, .. }
            | ActionKind::Weight { vm, .. }
            | ActionKind::Watch { vm, .. } => vm,
        }
    }
}
