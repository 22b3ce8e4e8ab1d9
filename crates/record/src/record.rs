//! What can be in a recording.

use frontdesk_engine::reservation::{self, Dispatch, Dispatcher, TargetId};
use frontdesk_engine::{Action, Config, Engine, Event, RecordedConfig, RecordedPolicy, Time, VmId, VmPolicy};
use serde::{Deserialize, Serialize};

/// One entry of a recording, in the order in which the daemon met it.
///
/// Its names and those of all that is in it are the format's, which `docs/recording.md` specifies: later
/// releases read them. Whatever is renamed in the code keeps its name there by a `serde(rename)`; a new field
/// has a `serde(default)`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "records are handled one at a time")]
pub enum Record {
    /// The engine as it was. The first record of a recording that begins in the middle of a daemon's life.
    State(Box<Engine>),
    /// The engine's parameters. The first record of a recording that begins with the daemon, whose engine
    /// knows no VM then; later, the parameters that the engine was given.
    Config(#[serde(with = "RecordedConfig")] Config),
    /// What holds for one VM only, from now on.
    Policy {
        /// The VM.
        vm: VmId,
        /// The policy that the engine was given.
        #[serde(with = "RecordedPolicy")]
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
    /// The engine decided this, and it was not applied: the VM is gone, or cannot be acted on any more.
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
        event: reservation::ReservationEvent,
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
    /// The recording ended in order; last. A [`Recording`](crate::Recording) tells this as its
    /// [`Ending`](crate::Ending).
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
