//! One queue of a disk: the rings, and what is in flight of it.

use crate::inflight::{Inflight, Recovered};
use crate::memory::Memory;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes as _, GuestAddress};

/// The largest queue that a front end may ask for.
pub(crate) const MAX_QUEUE_SIZE: u16 = 1024;

/// Why a queue is stopped: its rings are the guest's word, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingError {
    /// The rings are not in the guest's memory, or not aligned.
    #[error("its rings are not where a queue can be")]
    Place,
    /// More requests than the queue has entries.
    #[error("it has more requests than entries")]
    Overrun,
    /// A head that is beyond the table, or in flight already.
    #[error("descriptor {0} was made available, and is in flight or does not exist")]
    Head(u16),
}

/// A queue. The front end sets it up piece by piece.
#[derive(Debug)]
pub(crate) struct Vring {
    queue: Queue,
    /// The guest has made requests available.
    pub(crate) kick: Option<File>,
    /// Interrupts the guest.
    pub(crate) call: Option<File>,
    /// Whether the front end wants it served.
    pub(crate) enabled: bool,
    /// Whether it is served.
    pub(crate) running: bool,
    /// Which heads are in flight.
    in_flight: Vec<bool>,
    /// How many.
    pub(crate) count: u16,
    /// Number of the next request.
    next_number: u64,
}

impl Vring {
    /// A queue that is not set up.
    ///
    /// # Errors
    /// Never, for [`MAX_QUEUE_SIZE`] is a power of two.
    pub(crate) fn new() -> Result<Vring, virtio_queue::Error> {
        Ok(Vring {
            queue: Queue::new(MAX_QUEUE_SIZE)?,
            kick: None,
            call: None,
            enabled: false,
            running: false,
            in_flight: Vec::new(),
            count: 0,
            next_number: 0,
        })
    }

    /// The kernel's number of the eventfd by which the guest notifies it.
    pub(crate) fn notifier(&self) -> Option<u32> {
        let descriptor = self.kick.as_ref()?.as_raw_fd();
        // Of other kinds, which QEMU may hand us as well, the kernel may have far more to tell.
        let kind = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
        if kind.as_os_str() != "anon_inode:[eventfd]" {
            return None;
        }
        let mut told = String::new();
        let path = format!("/proc/self/fdinfo/{descriptor}");
        File::open(path).ok()?.take(4096).read_to_string(&mut told).ok()?;
        told.lines().find_map(|line| line.strip_prefix("eventfd-id:")?.trim().parse().ok())
    }

    /// Entries.
    pub(crate) fn size(&self) -> u16 {
        self.queue.size()
    }

    /// The table of its descriptors.
    pub(crate) fn table(&self) -> GuestAddress {
        GuestAddress(self.queue.desc_table())
    }

