//! The plugin's side.

use crate::entry::{Entry, EntryKind};
use crate::layout::{CAPACITY, Geometry, Lane, MAGIC, MAX_VCPUS, Mapping, NAME, VERSION, header};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

/// Why a ring could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The number of vCPUs is 0 or too large.
    #[error("a ring for {0} vCPUs: it can have 1 to {MAX_VCPUS}")]
    Vcpus(u16),
    /// A system call failed.
    #[error("cannot create the ring: {what}: {source}")]
    System {
        /// The call.
        what: &'static str,
        /// Why it failed.
        source: rustix::io::Errno,
    },
}

/// The writing side of a ring. Each vCPU's lane may be written by one thread at a time; two would garble its
/// entries.
#[derive(Debug)]
pub struct Producer {
    mapping: Mapping,
    geometry: Geometry,
    eventfd: OwnedFd,
    memfd: OwnedFd,
}

impl Producer {
    /// Creates a ring with a lane for each of `vcpus` vCPUs (1 to [`MAX_VCPUS`]). It can be
    /// [found](crate::find) as long as the producer lives.
    ///
    /// # Errors
    /// [`CreateError`] if the number is out of range or the kernel refuses the memory or a descriptor.
    pub fn create(vcpus: u16) -> Result<Producer, CreateError> {
        Self::with_capacity(vcpus, CAPACITY)
    }

    /// Number of vCPUs that the ring is for.
    #[must_use]
    pub fn vcpus(&self) -> u16 {
        self.geometry.vcpus
    }

    pub(crate) fn with_capacity(vcpus: u16, capacity: u32) -> Result<Producer, CreateError> {
        if !(1..=MAX_VCPUS).contains(&vcpus) {
            return Err(CreateError::Vcpus(vcpus));
        }
        let failed = |what| move |source| CreateError::System { what, source };
        let geometry = Geometry { vcpus, capacity };
        let memfd = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(failed("memfd_create"))?;
        ftruncate(&memfd, geometry.bytes()).map_err(failed("ftruncate"))?;
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(failed("sealing the memfd"))?;
        // Non-blocking: a vCPU thread must never wait for the daemon.
        let eventfd =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed("eventfd"))?;
        let mapping = Mapping::new(&memfd, geometry.words()).map_err(failed("mmap"))?;

        let words = mapping.words();
        words[header::VERSION].store(VERSION, Relaxed);
        words[header::VCPUS].store(u64::from(vcpus), Relaxed);
        words[header::CAPACITY].store(u64::from(capacity), Relaxed);
        words[header::EVENTFD].store(u64::from(eventfd.as_raw_fd().unsigned_abs()), Relaxed);
        // Last, so that a consumer that sees the magic number sees the rest.
        words[header::MAGIC].store(MAGIC, Release);
        Ok(Producer { mapping, geometry, eventfd, memfd })
    }

    /// `vcpu` has notified a disk, for the task that it runs or, in the handler of an interrupt, for none.
    pub fn notifies_disk(&self, vcpu: u16, in_interrupt: bool) {
        let Some(lane) = self.mapping.lane(self.geometry, vcpu) else { return };
        let task = if in_interrupt { 0 } else { lane.current.load(Relaxed) };
        lane.notified.store(task, Relaxed);
        lane.notifications.store(lane.notifications.load(Relaxed).wrapping_add(1), Release);
    }

    /// Appends `entry` to the lane of `vcpu`, or counts it as dropped if the lane is full, which for
    /// interrupts and accesses it is when half full; ignores a vCPU that the ring does not have. An
    /// [`EntryKind::Switch`] also becomes the vCPU's current task, dropped or not. Wakes the consumer if it
    /// armed the vCPU for such entries.
    pub fn push(&self, vcpu: u16, entry: Entry) {
        let Some(lane) = self.mapping.lane(self.geometry, vcpu) else { return };
        if append(&lane, self.geometry, entry) {
            // It can only fail if the counter is full, and then the consumer is awake.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }
}

/// Appends an entry to a lane; whether the consumer is to be woken. No system call: Miri looks at it.
pub(crate) fn append(lane: &Lane<'_>, geometry: Geometry, entry: Entry) -> bool {
    if let EntryKind::Switch { task } = entry.kind {
        lane.current.store(task, Relaxed);
    }
    let tail = lane.tail.load(Relaxed);
    let interest = entry.kind.interest();
    // The others leave the rest to what the vCPU runs, which nothing else tells.
    let capacity = u64::from(geometry.capacity) / if entry.kind.tells_tasks() { 1 } else { 2 };
    // Acquire: the consumer's reads of a slot come before our writing it again.
    if tail.wrapping_sub(lane.head.load(Acquire)) < capacity {
        for (word, value) in lane.entry(tail).iter().zip(entry.encode()) {
            word.store(value, Relaxed);
        }
        lane.tail.store(tail.wrapping_add(1), Release);
    } else {
        lane.dropped.store(lane.dropped.load(Relaxed).wrapping_add(1), Relaxed);
    }
    if interest == 0 {
        return false;
    }
    // Pairs with the fence in `ask`: either we see the flag or the consumer sees the entry.
    fence(SeqCst);
    // What is taken may have been asked for since, for other entries: it is answered as well.
    lane.armed.load(Relaxed) & interest != 0 && lane.armed.swap(0, Relaxed) != 0
}

impl AsFd for Producer {
    /// The memfd that holds the ring.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}
