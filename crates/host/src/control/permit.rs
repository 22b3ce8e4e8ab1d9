//! How many clients are served at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Clients at once, of the socket and of the address for metrics each.
pub(crate) const MAX_CLIENTS: usize = 16;

/// A permit to be served, of which there are so many, free again when it is dropped.
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Permit {
    pub(crate) fn take(taken: &Arc<AtomicUsize>) -> Option<Permit> {
        let more = |count| (count < MAX_CLIENTS).then_some(count + 1);
        taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Permit(Arc::clone(taken)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
