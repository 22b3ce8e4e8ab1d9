//! What is decided, one policy a file.

pub mod reservation;
