//! The host's disk, which all VMs share: a fair scheduler with priority classes in front of an arm or of
//! flash.

use crate::queue::{Nanos, Timer};
use crate::rng::Rng;
use frontdesk_engine::nanos;
use frontdesk_scenario::SimDisk;
use std::collections::VecDeque;

/// Class of a request: a higher one is served first (vSIP §3.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoClass {
    /// Of an interactive application, within what its VM may have.
    High,
    /// Of any other.
    #[default]
    Common,
    /// Beyond what its VM may have; only when the disk has nothing else to do.
    Low,
}

/// A request of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRequest {
    /// Identifies it.
    pub id: u64,
    /// Whose process it is of.
    pub vm: usize,
    /// The guest's task that waits for it, if any.
    pub task: Option<usize>,
    /// How much.
    pub bytes: u32,
    /// Whether it follows the one before of the same VM.
    pub sequential: bool,
    /// Its class.
    pub class: IoClass,
    /// Whether it is a write.
    pub write: bool,
}

/// What waits of one VM, by class, and what it was given.
#[derive(Debug, Default)]
struct VmQueue {
    waiting: [VecDeque<DiskRequest>; 3],
    served: Nanos,
}

/// A disk.
#[derive(Debug)]
pub(crate) struct DiskModel {
    seek: Nanos,
    rotation: Nanos,
    access: Nanos,
    bytes_per_s: u64,
    owners: Vec<VmQueue>,
    /// In service, each with its timer.
    slots: Vec<(Timer, Option<DiskRequest>)>,
    /// The VM at whose last request the arm is.
    last: Option<usize>,
    rng: Rng,
}

impl DiskModel {
    /// `timers`: one for each request that can be served at the same time.
    pub(crate) fn new(config: &SimDisk, vms: usize, timers: Vec<Timer>, rng: Rng) -> DiskModel {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Its range is checked.
        let bytes_per_s = (config.mb_per_s * 1e6) as u64;
        DiskModel {
            seek: nanos(config.seek),
            rotation: nanos(config.rotation),
            access: nanos(config.access),
            bytes_per_s: bytes_per_s.max(1),
            owners: (0..vms).map(|_| VmQueue::default()).collect(),
            slots: timers.into_iter().map(|timer| (timer, None)).collect(),
            last: None,
            rng,
        }
    }

    pub(crate) fn submit(&mut self, request: DiskRequest) {
        // Who comes back after a pause gets no credit for it.
        let busy = self.owners.iter().filter(|owner| owner.waiting.iter().any(|queue| !queue.is_empty()));
        let floor = busy.map(|owner| owner.served).min();
        let owner = &mut self.owners[request.vm];
        if let Some(floor) = floor.filter(|_| owner.waiting.iter().all(VecDeque::is_empty)) {
            owner.served = owner.served.max(floor);
        }
        owner.waiting[request.class as usize].push_back(request);
    }

    /// Takes up the next request, if there is one and a place for it: its timer, and how long it takes.
    pub(crate) fn serve(&mut self) -> Option<(Timer, Nanos)> {
        let slot = self.slots.iter().position(|(_, request)| request.is_none())?;
        let next = |class: usize| {
            let waiting =
                self.owners.iter().enumerate().filter(move |(_, owner)| !owner.waiting[class].is_empty());
            let owner = waiting.min_by_key(|(vm, owner)| (owner.served, *vm))?.0;
            Some((class, owner))
        };
        let (class, vm) = (0..3).find_map(next)?;
        let request = self.owners[vm].waiting[class].pop_front()?;
        let time = self.service(&request);
        self.owners[vm].served = self.owners[vm].served.saturating_add(time);
        self.last = Some(vm);
        self.slots[slot].1 = Some(request);
        Some((self.slots[slot].0, time))
    }

