//! Why a lab VM's init gives up.

use crate::network::NetworkError;
use crate::parameter::ParameterError;
use frontdesk_lab_guest::CONTROL_PORT;
use std::io;

/// Why init gives up. The VM powers off after one of these.
#[derive(Debug, thiserror::Error)]
pub(super) enum InitError {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error("no virtio-serial port is called {CONTROL_PORT}: is the device there?")]
    NoControlPort,
    #[error(
        "kernel parameter {parameter}={name}: there is no block device {device} after {seconds} s: does the VM \
         have that disk, and the initramfs the module virtio_blk?"
    )]
    NoDisk { parameter: &'static str, name: String, device: String, seconds: u64 },
    #[error("unknown request {line:?}: {source}")]
    Request { line: String, source: serde_json::Error },
}

pub(super) fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> InitError {
    move |source| InitError::Io { what: what.into(), source: source.into() }
}
