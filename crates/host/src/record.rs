//! Recordings of a daemon's run: every event it fed the engine and every action the engine decided.
//!
//! A recording is enough to repeat the run: the same state, events and deadlines give the same actions.
//! `docs/recording.md` says how it lies in a file or goes over a socket: a header with the format's version,
//! then frames, each with its length, its checksum and a compressed block of [`Record`]s. Whatever cuts a
//! recording short, up to its last whole frame it can be read.

mod frame;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use reader::{Ending, Recording, read_recording};
pub use writer::Recorder;
pub(crate) use writer::Recordings;

use frontdesk_engine::reservation::{self, Dispatch, Dispatcher, TargetId};
use frontdesk_engine::{Action, Config, Engine, Event, Time, VmId, VmPolicy};
use serde::{Deserialize, Serialize};

/// One entry of a recording, in the order in which the daemon met it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record {
    /// The engine as it was. The first record of a recording that begins in the middle of a daemon's life.
    State(Box<Engine>),
    /// The engine's parameters. The first record of a recording that begins with the daemon, whose engine
    /// knows no VM then; later, the parameters that the engine was given.
    Config(Config),
    /// What holds for one VM only, from now on.
    Policy {
        /// The VM.
        vm: VmId,
        /// The policy that the engine was given.
        policy: VmPolicy,
    },
    /// The name of a VM.
    Vm {
        /// The VM.
        vm: VmId,
        /// Its name.
        name: String,
    },
    /// The engine was given this event.
    Event(Event),
    /// The engine was told this time.
    Deadline(Time),
    /// The engine decided this, and it was applied.
    Applied {
        /// The action.
        action: Action,
        /// Nanoseconds from the event that caused it to its effect.
        latency_ns: u64,
    },
    /// The engine decided this, and it was not applied: the VM is gone, or can't be acted on any more.
    Discarded(Action),
    /// A dispatcher of reservations as it was: when it began, when a recording began in the middle of its
    /// life, and after a loss. What is told of its decisions before the first of these is of no use.
    Dispatcher {
        /// The CPU for which it decides.
        cpu: u16,
        /// Its state.
        state: Box<Dispatcher>,
    },
    /// A dispatcher of reservations was told this, decided that, and it was carried out.
    Decision {
        /// The CPU for which it decides.
        cpu: u16,
        /// What it was told.
        event: reservation::Event,
        /// What it decided, in order.
        dispatches: Vec<Dispatch>,
    },
    /// So many decisions about reservations were made faster than they could be recorded. Their dispatcher
    /// follows as it was after them.
    DecisionsLost {
        /// How many.
        decisions: u64,
    },
    /// The name of a target that has a reservation.
    Target {
        /// The target.
        target: TargetId,
        /// Its name, as in a request.
        name: String,
    },
    /// The recording ended in order; last. A [`Recording`] tells this as its [`Ending`].
    End,
}

impl Record {
    /// Whether it is about reservations, which the engine knows nothing of.
    #[must_use]
    pub fn is_about_reservations(&self) -> bool {
        matches!(
            self,
            Record::Dispatcher { .. }
                | Record::Decision { .. }
                | Record::DecisionsLost { .. }
                | Record::Target { .. }
        )
    }
}

/// A recording could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It could not be opened, read or written.
    #[error("recording {name}: {source}")]
    Io {
        /// The file or connection.
        name: String,
        /// What failed.
        source: std::io::Error,
    },
    /// It is something else.
    #[error("{name} is not a recording: those are made by `frontdesk record` and `frontdesk run --record`")]
    NotARecording {
        /// The file or connection.
        name: String,
    },
    /// Another release made it.
    #[error(
        "recording {name} has format version {found}, and this frontdesk reads version {}: use the release that recorded it",
        frame::VERSION
    )]
    Version {
        /// The file or connection.
        name: String,
        /// Its version.
        found: u32,
    },
    /// It is damaged.
    #[error("recording {name} is damaged at byte {at}, after {records} records: {reason}")]
    Damaged {
        /// The file or connection.
        name: String,
        /// Where the damaged frame begins.
        at: u64,
        /// Records before it, which can be used.
        records: u64,
        /// What was found.
        reason: String,
    },
    /// All of it was asked for, and it has no end.
    #[error(
        "recording {name} is incomplete: it stops after {records} records, as if its recorder had been killed"
    )]
    Incomplete {
        /// The file or connection.
        name: String,
        /// Records in it.
        records: u64,
    },
    /// What is recorded came faster than it could be written.
    #[error("recording {name} ended early: it does not take what is recorded as fast as that comes")]
    Overflow {
        /// The file or connection.
        name: String,
    },
    /// The engine knows too much.
    #[error(
        "recording {name}: the engine's state takes {bytes} bytes, and a block holds {}",
        frame::MAX_BLOCK
    )]
    State {
        /// The file or connection.
        name: String,
        /// Size of the state.
        bytes: usize,
    },
    /// Others record already.
    #[error("recording {name}: {running} others are being made, and no more can be; end one of them")]
    Busy {
        /// The file or connection.
        name: String,
        /// How many.
        running: usize,
    },
}
