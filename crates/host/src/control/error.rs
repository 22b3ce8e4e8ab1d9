//! Why the daemon cannot be made to answer.

use std::net::SocketAddr;
use std::path::PathBuf;

/// The daemon cannot be made to answer.
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
    #[error("cannot {what} for the control socket {socket}: {source}", socket = .socket.display())]
    Socket {
        /// What was tried.
        what: &'static str,
        /// The socket.
        socket: PathBuf,
        /// What failed.
        source: std::io::Error,
    },
    /// Back ends of disks cannot be heard.
    #[error("cannot listen for back ends of disks at {socket}: {source}", socket = .socket.display())]
    Disks {
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
    /// The address for metrics cannot be had.
    #[error("cannot listen at control.metrics = \"{address}\": {source}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// What failed.
        source: std::io::Error,
    },
    /// A thread or descriptor for serving clients could not be had.
    #[error("cannot {what} for serving clients: {source}")]
    Serve {
        /// What was tried.
        what: &'static str,
        /// What failed.
        source: std::io::Error,
    },
}
