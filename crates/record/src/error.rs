//! Why a recording cannot be written or read.

use crate::frame;

const OLDER: &str = "use the release that recorded it, or record anew with this one";
const NEWER: &str = "a later release recorded it; use that one, or one that came after it";

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
    /// Its format is another one.
    #[error(
        "recording {name} has format version {found}, and this frontdesk reads version {}: {}",
        frame::MAJOR,
        if *found < frame::MAJOR { OLDER } else { NEWER }
    )]
    Version {
        /// The file or connection.
        name: String,
        /// Its major version.
        found: u16,
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
