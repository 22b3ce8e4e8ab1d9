//! Reservations from elsewhere (VSched §3.3): a server that carries the daemon's control protocol over TLS and shows the page, and
//! a client for it.
//!
//! The server is a process of its own, without privileges. It talks to the daemon over the daemon's Unix socket like anybody else, so
//! that TLS, HTTP and passwords are never in the process that has them. A request and its answer are the same JSON as there.

mod api;
pub mod client;
mod fingerprint;
mod limits;
mod password;
mod server;
mod sessions;
pub mod setup;

pub use fingerprint::{Fingerprint, NoFingerprint};
pub use server::{Server, ServerConfig, ServerError};

/// The port of a server unless another is named.
pub const DEFAULT_PORT: u16 = 9742;

/// The longest password that is looked at.
const MAX_PASSWORD_BYTES: usize = 1024;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut sum = [0; 32];
    sum.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    sum
}
