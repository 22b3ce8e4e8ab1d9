//! The host's disk, which all VMs share: a scheduler in front of an arm or of flash.

mod cfq;
mod deadline;
mod fair;
mod request;
mod vsip;

use crate::queue::{NEVER, Nanos, Timer};
use crate::rng::Rng;
use cfq::Cfq;
use deadline::Deadline;
use fair::Fair;
use frontdesk_engine::{UserInput, nanos};
use frontdesk_scenario::{DiskScheduler, SimDisk};
use std::fmt::Debug;
use vsip::Vsip;

pub use request::{DiskRequest, IoClass};

/// Whose request is served next.
trait Schedules: Debug {
    fn submit(&mut self, request: DiskRequest, now: Nanos);

    /// The next request, if one is to be served now.
    fn next(&mut self, now: Nanos) -> Option<DiskRequest>;

    /// The request that was next takes so long.
    fn takes(&mut self, _request: &DiskRequest, _time: Nanos) {}

    /// A request has been served.
    fn done(&mut self, _request: &DiskRequest, _now: Nanos) {}

    /// When there may be a next one although nothing happened.
    fn wakes(&self) -> Nanos {
        NEVER
    }

    /// A person did something in a VM.
    fn input(&mut self, _vm: usize, _input: UserInput, _now: Nanos) {}
}

/// A disk.
#[derive(Debug)]
pub(crate) struct DiskModel {
    seek: Nanos,
    rotation: Nanos,
    access: Nanos,
    bytes_per_s: u64,
    scheduler: Box<dyn Schedules + Send>,
    /// In service, each with its timer.
    slots: Vec<(Timer, Option<DiskRequest>)>,
    /// The VM and the task at whose last request the arm is.
    last: Option<(usize, usize)>,
    rng: Rng,
}

impl DiskModel {
    /// `names`: what each VM's workloads are called. `timers`: one for each request that can be served at the
    /// same time.
    pub(crate) fn new(config: &SimDisk, names: Vec<Vec<String>>, timers: Vec<Timer>, rng: Rng) -> DiskModel {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Its range is checked.
        let bytes_per_s = (config.mb_per_s * 1e6) as u64;
        let scheduler: Box<dyn Schedules + Send> = match config.scheduler {
            DiskScheduler::Fair => Box::new(Fair::new(names.len())),
            DiskScheduler::Cfq => Box::new(Cfq::new(names.len())),
            DiskScheduler::Deadline => Box::new(Deadline::default()),
            DiskScheduler::Vsip => Box::new(Vsip::new(config, names)),
        };
        DiskModel {
            seek: nanos(config.seek),
            rotation: nanos(config.rotation),
            access: nanos(config.access),
            bytes_per_s: bytes_per_s.max(1),
            scheduler,
            slots: timers.into_iter().map(|timer| (timer, None)).collect(),
            last: None,
            rng,
        }
    }

    pub(crate) fn submit(&mut self, request: DiskRequest, now: Nanos) {
        self.scheduler.submit(request, now);
    }

    pub(crate) fn input(&mut self, vm: usize, input: UserInput, now: Nanos) {
        self.scheduler.input(vm, input, now);
    }

    /// Takes up the next request, if there is one and a place for it: its timer, and how long it takes.
    pub(crate) fn serve(&mut self, now: Nanos) -> Option<(Timer, Nanos)> {
        let slot = self.slots.iter().position(|(_, request)| request.is_none())?;
        let request = self.scheduler.next(now)?;
        let time = self.service(&request);
        self.scheduler.takes(&request, time);
        self.last = Some((request.vm, request.asker));
        self.slots[slot].1 = Some(request);
        Some((self.slots[slot].0, time))
    }

    /// When [`serve`](Self::serve) may find one although nothing happened.
    pub(crate) fn wakes(&self) -> Nanos {
        self.scheduler.wakes()
    }

    fn service(&mut self, request: &DiskRequest) -> Nanos {
        let transfer = u64::from(request.bytes).saturating_mul(1_000_000_000) / self.bytes_per_s;
        let moves = !request.sequential || self.last != Some((request.vm, request.asker));
        let arm = if moves { self.rng.uniform(0, self.seek) + self.rng.uniform(0, self.rotation) } else { 0 };
        self.access.saturating_add(arm).saturating_add(transfer)
    }

