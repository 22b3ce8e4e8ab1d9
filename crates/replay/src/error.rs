//! Why a recording cannot be gone through again.

use frontdesk_engine::ConfigError;
use frontdesk_record::RecordError;

/// A recording cannot be gone through again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// It holds parameters that the engine refuses.
    #[error("in the recording: {0}")]
    Config(#[from] ConfigError),
    /// It begins with neither parameters nor a state.
    #[error(
        "the recording does not begin with parameters or a state of the engine that this release can make out"
    )]
    NoBeginning,
    /// There is nothing to be shown.
    #[error("{name} has no events")]
    NoEvents {
        /// The recording.
        name: String,
    },
    /// There is too much to be shown at once.
    #[error("{name} has more than {most} slices and marks in this interval; choose a shorter one")]
    TooMany {
        /// The recording.
        name: String,
        /// How many are allowed.
        most: usize,
    },
}
