//! What runs while there are reservations: the meter and the thread that dispatches.

use super::ReserveMechanism;
use super::controller::{Command, Controller};
use super::deadline::Deadline;
use super::enforce::Enforce;
use super::ring;
use super::trace::TraceSource;
use super::user::User;
use frontdesk_guardian::Guardian;
use frontdesk_probes::meter::{Birth, Meter, Ring, Tidings};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// What runs while there are reservations.
pub(super) struct Running {
    pub(super) meter: Meter,
    pub(super) births: Ring,
    pub(super) born: Receiver<Birth>,
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    controller: Option<JoinHandle<()>>,
}

impl Running {
    pub(super) fn start(
        mechanism: ReserveMechanism,
        cpus: Vec<u16>,
        guardian: &Guardian,
        trace: &TraceSource,
    ) -> Result<Running, StartError> {
        let enforcer: Box<dyn Enforce> = match mechanism {
            ReserveMechanism::Deadline => Box::new(Deadline::default()),
            _ => Box::new(User::default()),
        };
        let promise = guardian.promise()?;
        let (meter, Tidings { kicks, births, born }) = Meter::open()?;
        let (commands, receiver) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let controller = Controller {
            slots: meter.slots.clone(),
            kicks,
            commands: receiver,
            wake: Arc::clone(&wake),
            cpus,
            enforcer,
            promise,
            trace: trace.writer(),
        };
        let thread = std::thread::Builder::new().name("dispatch".into()).spawn(move || controller.run())?;
        Ok(Running { meter, births, born, commands, wake, controller: Some(thread) })
    }

    pub(super) fn send(&self, command: Command) {
        // It fails only when the controller has ended, which it does after us.
        let _ = self.commands.send(command);
        ring(&self.wake);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The last sender but one goes with `self`.
        self.commands = channel().0;
        ring(&self.wake);
        if let Some(controller) = self.controller.take() {
            let _ = controller.join();
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Meter(#[from] frontdesk_probes::BpfError),
    #[error("can't start a thread: {0}")]
    Thread(#[from] std::io::Error),
    #[error("can't make an eventfd: {0}")]
    Eventfd(#[from] rustix::io::Errno),
}
