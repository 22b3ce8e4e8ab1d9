//! Decisions and their reasons, of any policy.

use crate::event::{Protocol, Time};
use serde::{Deserialize, Serialize};

/// What a decision was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A packet was queued towards the VM.
    Packet {
        /// Transport protocol.
        protocol: Protocol,
        /// Destination port.
        port: u16,
    },
    /// A thread of the I/O path woke up, probably to end a read of the VM.
    PendingRead,
    /// A read of the VM ended.
    Read,
    /// A boost ended before its event was answered, and an I/O-bound task was seen after that.
    Unanswered,
}

/// A decision about an event, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// When.
    #[serde(rename = "at_ns")]
    pub at: Time,
    /// What it was about.
    pub cause: Cause,
    /// The outcome.
    pub verdict: Reason,
}

/// Makes [`Reason`] and [`Outcomes`]: what each reason is called, counted as, and in words.
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident, $count:ident, $words:literal;)*) => {
        /// Why an event boosted a vCPU, or did not.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason {
            $($(#[$doc])* $reason,)*
        }

        impl Reason {
            /// Every reason.
            pub const ALL: &[Reason] = &[$(Reason::$reason),*];
        }

        impl std::fmt::Display for Reason {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str(match self {
                    $(Reason::$reason => $words,)*
                })
            }
        }

        /// How many decisions came out how; a count for each [`Reason`].
        /// One that is not told is 0: there may be more reasons than when it was written.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Outcomes {
            $($(#[$doc])* pub $count: u32,)*
        }

        impl Outcomes {
            fn slot(&mut self, reason: Reason) -> &mut u32 {
                match reason {
                    $(Reason::$reason => &mut self.$count,)*
                }
            }
        }
    };
}

reasons! {
    /// It boosted.
    Boosted, boosted, "boosted";
    /// A vCPU of the VM was boosted already.
    AlreadyBoosted, already_boosted, "boosted already";
    /// The correlation does not say that an I/O-bound task waits for such an event.
    NotCorrelated, not_correlated, "not correlated with an I/O-bound task";
    /// No guest task of the VM is I/O-bound.
    NoIoBoundTask, no_io_bound_task, "no I/O-bound task";
    /// The vCPU has used up `pb_ratio`.
    BudgetSpent, budget_spent, "pb_ratio is used up";
    /// The VM has used up `boost_limit`.
    LimitReached, limit_reached, "boost_limit is used up";
    /// The VM owes CPU time, and half of its share and more were boosts of late: it has to repay first.
    Overdrawn, overdrawn, "the VM owes too much";
    /// Boosting is turned off, for all (`pb_ratio` is 0) or for this VM.
    Off, off, "boosting is off";
    /// The VM is paused.
    Paused, paused, "the VM is paused";
    /// It would have boosted, but the world or the VM is only observed.
    Observed, observed, "only observed";
    /// It would have boosted, but the VM is scheduled by its reservation.
    Reserved, reserved, "the VM has a reservation";
}

/// The decisions about a VM in the last minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    /// The window, in seconds, of which the last tenth is not over yet.
    pub window_seconds: u64,
    /// About packets, by port; the most frequent first.
    pub packets: Vec<PortOutcomes>,
    /// About packets to further ports.
    pub other_packets: Outcomes,
    /// About signs that a read is about to end.
    pub pending_reads: Outcomes,
    /// About reads that ended.
    pub reads: Outcomes,
    /// About I/O-bound tasks seen after a boost that ended before its event was answered.
    pub unanswered: Outcomes,
    /// Boosts that ended.
    pub boosts_ended: u32,
    /// Of these, those in which an I/O-bound task ran.
    pub hits: u32,
    /// The latest decisions one by one, oldest first; they may be older than the window.
    pub decisions: Vec<Decision>,
}

/// The decisions about packets to one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortOutcomes {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Destination port.
    pub port: u16,
    /// The port's saturating counter now.
    pub counter: u64,
    /// How they were decided.
    pub outcomes: Outcomes,
}

impl Outcomes {
    /// How many came out for this reason.
    #[must_use]
    pub fn of(mut self, reason: Reason) -> u32 {
        *self.slot(reason)
    }

    /// How many there were.
    #[must_use]
    pub fn total(self) -> u32 {
        Reason::ALL.iter().fold(0, |sum, reason| sum.saturating_add(self.of(*reason)))
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Outcomes) {
        for reason in Reason::ALL {
            let slot = self.slot(*reason);
            *slot = slot.saturating_add(other.of(*reason));
        }
    }

    pub(crate) fn count(&mut self, reason: Reason) {
        let slot = self.slot(reason);
        *slot = slot.saturating_add(1);
    }
}
