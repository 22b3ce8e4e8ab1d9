//! Who may look in, and where.

use frontdesk_control_protocol::DEFAULT_SOCKET;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Who may look in, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ControlConfig {
    /// The Unix socket. A missing folder is created.
    pub socket: PathBuf,
    /// Members of this group may look in, besides root and the daemon's own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Members of this group may look in and change reservations, besides root and the daemon's own user.
    /// Nobody else may if there is no such group.
    pub operators: String,
    /// What they may reserve, pause, resume or release: patterns of targets, as `frontdesk ps` writes them,
    /// with `*` and `?`. Root may everything.
    pub operator_targets: Vec<String>,
    /// This user may serve disks (`frontdesk disk`), besides root and the daemon's own user: it hears of
    /// inputs and tasks of the VMs that are connected to it. Nobody else may if there is no such user.
    pub disk_user: String,
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
            operator_targets: vec!["vm:*".to_owned()],
            disk_user: "frontdesk".to_owned(),
            metrics: None,
        }
    }
}

impl ControlConfig {
    /// Where back ends of disks are heard: beside the control socket.
    #[must_use]
    pub fn disk_socket(&self) -> PathBuf {
        self.socket.with_extension("disk")
    }
}
