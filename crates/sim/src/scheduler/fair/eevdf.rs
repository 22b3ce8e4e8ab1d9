//! Linux since 6.6: earliest eligible virtual deadline first, as in 6.18.
//!
//! What a node has used is compared with the average of its queue: who is owed CPU time is eligible, and of
//! those the one runs whose request of one slice ends first. Slices are all equal here, so one with a shorter
//! slice never preempts (`PREEMPT_SHORT`).

use super::discipline::{Discipline, Placement, Timing};
use super::group_fair::GroupFair;
use super::queue::{Node, NodeId, RunQueue};
use crate::{Group, HostScheduler, Nanos};
use frontdesk_engine::reservation::Reservation;

/// The fair class of Linux 6.18 with the kernel's defaults, and its real-time class for boosts.
#[must_use]
pub fn eevdf() -> Box<dyn HostScheduler> {
    eevdf_on(1, &[])
}

/// The same on a host with so many CPUs, of which the machine models some (the kernel's slices grow with
/// their number), where these groups have reservations.
pub(crate) fn eevdf_on(host_cpus: usize, reservations: &[(Group, Reservation)]) -> Box<dyn HostScheduler> {
    Box::new(GroupFair::with(Eevdf { slice: 0 }, reservations).on(host_cpus))
}

/// How run queues are ordered.
#[derive(Clone, Copy, Debug)]
struct Eevdf {
    /// `base_slice_ns`.
    slice: Nanos,
}

impl Eevdf {
    /// Gives a node that has consumed its request a new one.
    fn renew(self, node: &mut Node) -> bool {
        let consumed = node.used >= node.deadline;
        if consumed {
            node.deadline = node.used + node.scaled(self.slice);
        }
        consumed
    }

    /// What the queue owes a node, within the bounds that a steady state would keep.
    fn lag(self, timing: Timing, average: i64, node: &Node) -> i64 {
        let limit = node.scaled(timing.tick.max(2 * self.slice));
        (average - node.used).clamp(-limit, limit)
    }
}

impl Discipline for Eevdf {
    const NAME: &'static str = "eevdf";

    fn start(&mut self, timing: Timing) {
        self.slice = 700_000 * timing.factor;
    }

    fn granularity(&self) -> Nanos {
        self.slice
    }

    fn key(node: &Node) -> i64 {
        node.deadline
    }

    fn place(&self, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId, placement: Placement) {
        let average = queue.average(nodes);
        let node = &nodes[id as usize];
        let lag = if queue.count > 0 { queue.inflated(nodes, node.lag, node) } else { 0 };
        let node = &mut nodes[id as usize];
        node.used = average - lag;
        if std::mem::take(&mut node.relative) {
            node.deadline += node.used;
            return;
        }
        // A new one comes when the others are, on average, in the middle of their slices.
        let slice = if placement == Placement::New { self.slice / 2 } else { self.slice };
        node.deadline = node.used + node.scaled(slice);
    }

    fn leave(&self, timing: Timing, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId, sleeps: bool) {
        let average = queue.average(nodes);
        let node = &mut nodes[id as usize];
        node.lag = self.lag(timing, average, node);
        if !sleeps {
            node.deadline -= node.used;
            node.relative = true;
        }
        // Who has slept while it paid back gets nothing for that time.
        if std::mem::take(&mut node.delayed) {
            node.lag = node.lag.min(0);
        }
    }

    fn stays(&self, queue: &RunQueue, nodes: &[Node], id: NodeId) -> bool {
        let (weight, moment) = queue.totals(nodes);
        i128::from(nodes[id as usize].used) * i128::from(weight) > moment
    }

    fn resume(&self, timing: Timing, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId) {
        let average = queue.average(nodes);
        let node = &mut nodes[id as usize];
        node.delayed = false;
        node.lag = self.lag(timing, average, node);
        if node.lag <= 0 {
            return;
        }
        // It starts anew where the others are.
        let waits = queue.current != Some(id);
        if waits {
            queue.take(node.deadline, id, node);
        }
        let average = queue.average(nodes);
        let node = &mut nodes[id as usize];
        node.lag = 0;
        node.used = average;
        node.deadline = average + node.scaled(self.slice);
        if waits {
            queue.insert(node.deadline, id, node);
        }
    }

    fn reweigh(&self, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId, weight: u64) {
        let node = &nodes[id as usize];
        let (queued, waits) = (node.queued, node.queued && queue.current != Some(id));
        let average = if queued { queue.average(nodes) } else { 0 };
        let node = &mut nodes[id as usize];
        if !queued {
            node.lag = node.rescaled(node.lag, weight);
            node.weight = weight;
            return;
        }
        if waits {
            queue.take(node.deadline, id, node);
        }
        // Lag and what is left of the request are real time, so in virtual time they change with the weight.
        node.used = average + node.rescaled(node.used - average, weight);
        node.deadline = average + node.rescaled(node.deadline - average, weight);
        node.protected = average + node.rescaled(node.protected - average, weight);
        queue.load = queue.load - node.weight + weight;
        node.weight = weight;
        if waits {
            queue.insert(node.deadline, id, node);
        }
    }

    fn charged(&self, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId) -> bool {
        let node = &mut nodes[id as usize];
        let consumed = self.renew(node);
        if queue.count < 2 || !(consumed || node.used >= node.protected) {
            return false;
        }
        if queue.next == Some(id) {
            queue.next = None;
        }
        true
    }

    fn tick(&self, _: &RunQueue, _: &[Node], _: NodeId, _: (u64, u64)) -> bool {
        false
    }

    fn choose(&self, queue: &RunQueue, nodes: &[Node]) -> Option<NodeId> {
        let current = queue.running(nodes);
        if queue.count < 2 {
            return current.or_else(|| queue.waiting.first().map(|(_, id)| *id));
        }
        let (weight, moment) = queue.totals(nodes);
        let eligible = |id: NodeId| i128::from(nodes[id as usize].used) * i128::from(weight) <= moment;
        if let Some(next) = queue.next.filter(|id| eligible(*id)) {
            return Some(next);
        }
        let current = current.filter(|id| eligible(*id));
        if let Some(id) = current
            && nodes[id as usize].used < nodes[id as usize].protected
        {
            return Some(id);
        }
        let waiting = queue.waiting.iter().find(|(_, id)| eligible(*id));
        match (current, waiting) {
            (Some(id), Some((deadline, _))) if nodes[id as usize].deadline < *deadline => Some(id),
            (_, Some((_, id))) => Some(*id),
            (current, None) => current.or_else(|| queue.waiting.first().map(|(_, id)| *id)),
        }
    }

    fn picked(&self, node: &mut Node) {
        node.protected = node.deadline;
    }

    fn preempts(&self, queue: &RunQueue, nodes: &[Node], woken: NodeId) -> bool {
        self.choose(queue, nodes) == Some(woken)
    }
}
