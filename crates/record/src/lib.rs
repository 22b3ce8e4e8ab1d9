//! Recordings of a daemon's run: every event it fed the engine and every action the engine decided.
//!
//! A recording is enough to repeat the run: the same state, events and deadlines give the same actions.
//! `docs/recording.md` says how it lies in a file or goes over a socket: a header with the format's version,
//! then frames, each with its length, its checksum and a compressed block of [`Record`]s. Whatever cuts a
//! recording short, up to its last whole frame it can be read.

mod codec;
mod error;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod reader;
mod record;
mod recordings;
#[cfg(test)]
mod tests;
mod writer;

pub use error::RecordError;
pub use reader::{Ending, Recording, read_recording};
pub use record::Record;
pub use recordings::Recordings;
pub use writer::Recorder;
