//! All recordings that a daemon makes at a time.

use super::writer::{MAX_AGE_NS, PATIENCE, Recorder};
use super::{Record, RecordError};
use frontdesk_engine::reservation::TargetId;
use frontdesk_engine::{Engine, Time, VmId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Recordings for others that are made at the same time.
const MAX_CLIENTS: usize = 4;
/// What such a recording is called in errors.
const FOR_A_CLIENT: &str = "for a client";

/// A recording for somebody at the other end of a connection.
struct RecordingClient {
    recorder: Recorder,
    connection: UnixStream,
    /// When it was looked after last.
    looked: Time,
}

impl RecordingClient {
    /// Completes the recording once the other side has closed its half of the connection: it wants no more.
    fn look_after(&mut self, now: Time) {
        if now.since(self.looked) < MAX_AGE_NS {
            return;
        }
        self.looked = now;
        let mut fds = [PollFd::new(&self.connection, PollFlags::RDHUP)];
        if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            self.recorder.end();
        }
    }
}

/// All recordings of a daemon: its own, and those that others asked for.
#[derive(Default)]
pub struct Recordings {
    own: Option<Recorder>,
    clients: Vec<RecordingClient>,
    /// Why its own ended early.
    failed: Option<RecordError>,
}

impl Recordings {
    /// With the daemon's own, if it makes one.
    #[must_use]
    pub fn new(own: Option<Recorder>) -> Recordings {
        Recordings { own, ..Recordings::default() }
    }

    /// Whether one more recording may begin.
    ///
    /// # Errors
    /// There are too many already.
    pub fn room(&self) -> Result<(), RecordError> {
        let running = self.clients.len();
        if running < MAX_CLIENTS {
            return Ok(());
        }
        Err(RecordError::Busy { name: FOR_A_CLIENT.to_owned(), running })
    }

    /// Begins a recording in the middle of the daemon's life, of an engine that has no action left to be
    /// taken.
    ///
    /// # Errors
    /// There are too many already, the connection cannot be had twice, or the engine knows too much.
    pub fn begin<'a>(
        &mut self,
        connection: UnixStream,
        engine: &Engine,
        vms: impl Iterator<Item = (VmId, &'a str)>,
        targets: impl Iterator<Item = (TargetId, &'a str)>,
    ) -> Result<(), RecordError> {
        self.room()?;
        let name = FOR_A_CLIENT.to_owned();
        let sink = match connection.try_clone() {
            Ok(sink) => sink,
            Err(source) => return Err(RecordError::Io { name, source }),
        };
        let mut recorder = Recorder::start(sink, name)?;
        recorder.push_state(engine)?;
        vms.for_each(|(vm, name)| recorder.push(&Record::Vm { vm, name: name.to_owned() }));
        targets.for_each(|(target, name)| recorder.push(&Record::Target { target, name: name.to_owned() }));
        self.clients.push(RecordingClient { recorder, connection, looked: Time::default() });
        Ok(())
    }

    /// Whether nothing is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.own.is_none() && self.clients.is_empty()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Recorder> {
        self.own.iter_mut().chain(self.clients.iter_mut().map(|client| &mut client.recorder))
    }

    /// Adds a record to each; `record` is not called if there is none.
    pub fn push(&mut self, record: impl FnOnce() -> Record) {
        if !self.is_empty() {
            let record = record();
            self.all().for_each(|recorder| recorder.push(&record));
        }
    }

    /// Hands over what has waited for long enough, and looks after recordings that have ended or are to end.
    /// Call it at least each half second.
    pub fn tick(&mut self, now: Time) {
        self.all().for_each(|recorder| recorder.tick(now));
        self.clients.iter_mut().for_each(|client| client.look_after(now));
        for RecordingClient { recorder, connection, .. } in
            self.clients.extract_if(.., |client| client.recorder.has_ended())
        {
            // Lets go of a thread that still waits for a client that does not read. It may have gone already.
            let _ = connection.shutdown(Shutdown::Both);
            match recorder.result() {
                Err(error @ RecordError::Overflow { .. }) => tracing::warn!("{error}"),
                // It left without a word.
                Err(error) => tracing::debug!("{error}"),
                Ok(()) => {}
            }
        }
        if let Some(ended) = self.own.take_if(|recorder| recorder.has_ended())
            && let Err(error) = ended.result()
        {
            tracing::error!("{error}");
            self.failed = Some(error);
        }
    }

    /// Recordings that are being made for others.
    #[cfg(test)]
    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Ends all recordings in order.
    ///
    /// # Errors
    /// The daemon's own recording is not complete.
    pub fn finish(self) -> Result<(), RecordError> {
        let deadline = Instant::now() + PATIENCE;
        for client in self.clients {
            if let Err(error) = client.recorder.finish_by(deadline) {
                tracing::debug!("{error}");
            }
        }
        self.own.map_or(Ok(()), |own| own.finish_by(deadline))?;
        self.failed.map_or(Ok(()), Err)
    }
}
