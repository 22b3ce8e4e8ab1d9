//! What is known of a person's dealings with a guest.

use super::background::Background;
use super::clients::Clients;
use super::episode::Episodes;
use crate::event::Time;
use crate::state::StateError;
use serde::{Deserialize, Serialize};

/// What is known of a person's dealings with a guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Interaction {
    /// Whether anybody has used it or heard it.
    pub(super) attended: bool,
    pub(super) episodes: Episodes,
    pub(crate) background: Background,
    pub(crate) clients: Clients,
    /// The vCPUs that the guest keeps for background work in the episode that goes on, as bits; 0 if it keeps
    /// none.
    #[serde(default)]
    pub(super) isolated: u64,
}

impl Interaction {
    /// Checks what was loaded.
    pub(super) fn check(&self, now: Time) -> Result<(), StateError> {
        self.episodes.check(now)?;
        self.background.check()?;
        self.clients.check()
    }

    /// Bytes held beyond its own size.
    pub(super) fn bytes(&self) -> usize {
        self.background.bytes() + self.clients.bytes()
    }
}
