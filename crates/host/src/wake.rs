//! Waking a thread that waits for descriptors.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// An eventfd, readable from when it is rung until that is taken. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Wake(Arc<OwnedFd>);

impl Wake {
    /// One of which everything is taken at once.
    pub(crate) fn new() -> io::Result<Wake> {
        Wake::with(EventfdFlags::empty())
    }

    /// One that counts: each ring is taken by itself.
    pub(crate) fn counting() -> io::Result<Wake> {
        Wake::with(EventfdFlags::SEMAPHORE)
    }

    fn with(flags: EventfdFlags) -> io::Result<Wake> {
        let eventfd = eventfd(0, flags | EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Wake(Arc::new(eventfd)))
    }

    pub(crate) fn ring(&self) {
        // It counts far less than it has room for.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Whether it was rung. Never waits.
    pub(crate) fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_taken_together_or_one_by_one() {
        for (wake, left) in [(Wake::new().unwrap(), false), (Wake::counting().unwrap(), true)] {
            assert!(!wake.take());
            wake.clone().ring();
            wake.ring();
            assert!(wake.take());
            assert_eq!(wake.take(), left);
            assert!(!wake.take());
        }
    }
}
