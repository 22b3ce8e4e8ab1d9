//! Looking in and reserving: what a running daemon says about itself and its VMs, and what it is told to
//! change, over a Unix socket.
//!
//! One request per connection, a line of JSON each way ([`Query`], [`Answer`]). Over the network the same
//! requests and answers are the bodies of HTTPS.

mod client;
mod connection;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod model;
mod protocol;
mod reservation;
mod target;

pub use client::{ClientError, ask, ask_recording, ask_status};
pub use connection::{DeadlineStream, Stream};
pub use model::{
    DaemonStatus, DecisionLatency, DiskStatus, ExtensionStatus, IdentityStatus, SCHEMA, SourceStatus, Status,
    Usage, VmFacts, VmStatus,
};
pub use protocol::{Answer, MAX_ANSWER_BYTES, MAX_QUERY_BYTES, Query, Refusal, RefusalKind, line};
pub use reservation::{
    CpuRoom, Delivered, Fit, MOST_RECENT, Reservation, Reservations, Reserve, TargetStatus, Targets,
};
pub use target::{Target, TargetError};

/// Begins what the daemon's log says about a VM that it does not act on although it should; the reason
/// follows.
pub const NOT_ACTING: &str = "not acting on the VM, only watching it";

/// What the daemon's log says when sched_ext is wanted, but cannot be had.
pub const BY_REAL_TIME: &str = "boosts by real-time priority instead of sched_ext";

/// What the daemon's log says when it has lost sched_ext.
pub const EJECTED: &str = "the kernel has ejected frontdesk's scheduler";

/// Where the daemon is asked, if nothing else is configured.
pub const DEFAULT_SOCKET: &str = "/run/frontdesk/control.sock";
