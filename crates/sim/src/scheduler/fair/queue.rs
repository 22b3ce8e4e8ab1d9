//! Entities and groups that wait for a physical CPU in virtual time.

use super::load::SCALE;
use crate::Nanos;

/// Number of a [`Node`] in the table of all.
pub(super) type NodeId = u32;

/// An entity, or a group on one physical CPU, as a run queue sees it. Virtual times are nanoseconds of an
/// entity of weight 1024.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Node {
    /// In units of 1 / [`SCALE`].
    pub(super) weight: u64,
    /// What it has used.
    pub(super) used: i64,
    /// Where its request ends; counted from `used` while it moves between queues (`relative`).
    pub(super) deadline: i64,
    /// It is not preempted before it has used this much.
    pub(super) protected: i64,
    /// How far it was behind the virtual time of its queue when it left.
    pub(super) lag: i64,
    /// It was in the middle of something when it left, and goes on with that in the next queue.
    pub(super) relative: bool,
    /// On a run queue, the one that runs included.
    pub(super) queued: bool,
    /// Sleeps, but stays in its queue until it has paid back what it used too much.
    pub(super) delayed: bool,
    /// Real time up to which it is charged, while it runs.
    pub(super) charged: Nanos,
    /// Real time that it has run since it was picked.
    pub(super) ran: Nanos,
}

impl Node {
    /// Real time in the virtual time of this node.
    pub(super) fn scaled(&self, time: Nanos) -> i64 {
        const ONE: u64 = 1024 * SCALE;
        if self.weight == ONE {
            return signed(time);
        }
        let weight = self.weight.max(1);
        match time.checked_mul(ONE) {
            Some(product) => signed(product / weight),
            None => {
                let scaled = u128::from(time) * u128::from(ONE) / u128::from(weight);
                i64::try_from(scaled).unwrap_or(i64::MAX)
            }
        }
    }

    /// A virtual time span for another weight.
    pub(super) fn rescaled(&self, span: i64, weight: u64) -> i64 {
        let span = i128::from(span) * i128::from(self.weight) / i128::from(weight.max(1));
        i64::try_from(span).unwrap_or(i64::MAX)
    }

    /// The weight in averages: whole, and at least 2.
    fn average_weight(&self) -> i64 {
        signed((self.weight / SCALE).max(2))
    }
}

pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A run queue: one for the groups of each physical CPU, and one for the entities of each group on it.
#[derive(Clone, Debug, Default)]
pub(super) struct RunQueue {
    /// The one that runs. It is not among the `waiting`.
    pub(super) current: Option<NodeId>,
    /// One to prefer, if that does not make a difference to fairness.
    pub(super) next: Option<NodeId>,
    /// The others, by the key that the discipline gives them.
    pub(super) waiting: Vec<(i64, NodeId)>,
    /// Sum of the weights of all that are queued.
    pub(super) load: u64,
    /// How many are queued.
    pub(super) count: u32,
    /// The virtual time: the average of those that are queued as far as it was asked for, or their minimum.
    pub(super) virtual_time: i64,
    /// Sum of the weights of those that wait, and of what they have used times weight.
    weight: i64,
    moment: i128,
}

impl RunQueue {
    /// Puts a node among those that wait.
    pub(super) fn insert(&mut self, key: i64, id: NodeId, node: &Node) {
        let place = self.waiting.partition_point(|(other, _)| *other <= key);
        self.waiting.insert(place, (key, id));
        self.weight += node.average_weight();
        self.moment += i128::from(node.used) * i128::from(node.average_weight());
    }

    /// Takes a node out of those that wait.
    pub(super) fn take(&mut self, key: i64, id: NodeId, node: &Node) {
        let mut place = self.waiting.partition_point(|(other, _)| *other < key);
        while self.waiting.get(place).is_some_and(|(other, found)| *other == key && *found != id) {
            place += 1;
        }
        debug_assert_eq!(self.waiting.get(place), Some(&(key, id)));
        self.waiting.remove(place);
        self.weight -= node.average_weight();
        self.moment -= i128::from(node.used) * i128::from(node.average_weight());
    }

    /// The current node, if it wants to run on.
    pub(super) fn running(&self, nodes: &[Node]) -> Option<NodeId> {
        self.current.filter(|id| nodes[*id as usize].queued)
    }

    /// Weight of all that are queued, and of what they have used times weight.
    pub(super) fn totals(&self, nodes: &[Node]) -> (i64, i128) {
        let (mut weight, mut moment) = (self.weight, self.moment);
        if let Some(id) = self.running(nodes) {
            let node = &nodes[id as usize];
            weight += node.average_weight();
            moment += i128::from(node.used) * i128::from(node.average_weight());
        }
        (weight, moment)
    }

    /// The weighted average of what those that are queued have used; the last one, if none is.
    pub(super) fn average(&mut self, nodes: &[Node]) -> i64 {
        let (weight, moment) = self.totals(nodes);
        if weight > 0 {
            self.virtual_time = i64::try_from(moment.div_euclid(i128::from(weight))).unwrap_or(i64::MAX);
        }
        self.virtual_time
    }

    /// What to owe a node so that it is owed `lag` once it has joined: its coming moves the average.
    pub(super) fn inflated(&self, nodes: &[Node], lag: i64, node: &Node) -> i64 {
        let (weight, _) = self.totals(nodes);
        let with = i128::from(weight) + i128::from(node.average_weight());
        i64::try_from(i128::from(lag) * with / i128::from(weight.max(1))).unwrap_or(0)
    }
}
