//! Actions as they were once decided, and the words that tell them.

mod frozen;
pub mod text;

pub use frozen::{Section, check, digest, read};
