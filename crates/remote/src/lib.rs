//! Reservations from elsewhere (VSched §3.3): a server that carries the daemon's control protocol over TLS
//! and shows the page, and a client for it.
//!
//! The server is a process of its own, without privileges. It talks to the daemon over the daemon's Unix
//! socket like anybody else, so that TLS, HTTP and passwords are never in the process that has them. A
//! request and its answer are the same JSON as there.

mod answers;
mod api;
pub mod client;
mod fingerprint;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hash;
mod limits;
mod others;
mod password;
mod secret;
mod server;
mod sessions;
pub mod setup;

pub use answers::Explain;
pub use client::DEFAULT_PORT;
pub use fingerprint::{Fingerprint, NoFingerprint};
pub use server::{Server, ServerConfig, ServerError};
