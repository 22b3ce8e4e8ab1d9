//! Linux 2.6.39 to 3.x: the completely fair scheduler, on which vAMP was built (vAMP §4).
//!
//! Who has used least runs next, for its part of a period in which everybody runs once. Sleepers come back a
//! little behind, so that they preempt. The `LAST_BUDDY` feature, which is for the caches, is left out.

use super::discipline::{Discipline, Placement, Timing};
use super::group_fair::GroupFair;
use super::queue::{Node, NodeId, RunQueue, signed};
use crate::{Group, HostScheduler, Nanos};
use frontdesk_engine::reservation::Reservation;

/// The fair class of Linux 3.0 with the kernel's defaults, and its real-time class for boosts.
#[must_use]
pub fn cfs() -> Box<dyn HostScheduler> {
    cfs_on(1, &[])
}

/// The same on a host with so many CPUs, of which the machine models some (the kernel's slices grow with
/// their number), where these groups have reservations.
pub(crate) fn cfs_on(host_cpus: usize, reservations: &[(Group, Reservation)]) -> Box<dyn HostScheduler> {
    Box::new(GroupFair::with(Cfs { factor: 1 }, reservations).on(host_cpus))
}

/// How run queues are ordered.
#[derive(Clone, Copy, Debug)]
struct Cfs {
    /// By how much the parameters are longer on this machine than on one with a single physical CPU.
    factor: Nanos,
}

impl Cfs {
    /// `sched_latency_ns`: the period in which everybody runs once,
    fn latency(self) -> Nanos {
        6_000_000 * self.factor
    }

    /// `sched_min_granularity_ns`: unless there are so many that somebody would run shorter than this.
    fn min_granularity(self) -> Nanos {
        750_000 * self.factor
    }

    /// `sched_wakeup_granularity_ns`: by so much must a woken one be behind to preempt.
    fn wakeup_granularity(self) -> Nanos {
        1_000_000 * self.factor
    }

    /// The part of the period that is a node's; `with`: that it gets once it is queued.
    fn slice(self, queue: &RunQueue, node: &Node, outer: (u64, u64)) -> Nanos {
        let (count, load) =
            if node.queued { (queue.count, queue.load) } else { (queue.count + 1, queue.load + node.weight) };
        let period = self.latency().max(u64::from(count) * self.min_granularity());
        let part = |whole: Nanos, weight: u64, all: u64| {
            let part = u128::from(whole) * u128::from(weight) / u128::from(all.max(1));
            Nanos::try_from(part).unwrap_or(whole)
        };
        part(part(period, node.weight, load), outer.0, outer.1)
    }

    /// Moves the virtual time of a queue on to the least that anybody has used; never back.
    fn advance(queue: &mut RunQueue, nodes: &[Node]) {
        let first = queue.waiting.first().map(|(used, _)| *used);
        let current = queue.running(nodes).map(|id| nodes[id as usize].used);
        if let Some(least) = first.into_iter().chain(current).min() {
            queue.virtual_time = queue.virtual_time.max(least);
        }
    }

    /// Whether a node is so far behind another that it preempts.
    fn is_far_behind(self, node: &Node, other: &Node) -> bool {
        other.used - node.used > node.scaled(self.wakeup_granularity())
    }
}

impl Discipline for Cfs {
    const NAME: &'static str = "cfs";

    fn start(&mut self, timing: Timing) {
        self.factor = timing.factor;
    }

    fn granularity(&self) -> Nanos {
        self.min_granularity()
    }

    fn key(node: &Node) -> i64 {
        node.used
    }

    fn place(&self, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId, placement: Placement) {
        let slice = self.slice(queue, &nodes[id as usize], (1, 1));
        let node = &mut nodes[id as usize];
        if std::mem::take(&mut node.relative) {
            // It was this far from the virtual time of the queue that it left.
            node.used = queue.virtual_time - node.lag;
        }
        match placement {
            Placement::Moved => {}
            Placement::New => node.used = node.used.max(queue.virtual_time + node.scaled(slice)),
            // Half of the period is what a sleeper gets in advance (GENTLE_FAIR_SLEEPERS).
            Placement::Woken => {
                node.used = node.used.max(queue.virtual_time - signed(self.latency() / 2));
            }
        }
    }

    fn leave(&self, _: Timing, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId, sleeps: bool) {
        if !sleeps {
            self.depart(queue, &mut nodes[id as usize]);
        }
    }

    fn depart(&self, queue: &RunQueue, node: &mut Node) {
        node.lag = queue.virtual_time - node.used;
        node.relative = true;
    }

    fn stays(&self, _: &RunQueue, _: &[Node], _: NodeId) -> bool {
        false
    }

    fn resume(&self, _: Timing, _: &mut RunQueue, _: &mut [Node], _: NodeId) {}

    fn reweigh(&self, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId, weight: u64) {
        let waits = queue.current != Some(id);
        let node = &mut nodes[id as usize];
        if node.queued {
            if waits {
                queue.take(node.used, id, node);
            }
            queue.load = queue.load - node.weight + weight;
        }
        node.weight = weight;
        if node.queued && waits {
            queue.insert(node.used, id, node);
        }
    }

    fn charged(&self, queue: &mut RunQueue, nodes: &mut [Node], _: NodeId) -> bool {
        Cfs::advance(queue, nodes);
        false
    }

    fn tick(&self, queue: &RunQueue, nodes: &[Node], id: NodeId, outer: (u64, u64)) -> bool {
        let Some((least, _)) = queue.waiting.first() else { return false };
        let node = &nodes[id as usize];
        let slice = self.slice(queue, node, outer);
        node.ran > slice || (node.ran >= self.min_granularity() && node.used - least > signed(slice))
    }

    fn choose(&self, queue: &RunQueue, nodes: &[Node]) -> Option<NodeId> {
        let current = queue.running(nodes);
        let first = queue.waiting.first().map(|(_, id)| *id);
        let (first, current) = match (first, current) {
            (Some(first), current) => (first, current),
            (None, current) => return current,
        };
        let least = match current {
            Some(id) if nodes[id as usize].used < nodes[first as usize].used => id,
            _ => first,
        };
        let next = queue.next.filter(|id| !self.is_far_behind(&nodes[least as usize], &nodes[*id as usize]));
        Some(next.unwrap_or(least))
    }

    fn picked(&self, _: &mut Node) {}

    fn preempts(&self, queue: &RunQueue, nodes: &[Node], woken: NodeId) -> bool {
        let woken = &nodes[woken as usize];
        queue.running(nodes).is_none_or(|id| self.is_far_behind(woken, &nodes[id as usize]))
    }
}
