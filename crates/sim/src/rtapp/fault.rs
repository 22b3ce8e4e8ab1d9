//! What a file is read for, and what may be wrong with it.

use crate::queue::Nanos;

/// What is wrong with a part of the file.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) key: String,
    pub(super) message: String,
}

pub(super) fn fault<T>(key: &str, message: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { key: key.to_owned(), message: message.into() })
}

/// The guest that runs a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    pub(crate) vcpus: u16,
    /// What `run` takes is multiplied by this: it is a load, not a time.
    pub(crate) cost_scale: f64,
    /// CPU time of writing a KiB to memory.
    pub(crate) copy_kib: Nanos,
}
