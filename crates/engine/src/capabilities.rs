//! Facts that a world states about itself and about its VMs. What follows from them is ruled in the engine
//! alone.

use serde::{Deserialize, Serialize};

/// What a world - a host, a simulator - can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Whether it does what is decided. If not, the engine infers and decides, but asks for nothing.
    pub acts: bool,
    /// Whether its scheduler charges boosted run time to the VM like any other. Then boosts give nothing that
    /// is to be taken back.
    pub charges_boosts: bool,
    /// How much of a CPU all threads of a VM together may be boosted, in permille. Whoever uses more of the
    /// host's real time is stalled.
    pub realtime_permille: u32,
    /// How long its scheduler lets a thread run while others wait, in nanoseconds; 0 if that is not known.
    pub slice_ns: u64,
    /// How long a vCPU that runs is not heard of at most where guest tasks are only seen now and then: a tick
    /// of the host, which leaves the guest. In nanoseconds; 0 if that is not known. A longer silence says
    /// that the host itself had no CPU, and nobody ran.
    #[serde(default)]
    pub silence_ns: u64,
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities {
            acts: true,
            charges_boosts: false,
            realtime_permille: 1000,
            slice_ns: 0,
            silence_ns: 0,
        }
    }
}

impl Capabilities {
    /// The CPU time that all threads of a VM together may use boosted, in CPUs, if the policy allows
    /// `policy`.
    #[must_use]
    pub fn boost_limit(&self, policy: f64) -> f64 {
        policy.min(f64::from(self.realtime_permille) / 1000.0)
    }
}

/// How a VM stands in a world that acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// What is decided about it is done.
    #[default]
    Acting,
    /// It cannot be acted on.
    Observed,
    /// A reservation schedules it.
    Reserved,
}