    fn service(&mut self, request: &DiskRequest) -> Nanos {
        let transfer = u64::from(request.bytes).saturating_mul(1_000_000_000) / self.bytes_per_s;
        let moves = !request.sequential || self.last != Some(request.vm);
        let arm = if moves { self.rng.uniform(0, self.seek) + self.rng.uniform(0, self.rotation) } else { 0 };
        self.access.saturating_add(arm).saturating_add(transfer)
    }

    /// The request in a place is done.
    pub(crate) fn done(&mut self, slot: usize) -> Option<DiskRequest> {
        self.slots.get_mut(slot)?.1.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Queue;

    const MS: Nanos = 1_000_000;

    fn disk(config: &SimDisk, vms: usize) -> (Queue<usize>, DiskModel) {
        let mut queue = Queue::default();
        let timers = (0..config.parallel as usize).map(|slot| queue.add(slot)).collect();
        (queue, DiskModel::new(config, vms, timers, Rng::new(1, 1)))
    }

    fn request(vm: usize, sequential: bool, class: IoClass) -> DiskRequest {
        DiskRequest { id: 0, vm, task: None, bytes: 4096, sequential, class, write: false }
    }

    /// Serves `count` requests of each VM, which always has one waiting, and returns the time and what each
    /// VM got.
    fn serve(
        disk: &mut DiskModel,
        queue: &mut Queue<usize>,
        kinds: &[(bool, IoClass)],
        total: usize,
    ) -> (Nanos, Vec<usize>) {
        let mut got = vec![0; kinds.len()];
        let (mut now, mut next_id) = (0, 0);
        for (vm, (sequential, class)) in kinds.iter().enumerate() {
            (0..8).for_each(|_| disk.submit(request(vm, *sequential, *class)));
        }
        while got.iter().sum::<usize>() < total {
            while let Some((timer, time)) = disk.serve() {
                queue.arm(timer, now + time);
            }
            let (at, slot) = queue.pop().unwrap();
            now = at;
            let done = disk.done(slot).unwrap();
            got[done.vm] += 1;
            next_id += 1;
            let (sequential, class) = kinds[done.vm];
            disk.submit(DiskRequest { id: next_id, ..request(done.vm, sequential, class) });
        }
        (now, got)
    }

    #[test]
    fn an_arm_seeks_unless_the_next_block_follows() {
        let config = SimDisk {
            seek: std::time::Duration::from_millis(8),
            rotation: std::time::Duration::from_millis(8),
            parallel: 1,
            ..SimDisk::default()
        };
        let (mut queue, mut one) = disk(&config, 1);
        let (random, _) = serve(&mut one, &mut queue, &[(false, IoClass::Common)], 1_000);
        assert!((7_500 * MS..9_000 * MS).contains(&random), "half a seek and half a rotation each: {random}");
        let (mut queue, mut one) = disk(&config, 1);
        let (sequential, _) = serve(&mut one, &mut queue, &[(true, IoClass::Common)], 1_000);
        assert!(sequential < 110 * MS, "{sequential}");
    }

    #[test]
    fn flash_serves_several_at_once() {
        let time = |parallel| {
            let (mut queue, mut one) = disk(&SimDisk { parallel, ..SimDisk::default() }, 1);
            serve(&mut one, &mut queue, &[(false, IoClass::Common)], 1_000).0
        };
        assert_eq!(time(1) / time(8), 8);
    }

    #[test]
    fn vms_get_equal_service_and_classes_come_in_order() {
        let config = SimDisk { parallel: 1, ..SimDisk::default() };
        let (mut queue, mut one) = disk(&config, 3);
        let (_, got) = serve(&mut one, &mut queue, &[(false, IoClass::Common); 3], 900);
        assert!(got.iter().all(|got| (299..=301).contains(got)), "{got:?}");
        let (mut queue, mut one) = disk(&config, 2);
        let (_, got) = serve(&mut one, &mut queue, &[(false, IoClass::High), (false, IoClass::Low)], 900);
        assert_eq!(got, [900, 0]);
    }
}
