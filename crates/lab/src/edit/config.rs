//! What a client is told, and how it ends.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What one client does.
#[derive(Clone, Debug)]
pub(crate) struct EditConfig {
    /// Name of the VM, for messages.
    pub(crate) vm: String,
    /// Its ssh server.
    pub(crate) server: SocketAddr,
    /// File with the private key that lets root log in.
    pub(crate) ssh_key: PathBuf,
    /// Shortest and longest time between letters.
    pub(crate) think: [Duration; 2],
    /// Same seed, same letters and think times: every arm of a repeat gets the same load.
    pub(crate) seed: u64,
    /// Physical CPUs the client and its ssh run on.
    pub(crate) cpus: Vec<u16>,
}

/// What is said between the client and its thread.
#[derive(Debug, Default)]
pub(super) struct Signals {
    pub(super) typing: AtomicBool,
    /// End, even within a letter.
    pub(super) abandon: AtomicBool,
}

/// Why a client ends.
pub(super) enum ClientEnd {
    /// It was told to.
    Asked,
    /// The guest's side failed in this way.
    Failed(String),
}

impl From<io::Error> for ClientEnd {
    fn from(error: io::Error) -> ClientEnd {
        ClientEnd::Failed(error.to_string())
    }
}
