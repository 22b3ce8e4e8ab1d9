//! What the daemon's loop tells the admission thread.

use super::VmThreads;
use crate::control::ReservationRequest;

/// What the admission thread is told.
pub(super) enum AdmissionRequest {
    /// Somebody asks.
    Ask(ReservationRequest, Vec<VmThreads>),
    /// The VMs that the daemon follows have changed.
    Vms(Vec<VmThreads>),
}
