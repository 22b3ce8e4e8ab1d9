//! Which requests are in flight, in memory that the front end keeps when this process ends.
//!
//! The format and the order of the steps are those of the vhost-user specification, "Inflight I/O tracking",
//! for split virtqueues, so that a back end of another make could go on where this one ended.
//!
//! For each queue: features (8 bytes), version (2), number of descriptors (2), head of the last batch (2),
//! index of the used ring (2), and then for each descriptor whether it is in flight (1 byte), nothing (5),
//! the descriptor that was used before it (2), and the number of the request (8).

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::mmap::MmapRegion;
use vm_memory::{AtomicAccess, Bytes, FileOffset, VolatileMemory};

const HEADER: usize = 16;
const ENTRY: usize = 16;
/// The regions of queues do not share cache lines.
const ALIGNMENT: usize = 64;
const VERSION: u16 = 1;

const VERSION_AT: usize = 8;
const DESCRIPTORS_AT: usize = 10;
const LAST_HEAD_AT: usize = 12;
const USED_INDEX_AT: usize = 14;
const NEXT_AT: usize = 6;
const NUMBER_AT: usize = 8;

/// The memory for all queues.
#[derive(Debug)]
pub(crate) struct Inflight {
    region: MmapRegion,
    queues: u16,
    queue_size: u16,
}

/// What one queue had in flight.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Heads of the chains, in the order in which they were made available.
    pub(crate) heads: Vec<u16>,
    /// The number for the next request.
    pub(crate) next_number: u64,
}

fn queue_bytes(queue_size: u16) -> usize {
    (HEADER + ENTRY * usize::from(queue_size)).next_multiple_of(ALIGNMENT)
}

impl Inflight {
    /// New memory, for a front end that has none, and what to tell it.
    ///
    /// # Errors
    /// If the kernel refuses memory.
    pub(crate) fn create(queues: u16, queue_size: u16) -> io::Result<(VhostUserInflight, File)> {
        let bytes = (queue_bytes(queue_size) * usize::from(queues)) as u64;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("frontdesk-disk-inflight", flags)?);
        ftruncate(&file, bytes)?;
        // Whoever could shrink it could end this process.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((VhostUserInflight::new(bytes, 0, queues, queue_size), file))
    }

    /// Maps memory that a front end has kept.
    ///
    /// # Errors
    /// If it is too small for its queues, or not from here.
    pub(crate) fn attach(told: &VhostUserInflight, file: File) -> io::Result<Inflight> {
        let refused = |what: &str| io::Error::other(format!("memory for requests in flight: {what}"));
        let bytes = queue_bytes(told.queue_size) * usize::from(told.num_queues);
        if told.mmap_size < bytes as u64 || bytes == 0 {
            return Err(refused("it is too small for its queues"));
        }
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(refused("it could be shrunk"));
        }
        let region = MmapRegion::from_file(FileOffset::new(file, told.mmap_offset), bytes)
            .map_err(|e| refused(&e.to_string()))?;
        Ok(Inflight { region, queues: told.num_queues, queue_size: told.queue_size })
    }

    /// The part of a queue, if it is for queues of at least `size` entries.
    pub(crate) fn queue(&self, index: u16, size: u16) -> Option<QueueInflight<'_>> {
        let base = queue_bytes(self.queue_size) * usize::from(index);
        (index < self.queues && size <= self.queue_size).then_some(QueueInflight {
            region: &self.region,
            base,
            size: self.queue_size,
        })
    }
}

/// The memory of one queue. What is in it is the front end's word: the functions take anything.
#[derive(Debug)]
pub(crate) struct QueueInflight<'a> {
    region: &'a MmapRegion,
    base: usize,
    size: u16,
}

