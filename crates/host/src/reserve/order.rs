//! What the daemon's loop tells the admission thread.

use super::VmThreads;
use crate::control::ReservationRequest;

/// What the admission thread is told.
pub(super) enum AdmissionRequest {
    /// Somebody asks for a reservation. If it is not to be refused, the loop hears of it, makes room and
    /// asks: one that is refused changes nothing for anybody.
    Consider(ReservationRequest, Vec<VmThreads>),
    /// Somebody asks.
    Ask(ReservationRequest, Vec<VmThreads>),
    /// The VMs that the daemon follows have changed.
    Vms(Vec<VmThreads>),
}
