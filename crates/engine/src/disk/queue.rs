//! What waits, and whose turn it is: classes in order, and in each the VM that was served least.

use super::config::DiskConfig;
use super::limiter::signed;
use super::request::{Beyond, DiskClass};
use crate::event::{Time, VmId};
use std::collections::{BTreeMap, VecDeque};

/// What a VM's request is thought to cost until one was served, in nanoseconds.
const UNKNOWN: u64 = 1_000_000;

/// The requests of a VM that keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Of its interactive applications.
    Interactive,
    /// The others.
    Ordinary,
    /// Flushes that nobody waits for.
    Flush,
}

pub(super) const LANES: [Lane; 3] = [Lane::Interactive, Lane::Ordinary, Lane::Flush];

/// A request that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u64,
    /// Its number among all: what came earlier has a lower one.
    number: u64,
    since: Time,
}

#[derive(Debug)]
struct VmQueue {
    lanes: [VecDeque<Waiting>; LANES.len()],
    /// Its requests that are being served.
    serving: u32,
    /// Device time that it had, or that it could have had but for a pause, in nanoseconds.
    served: u64,
    /// What a request of it costs of late.
    estimate: u64,
}

impl VmQueue {
    fn new(served: u64) -> VmQueue {
        VmQueue { lanes: Default::default(), serving: 0, served, estimate: UNKNOWN }
    }

    fn busy(&self) -> bool {
        self.serving > 0 || self.lanes.iter().any(|lane| !lane.is_empty())
    }
}

/// The request whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) id: u64,
    pub(super) vm: VmId,
    pub(super) lane: Lane,
    pub(super) class: DiskClass,
    /// What it is thought to cost, in nanoseconds.
    pub(super) estimate: u64,
    pub(super) order: Order,
    number: u64,
    served: u64,
}

/// How a turn stands to what else waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Nothing of another class waits.
    Alone,
    /// Something of a lower class goes on waiting.
    First,
    /// Something of a higher class goes on waiting.
    Last,
}

/// Who is served as long as its slice lasts: an arm is not to move for each request.
#[derive(Clone, Copy, Debug)]
struct Slice {
    vm: VmId,
    class: DiskClass,
    used: u64,
}

#[derive(Debug, Default)]
pub(super) struct Queues {
    vms: BTreeMap<VmId, VmQueue>,
    /// Requests that came.
    came: u64,
    /// What the VM was served that was served least, of those that wanted something.
    least: u64,
    /// Device time that is due to lower classes, in nanoseconds.
    due_below: i64,
    slice: Option<Slice>,
}

impl Queues {
    pub(super) fn push(&mut self, vm: VmId, lane: Lane, id: u64, now: Time) {
        self.follow_least();
        let least = self.least;
        let queue = self.vms.entry(vm).or_insert_with(|| VmQueue::new(least));
        if !queue.busy() {
            // Who comes back after a pause gets no credit for it.
            queue.served = queue.served.max(least);
        }
        queue.lanes[lane as usize].push_back(Waiting { id, number: self.came, since: now });
        self.came += 1;
    }

    fn follow_least(&mut self) {
        let of_busy = self.vms.values().filter(|queue| queue.busy()).map(|queue| queue.served).min();
        // When nobody wants anything all begin equal.
        let least = of_busy.or_else(|| self.vms.values().map(|queue| queue.served).max());
        self.least = self.least.max(least.unwrap_or(0));
    }

    pub(super) fn forget(&mut self, vm: VmId) {
        self.vms.remove(&vm);
    }

    /// Whether a VM has something in a lane.
    pub(super) fn waits(&self, vm: VmId, lane: Lane) -> bool {
        self.vms.get(&vm).is_some_and(|queue| !queue.lanes[lane as usize].is_empty())
    }

    /// When the flushes that wait came, of each VM the first.
    pub(super) fn flushes(&self) -> impl Iterator<Item = Time> {
        self.vms.values().filter_map(|queue| Some(queue.lanes[Lane::Flush as usize].front()?.since))
    }

