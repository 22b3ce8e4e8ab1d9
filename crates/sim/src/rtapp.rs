//! rt-app's workload files: JSON that kernel scheduler people describe task sets with, as the
//! `doc/tutorial.txt` of rt-app documents it.
//!
//! A file becomes a [`Plan`]: the tasks of a guest, as programs. Read are `tasks`, `phases`, `loop`,
//! `instance`, `delay`, `cpus`, `policy`, `priority`, and the events `run`, `runtime`, `sleep`, `timer`,
//! `lock`, `unlock`, `wait`, `signal`, `broad`, `sync`, `suspend`, `resume`, `mem` and `iorun`. An event's
//! name may have anything after it (`run0`, `run1`), and a name may come more than once in an object. What
//! concerns rt-app itself in `global` (calibration, logs, duration) is left out; anything else is refused
//! with its path.

mod fault;
mod json;
mod tasks;

use json::Value;
use std::path::{Path, PathBuf};

pub(crate) use fault::Conditions;
use fault::{Fault, fault};
pub(crate) use tasks::Plan;

/// A file of rt-app that the model cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RtAppError {
    /// It cannot be read.
    #[error("cannot read the rt-app file {}: {message}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
    /// It is not JSON.
    #[error(
        "the rt-app file {} is not JSON: {message}; what workgen would repair (comments, commas, missing values) must be repaired before",
        path.display()
    )]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser expected, and where.
        message: String,
    },
    /// Something in it is unknown, out of range, or not modelled.
    #[error("the rt-app file {}: {key}: {message}", path.display())]
    Part {
        /// The file.
        path: PathBuf,
        /// The dotted path of what it concerns.
        key: String,
        /// What is wrong, and what would be accepted.
        message: String,
    },
}

/// Largest file, in bytes.
const MOST_BYTES: u64 = 4 << 20;

/// Reads a file.
pub(crate) fn load(path: &Path, guest: &Conditions) -> Result<Plan, RtAppError> {
    let read = |message: String| RtAppError::Read { path: path.to_owned(), message };
    let length = std::fs::metadata(path).map_err(|error| read(error.to_string()))?.len();
    if length > MOST_BYTES {
        return Err(read(format!("it has {length} bytes; at most {MOST_BYTES} are read")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| read(error.to_string()))?;
    parse(&text, path, guest)
}

pub(crate) fn parse(text: &str, path: &Path, guest: &Conditions) -> Result<Plan, RtAppError> {
    let file: Value = serde_json::from_str(text)
        .map_err(|error| RtAppError::Syntax { path: path.to_owned(), message: error.to_string() })?;
    tasks::plan(&file, guest).map_err(|Fault { key, message }| RtAppError::Part {
        path: path.to_owned(),
        key,
        message,
    })
}

#[cfg(test)]
mod tests;