    /// The request in a place is done.
    pub(crate) fn done(&mut self, slot: usize, now: Nanos) -> Option<DiskRequest> {
        let request = self.slots.get_mut(slot)?.1.take()?;
        self.scheduler.done(&request, now);
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Queue;
    use frontdesk_engine::TaskId;

    const MS: Nanos = 1_000_000;

    fn disk(config: &SimDisk, vms: usize) -> (Queue<usize>, DiskModel) {
        let mut queue = Queue::default();
        let timers = (0..config.parallel as usize).map(|slot| queue.add(slot)).collect();
        (queue, DiskModel::new(config, vec![Vec::new(); vms], timers, Rng::new(1, 1)))
    }

    fn request(vm: usize, sequential: bool, class: IoClass) -> DiskRequest {
        DiskRequest {
            id: 0,
            vm,
            vcpu: 0,
            asker: 0,
            space: TaskId(1),
            workload: 0,
            task: Some(0),
            bytes: 4096,
            sequential,
            class,
            write: false,
        }
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
            for _ in 0..8 {
                next_id += 1;
                disk.submit(DiskRequest { id: next_id, ..request(vm, *sequential, *class) }, 0);
            }
        }
        while got.iter().sum::<usize>() < total {
            while let Some((timer, time)) = disk.serve(now) {
                queue.arm(timer, now + time);
            }
            let (at, slot) = queue.pop().unwrap();
            now = at;
            let done = disk.done(slot, now).unwrap();
            got[done.vm] += 1;
            next_id += 1;
            let (sequential, class) = kinds[done.vm];
            disk.submit(DiskRequest { id: next_id, ..request(done.vm, sequential, class) }, now);
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

    fn arm(scheduler: DiskScheduler) -> SimDisk {
        let [seek, rotation] = [17, 8].map(std::time::Duration::from_millis);
        SimDisk { seek, rotation, parallel: 1, scheduler, ..SimDisk::default() }
    }

    #[test]
    fn turns_save_seeks_and_whole_vms_can_come_first() {
        let time = |scheduler| {
            let (mut queue, mut one) = disk(&arm(scheduler), 2);
            serve(&mut one, &mut queue, &[(true, IoClass::Common); 2], 2_000)
        };
        let [(fair, _), (cfq, got), (vsip, _)] =
            [DiskScheduler::Fair, DiskScheduler::Cfq, DiskScheduler::Vsip].map(time);
        assert!(cfq * 5 < fair && vsip * 5 < fair, "{cfq}, {vsip} and {fair}");
        assert!(got.iter().all(|got| *got > 500), "{got:?}");
        let (mut queue, mut one) = disk(&arm(DiskScheduler::Cfq), 2);
        let kinds = [(false, IoClass::Common), (false, IoClass::High)];
        assert_eq!(serve(&mut one, &mut queue, &kinds, 300).1, [0, 300]);
    }

    #[test]
    fn deadline_serves_reads_first_and_writes_in_time() {
        let (mut queue, mut one) = disk(&arm(DiskScheduler::Deadline), 1);
        for id in 0..8 {
            one.submit(DiskRequest { id, write: id < 4, ..request(0, false, IoClass::Common) }, 0);
        }
        let mut order = Vec::new();
        let mut now = 0;
        while let Some((timer, time)) = one.serve(now) {
            queue.arm(timer, now + time);
            let (at, slot) = queue.pop().unwrap();
            now = at;
            order.push(one.done(slot, now).unwrap().id);
        }
        assert_eq!(order, [4, 5, 0, 6, 7, 1, 2, 3]);
    }

    #[test]
    fn vsip_serves_first_what_a_person_waits_for() {
        let first = |input: bool| {
            let (mut queue, mut one) = disk(&arm(DiskScheduler::Vsip), 3);
            if input {
                one.input(2, UserInput::Enter, 0);
            }
            serve(&mut one, &mut queue, &[(false, IoClass::Common); 3], 1).1
        };
        assert_eq!([first(false), first(true)], [[1, 0, 0], [0, 0, 1]]);
    }
}
