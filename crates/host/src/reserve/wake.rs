//! Waking a thread that waits.

use std::os::fd::OwnedFd;

/// Makes an eventfd readable.
pub(super) fn ring(wake: &OwnedFd) {
    // It counts far less than it has room for.
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}
