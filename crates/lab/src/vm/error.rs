//! What can go wrong with a VM.

use std::io;
use std::time::Duration;

/// What can go wrong with a VM. The texts end with the last lines of its console and of QEMU's output.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// QEMU, or what it needs, could not be set up.
    #[error("VM {name}: {what}: {source}")]
    Setup {
        /// Name of the VM.
        name: String,
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// QEMU ended: the guest panicked or powered off, or QEMU refused its arguments.
    #[error("VM {name} ended ({status}) while it was asked to {what}{tail}")]
    Ended {
        /// Name of the VM.
        name: String,
        /// What it should have done.
        what: String,
        /// QEMU's exit status.
        status: String,
        /// The last lines of its logs.
        tail: String,
    },
    /// The guest did not answer in time.
    #[error("VM {name} did not {what} within {timeout:?}{tail}")]
    Timeout {
        /// Name of the VM.
        name: String,
        /// What it should have done.
        what: String,
        /// How long it had.
        timeout: Duration,
        /// The last lines of its logs.
        tail: String,
    },
    /// The guest said no.
    #[error("VM {name} could not {what}: {error}")]
    Refused {
        /// Name of the VM.
        name: String,
        /// What it should have done.
        what: String,
        /// What it said.
        error: String,
    },
    /// A workload ended although nobody stopped it.
    #[error("VM {name}: workload {workload} ended ({status}): {output}")]
    WorkloadEnded {
        /// Name of the VM.
        name: String,
        /// Name of the workload.
        workload: String,
        /// How it ended.
        status: String,
        /// The last it printed.
        output: String,
    },
    /// The guest said something that is not in the protocol.
    #[error("VM {name} said {line:?}: {source}")]
    Protocol {
        /// Name of the VM.
        name: String,
        /// What it said.
        line: String,
        /// Why that is not understood.
        source: serde_json::Error,
    },
}
