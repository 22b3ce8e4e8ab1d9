//! What the server itself answers, where the daemon does not.

use frontdesk_control_protocol::{Status, VmStatus};
use serde::{Deserialize, Serialize};

/// Says why a VM was or was not put first of late, in paragraphs, from what the daemon told.
pub type Explain = fn(&Status, &VmStatus) -> Vec<String>;

/// What whoever has logged in may do, and what there is to see.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SessionInfo {
    pub(crate) may_change: bool,
    /// The other hosts to be asked at `/hosts/NAME`.
    pub(crate) hosts: Vec<String>,
}

/// What a command gets for its password.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LoginToken {
    pub(crate) token: String,
}

/// Why a VM was or was not put first of late.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Why {
    /// A paragraph each.
    pub(crate) why: Vec<String>,
}
