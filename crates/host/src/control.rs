//! Looking in and reserving: what a running daemon says about itself and its VMs, and what it is told to change, over a Unix socket; and
//! metrics for Prometheus, over HTTP.
//!
//! One request per connection, a line of JSON each way ([`Query`], [`Answer`]). Clients are served by threads at ordinary
//! priority; these ask the daemon's loop, which only copies its state ([`Status`]) and never waits. A client that stalls, floods
//! or talks nonsense is dropped within seconds, and the loop does not notice.
//!
//! Root and the daemon's own user may look in and change reservations. The configuration names a group that may look in, and another
//! that may do both.

mod access;
mod client;
mod connection;
mod haste;
mod http;
mod metrics;
mod model;
mod protocol;
mod reservation;
mod server;
mod target;
mod targets;
#[cfg(test)]
mod tests;

pub use crate::scx::Usage;
pub use client::{ClientError, ask, ask_recording, ask_status};
pub use metrics::exposition;
pub(crate) use model::VmFacts;
pub use model::{DaemonStatus, Identity, Latency, SCHEMA, SourceStatus, Status, VmStatus};
pub use protocol::{Answer, MAX_ANSWER_BYTES, MAX_QUERY_BYTES, Query, Refusal, RefusalKind};
pub use reservation::{
    CpuRoom, Delivered, Fit, MOST_RECENT, Reservation, Reservations, Reserve, TargetStatus, Targets,
};
pub use server::{Control, RecordRequest, Request, ReservationRequest, StatusRequest};
pub use target::{Target, TargetError};

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where the daemon is asked, if nothing else is configured.
pub const DEFAULT_SOCKET: &str = "/run/frontdesk/control.sock";

/// Who may look in, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ControlConfig {
    /// The Unix socket. A missing folder is created.
    pub socket: PathBuf,
    /// Members of this group may look in, besides root and the daemon's own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Members of this group may look in and change reservations, besides root and the daemon's own user. Nobody else may if there is no
    /// such group.
    pub operators: String,
    /// Address at which Prometheus may fetch metrics over HTTP, by anybody who reaches it; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
}

impl Default for ControlConfig {
    fn default() -> Self {
        ControlConfig {
            socket: PathBuf::from(DEFAULT_SOCKET),
            group: None,
            operators: "frontdesk".to_owned(),
            metrics: None,
        }
    }
}

/// The daemon can't be made to answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another daemon answers there.
    #[error(
        "a frontdesk daemon with process id {pid} answers at {socket} already; one is enough for a host. End it first, or set \
         another control socket", socket = .socket.display()
    )]
    InUse {
        /// The socket.
        socket: PathBuf,
        /// The process that answers.
        pid: i32,
    },
    /// The socket could not be made.
    #[error("can't {what} for the control socket {socket}: {source}", socket = .socket.display())]
    Socket {
        /// What was tried.
        what: &'static str,
        /// The socket.
        socket: PathBuf,
        /// What failed.
        source: std::io::Error,
    },
    /// The group does not exist.
    #[error(
        "control.group = \"{0}\": there is no such group; add it with `groupadd --system {0}`, or name another"
    )]
    NoGroup(String),
    /// The address for metrics can't be had.
    #[error("can't listen at control.metrics = \"{address}\": {source}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// What failed.
        source: std::io::Error,
    },
    /// A thread or descriptor for serving clients could not be had.
    #[error("can't {what} for serving clients: {source}")]
    Serve {
        /// What was tried.
        what: &'static str,
        /// What failed.
        source: std::io::Error,
    },
}
