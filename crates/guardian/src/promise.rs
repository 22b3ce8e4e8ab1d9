//! How the owner says until when it will be back.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Where the journal holds them, of the loop and of the dispatchers.
pub(crate) const PLACES: [u64; 2] = [8, 16];

/// Whose promise it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promiser {
    /// Who decides about boosts.
    Loop,
    /// Who dispatches reservations.
    Dispatchers,
}

/// How a part of the owner says until when it will be back. The guardian looks a few times a second.
#[derive(Debug)]
pub struct Promise {
    journal: File,
    place: u64,
}

impl Promise {
    pub(crate) fn new(journal: File, of: Promiser) -> Promise {
        Promise { journal, place: PLACES[of as usize] }
    }

    /// Promises to be back before this time of the monotonic clock, in nanoseconds; 0 for no promise. Costs a
    /// system call.
    pub fn until(&self, time: u64) {
        // Its file has room for it.
        let _ = self.journal.write_all_at(&time.to_ne_bytes(), self.place);
    }
}
