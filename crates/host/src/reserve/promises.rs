//! What the guardian is promised by all threads that dispatch: that the first of them will be back in time.

use frontdesk_guardian::Promise;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Promises of threads that dispatch, each for a CPU.
#[derive(Clone)]
pub(super) struct Promises(Arc<Mutex<PromiseEntry>>);

struct PromiseEntry {
    promise: Promise,
    /// Each in nanoseconds.
    until: BTreeMap<u16, u64>,
}

impl Promises {
    pub(super) fn new(promise: Promise) -> Promises {
        Promises(Arc::new(Mutex::new(PromiseEntry { promise, until: BTreeMap::new() })))
    }

    /// Promises that the dispatcher of a CPU will be back before this time; 0 for no promise. Once a second:
    /// another thread may have the lock for as long as a system call takes.
    pub(super) fn until(&self, cpu: u16, time: u64) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match time {
            0 => kept.until.remove(&cpu),
            _ => kept.until.insert(cpu, time),
        };
        // If one hangs, the others do not keep its promise.
        kept.promise.until(kept.until.values().copied().min().unwrap_or(0));
    }
}
