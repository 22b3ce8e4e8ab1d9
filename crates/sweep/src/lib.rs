//! Many runs of a scenario on the model: over sets of parameters and seeds, with results in Parquet.
//!
//! A [`Sweep`] is read from its file, each set of parameters checked. [`run`] makes the runs that a
//! [`Folder`] has no rows of yet; [`summary`] says what the rows show.

#![forbid(unsafe_code)]

mod cluster;
mod columns;
mod design;
mod document;
mod elsewhere;
mod error;
mod folder;
mod made;
mod plan;
mod range;
mod ray;
mod row;
mod run;
mod summary;
mod table;

pub use design::{Sweep, SweepRun};
pub use document::{Goal, Objective};
pub use elsewhere::{BUILT, Elsewhere};
pub use error::SweepError;
pub use folder::Folder;
pub use plan::{Plan, plan};
pub use row::Layout;
pub use run::{Ended, Progress, Workers, run};
pub use summary::summary;
pub use table::{Cell, Column, Kind, Row, write as write_parquet};

/// The example in the crate's README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
