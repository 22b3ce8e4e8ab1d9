//! The block correlation: which reads an I/O-bound task is likely to wait for (TAVS §3.3.1).

use crate::state::{StateError, check};
use lru::LruCache;
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;

/// Reads in flight that are remembered per VM; more than a virtio queue holds.
const MAX_IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// A read in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Read {
    /// Whether an I/O-bound task was in the inspection window when the guest asked for it.
    pub(crate) io_bound: bool,
    /// Who asked for it, if known.
    pub(crate) asker: Option<Reader>,
}

/// A task at a point in time: a vCPU, and how often it had switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reader {
    pub(crate) vcpu: u16,
    pub(crate) switches: u64,
}

/// Reads in flight.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reads {
    #[serde(with = "crate::lru")]
    in_flight: LruCache<u64, Read>,
    #[serde(skip)]
    io_bound: usize,
    /// Most reads that were ever in flight at once: what the index has room for.
    #[serde(skip)]
    most: usize,
}

impl Reads {
    pub(crate) fn new() -> Reads {
        // Unbounded does not preallocate, and most VMs have few reads in flight; `request` keeps the bound.
        Reads { in_flight: LruCache::unbounded(), io_bound: 0, most: 0 }
    }

    /// Completes a list that was loaded.
    pub(crate) fn restore(&mut self) -> Result<(), StateError> {
        self.most = self.in_flight.len();
        self.io_bound = self.in_flight.iter().filter(|(_, read)| read.io_bound).count();
        check(self.in_flight.len() <= MAX_IN_FLIGHT.get(), "more reads in flight than are remembered")
    }

    pub(crate) fn request(&mut self, request: u64, read: Read) {
        let replaced = self.in_flight.put(request, read);
        self.io_bound += usize::from(read.io_bound);
        self.forget(replaced);
        self.most = self.most.max(self.in_flight.len());
        if self.in_flight.len() > MAX_IN_FLIGHT.get() {
            let oldest = self.in_flight.pop_lru().map(|(_, read)| read);
            self.forget(oldest);
        }
    }

    /// The read that is done; of one never heard of, nothing is known.
    pub(crate) fn complete(&mut self, request: u64) -> Read {
        let read = self.in_flight.pop(&request);
        self.forget(read);
        read.unwrap_or_default()
    }

    /// Whether any read is in flight.
    pub(crate) fn any(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether whichever read in flight ends next is one of an I/O-bound task: all are.
    pub(crate) fn all_io_bound(&self) -> bool {
        self.any() && self.io_bound == self.in_flight.len()
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        crate::lru::bytes::<u64, Read>(self.most, self.in_flight.len())
    }

    fn forget(&mut self, read: Option<Read>) {
        if read.is_some_and(|read| read.io_bound) {
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
        let (other, io_bound) = (Read::default(), Read { io_bound: true, asker: None });
        reads.request(1, io_bound);
        reads.request(2, other);
        assert!(!reads.all_io_bound(), "the other may end first");
        assert_eq!(reads.complete(2), other);
        assert!(reads.all_io_bound());
        assert_eq!(reads.complete(1), io_bound);
        assert_eq!(reads.complete(1), other, "ended already");
        assert!(!reads.all_io_bound() && !reads.any());
        // A guest that never lets its reads end, and one whose request is used again.
        for request in 0..5000 {
            reads.request(request, io_bound);
            reads.request(request, io_bound);
        }
        assert_eq!((reads.in_flight.len(), reads.io_bound), (MAX_IN_FLIGHT.get(), MAX_IN_FLIGHT.get()));
        for request in 0..5000 {
            reads.complete(request);
        }
        assert_eq!((reads.in_flight.len(), reads.io_bound), (0, 0));
    }
}
