//! The engine's disk policy in front of the disk, as it is.

use super::Schedules;
use super::request::DiskRequest;
use crate::feed::id;
use crate::queue::{NEVER, Nanos};
use frontdesk_engine::disk::{self, Asker, Device, DiskOperation, DiskPolicy};
use frontdesk_engine::{Time, UserInput};
use frontdesk_scenario::SimDisk;
use std::collections::HashMap;

/// Where a request is that does not follow the one before: this far from it.
const FAR: u64 = 1 << 30;

#[derive(Debug)]
pub(super) struct Vsip {
    policy: DiskPolicy,
    waiting: HashMap<u64, DiskRequest>,
    /// Where the last request of each VM ends.
    ends: Vec<u64>,
    /// What guests call their workloads, if they say.
    names: Vec<Vec<String>>,
}

impl Vsip {
    pub(super) fn new(config: &SimDisk, names: Vec<Vec<String>>) -> Vsip {
        let device = if config.has_arm() { Device::Arm } else { Device::Flash };
        Vsip {
            policy: DiskPolicy::new(config.vsip.clone(), device),
            waiting: HashMap::new(),
            ends: vec![0; names.len()],
            names: if config.names { names } else { Vec::new() },
        }
    }
}

impl Schedules for Vsip {
    fn submit(&mut self, request: DiskRequest, now: Nanos) {
        let DiskRequest { id: number, vm, space, bytes, .. } = request;
        if let Some(name) = self.names.get(vm).and_then(|names| names.get(request.workload)) {
            self.policy.named(id(vm), space, name);
        }
        let end = &mut self.ends[vm];
        let offset = if request.sequential { *end } else { end.wrapping_add(FAR) };
        *end = offset.wrapping_add(u64::from(bytes));
        let vcpu = u16::try_from(request.vcpu).unwrap_or(u16::MAX);
        // What nobody waits for is written back by the kernel.
        let task = request.task.map(|_| space);
        let operation = if request.write { DiskOperation::Write } else { DiskOperation::Read };
        let asks = disk::DiskRequest {
            id: number,
            vm: id(vm),
            asker: Some(Asker { vcpu, task }),
            operation,
            offset,
            bytes: u64::from(bytes),
            at: Time(now),
        };
        if self.policy.arrive(&asks) {
            self.waiting.insert(number, request);
        }
    }

    fn next(&mut self, now: Nanos) -> Option<DiskRequest> {
        let submit = self.policy.next(Time(now))?;
        self.waiting.remove(&submit.id)
    }

    fn done(&mut self, request: &DiskRequest, now: Nanos) {
        self.policy.complete(request.id, Time(now));
    }

    fn wakes(&self) -> Nanos {
        self.policy.deadline().map_or(NEVER, |at| at.0)
    }

    fn input(&mut self, vm: usize, input: UserInput, now: Nanos) {
        self.policy.input(id(vm), input, Time(now));
    }
}
