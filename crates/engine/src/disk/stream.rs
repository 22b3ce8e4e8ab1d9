//! Whether an arm is to be kept for somebody: whether the next request comes soon after the last one was
//! served.

use super::queue::{LANES, Lane};
use crate::event::{Time, VmId};
use std::collections::BTreeMap;

/// The requests of a VM in a lane.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// When all had been served that had come.
    emptied: Option<Time>,
    /// How long after that the next one came, on average of late, in nanoseconds.
    pause: u64,
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    vms: BTreeMap<VmId, [Stream; LANES.len()]>,
}

impl Streams {
    /// A request came. Pauses are not measured beyond twice what an arm is kept for.
    pub(super) fn came(&mut self, vm: VmId, lane: Lane, now: Time, idle: u64) {
        let stream = &mut self.vms.entry(vm).or_default()[lane as usize];
        if let Some(emptied) = stream.emptied.take() {
            let pause = now.since(emptied).min(idle.saturating_mul(2));
            stream.pause = stream.pause - stream.pause / 8 + pause / 8;
        }
    }

    /// All that had come has been served.
    pub(super) fn emptied(&mut self, vm: VmId, lane: Lane, now: Time) {
        if let Some(lanes) = self.vms.get_mut(&vm) {
            lanes[lane as usize].emptied = Some(now);
        }
    }

    pub(super) fn soon(&self, vm: VmId, lane: Lane, idle: u64) -> bool {
        self.vms.get(&vm).is_some_and(|lanes| idle > 0 && lanes[lane as usize].pause <= idle)
    }

    pub(super) fn forget(&mut self, vm: VmId) {
        self.vms.remove(&vm);
    }
}
