//! Control groups with the cpu controller, on hierarchies of version 1 and 2.
//!
//! By hand: few files are read and written, and most of this is which hierarchy is mounted and what a
//! container sees of it.

mod error;
mod file;
mod hierarchy;
pub(crate) mod mounts;
mod version;

pub use error::CgroupError;
pub use file::{file_error, read_number, read_weight, write};
pub use hierarchy::{Change, Group, Hierarchy, RealTimeRule};
pub use version::{DEFAULT_WEIGHT, Version, scale};
