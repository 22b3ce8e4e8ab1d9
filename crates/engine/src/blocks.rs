//! The block correlation: which reads an I/O-bound task is likely to wait for (TAVS §3.3.1).

use lru::LruCache;
use std::num::NonZeroUsize;

/// Reads in flight that are remembered per VM; more than a virtio queue holds.
const MAX_IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Reads in flight, each with whether an I/O-bound task was in the inspection window at its request.
#[derive(Debug)]
pub(crate) struct Reads(LruCache<u64, bool>);

impl Reads {
    pub(crate) fn new() -> Reads {
        // Unbounded does not preallocate, and most VMs have few reads in flight; `request` keeps the bound.
        Reads(LruCache::unbounded())
    }

    pub(crate) fn request(&mut self, request: u64, io_bound: bool) {
        self.0.put(request, io_bound);
        if self.0.len() > MAX_IN_FLIGHT.get() {
            self.0.pop_lru();
        }
    }

    /// Whether the read that is done was an I/O-bound task's; false for a read never heard of.
    pub(crate) fn complete(&mut self, request: u64) -> bool {
        self.0.pop(&request).unwrap_or(false)
    }
}
