//! Why the guest tasks of a VM cannot be told apart.

use frontdesk_probes::kvm::KvmError;
use frontdesk_qemu::TcgError;
use std::io;
use std::path::PathBuf;

/// Why the guest tasks of a VM cannot be told apart.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The plugin is there, but its events cannot be had.
    #[error(transparent)]
    Plugin(#[from] TcgError),
    /// It runs under KVM, which does not tell.
    #[error("it runs under KVM: {0}")]
    Kvm(#[from] KvmError),
    /// Only its reporter could tell.
    #[error(
        "it has a port for frontdesk's reporter, who is not heard of yet; is it installed in the guest and running?"
    )]
    NoReporter,
    /// It runs under TCG, where only the plugin tells.
    #[error(
        "it runs without hardware virtualisation and without frontdesk's QEMU plugin; start it with \
         `-plugin libfrontdesk_tcg_plugin.so`"
    )]
    NoPlugin,
    /// Its process cannot be looked into.
    #[error("looking at {path}: {source}")]
    Process {
        /// What was to be looked at.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Its reporter cannot be listened to.
    #[error("listening to its reporter: {0}")]
    Reporter(io::Error),
    /// Waiting for its events cannot be arranged.
    #[error("waiting for its events: {0}")]
    Wait(#[from] rustix::io::Errno),
}
