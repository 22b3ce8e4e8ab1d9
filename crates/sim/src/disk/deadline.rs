//! Linux' deadline scheduler, as far as synchronous requests from all over the disk let it differ from first
//! come, first served: reads come before writes, which wait for two of them at most.

use super::Schedules;
use super::request::DiskRequest;
use crate::queue::Nanos;
use std::collections::VecDeque;

/// Reads after which a write that waits is served (`writes_starved`).
const STARVED: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct Deadline {
    reads: VecDeque<DiskRequest>,
    writes: VecDeque<DiskRequest>,
    /// Reads since the last write, while one waited.
    passed: u32,
}

impl Schedules for Deadline {
    fn submit(&mut self, request: DiskRequest, _now: Nanos) {
        if request.write { &mut self.writes } else { &mut self.reads }.push_back(request);
    }

    fn next(&mut self, _now: Nanos) -> Option<DiskRequest> {
        if self.reads.is_empty() || !self.writes.is_empty() && self.passed >= STARVED {
            self.passed = 0;
            return self.writes.pop_front();
        }
        self.passed = if self.writes.is_empty() { 0 } else { self.passed + 1 };
        self.reads.pop_front()
    }
}
