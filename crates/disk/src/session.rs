//! What a front end has set up of a disk.

use crate::inflight::Inflight;
use crate::memory::Memory;
use crate::vring::Vring;
use std::sync::Arc;

/// What the device works with: shared memory, rings, what is in flight. Gone with the connection.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// The guest's memory.
    pub(crate) memory: Option<Arc<Memory>>,
    /// What the front end keeps about requests in flight.
    pub(crate) inflight: Option<Inflight>,
    /// The queues that were named yet.
    pub(crate) vrings: Vec<Vring>,
    /// Virtio features that the guest's driver has accepted.
    pub(crate) features: u64,
    /// Whether the guest is told how far it may go before it kicks again.
    pub(crate) event_index: bool,
}
