//! A scenario on real VMs: boots them, runs the arms interleaved, measures.

mod agents;
mod arm;
mod boot;
mod config;
mod desktops;
mod disk;
mod error;
mod nice;
mod readings;
mod run;
mod shared_disk;
mod state;

pub use config::{LabConfig, Progress};
pub(crate) use config::{interrupted, make_run_dir};
pub use error::LabError;
pub(crate) use run::{Made, run};
use state::{Lab, LabVm};
