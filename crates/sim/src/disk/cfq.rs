//! CFQ, as Linux had it until 5.0 and as the paper's host has: VMs take turns of 100 ms each, in their class,
//! and the arm waits 8 ms for the next request of who has the turn. Each VM is one process to it.

use super::Schedules;
use super::request::{DiskRequest, IoClass};
use crate::queue::{NEVER, Nanos};
use std::collections::VecDeque;

/// A turn (`slice_sync`), and how long the arm waits (`slice_idle`), in nanoseconds.
const SLICE: Nanos = 100_000_000;
const IDLE: Nanos = 8_000_000;

#[derive(Debug, Default)]
struct VmQueue {
    waiting: [VecDeque<DiskRequest>; 3],
    /// How long the next request came after the last one was served, on average.
    pause: Nanos,
    emptied: Option<Nanos>,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    vm: usize,
    class: IoClass,
    ends: Nanos,
    /// Until when the arm waits for it.
    idle: Option<Nanos>,
}

#[derive(Debug)]
pub(super) struct Cfq {
    vms: Vec<VmQueue>,
    turn: Option<Turn>,
    /// Who had the last turn: the next one is of those after it.
    last: usize,
}

const CLASSES: [IoClass; 3] = [IoClass::High, IoClass::Common, IoClass::Low];

impl Cfq {
    pub(super) fn new(vms: usize) -> Cfq {
        Cfq { vms: (0..vms).map(|_| VmQueue::default()).collect(), turn: None, last: 0 }
    }

    fn waits(&self, class: IoClass) -> bool {
        self.vms.iter().any(|queue| !queue.waiting[class as usize].is_empty())
    }

    /// Whether the turn goes on: nobody of a higher class wants one, and there is something to serve, or to
    /// wait for.
    fn goes_on(&self, turn: &Turn, now: Nanos) -> bool {
        let preempted = CLASSES.into_iter().any(|class| class < turn.class && self.waits(class));
        let own = !self.vms[turn.vm].waiting[turn.class as usize].is_empty();
        !preempted && now < turn.ends && (own || turn.idle.is_some_and(|until| now < until))
    }
}

impl Schedules for Cfq {
    fn submit(&mut self, request: DiskRequest, now: Nanos) {
        let queue = &mut self.vms[request.vm];
        if let Some(emptied) = queue.emptied.take() {
            let pause = now.saturating_sub(emptied).min(2 * IDLE);
            queue.pause = queue.pause - queue.pause / 8 + pause / 8;
        }
        queue.waiting[request.class as usize].push_back(request);
    }

    fn next(&mut self, now: Nanos) -> Option<DiskRequest> {
        if !self.turn.is_some_and(|turn| self.goes_on(&turn, now)) {
            let class = CLASSES.into_iter().find(|class| self.waits(*class))?;
            let count = self.vms.len();
            let after = (1..=count).map(|step| (self.last + step) % count);
            let vm = after.into_iter().find(|vm| !self.vms[*vm].waiting[class as usize].is_empty())?;
            self.last = vm;
            self.turn = Some(Turn { vm, class, ends: now.saturating_add(SLICE), idle: None });
        }
        let turn = self.turn.as_mut()?;
        let request = self.vms[turn.vm].waiting[turn.class as usize].pop_front()?;
        turn.idle = None;
        Some(request)
    }

    fn done(&mut self, request: &DiskRequest, now: Nanos) {
        let queue = &mut self.vms[request.vm];
        if queue.waiting.iter().any(|waiting| !waiting.is_empty()) {
            return;
        }
        queue.emptied = Some(now);
        if queue.pause <= IDLE
            && let Some(turn) = self.turn.as_mut().filter(|turn| turn.vm == request.vm)
        {
            turn.idle = Some(now.saturating_add(IDLE).min(turn.ends));
        }
    }

    fn wakes(&self) -> Nanos {
        self.turn.and_then(|turn| turn.idle).unwrap_or(NEVER)
    }
}
