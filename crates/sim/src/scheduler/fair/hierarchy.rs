//! The two levels of queues: the groups of a physical CPU, and the entities of each group on it.

use super::discipline::{Discipline, Placement};
use super::group_fair::{Cell, GroupFair};
use super::load::SCALE;
use super::queue::{NodeId, signed};
use crate::Nanos;
use crate::scheduler::{Entity, Group, Host, Pcpu};

/// A run queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// Of a physical CPU.
    Groups(Pcpu),
    /// Of a cell.
    Entities(usize),
}

impl<D: Discipline> GroupFair<D> {
    pub(super) fn cell(&self, group: Group, pcpu: Pcpu) -> usize {
        group.index() * self.pcpus.len() + pcpu.index()
    }

    pub(super) fn cell_node(&self, cell: usize) -> NodeId {
        NodeId::try_from(self.tasks.len() + cell).unwrap_or(NodeId::MAX)
    }

    fn queue(&self, level: Level) -> &super::queue::RunQueue {
        match level {
            Level::Groups(pcpu) => &self.pcpus[pcpu.index()].queue,
            Level::Entities(cell) => &self.cells[cell].queue,
        }
    }

    fn queue_mut(&mut self, level: Level) -> (&mut super::queue::RunQueue, &mut [super::queue::Node]) {
        let queue = match level {
            Level::Groups(pcpu) => &mut self.pcpus[pcpu.index()].queue,
            Level::Entities(cell) => &mut self.cells[cell].queue,
        };
        (queue, &mut self.nodes)
    }

    /// Charges the current node of a queue for what it ran; returns whether another one might have to run
    /// now.
    fn charge(&mut self, now: Nanos, level: Level) -> bool {
        let discipline = self.discipline;
        let (queue, nodes) = self.queue_mut(level);
        let Some(id) = queue.running(nodes) else { return false };
        let node = &mut nodes[id as usize];
        let ran = now - node.charged;
        if ran == 0 {
            return false;
        }
        node.charged = now;
        node.ran += ran;
        node.used = node.used.saturating_add(node.scaled(ran));
        discipline.charged(queue, nodes, id)
    }

    /// Charges who runs on a physical CPU, on both levels.
    pub(super) fn charge_all(&mut self, host: &mut Host, pcpu: Pcpu) {
        let Some(running) = self.pcpus[pcpu.index()].running else { return };
        let cell = self.cell(self.tasks[running.index()].group, pcpu);
        let inner = self.charge(host.now(), Level::Entities(cell));
        if self.charge(host.now(), Level::Groups(pcpu)) || inner {
            host.reschedule(pcpu);
        }
    }

    /// Puts a node into a queue.
    fn join(&mut self, level: Level, id: NodeId, placement: Placement) {
        let discipline = self.discipline;
        let (queue, nodes) = self.queue_mut(level);
        discipline.place(queue, nodes, id, placement);
        let node = &mut nodes[id as usize];
        node.queued = true;
        queue.load += node.weight;
        queue.count += 1;
        if queue.current != Some(id) {
            queue.insert(D::key(node), id, node);
        }
    }

    /// Takes a node out of its queue.
    fn part(&mut self, level: Level, id: NodeId, sleeps: bool) {
        let (discipline, timing) = (self.discipline, self.timing);
        let (queue, nodes) = self.queue_mut(level);
        let key = D::key(&nodes[id as usize]);
        discipline.leave(timing, queue, nodes, id, sleeps);
        if queue.current != Some(id) {
            queue.take(key, id, &nodes[id as usize]);
        }
        let node = &mut nodes[id as usize];
        node.queued = false;
        queue.load -= node.weight;
        queue.count -= 1;
        if queue.next == Some(id) {
            queue.next = None;
        }
    }

    /// Puts an entity into the queue of its group, and the group into that of the physical CPU if it is not
    /// there.
    pub(super) fn enqueue(&mut self, host: &mut Host, pcpu: Pcpu, entity: Entity, placement: Placement) {
        let now = host.now();
        let group = self.tasks[entity.index()].group;
        let cell = self.cell(group, pcpu);
        let id = self.cell_node(cell);
        let mut resched = self.charge(now, Level::Entities(cell));
        self.update_load(now, group, cell);
        self.join(Level::Entities(cell), entity.0, placement);
        let node = self.nodes[id as usize];
        if node.delayed {
            self.resume_node(Level::Groups(pcpu), id);
        }
        resched |= self.charge(now, Level::Groups(pcpu));
        self.reweigh_group(now, group, pcpu);
        if !node.queued {
            self.join(Level::Groups(pcpu), id, Placement::Woken);
        }
        self.enlist(now, pcpu, entity);
        if resched {
            host.reschedule(pcpu);
        }
    }