impl QueueInflight<'_> {
    fn load<T: AtomicAccess + Default>(&self, at: usize) -> T {
        self.region.as_volatile_slice().load(self.base + at, Ordering::Acquire).unwrap_or_default()
    }

    /// In order: a killed process has done each store before those that follow.
    fn store<T: AtomicAccess>(&self, value: T, at: usize) {
        // The place is inside the region, by the region's size.
        let _ = self.region.as_volatile_slice().store(value, self.base + at, Ordering::SeqCst);
    }

    fn entry(head: u16) -> usize {
        HEADER + ENTRY * usize::from(head)
    }

    /// A chain was taken from the available ring.
    pub(crate) fn taken(&self, head: u16, number: u64) {
        if head < self.size {
            self.store(number, Self::entry(head) + NUMBER_AT);
            self.store(1_u8, Self::entry(head));
        }
    }

    /// A chain is about to be put into the used ring.
    pub(crate) fn before_used(&self, head: u16) {
        if head < self.size {
            self.store(self.load::<u16>(LAST_HEAD_AT), Self::entry(head) + NEXT_AT);
            self.store(head, LAST_HEAD_AT);
        }
    }

    /// It is there, and the used ring's index is this now.
    pub(crate) fn after_used(&self, head: u16, used_index: u16) {
        if head < self.size {
            self.store(0_u8, Self::entry(head));
            self.store(used_index, USED_INDEX_AT);
        }
    }

    /// What a back end that ended has left, with the used ring's index as it is now. New memory is made
    /// ready.
    pub(crate) fn recover(&self, used_index: u16) -> Recovered {
        if self.load::<u16>(VERSION_AT) != VERSION {
            self.store(self.size, DESCRIPTORS_AT);
            self.store(used_index, USED_INDEX_AT);
            self.store(VERSION, VERSION_AT);
            return Recovered::default();
        }
        // The last batch is in the used ring, but its end was not noted.
        let batch = used_index.wrapping_sub(self.load(USED_INDEX_AT));
        let mut head: u16 = self.load(LAST_HEAD_AT);
        for _ in 0..batch.min(self.size) {
            if head >= self.size {
                break;
            }
            self.store(0_u8, Self::entry(head));
            head = self.load(Self::entry(head) + NEXT_AT);
        }
        self.store(used_index, USED_INDEX_AT);
        let in_flight = (0..self.size).filter(|head| self.load::<u8>(Self::entry(*head)) != 0);
        let mut numbered: Vec<(u64, u16)> =
            in_flight.map(|head| (self.load(Self::entry(head) + NUMBER_AT), head)).collect();
        numbered.sort_unstable();
        let next_number = numbered.last().map_or(0, |(last, _)| last.wrapping_add(1));
        Recovered { heads: numbered.into_iter().map(|(_, head)| head).collect(), next_number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(queues: u16, size: u16) -> Inflight {
        let (told, file) = Inflight::create(queues, size).unwrap();
        Inflight::attach(&told, file).unwrap()
    }

    #[test]
    fn what_was_taken_and_not_used_is_found_in_its_order() {
        let memory = memory(2, 8);
        let queue = memory.queue(1, 8).unwrap();
        assert_eq!(queue.recover(0), Recovered::default());
        for (number, head) in [(0, 5), (1, 2), (2, 7)] {
            queue.taken(head, number);
        }
        queue.before_used(2);
        queue.after_used(2, 1);
        assert_eq!(queue.recover(1), Recovered { heads: vec![5, 7], next_number: 3 });
        assert_eq!(memory.queue(0, 8).unwrap().recover(0), Recovered::default());
    }

    #[test]
    fn what_was_killed_between_the_steps_is_neither_lost_nor_repeated() {
        let memory = memory(1, 4);
        let queue = memory.queue(0, 4).unwrap();
        queue.recover(0);
        queue.taken(3, 0);
        queue.taken(1, 1);
        // Killed before the used ring was told: again.
        queue.before_used(1);
        assert_eq!(queue.recover(0).heads, [3, 1]);
        // Killed after that, but before it was noted: not again.
        queue.before_used(1);
        assert_eq!(queue.recover(1).heads, [3]);
        // The index wraps.
        queue.after_used(3, u16::MAX);
        queue.taken(0, 2);
        queue.before_used(0);
        assert_eq!(queue.recover(0).heads, [0; 0]);
    }

    #[test]
    fn rubbish_is_taken() {
        let memory = memory(1, 4);
        let queue = memory.queue(0, 4).unwrap();
        queue.recover(0);
        queue.store(900_u16, LAST_HEAD_AT);
        (0..4).for_each(|head| queue.taken(head, u64::MAX));
        assert_eq!(queue.recover(77), Recovered { heads: vec![0, 1, 2, 3], next_number: 0 });
        queue.taken(4, 1);
        assert!(memory.queue(1, 4).is_none() && memory.queue(0, 5).is_none());
    }

    #[test]
    fn memory_of_others_is_refused() {
        let (mut told, file) = Inflight::create(1, 4).unwrap();
        told.queue_size = 400;
        assert!(Inflight::attach(&told, file).is_err());
        let (told, _) = Inflight::create(1, 4).unwrap();
        let unsealed = tempfile::tempfile().unwrap();
        unsealed.set_len(1 << 20).unwrap();
        assert!(Inflight::attach(&told, unsealed).is_err());
    }
}
