//! Why a capacity cannot be told.

use frontdesk_replay::ReplayError;
use frontdesk_scenario::ScenarioError;
use frontdesk_sim::SimError;
use std::io;
use std::path::PathBuf;

/// Why a capacity cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum CapacityError {
    /// The profile cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The profile.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The profile is not TOML, or has keys that it cannot have.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The profile.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what would be accepted.
        message: String,
    },
    /// What a key of the profile says makes no sense.
    #[error("{}: {key}: {message}", path.display())]
    Key {
        /// The profile.
        path: PathBuf,
        /// The dotted key.
        key: String,
        /// What is wrong, and what would be accepted.
        message: String,
    },
    /// The scenario cannot be used.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The scenario cannot be run with so many desktops.
    #[error("with {desktops} desktops: {source}")]
    Run {
        /// How many.
        desktops: u32,
        /// Why not.
        source: Box<SimError>,
    },
    /// A recording cannot be gone through.
    #[error(transparent)]
    Recording(#[from] ReplayError),
    /// There is no VM in a recording.
    #[error(
        "{recording}: no VM was there while it was made; record while desktops are in use (frontdesk record FILE --duration 10min)"
    )]
    NoVms {
        /// The recording.
        recording: String,
    },
    /// A recording tells too little.
    #[error(
        "{recording}: it is {seconds:.1} s long, which tells of chance only; record for longer (frontdesk record FILE --duration 10min)"
    )]
    TooShort {
        /// The recording.
        recording: String,
        /// How long it is.
        seconds: f64,
    },
    /// Nobody waits for anything in a recording.
    #[error(
        "{recording}: nobody asked a VM for anything over its network while it was made, and capacity is about response times; record \
         while people work, or write a profile by hand"
    )]
    NobodyAsked {
        /// The recording.
        recording: String,
    },
    /// What is to be written is there already.
    #[error("{} is there already, and nothing is replaced; name another folder", path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
