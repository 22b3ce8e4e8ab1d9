//! The block correlation: which reads an I/O-bound task is likely to wait for (TAVS §3.3.1).

use lru::LruCache;
use std::num::NonZeroUsize;

/// Reads in flight that are remembered per VM; more than a virtio queue holds.
const MAX_IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Reads in flight, each with whether an I/O-bound task was in the inspection window at its request.
#[derive(Debug)]
pub(crate) struct Reads {
    in_flight: LruCache<u64, bool>,
    io_bound: usize,
}

impl Reads {
    pub(crate) fn new() -> Reads {
        // Unbounded does not preallocate, and most VMs have few reads in flight; `request` keeps the bound.
        Reads { in_flight: LruCache::unbounded(), io_bound: 0 }
    }

    pub(crate) fn request(&mut self, request: u64, io_bound: bool) {
        let replaced = self.in_flight.put(request, io_bound);
        self.io_bound += usize::from(io_bound);
        self.forget(replaced);
        if self.in_flight.len() > MAX_IN_FLIGHT.get() {
            let oldest = self.in_flight.pop_lru().map(|(_, io_bound)| io_bound);
            self.forget(oldest);
        }
    }

    /// Whether the read that is done was an I/O-bound task's; false for a read never heard of.
    pub(crate) fn complete(&mut self, request: u64) -> bool {
        let read = self.in_flight.pop(&request);
        self.forget(read);
        read.unwrap_or(false)
    }

    /// Whether any read is in flight.
    pub(crate) fn any(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether a read of an I/O-bound task is in flight.
    pub(crate) fn any_io_bound(&self) -> bool {
        self.io_bound > 0
    }

    fn forget(&mut self, read: Option<bool>) {
        if read == Some(true) {
            self.io_bound = self.io_bound.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_io_bound_tasks_are_counted_until_they_end() {
        let mut reads = Reads::new();
        reads.request(1, true);
        reads.request(2, false);
        assert!(reads.any_io_bound());
        assert!(!reads.complete(2));
        assert!(reads.complete(1));
        assert!(!reads.complete(1), "ended already");
        assert!(!reads.any_io_bound() && !reads.any());
        // A guest that never lets its reads end, and one whose request is used again.
        for request in 0..5000 {
            reads.request(request, true);
            reads.request(request, true);
        }
        assert_eq!((reads.in_flight.len(), reads.io_bound), (MAX_IN_FLIGHT.get(), MAX_IN_FLIGHT.get()));
        for request in 0..5000 {
            reads.complete(request);
        }
        assert_eq!((reads.in_flight.len(), reads.io_bound), (0, 0));
    }
}