    /// Which request of the available ring is the next.
    pub(crate) fn next_available(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Sets the number of entries; returns whether that is one for a queue.
    pub(crate) fn set_size(&mut self, size: u32) -> bool {
        u16::try_from(size).is_ok_and(|size| self.queue.try_set_size(size).is_ok())
    }

    /// Sets where the rings are; returns whether rings may be there.
    pub(crate) fn set_addresses(
        &mut self,
        table: GuestAddress,
        available: GuestAddress,
        used: GuestAddress,
    ) -> bool {
        self.queue.try_set_desc_table_address(table).is_ok()
            && self.queue.try_set_avail_ring_address(available).is_ok()
            && self.queue.try_set_used_ring_address(used).is_ok()
    }

    /// Sets which request of the available ring is the next.
    pub(crate) fn set_next_available(&mut self, next: u16) {
        self.queue.set_next_avail(next);
    }

    /// Begins to serve it. Returns the heads of requests that were in flight when another back end ended, in
    /// their order: they are in flight again.
    ///
    /// # Errors
    /// [`RingError`] if there can be no queue.
    pub(crate) fn start(
        &mut self,
        index: u16,
        memory: &Memory,
        inflight: Option<&Inflight>,
        event_index: bool,
    ) -> Result<Vec<u16>, RingError> {
        self.queue.set_event_idx(event_index);
        self.queue.set_ready(true);
        let used = self.queue.used_idx(memory.map(), Ordering::Acquire).map_err(|_| RingError::Place)?.0;
        if !self.queue.is_valid(memory.map()) {
            return Err(RingError::Place);
        }
        self.queue.set_next_used(used);
        self.in_flight = vec![false; usize::from(self.queue.size())];
        self.count = 0;
        let mut recovered = Recovered::default();
        if let Some(inflight) = inflight.and_then(|inflight| inflight.queue(index, self.queue.size())) {
            recovered = inflight.recover(used);
            for head in &recovered.heads {
                self.mark(*head)?;
            }
            // Each request that was taken is either used or in flight.
            self.queue.set_next_avail(used.wrapping_add(self.count));
        }
        self.next_number = recovered.next_number;
        self.running = true;
        Ok(recovered.heads)
    }

    /// Does not serve it any more.
    pub(crate) fn stop(&mut self) {
        self.queue.set_ready(false);
        self.running = false;
        self.kick = None;
    }

    fn mark(&mut self, head: u16) -> Result<(), RingError> {
        let mark = self.in_flight.get_mut(usize::from(head)).filter(|taken| !**taken);
        *mark.ok_or(RingError::Head(head))? = true;
        self.count += 1;
        Ok(())
    }

    /// Takes the head of the next request, if there is one.
    ///
    /// # Errors
    /// [`RingError`] if the guest's ring makes no sense.
    pub(crate) fn take(
        &mut self,
        index: u16,
        memory: &Memory,
        inflight: Option<&Inflight>,
    ) -> Result<Option<u16>, RingError> {
        let mut available = self.queue.iter(memory.map()).map_err(|_| RingError::Overrun)?;
        let Some(head) = available.next().map(|chain| chain.head_index()) else {
            return Ok(None);
        };
        self.mark(head)?;
        if let Some(inflight) = inflight.and_then(|inflight| inflight.queue(index, self.queue.size())) {
            inflight.taken(head, self.next_number);
        }
        self.next_number = self.next_number.wrapping_add(1);
        Ok(Some(head))
    }

    /// Gives a request back to the guest, with the bytes that were written to its memory. Returns whether
    /// the guest wants an interrupt.
    ///
    /// # Errors
    /// [`RingError`] if the used ring is not in the guest's memory.
    pub(crate) fn give_back(
        &mut self,
        index: u16,
        head: u16,
        written: u32,
        memory: &Memory,
        inflight: Option<&Inflight>,
    ) -> Result<bool, RingError> {
        if let Some(taken) = self.in_flight.get_mut(usize::from(head)) {
            *taken = false;
            self.count = self.count.saturating_sub(1);
        }
        let inflight = inflight.and_then(|inflight| inflight.queue(index, self.queue.size()));
        if let Some(inflight) = &inflight {
            inflight.before_used(head);
        }
        self.queue.add_used(memory.map(), head, written).map_err(|_| RingError::Place)?;
        if let Some(inflight) = &inflight {
            inflight.after_used(head, self.queue.next_used());
        }
        self.queue.needs_notification(memory.map()).map_err(|_| RingError::Place)
    }

    /// Whether the guest has asked, by its event index, to be told of something that is in the used ring
    /// already.
    pub(crate) fn is_behind(&self, memory: &Memory) -> bool {
        // Behind the ring's flags, its index and its entries.
        let place = self.queue.avail_ring() + 4 + 2 * u64::from(self.queue.size());
        let event = memory.map().load::<u16>(GuestAddress(place), Ordering::Acquire);
        event.is_ok_and(|event| u16::from_le(event) != self.queue.next_used())
    }

    /// Tells the guest whether to kick. Returns whether requests came meanwhile.
    ///
    /// # Errors
    /// [`RingError`] if the rings are not in the guest's memory.
    pub(crate) fn want_kicks(&mut self, wanted: bool, memory: &Memory) -> Result<bool, RingError> {
        if wanted {
            self.queue.enable_notification(memory.map()).map_err(|_| RingError::Place)
        } else {
            self.queue.disable_notification(memory.map()).map(|()| false).map_err(|_| RingError::Place)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn an_eventfd_has_a_number_of_its_own() {
        let number = |kick: Option<File>| Vring { kick, ..Vring::new().unwrap() }.notifier();
        let [one, other] = [0; 2].map(|_| File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap()));
        let again = one.try_clone().unwrap();
        let [one, other, again] = [one, other, again].map(|kick| number(Some(kick)));
        assert!(one.is_some() && one == again && one != other, "{one:?} {other:?} {again:?}");
        assert_eq!([number(None), number(Some(tempfile::tempfile().unwrap()))], [None, None]);
    }
}
