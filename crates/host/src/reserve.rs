//! Periodic reservations on a real host (VSched): who has which slice of which period, kept by a thread that dispatches.
//!
//! The daemon's loop hands requests to the *keeper*, a thread of its own, for finding threads and recording what they had takes
//! milliseconds. The keeper admits reservations, takes hold of the targets' threads and tells the *controller*, the thread that dispatches.
//! `docs/reservations.md` says what is done to a target and why.

mod bell;
mod controller;
mod cpus;
mod deadline;
mod enforce;
mod fair;
mod held;
mod keeper;
mod margin;
mod meter;
mod pen;
mod promises;
mod reserved;
mod running;
mod target;
mod told;
mod trace;
mod user;

pub use enforce::ReserveMechanism;
pub(crate) use fair::FAIR_SERVERS;
pub(crate) use pen::make_room;
pub(crate) use target::Vm;
pub(crate) use trace::{TraceReader, TraceSource};

use crate::bpf::BpfError;
use crate::cgroup::Hierarchy;
use crate::control::ReservationRequest;
use crate::guardian::Guardian;
use crate::watch::Mailbox;
use keeper::Keeper;
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Reservations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReserveSettings {
    /// How reservations are kept; "auto", "user" or "deadline".
    pub mechanism: ReserveMechanism,
    /// The part of each CPU that can't be reserved: the administrator's reserve (VSched §3.3), for everything without a reservation. 0.01
    /// to 0.95.
    pub spare: f64,
    /// Physical CPUs on which reservations are made; all if empty. 0 to 1023.
    pub cpus: Vec<u16>,
}

impl Default for ReserveSettings {
    fn default() -> Self {
        ReserveSettings { mechanism: ReserveMechanism::Auto, spare: 0.05, cpus: Vec::new() }
    }
}

/// What the keeper is told.
enum Order {
    /// Somebody asks.
    Ask(ReservationRequest, Vec<Vm>),
    /// The VMs that the daemon follows have changed.
    Vms(Vec<Vm>),
}

impl ReserveSettings {
    /// The part of a CPU that reserved targets may use in real time: between what can be reserved and the whole, for who runs a little too
    /// long is not to be throttled. The rest is what the kernel gives ordinary threads at least.
    pub(crate) fn real_time(&self) -> f64 {
        1.0 - self.spare / 2.0
    }
}

/// Orders that may wait.
const CAPACITY: usize = 64;

/// The keeper's owner. Dropping it ends all reservations: the guardian puts back what the targets had.
pub(crate) struct Reserves {
    orders: Option<SyncSender<Order>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Reserves {
    /// Starts the keeper. Nothing is changed on the host before the first reservation.
    pub(crate) fn start(
        settings: &ReserveSettings,
        own_cpus: &[u16],
        hierarchy: Hierarchy,
        guardian: Arc<Guardian>,
        mailbox: Mailbox,
        trace: TraceSource,
    ) -> io::Result<Reserves> {
        let (orders, receiver) = sync_channel(CAPACITY);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let keeper = Keeper::new(settings, own_cpus, hierarchy, guardian, mailbox, trace)?;
        let bell = Arc::clone(&wake);
        let thread =
            std::thread::Builder::new().name("reserve".into()).spawn(move || keeper.run(&receiver, &bell))?;
        Ok(Reserves { orders: Some(orders), wake, thread: Some(thread) })
    }

    /// Has a request answered; whether the keeper was given it. Never waits.
    pub(crate) fn ask(&self, request: ReservationRequest, vms: Vec<Vm>) -> bool {
        // A keeper that is this far behind does not answer in time; whoever asked is told so.
        self.order(Order::Ask(request, vms))
    }

    /// The VMs that are followed have changed. Never waits.
    pub(crate) fn vms(&self, vms: Vec<Vm>) {
        self.order(Order::Vms(vms));
    }

    fn order(&self, order: Order) -> bool {
        let given = self.orders.as_ref().is_some_and(|orders| orders.try_send(order).is_ok());
        if given {
            ring(&self.wake);
        }
        given
    }
}

impl Drop for Reserves {
    fn drop(&mut self) {
        drop(self.orders.take());
        ring(&self.wake);
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
    meter::Meter::open(&[0]).map(drop)
}

/// Makes an eventfd readable.
fn ring(wake: &OwnedFd) {
    // It counts far less than it has room for.
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}
