//! The machine on which a scenario is simulated.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The modelled machine: what the `[sim]` table of a scenario says. The lab ignores it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sim {
    /// The hypervisor's scheduler.
    pub scheduler: Scheduler,
    /// Physical CPUs, 1 to 128; as many as `host.vm_cpus` if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcpus: Option<u16>,
    /// Parameters of `scheduler = "credit"`.
    pub credit: Credit,
}

/// A hypervisor's scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Xen's credit scheduler (TAVS §2.2).
    Credit,
    /// That of Linux since 6.6, with control groups.
    #[default]
    Eevdf,
    /// That of Linux before, with control groups (vAMP).
    Cfs,
    /// Reservations, earliest deadline first (VSched §3.3).
    Edf,
}

/// Parameters of Xen's credit scheduler. The defaults are those of Xen 3.2, unmodified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Credit {
    /// Who runs at a tick pays 100 credits. 1 ms to 100 ms.
    #[serde(with = "humantime_serde")]
    pub tick: Duration,
    /// Length of a time slice, in ticks. 1 to 100.
    pub slice_ticks: u32,
    /// Credits are handed out every so many ticks. 1 to 100.
    pub accounting_ticks: u32,
    /// Measured run time is charged instead of ticks (TAVS §4.2).
    pub fine_accounting: bool,
    /// A vCPU preempted by a boosted driver domain goes to the head of its priority's list (TAVS §4.4).
    pub head_of_list: bool,
    /// BOOST is split: that of multimedia events lies above that of others (MM §3.3).
    pub multimedia_boost: bool,
    /// Credits are handed out by a timer of its own, as in Xen 3.4, not by the first CPU's tick.
    pub accounting_timer: bool,
    /// How far a timer may be off. 0 s to 1 ms.
    #[serde(with = "humantime_serde")]
    pub timer_slop: Duration,
    /// Whether timers fire late by up to that, as in Xen 3.4, rather than early.
    pub timers_late: bool,
}

impl Default for Credit {
    fn default() -> Self {
        Credit {
            tick: Duration::from_millis(10),
            slice_ticks: 3,
            accounting_ticks: 3,
            fine_accounting: false,
            head_of_list: false,
            multimedia_boost: false,
            accounting_timer: false,
            timer_slop: Duration::from_micros(50),
            timers_late: false,
        }
    }
}