    /// Takes an entity out of its queues. One that sleeps may stay for now.
    pub(super) fn dequeue(&mut self, host: &mut Host, pcpu: Pcpu, entity: Entity, sleeps: bool) {
        let now = host.now();
        let cell = self.cell(self.tasks[entity.index()].group, pcpu);
        if self.charge(now, Level::Entities(cell)) {
            host.reschedule(pcpu);
        }
        self.strike(pcpu, entity);
        if sleeps && self.discipline.stays(&self.cells[cell].queue, &self.nodes, entity.0) {
            self.nodes[entity.index()].delayed = true;
            return;
        }
        self.remove(now, pcpu, entity, sleeps);
    }

    /// Takes an entity out of its queues for good.
    fn remove(&mut self, now: Nanos, pcpu: Pcpu, entity: Entity, sleeps: bool) {
        let group = self.tasks[entity.index()].group;
        let cell = self.cell(group, pcpu);
        let id = self.cell_node(cell);
        self.update_load(now, group, cell);
        self.tasks[entity.index()].load.update(now, 1.0);
        self.part(Level::Entities(cell), entity.0, sleeps);
        self.charge(now, Level::Groups(pcpu));
        if self.cells[cell].queue.count == 0 && !std::mem::replace(&mut self.cells[cell].fades, true) {
            self.pcpus[pcpu.index()].fading.push(cell);
        }
        if self.cells[cell].queue.count > 0 {
            if sleeps {
                self.pcpus[pcpu.index()].queue.next = Some(id);
            }
            self.reweigh_group(now, group, pcpu);
        } else if self.discipline.stays(&self.pcpus[pcpu.index()].queue, &self.nodes, id) {
            self.nodes[id as usize].delayed = true;
        } else {
            self.part(Level::Groups(pcpu), id, true);
        }
    }

    /// Takes an entity that sleeps but stayed out of its queues.
    pub(super) fn release(&mut self, now: Nanos, pcpu: Pcpu, entity: Entity) {
        let cell = self.cell(self.tasks[entity.index()].group, pcpu);
        self.charge(now, Level::Entities(cell));
        self.remove(now, pcpu, entity, true);
    }

    fn resume_node(&mut self, level: Level, id: NodeId) {
        let (discipline, timing) = (self.discipline, self.timing);
        let (queue, nodes) = self.queue_mut(level);
        discipline.resume(timing, queue, nodes, id);
    }

    /// An entity that sleeps but stayed in its queue is woken.
    pub(super) fn resume(&mut self, host: &Host, pcpu: Pcpu, entity: Entity) {
        let cell = self.cell(self.tasks[entity.index()].group, pcpu);
        self.resume_node(Level::Entities(cell), entity.0);
        self.enlist(host.now(), pcpu, entity);
    }

    fn enlist(&mut self, now: Nanos, pcpu: Pcpu, entity: Entity) {
        let members = &mut self.pcpus[pcpu.index()].members;
        let task = &mut self.tasks[entity.index()];
        task.member = Some(members.len());
        task.touched = now;
        members.push(entity);
    }

    fn strike(&mut self, pcpu: Pcpu, entity: Entity) {
        let Some(place) = self.tasks[entity.index()].member.take() else { return };
        let members = &mut self.pcpus[pcpu.index()].members;
        members.swap_remove(place);
        if let Some(moved) = members.get(place) {
            self.tasks[moved.index()].member = Some(place);
        }
    }

    /// Whether a fair entity that was woken preempts the fair one that runs.
    pub(super) fn preempts_fairly(
        &mut self,
        host: &mut Host,
        pcpu: Pcpu,
        woken: Entity,
        current: Entity,
    ) -> bool {
        let group = |entity: Entity| self.tasks[entity.index()].group;
        let cell = self.cell(group(woken), pcpu);
        let (level, id) = if group(woken) == group(current) {
            (Level::Entities(cell), woken.0)
        } else {
            (Level::Groups(pcpu), self.cell_node(cell))
        };
        let resched = self.charge(host.now(), level);
        resched || self.discipline.preempts(self.queue(level), &self.nodes, id)
    }

    /// Chooses a fair entity, and takes those that slept and have paid back out on the way.
    pub(super) fn choose(&mut self, now: Nanos, pcpu: Pcpu) -> Option<Entity> {
        loop {
            self.charge(now, Level::Groups(pcpu));
            let id = self.discipline.choose(&self.pcpus[pcpu.index()].queue, &self.nodes)?;
            if self.nodes[id as usize].delayed {
                self.part(Level::Groups(pcpu), id, true);
                continue;
            }
            let cell = id as usize - self.tasks.len();
            self.charge(now, Level::Entities(cell));
            let entity = Entity(self.discipline.choose(&self.cells[cell].queue, &self.nodes)?);
            if !self.nodes[entity.index()].delayed {
                return Some(entity);
            }
            self.remove(now, pcpu, entity, true);
        }
    }

