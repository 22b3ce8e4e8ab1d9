//! Why a capacity cannot be told.

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
}
