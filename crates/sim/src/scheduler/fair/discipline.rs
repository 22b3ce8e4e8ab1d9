//! What differs between versions of the kernel.

use super::queue::{Node, NodeId, RunQueue};
use crate::Nanos;
use std::fmt::Debug;

/// The clock tick of a kernel with HZ=250.
pub(super) const TICK: Nanos = 4_000_000;

/// What a discipline may know of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Time between clock ticks.
    pub(super) tick: Nanos,
    /// By how much slices are longer on this machine than on one with a single physical CPU.
    pub(super) factor: u64,
}

impl Timing {
    pub(super) fn of(pcpus: usize) -> Timing {
        Timing { tick: TICK, factor: 1 + u64::from(pcpus.clamp(1, 8).ilog2()) }
    }
}

/// Why a node joins a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// It is new.
    New,
    /// It slept.
    Woken,
    /// It comes from another queue or from the real-time class.
    Moved,
}

/// The order in a run queue. `id` is the node concerned; what a node has used is charged before it is called.
pub(super) trait Discipline: Copy + Debug + Send {
    /// Name of the scheduler.
    const NAME: &'static str;

    /// The machine starts.
    fn start(&mut self, timing: Timing);

    /// How long a node runs at least while others wait.
    fn granularity(&self) -> Nanos;

    /// By which those that wait are sorted.
    fn key(node: &Node) -> i64;

    /// A node joins.
    fn place(&self, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId, placement: Placement);

    /// A node leaves.
    fn leave(&self, timing: Timing, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId, sleeps: bool);

    /// A node that sleeps goes on to another queue.
    fn depart(&self, _queue: &RunQueue, _node: &mut Node) {}

    /// Whether a node that goes to sleep stays in the queue for now.
    fn stays(&self, queue: &RunQueue, nodes: &[Node], id: NodeId) -> bool;

    /// One that stayed is woken.
    fn resume(&self, timing: Timing, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId);

    /// A node gets another weight.
    fn reweigh(&self, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId, weight: u64);

    /// The current node has been charged. Returns whether another one might have to run now.
    fn charged(&self, queue: &mut RunQueue, nodes: &mut [Node], id: NodeId) -> bool;

    /// A clock tick while this node runs; the same question. `outer`: the part that its group has of the
    /// physical CPU.
    fn tick(&self, queue: &RunQueue, nodes: &[Node], id: NodeId, outer: (u64, u64)) -> bool;

    /// Who runs next; somebody, if anybody is queued.
    fn choose(&self, queue: &RunQueue, nodes: &[Node]) -> Option<NodeId>;

    /// A node begins to run.
    fn picked(&self, node: &mut Node);

    /// Whether a node that was woken is to run at once.
    fn preempts(&self, queue: &RunQueue, nodes: &[Node], woken: NodeId) -> bool;
}
