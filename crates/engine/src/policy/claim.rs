//! What policies ask of knobs.

use crate::action::{Boost, BoostTarget};
use crate::event::Time;
use serde::{Deserialize, Serialize};

/// Who claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Owner {
    /// Task-aware boosting (TAVS).
    PartialBoost,
    /// Multimedia (MM).
    Multimedia,
    /// Asymmetric vCPUs (vAMP).
    Asymmetric,
    /// Turns for who starves.
    Starvation,
}

/// A knob of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Knob {
    /// The dispatch preference of a vCPU or of the emulator threads; its values are those of [`Boost`].
    Boost(BoostTarget),
    /// Whether the engine is told promptly of what a vCPU does; 1 if so.
    Watch(u16),
    /// What the VM is entitled to, in permille of its weight; 1000 and more.
    Share,
    /// The weight of a vCPU inside the VM, in permille of an ordinary one's.
    Weight(u16),
}

/// One owner's claim on one knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) owner: Owner,
    #[serde(rename = "target")]
    pub(crate) knob: Knob,
    pub(crate) value: u32,
    /// When it ends by itself.
    pub(crate) until: Time,
}

/// What a policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A claim, in place of the owner's former one on that knob.
    Claim(Claim),
    /// No claim of this owner on that knob any more.
    End(Owner, Knob),
}

/// The value that stands for a dispatch preference.
pub(crate) const fn value(level: Boost) -> u32 {
    match level {
        Boost::None => 0,
        Boost::Io => 1,
        Boost::Multimedia => 2,
    }
}
