//! Why a sweep cannot be made.

use frontdesk_scenario::ScenarioError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a sweep cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The sweep file is not TOML, or has keys that it cannot have.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The sweep file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what would be accepted.
        message: String,
    },
    /// What a key of the sweep file says makes no sense.
    #[error("{}: {key}: {message}", path.display())]
    Key {
        /// The sweep file.
        path: PathBuf,
        /// The dotted key.
        key: String,
        /// What is wrong, and what would be accepted.
        message: String,
    },
    /// The scenario cannot be used, or not with one of the sets of parameters.
    #[error("{}: {source}", path.display())]
    Scenario {
        /// The sweep file.
        path: PathBuf,
        /// What is wrong.
        source: Box<ScenarioError>,
    },
    /// Another sweep writes into the folder.
    #[error(
        "another sweep writes into {} (process {holder}); wait for its end, or choose another folder with --out",
        path.display()
    )]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Its process id.
        holder: String,
    },
    /// The folder holds the results of another sweep.
    #[error(
        "{} holds results of another sweep: its sweep file, its scenario, or the columns of its rows differ; \
         choose another folder with --out, or remove this one",
        path.display()
    )]
    OtherSweep {
        /// The folder.
        path: PathBuf,
    },
    /// Another build of frontdesk made some of the rows: the others would not be comparable.
    #[error(
        "{} holds some of the rows, made by another build of frontdesk{}; go on with that one, choose another \
         folder with --out, or remove this one",
        path.display(),
        if built.is_empty() { String::new() } else { format!(", {built}") }
    )]
    OtherBuild {
        /// The folder.
        path: PathBuf,
        /// The build that made them, if it said so.
        built: String,
    },
    /// The folder holds something else.
    #[error("{} holds files, but no results of a sweep; choose another folder with --out", path.display())]
    NoSweep {
        /// The folder.
        path: PathBuf,
    },
    /// Ray cannot be used, or did not make all runs.
    #[error("{message}")]
    Ray {
        /// What went wrong, and what to do.
        message: String,
    },
    /// Something in the folder cannot be written.
    #[error(
        "cannot write {}: {source}; what was written before is kept: once this is put right, run the sweep again, \
         and it goes on from there",
        path.display()
    )]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl SweepError {
    /// An error about writing a file.
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> SweepError {
        let path = path.to_owned();
        move |source| SweepError::Write { path, source }
    }
}
