//! Control groups with the cpu controller, on hierarchies of version 1 and 2.

mod error;
mod file;
mod hierarchy;
mod mounts;
mod version;

pub use error::CgroupError;
pub use file::{file_error, read_number, read_weight, write};
pub use hierarchy::{Change, Group, Hierarchy, RealTimeRule};
pub use version::{DEFAULT_WEIGHT, Version, scale};