    /// The request whose turn it is, if `limits` are what VMs are beyond. `held`: the flushes to be left, by
    /// when they came. `slice`: of an arm, how long a VM goes on.
    pub(super) fn turn(
        &self,
        limits: impl Fn(VmId) -> Option<Beyond>,
        held: impl Fn(Time) -> bool,
        slice: Option<u64>,
    ) -> Option<Turn> {
        let offers = || self.vms.iter().filter_map(|(vm, queue)| offer(*vm, queue, limits(*vm), &held));
        let best = offers().min_by_key(|turn| (turn.class, turn.served, turn.vm))?;
        // Of all that waits behind it, what waits longest.
        let below = offers().filter(|turn| turn.class > best.class).min_by_key(|turn| turn.number);
        let Some(below) = below else { return Some(self.go_on(best, offers(), slice)) };
        if self.due_below >= signed(below.estimate) {
            return Some(Turn { order: Order::Last, ..below });
        }
        Some(Turn { order: Order::First, ..self.go_on(best, offers(), slice) })
    }

    /// As long as a slice lasts its VM goes on.
    fn go_on(&self, best: Turn, mut offers: impl Iterator<Item = Turn>, slice: Option<u64>) -> Turn {
        let goes_on = |held: &Slice| slice.is_some_and(|slice| held.used < slice) && held.class == best.class;
        let Some(held) = self.slice.filter(goes_on) else { return best };
        offers.find(|turn| turn.vm == held.vm && turn.class == held.class).unwrap_or(best)
    }

    /// The request whose turn it was is submitted.
    pub(super) fn submitted(&mut self, turn: &Turn) {
        self.follow_least();
        if let Some(queue) = self.vms.get_mut(&turn.vm) {
            queue.lanes[turn.lane as usize].pop_front();
            queue.serving += 1;
        }
        if self.slice.is_none_or(|held| (held.vm, held.class) != (turn.vm, turn.class)) {
            self.slice = Some(Slice { vm: turn.vm, class: turn.class, used: 0 });
        }
    }

    /// A request has been served, which took so long.
    pub(super) fn completed(&mut self, vm: VmId, cost: u64) {
        if let Some(queue) = self.vms.get_mut(&vm) {
            queue.serving = queue.serving.saturating_sub(1);
            queue.estimate = (queue.estimate - queue.estimate / 8).saturating_add(cost / 8);
        }
    }

    /// A VM had so much device time, or gives so much back, with which what waits in other classes was kept
    /// waiting or not.
    pub(super) fn charge(&mut self, vm: VmId, order: Order, time: i64, config: &DiskConfig) {
        if let Some(queue) = self.vms.get_mut(&vm) {
            queue.served = queue.served.saturating_add_signed(time);
        }
        if let Some(held) = self.slice.as_mut().filter(|held| held.vm == vm) {
            held.used = held.used.saturating_add_signed(time);
        }
        match order {
            Order::Alone => {}
            Order::First => {
                let part = config.low_share / (1.0 - config.low_share);
                #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // A part of it.
                let due = (time as f64 * part) as i64;
                self.due_below = self.due_below.saturating_add(due);
            }
            Order::Last => self.due_below = self.due_below.saturating_sub(time),
        }
    }

    /// Whether a turn is another VM's than the one before.
    pub(super) fn leaves(&self, turn: &Turn) -> bool {
        self.slice.is_some_and(|held| held.vm != turn.vm)
    }

    /// Whether a slice goes on for this VM.
    pub(super) fn in_slice(&self, vm: VmId, slice: u64) -> bool {
        self.slice.is_some_and(|held| held.vm == vm && held.used < slice)
    }
}

/// What a VM would have served next.
fn offer(vm: VmId, queue: &VmQueue, beyond: Option<Beyond>, held: impl Fn(Time) -> bool) -> Option<Turn> {
    let turn = |lane: Lane, waiting: &Waiting, class: DiskClass| Turn {
        id: waiting.id,
        vm,
        lane,
        class,
        estimate: queue.estimate,
        order: Order::Alone,
        number: waiting.number,
        served: queue.served,
    };
    let first = |lane: Lane| queue.lanes[lane as usize].front();
    if let (Some(waiting), None) = (first(Lane::Interactive), beyond) {
        return Some(turn(Lane::Interactive, waiting, DiskClass::High));
    }
    let free = |lane: &Lane, waiting: &Waiting| *lane != Lane::Flush || !held(waiting.since);
    let waiting = LANES.iter().filter_map(|lane| Some((*lane, first(*lane)?)));
    let (lane, waiting) =
        waiting.filter(|(lane, waiting)| free(lane, waiting)).min_by_key(|(_, waiting)| waiting.number)?;
    let class = if beyond == Some(Beyond::Cap) { DiskClass::Low } else { DiskClass::Common };
    Some(turn(lane, waiting, class))
}
