//! Where things are in the shared memory: a header, then one lane per vCPU. Everything is a 64-bit atomic
//! word.

use crate::entry;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// The most vCPUs that a ring can have.
pub const MAX_VCPUS: u16 = 64;

/// Entries that a vCPU's lane holds until the consumer drains it.
pub const CAPACITY: u32 = 4096;

/// Name of the memfd.
pub(crate) const NAME: &str = "frontdesk-ring";
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"fdskring");
/// Counts up with every change of what follows.
pub(crate) const VERSION: u64 = 4;

/// Words of a cache line. Words that different sides write keep to different lines.
const LINE: usize = 8;
const CONTROL: usize = 5 * LINE;

/// Indices of the header's words.
pub(crate) mod header {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 1;
    pub(crate) const VCPUS: usize = 2;
    pub(crate) const CAPACITY: usize = 3;
    /// Number of the eventfd in the producer's process.
    pub(crate) const EVENTFD: usize = 4;
    /// Words of the header.
    pub(crate) const WORDS: usize = crate::layout::LINE;
}

/// Where in the memfd the tasks of the vCPUs are, for others who only read these: in bytes from its
/// beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskWords {
    /// The task that vCPU 0 runs, or ran last; 0 before the first.
    pub current: u64,
    /// The task that vCPU 0 ran when it last notified a disk; 0 if it was no task, or there was none.
    pub notified: u64,
    /// How often vCPU 0 notified a disk. Counted just after the disk hears of it.
    pub notifications: u64,
    /// From a vCPU to the next.
    pub stride: u64,
}

/// Size of everything, chosen by the producer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) vcpus: u16,
    /// A power of two.
    pub(crate) capacity: u32,
}

impl Geometry {
    fn lane_words(self) -> usize {
        CONTROL + self.capacity as usize * entry::WORDS
    }

    pub(crate) fn words(self) -> usize {
        header::WORDS + usize::from(self.vcpus) * self.lane_words()
    }

    /// Where the words of the tasks are.
    pub(crate) fn task_words(self) -> TaskWords {
        let bytes = |words: usize| (words * size_of::<AtomicU64>()) as u64;
        let current = bytes(header::WORDS);
        let (notified, notifications) = (current + bytes(1), current + bytes(2));
        TaskWords { current, notified, notifications, stride: bytes(self.lane_words()) }
    }

    pub(crate) fn bytes(self) -> u64 {
        (self.words() * size_of::<AtomicU64>()) as u64
    }

    /// The part of vCPU `vcpu` in the words of a ring; `None` if there is no such vCPU.
    pub(crate) fn lane(self, words: &[AtomicU64], vcpu: u16) -> Option<Lane<'_>> {
        if vcpu >= self.vcpus {
            return None;
        }
        let start = header::WORDS + usize::from(vcpu) * self.lane_words();
        let words = words.get(start..start + self.lane_words())?;
        let (control, entries) = words.split_at(CONTROL);
        Some(Lane {
            current: &control[0],
            notified: &control[1],
            notifications: &control[2],
            armed: &control[LINE],
            tail: &control[2 * LINE],
            dropped: &control[3 * LINE],
            head: &control[4 * LINE],
            entries,
            mask: u64::from(self.capacity) - 1,
        })
    }
}

/// The shared memory, mapped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to no thread, and all access to it is by atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `words` of `file`, which must be that long and sealed against shrinking.
    pub(crate) fn new(file: impl AsFd, words: usize) -> rustix::io::Result<Mapping> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
        let base =
            unsafe { mmap(std::ptr::null_mut(), words * size_of::<AtomicU64>(), prot, flags, file, 0) }?;
        Ok(Mapping { base: NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?, words })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `words` long and lives as long as `self`; its file cannot
        // shrink. Other processes may write to it at any time, which atomics allow.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// The part of vCPU `vcpu`; `None` if there is no such vCPU.
    pub(crate) fn lane(&self, geometry: Geometry, vcpu: u16) -> Option<Lane<'_>> {
        geometry.lane(self.words(), vcpu)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size, and no reference into it outlives `self`. Failure would
        // only leak it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
    }
}

/// The part of one vCPU.
pub(crate) struct Lane<'a> {
    /// The task that runs, or ran last; 0 before the first. Written by the producer.
    pub(crate) current: &'a AtomicU64,
    /// The task that ran when the vCPU last notified a disk; 0 if it was no task, or there was none. Written
    /// by the producer.
    pub(crate) notified: &'a AtomicU64,
    /// How often it notified a disk. Written by the producer, after the task.
    pub(crate) notifications: &'a AtomicU64,
    /// For which entries the consumer wants to be woken: bits of an `Interest`. Set by the consumer, cleared
    /// by the producer.
    pub(crate) armed: &'a AtomicU64,
    /// Entries ever written. Written by the producer.
    pub(crate) tail: &'a AtomicU64,
    /// Entries ever dropped because the ring was full. Written by the producer.
    pub(crate) dropped: &'a AtomicU64,
    /// Entries ever read. Written by the consumer.
    pub(crate) head: &'a AtomicU64,
    entries: &'a [AtomicU64],
    mask: u64,
}

impl Lane<'_> {
    /// The words of the entry with this sequence number; any number is safe.
    pub(crate) fn entry(&self, sequence: u64) -> &[AtomicU64; entry::WORDS] {
        let (slots, _) = self.entries.as_chunks();
        // Fits: the mask is below the number of slots.
        &slots[usize::try_from(sequence & self.mask).unwrap_or(0)]
    }
}
