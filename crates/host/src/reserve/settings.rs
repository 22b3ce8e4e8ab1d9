//! What the configuration says about reservations.

use frontdesk_linux::cgroup::{Hierarchy, RealTimeRule};
use serde::{Deserialize, Serialize};

/// Reservations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReserveSettings {
    /// How reservations are kept; "auto", "user" or "deadline".
    pub mechanism: ReserveMechanism,
    /// The part of each CPU that cannot be reserved: the administrator's reserve (VSched §3.3), for
    /// everything without a reservation. 0.01 to 0.95.
    pub spare: f64,
    /// Physical CPUs on which reservations are made; all if empty. 0 to 1023.
    pub cpus: Vec<u16>,
}

impl Default for ReserveSettings {
    fn default() -> Self {
        ReserveSettings { mechanism: ReserveMechanism::Auto, spare: 0.05, cpus: Vec::new() }
    }
}

impl ReserveSettings {
    /// The part of a CPU that reserved targets may use in real time: between what can be reserved and the
    /// whole, for who runs a little too long is not to be throttled. The rest is what the kernel gives
    /// ordinary threads at least.
    pub(crate) fn real_time(&self) -> f64 {
        1.0 - self.spare / 2.0
    }
}

/// Which mechanism is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReserveMechanism {
    /// By real-time priority, where the kernel lets processes in control groups be real-time at all;
    /// otherwise by `SCHED_DEADLINE`.
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
