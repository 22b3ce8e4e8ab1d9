//! What is asked and told about reservations (VSched §3.3, §5): who gets which slice of which period, what
//! came of it, and what else would fit.
//!
//! Units are those of [`super::Status`]: nanoseconds (`_ns`) of the host's monotonic clock, and fractions
//! (`_ratio`).

use crate::target::Target;
use serde::{Deserialize, Serialize};

/// A reservation asked for: from now on, in each period, the target is to run for a slice. What the target
/// had before is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// For whom.
    pub target: Target,
    /// The period. The daemon tells which are allowed ([`Reservations::min_period_ns`]).
    pub period_ns: u64,
    /// CPU time of each period, of each vCPU if the target is a VM. Above 0, and at most the period.
    pub slice_ns: u64,
    /// Whether the target gets nothing beyond its slice. If not, what is idle is shared with it as with
    /// everybody.
    #[serde(default)]
    pub hard: bool,
    /// Begin the periods so long after the multiples of the period of the wall clock (Unix time), so that
    /// targets on different hosts run in lock step. Less than the period. If absent, a period begins at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_ns: Option<u64>,
}

impl Reserve {
    /// What is told of it before its first period has ended.
    #[must_use]
    pub fn begin(self, name: String, cpus: Vec<u16>, mechanism: &str, host_ratio: f64) -> Reservation {
        let Reserve { target, period_ns, slice_ns, hard, phase_ns } = self;
        Reservation {
            target,
            name,
            period_ns,
            slice_ns,
            hard,
            phase_ns,
            paused: false,
            cpus,
            mechanism: mechanism.to_owned(),
            host_ratio,
            efficiency_ratio: None,
            periods: 0,
            misses: 0,
            stalls: 0,
            worst_miss_ns: 0,
            used_ns: 0,
            reserved_ns: 0,
            recent: Vec::new(),
            trouble: None,
        }
    }
}

/// The reservations of a host at a moment, and what room there is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reservations {
    /// [`super::SCHEMA`] of the daemon that wrote it.
    pub schema: u32,
    /// The moment.
    pub at_ns: u64,
    /// Whether the daemon acts; if not, it refuses reservations.
    pub acting: bool,
    /// How reservations are enforced, for people.
    pub mechanism: String,
    /// The fraction of each CPU that is never reserved.
    pub reserve_ratio: f64,
    /// The shortest period allowed.
    pub min_period_ns: u64,
    /// The longest period allowed.
    pub max_period_ns: u64,
    /// The shortest slice allowed.
    pub min_slice_ns: u64,
    /// What deciding takes of a CPU in each period of a member: it counts with the slice.
    pub deciding_ns: u64,
    /// The CPUs that can be reserved, by number.
    pub cpus: Vec<CpuRoom>,
    /// The reservations, in the order in which they were made.
    pub reservations: Vec<Reservation>,
}

/// What is reserved of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuRoom {
    /// Its number.
    pub cpu: u16,
    /// The fraction of its time that is reserved.
    pub reserved_ratio: f64,
    /// The fraction that can still be reserved.
    pub free_ratio: f64,
}

/// A reservation and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reservation {
    /// For whom.
    pub target: Target,
    /// The target's name, for people: that of the VM, the command, or the group.
    pub name: String,
    /// The period.
    pub period_ns: u64,
    /// CPU time of each period, for each of [`Self::cpus`].
    pub slice_ns: u64,
    /// Whether the target gets nothing beyond its slices.
    pub hard: bool,
    /// As asked for ([`Reserve::phase_ns`]).
    pub phase_ns: Option<u64>,
    /// Whether the target is stopped until it is resumed.
    pub paused: bool,
    /// The CPU it runs on; for a VM one for each vCPU, in their order.
    pub cpus: Vec<u16>,
    /// How it is enforced, for people.
    pub mechanism: String,
    /// What it costs: its fraction of the time of all CPUs that can be reserved.
    pub host_ratio: f64,
    /// CPU time used over CPU time reserved in the periods of [`Self::recent`]; absent before the first has
    /// ended.
    pub efficiency_ratio: Option<f64>,
    /// Periods that have ended since it was made.
    pub periods: u64,
    /// Of these, those at whose end the target was runnable and had not got its slice.
    pub misses: u64,
    /// Of the misses, those in periods in which the machine stood still: the dispatcher itself came late.
    #[serde(default)]
    pub stalls: u64,
    /// The most of a slice that was missing at the end of a period.
    pub worst_miss_ns: u64,
    /// CPU time used in its slices.
    pub used_ns: u64,
    /// CPU time reserved, all slices of periods that have ended.
    pub reserved_ns: u64,
    /// The last seconds, oldest first; each entry covers one period, or as many short ones as end within 50
    /// ms. At most [`MOST_RECENT`].
    pub recent: Vec<Delivered>,
    /// What is wrong, for people.
    pub trouble: Option<String>,
}

/// Entries of [`Reservation::recent`].
pub const MOST_RECENT: usize = 100;

/// What a target got in one period, or in several short ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// When the last of the periods ended.
    pub end_ns: u64,
    /// How many.
    pub periods: u32,
    /// CPU time reserved in them.
    pub reserved_ns: u64,
    /// CPU time used in their slices.
    pub used_ns: u64,
    /// How many of them were missed.
    pub misses: u32,
}

/// What would have fitted, in place of an infeasible reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The largest slice that fits with the period asked for; 0 if none does.
    pub slice_ns: u64,
    /// The CPUs it would run on; none if none fits.
    pub cpus: Vec<u16>,
    /// What can still be reserved of every CPU, without what the target has already.
    pub free: Vec<CpuRoom>,
}

/// What can be reserved for, on a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Targets {
    /// [`super::SCHEMA`] of the daemon that wrote it.
    pub schema: u32,
    /// VMs by name, then processes, those that use most CPU first.
    pub targets: Vec<TargetStatus>,
    /// Processes that are not in the list, because there are too many.
    pub left_off: usize,
}

/// A VM or process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// How to name it in a request.
    pub target: Target,
    /// The VM's name, or the process's command name; as it was chosen by whoever started it.
    pub name: String,
    /// The process.
    pub pid: i32,
    /// The user it belongs to.
    pub uid: u32,
    /// The systemd unit it belongs to, if any.
    pub unit: Option<String>,
    /// CPUs in use, over a fraction of a second; 1 is one CPU.
    pub cpu_ratio: f64,
    /// Its threads.
    pub threads: u32,
    /// Whether it has a reservation.
    pub reserved: bool,
}
