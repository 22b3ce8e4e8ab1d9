//! What clients ask of the daemon's loop, and how their threads wait for the answer.

use crate::control::ControlError;
use crate::control::permit::MAX_CLIENTS;
use crate::wake::Wake;
use frontdesk_control_protocol::{Answer, Query, Refusal, RefusalKind, Status, line};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// So long a client has for its request, the loop for its answer, and the client to take it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);
/// So long the loop has for what changes something. What it does later than that, nobody is told of; so it is
/// more than what a slow machine needs to change many threads. Less than what the client waits.
const CHANGE_DEADLINE: Duration = Duration::from_secs(15);

/// What clients ask of the loop.
#[derive(Debug)]
pub enum ControlRequest {
    /// For a copy of the state.
    Status(StatusRequest),
    /// For a recording.
    Record(RecordRequest),
    /// For a look at reservations, or a change of them.
    Reservation(ReservationRequest),
}

/// A client that waits for a copy of the state.
#[derive(Debug)]
pub struct StatusRequest {
    /// Only VMs of this name.
    pub vm: Option<String>,
    /// At most so many guest tasks of each vCPU, and ports of each VM.
    pub most: usize,
    reply: SyncSender<Result<Status, Refusal>>,
}

impl StatusRequest {
    pub(crate) fn new(
        vm: Option<String>,
        most: usize,
        reply: SyncSender<Result<Status, Refusal>>,
    ) -> StatusRequest {
        StatusRequest { vm, most, reply }
    }

    /// Answers. Never waits.
    pub fn answer(self, answer: Result<Status, Refusal>) {
        // A client that has gone needs no answer.
        let _ = self.reply.try_send(answer);
    }
}

/// A client that asks about reservations: one of [`Query::Reserve`], [`Query::Release`], [`Query::Pause`],
/// [`Query::Resume`] and [`Query::Reservations`]. Whether it may was looked at already.
#[derive(Debug)]
pub struct ReservationRequest {
    /// What it asks.
    pub query: Query,
    reply: SyncSender<Result<Answer, Refusal>>,
}

impl ReservationRequest {
    /// Answers with [`Answer::Reservation`], or [`Answer::Reservations`] to [`Query::Reservations`]. Never
    /// waits.
    pub fn answer(self, answer: Result<Answer, Refusal>) {
        // A client that has gone needs no answer.
        let _ = self.reply.try_send(answer);
    }
}

/// A client that waits for a recording.
#[derive(Debug)]
pub struct RecordRequest(UnixStream);

impl RecordRequest {
    pub(crate) fn new(stream: UnixStream) -> RecordRequest {
        RecordRequest(stream)
    }

    /// Tells the client that the recording follows; it is to be written to the stream. Never waits.
    ///
    /// # Errors
    /// The client has gone.
    pub fn accept(self) -> io::Result<UnixStream> {
        self.say(&Answer::Record {})
    }

    /// Tells the client why there is none. Never waits.
    pub fn refuse(self, message: impl Into<String>) {
        let refusal = Refusal::new(RefusalKind::Unavailable, message);
        // A client that has gone needs no answer.
        let _ = self.say(&Answer::Refused(refusal));
    }

    fn say(self, answer: &Answer) -> io::Result<UnixStream> {
        let mut stream = self.0;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        // Nothing was sent before, so there is room for a line.
        stream.set_nonblocking(true)?;
        stream.write_all(&line(answer))?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

/// How the threads ask the loop.
#[derive(Clone, Debug)]
pub(crate) struct LoopHandle {
    requests: SyncSender<ControlRequest>,
    wake: Wake,
}

pub(crate) fn channel() -> Result<(LoopHandle, Receiver<ControlRequest>, Wake), ControlError> {
    let (sender, receiver) = sync_channel(2 * MAX_CLIENTS);
    let failed = |source| ControlError::Serve { what: "make an eventfd", source };
    // One ring for each request.
    let wake = Wake::counting().map_err(failed)?;
    Ok((LoopHandle { requests: sender, wake: wake.clone() }, receiver, wake))
}

impl LoopHandle {
    pub(crate) fn send(&self, request: ControlRequest) -> Result<(), Refusal> {
        self.requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => unavailable("the daemon's loop does not answer"),
            TrySendError::Disconnected(_) => unavailable(ENDING),
        })?;
        self.wake.ring();
        Ok(())
    }

    /// Asks for a copy of the state and waits for it.
    pub(crate) fn status(&self, vm: Option<String>, most: usize) -> Result<Status, Refusal> {
        let (reply, answer) = sync_channel(1);
        self.send(ControlRequest::Status(StatusRequest::new(vm, most, reply)))?;
        wait_for(&answer, DEADLINE)
    }

    /// Asks about reservations and waits for the answer.
    pub(crate) fn reservation(&self, query: Query) -> Result<Answer, Refusal> {
        let (reply, answer) = sync_channel(1);
        let deadline = if query.changes() { CHANGE_DEADLINE } else { DEADLINE };
        self.send(ControlRequest::Reservation(ReservationRequest { query, reply }))?;
        wait_for(&answer, deadline)
    }
}

fn wait_for<T>(answer: &Receiver<Result<T, Refusal>>, deadline: Duration) -> Result<T, Refusal> {
    answer.recv_timeout(deadline).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => Err(unavailable("the daemon's loop does not answer")),
        RecvTimeoutError::Disconnected => Err(unavailable(ENDING)),
    })
}

const ENDING: &str = "the daemon is ending";

fn unavailable(message: &str) -> Refusal {
    Refusal::new(RefusalKind::Unavailable, message)
}
