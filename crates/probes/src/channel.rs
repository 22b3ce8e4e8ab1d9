//! What BPF programs of frontdesk's have in common (`bpf/channel.h`): a ring of events, and counters, also of
//! what was lost.

use crate::BpfError;
use crate::error::{chain, refusal};
use crate::libbpf::{keep, setup};
use frontdesk_engine::{Event, VmId};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapMut, RingBuffer, RingBufferBuilder};
use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// The maps of `channel.h`.
pub(crate) struct Maps<'a, 'b> {
    pub(crate) ring: &'a MapMut<'b>,
    pub(crate) lost: &'a MapMut<'b>,
    pub(crate) counters: &'a MapMut<'b>,
}

/// The user's end of it.
pub(crate) struct Channel {
    ring: RingBuffer<'static>,
    ring_map: MapHandle,
    lost: MapHandle,
    counters: MapHandle,
    received: Arc<Mutex<Vec<Event>>>,
    /// The counter of all records lost, and how many were when it was last looked at.
    lost_counter: u32,
    lost_seen: u64,
    /// The same for each VM followed.
    lost_seen_of: HashMap<VmId, u64>,
}

impl Channel {
    /// `decode` makes events of records, and `lost_counter` counts those that found the ring full.
    pub(crate) fn open(
        maps: &Maps<'_, '_>,
        decode: fn(&[u8]) -> Option<Event>,
        lost_counter: u32,
    ) -> Result<Channel, BpfError> {
        let ring_map = keep(maps.ring)?;
        let received = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&received);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&ring_map, move |record| {
                if let Some(event) = decode(record) {
                    sink.lock().unwrap_or_else(PoisonError::into_inner).push(event);
                }
                0
            })
            .map_err(setup("add the BPF ring buffer"))?;
        let ring = builder.build().map_err(setup("map the BPF ring buffer"))?;
        Ok(Channel {
            ring,
            ring_map,
            lost: keep(maps.lost)?,
            counters: keep(maps.counters)?,
            received,
            lost_counter,
            lost_seen: 0,
            lost_seen_of: HashMap::new(),
        })
    }

    /// Counts what is lost of a VM from now on, from 0.
    pub(crate) fn follow(&mut self, vm: VmId) -> Result<(), BpfError> {
        let count = self.lost.update(&vm.0.to_ne_bytes(), &0_u64.to_ne_bytes(), MapFlags::ANY);
        count.map_err(|e| BpfError::Follow {
            vm,
            what: "the losses".to_owned(),
            cause: refusal(&e, "1024 VMs"),
        })?;
        self.lost_seen_of.insert(vm, 0);
        Ok(())
    }

    pub(crate) fn unfollow(&mut self, vm: VmId) {
        self.lost_seen_of.remove(&vm);
        // Deleting fails only for what is not there.
        let _ = self.lost.delete(&vm.0.to_ne_bytes());
    }

    /// Becomes readable when a record wakes.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.ring_map.as_fd()
    }

    /// Appends all events heard so far, in the order they were pushed. Never blocks.
    pub(crate) fn drain(&mut self, out: &mut Vec<Event>) -> Result<(), BpfError> {
        self.ring.consume().map_err(|e| BpfError::Read { what: "the ring", cause: chain(&e) })?;
        out.append(&mut self.received.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    /// Events lost since the last call, per followed VM. One system call if there are none.
    pub(crate) fn take_lost(&mut self) -> Result<Vec<(VmId, u64)>, BpfError> {
        let total = self.counter(self.lost_counter)?;
        if total == self.lost_seen {
            return Ok(Vec::new());
        }
        self.lost_seen = total;
        let mut lost = Vec::new();
        for (&vm, seen) in &mut self.lost_seen_of {
            let count = read(&self.lost, vm.0, "the lost events")?;
            if count > *seen {
                lost.push((vm, count - *seen));
                *seen = count;
            }
        }
        lost.sort_unstable();
        Ok(lost)
    }

    /// What one of the counters stands at.
    pub(crate) fn counter(&self, index: u32) -> Result<u64, BpfError> {
        read(&self.counters, index, "the counters")
    }
}

fn read(map: &MapHandle, key: u32, what: &'static str) -> Result<u64, BpfError> {
    let value = map
        .lookup(&key.to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| BpfError::Read { what, cause: chain(&e) })?;
    let bytes = value.and_then(|v| v.try_into().ok());
    bytes.map(u64::from_ne_bytes).ok_or_else(|| BpfError::Read { what, cause: "no such entry".into() })
}
