//! Equal service for all VMs, within classes.

use super::Schedules;
use super::request::DiskRequest;
use crate::queue::Nanos;
use std::collections::VecDeque;

/// What waits of one VM, by class, and what it was given.
#[derive(Debug, Default)]
struct VmQueue {
    waiting: [VecDeque<DiskRequest>; 3],
    served: Nanos,
}

#[derive(Debug)]
pub(super) struct Fair {
    owners: Vec<VmQueue>,
}

impl Fair {
    pub(super) fn new(vms: usize) -> Fair {
        Fair { owners: (0..vms).map(|_| VmQueue::default()).collect() }
    }
}

impl Schedules for Fair {
    fn submit(&mut self, request: DiskRequest, _now: Nanos) {
        // Who comes back after a pause gets no credit for it.
        let busy = self.owners.iter().filter(|owner| owner.waiting.iter().any(|queue| !queue.is_empty()));
        let floor = busy.map(|owner| owner.served).min();
        let owner = &mut self.owners[request.vm];
        if let Some(floor) = floor.filter(|_| owner.waiting.iter().all(VecDeque::is_empty)) {
            owner.served = owner.served.max(floor);
        }
        owner.waiting[request.class as usize].push_back(request);
    }

    fn next(&mut self, _now: Nanos) -> Option<DiskRequest> {
        let next = |class: usize| {
            let waiting =
                self.owners.iter().enumerate().filter(move |(_, owner)| !owner.waiting[class].is_empty());
            let owner = waiting.min_by_key(|(vm, owner)| (owner.served, *vm))?.0;
            Some((class, owner))
        };
        let (class, vm) = (0..3).find_map(next)?;
        self.owners[vm].waiting[class].pop_front()
    }

    fn takes(&mut self, request: &DiskRequest, time: Nanos) {
        let served = &mut self.owners[request.vm].served;
        *served = served.saturating_add(time);
    }
}