    /// Makes another fair entity the current one in the queues: only on the levels on which something
    /// changes.
    pub(super) fn switch(&mut self, now: Nanos, pcpu: Pcpu, next: Option<Entity>) {
        let before = self.pcpus[pcpu.index()].running;
        if before == next {
            return;
        }
        let cell = |entity: Entity| self.cell(self.tasks[entity.index()].group, pcpu);
        let (from, to) = (before.map(cell), next.map(cell));
        if let (Some(entity), Some(cell)) = (before, from) {
            self.put(now, Level::Entities(cell), entity.0);
        }
        if from != to {
            if let Some(cell) = from {
                self.put(now, Level::Groups(pcpu), self.cell_node(cell));
            }
            if let Some(cell) = to {
                self.set(now, Level::Groups(pcpu), self.cell_node(cell));
            }
        }
        if let (Some(entity), Some(cell)) = (next, to) {
            self.set(now, Level::Entities(cell), entity.0);
            self.tasks[entity.index()].touched = now;
        }
        self.pcpus[pcpu.index()].running = next;
    }

    /// The current node of a queue stops to run.
    fn put(&mut self, now: Nanos, level: Level, id: NodeId) {
        self.charge(now, level);
        let (queue, nodes) = self.queue_mut(level);
        queue.current = None;
        let node = &nodes[id as usize];
        if node.queued {
            queue.insert(D::key(node), id, node);
        }
    }

    /// A node becomes the current one of its queue.
    fn set(&mut self, now: Nanos, level: Level, id: NodeId) {
        let discipline = self.discipline;
        let (queue, nodes) = self.queue_mut(level);
        if queue.next == Some(id) {
            queue.next = None;
        }
        let node = &mut nodes[id as usize];
        if node.queued {
            queue.take(D::key(node), id, node);
            discipline.picked(node);
        }
        node.charged = now;
        node.ran = 0;
        queue.current = Some(id);
    }

    /// A clock tick; returns whether another one might have to run now.
    pub(super) fn tick_fairly(&mut self, now: Nanos, pcpu: Pcpu) -> bool {
        let Some(entity) = self.pcpus[pcpu.index()].running else { return false };
        let group = self.tasks[entity.index()].group;
        let cell = self.cell(group, pcpu);
        let id = self.cell_node(cell);
        let mut resched = self.charge(now, Level::Entities(cell));
        resched |= self.charge(now, Level::Groups(pcpu));
        self.update_load(now, group, cell);
        self.reweigh_group(now, group, pcpu);
        let queue = &self.pcpus[pcpu.index()].queue;
        let part = (self.nodes[id as usize].weight, queue.load);
        resched |= self.discipline.tick(queue, &self.nodes, id, (1, 1));
        resched || self.discipline.tick(&self.cells[cell].queue, &self.nodes, entity.0, part)
    }

    /// Brings the load of a group on a physical CPU up to date.
    pub(super) fn update_load(&mut self, now: Nanos, group: Group, cell: usize) {
        let Cell { queue, load, .. } = &mut self.cells[cell];
        load.update(now, load_of(queue.load), &mut self.groups[group.index()].load);
    }

    /// Lets the load of groups that have no entities on a physical CPU fade.
    pub(super) fn fade(&mut self, now: Nanos, pcpu: Pcpu) {
        let mut fading = std::mem::take(&mut self.pcpus[pcpu.index()].fading);
        fading.retain(|cell| {
            let Cell { queue, load, fades } = &mut self.cells[*cell];
            let total = &mut self.groups[*cell / self.pcpus.len()].load;
            load.update(now, load_of(queue.load), total);
            *fades = queue.count == 0 && !load.forget(now, total);
            *fades
        });
        self.pcpus[pcpu.index()].fading = fading;
    }

    /// Gives a group the weight that its load on a physical CPU is worth. An empty one keeps what it had.
    pub(super) fn reweigh_group(&mut self, now: Nanos, group: Group, pcpu: Pcpu) {
        let cell = self.cell(group, pcpu);
        let id = self.cell_node(cell);
        if self.cells[cell].queue.load == 0 {
            return;
        }
        self.update_load(now, group, cell);
        let Cell { queue, load, .. } = &self.cells[cell];
        let state = &self.groups[group.index()];
        let weight = load.weight(state.share, load_of(queue.load), state.load);
        if weight != self.nodes[id as usize].weight {
            let discipline = self.discipline;
            let (queue, nodes) = self.queue_mut(Level::Groups(pcpu));
            discipline.reweigh(queue, nodes, id, weight);
        }
    }
}

/// A sum of weights in units of 1.
fn load_of(weight: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "an average need not be exact")]
    let load = signed(weight / SCALE) as f64;
    load
}
