//! Periodic reservations on a real host (VSched): who has which slice of which period, kept by a thread that
//! dispatches.
//!
//! The daemon's loop hands requests to the *admission thread*, a thread of its own, for finding threads and
//! recording what they had takes milliseconds. The admission thread admits reservations, takes hold of the
//! targets' threads and tells the *controller*, the thread that dispatches. `docs/reservations.md` says what
//! is done to a target and why.

mod admission;
mod bell;
mod controller;
mod deadline;
mod enforce;
mod fair;
mod follow;
mod margin;
mod members;
mod order;
mod promises;
mod reserved;
mod reserved_group;
mod running;
mod settings;
mod stats;
mod target;
mod tell;
mod threads;
mod trace;
mod user;

pub(crate) use fair::FAIR_SERVERS;
pub(crate) use reserved_group::make_room;
pub use settings::{ReserveMechanism, ReserveSettings};
pub(crate) use target::VmThreads;
pub(crate) use trace::{TraceReader, TraceSource};

use crate::control::ReservationRequest;
use crate::notification::Mailbox;
use crate::wake::Wake;
use admission::AdmissionThread;
use frontdesk_guardian::Guardian;
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_probes::BpfError;
use frontdesk_probes::meter::MemberMeter;
use order::AdmissionRequest;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Orders that may wait.
const CAPACITY: usize = 64;

/// The admission thread's owner. Dropping it ends all reservations: the guardian puts back what the targets
/// had.
pub(crate) struct Reserves {
    orders: Option<SyncSender<AdmissionRequest>>,
    wake: Wake,
    thread: Option<JoinHandle<()>>,
}

impl Reserves {
    /// Starts the admission thread. Nothing is changed on the host before the first reservation.
    pub(crate) fn start(
        settings: &ReserveSettings,
        own_cpus: &[u16],
        hierarchy: Hierarchy,
        guardian: Arc<Guardian>,
        mailbox: Mailbox,
        trace: TraceSource,
    ) -> io::Result<Reserves> {
        let (orders, receiver) = sync_channel(CAPACITY);
        let wake = Wake::new()?;
        let admission = AdmissionThread::new(settings, own_cpus, hierarchy, guardian, mailbox, trace)?;
        let bell = wake.clone();
        let thread = std::thread::Builder::new()
            .name("reserve".into())
            .spawn(move || admission.run(&receiver, &bell))?;
        Ok(Reserves { orders: Some(orders), wake, thread: Some(thread) })
    }

    /// Has a request for a reservation looked at: it is refused, or posted to the loop as
    /// [`Admissible`](crate::notification::Notification::Admissible). Never waits.
    pub(crate) fn consider(&self, request: ReservationRequest, vms: Vec<VmThreads>) {
        self.order(AdmissionRequest::Consider(request, vms));
    }

    /// Has a request answered; whether the admission thread was given it. Never waits.
    pub(crate) fn ask(&self, request: ReservationRequest, vms: Vec<VmThreads>) -> bool {
        // An admission thread that is this far behind does not answer in time; whoever asked is told so.
        self.order(AdmissionRequest::Ask(request, vms))
    }

    /// The VMs that are followed have changed. Never waits.
    pub(crate) fn vms(&self, vms: Vec<VmThreads>) {
        self.order(AdmissionRequest::Vms(vms));
    }

    fn order(&self, order: AdmissionRequest) -> bool {
        let given = self.orders.as_ref().is_some_and(|orders| orders.try_send(order).is_ok());
        if given {
            self.wake.ring();
        }
        given
    }
}

impl Drop for Reserves {
    fn drop(&mut self) {
        drop(self.orders.take());
        self.wake.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Loads and attaches the meter for a moment.
///
/// # Errors
/// The kernel refuses, and why.
pub(crate) fn probe() -> Result<(), BpfError> {
    MemberMeter::open(&[0]).map(drop)
}
