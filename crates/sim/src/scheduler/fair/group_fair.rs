//! Group scheduling with one discipline for all run queues.

use super::discipline::{Discipline, Placement, TICK, Timing};
use super::load::{Average, GroupLoad, SCALE, nice_weight};
use super::queue::{Node, RunQueue};
use super::waiting::Waiting;
use crate::scheduler::reserved::{DISPATCH, ReservedGroups};
use crate::scheduler::{
    Entity, EntitySpec, Group, GroupSpec, Host, HostScheduler, Pcpu, PcpuSet, SchedulerTimer,
};
use crate::{NEVER, Nanos, Timer};
use frontdesk_engine::Boost;
use frontdesk_engine::reservation::{DispatchKind, Reservation};

/// An entity of the fair or of the real-time class.
#[derive(Debug)]
pub(super) struct SchedEntity {
    pub(super) group: Group,
    pub(super) affinity: PcpuSet,
    pub(super) emulator: bool,
    pub(super) boost: Boost,
    /// How its reservation has it scheduled, if it has one.
    pub(super) reserved: Option<DispatchKind>,
    /// Where it runs, waits, or ran last.
    pub(super) home: Option<Pcpu>,
    /// Its real-time priority; 0 in the fair class.
    pub(super) priority: u8,
    /// The part of the time in which it was runnable.
    pub(super) load: Average,
    /// Its place among the members of its home, while it is runnable in the fair class.
    pub(super) member: Option<usize>,
    /// When it last was enqueued or picked.
    pub(super) touched: Nanos,
}

#[derive(Debug)]
pub(super) struct GroupState {
    /// Its weight as it was given.
    pub(super) weight: u64,
    /// Its weight now, in units of 1 / [`SCALE`].
    pub(super) share: u64,
    /// Its load on all physical CPUs.
    pub(super) load: f64,
}

/// A group on one physical CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) queue: RunQueue,
    pub(super) load: GroupLoad,
    /// Among those whose load fades.
    pub(super) fades: bool,
}

#[derive(Debug)]
pub(super) struct FairPcpu {
    /// The groups that have entities here.
    pub(super) queue: RunQueue,
    /// The fair entity that the queues take to be running.
    pub(super) running: Option<Entity>,
    /// Runnable fair entities.
    pub(super) members: Vec<Entity>,
    pub(super) tick: Timer,
    /// Cells without entities whose load was not forgotten yet.
    pub(super) fading: Vec<usize>,
    pub(super) balance_at: Nanos,
    /// Times in a row that balancing found nothing light enough to move.
    pub(super) failed: u32,
}

/// Group scheduling with one discipline for all run queues.
#[derive(Debug)]
pub(super) struct GroupFair<D> {
    pub(super) discipline: D,
    pub(super) timing: Timing,
    /// CPUs of the host, if it has more than the machine.
    pub(super) host_cpus: usize,
    pub(super) tasks: Vec<SchedEntity>,
    pub(super) groups: Vec<GroupState>,
    /// Nodes of the entities, then those of the cells.
    pub(super) nodes: Vec<Node>,
    /// Those of each group side by side.
    pub(super) cells: Vec<Cell>,
    pub(super) pcpus: Vec<FairPcpu>,
    pub(super) realtime: Waiting,
    pub(super) reserved: ReservedGroups,
}

/// The weight of a group of the idle class (`WEIGHT_IDLEPRIO`).
const IDLE_WEIGHT: u64 = 3;

impl<D: Discipline> GroupFair<D> {
    pub(super) fn with(discipline: D, reservations: &[(Group, Reservation)]) -> GroupFair<D> {
        GroupFair {
            discipline,
            timing: Timing::of(1),
            host_cpus: 1,
            tasks: Vec::new(),
            groups: Vec::new(),
            nodes: Vec::new(),
            cells: Vec::new(),
            pcpus: Vec::new(),
            realtime: Waiting::default(),
            reserved: ReservedGroups::new(reservations),
        }
    }

    /// On a host with so many CPUs, of which the machine models some.
    pub(super) fn on(mut self, host_cpus: usize) -> GroupFair<D> {
        self.host_cpus = host_cpus;
        self
    }

    /// Whether nothing runs on a physical CPU, or is about to.
    pub(super) fn is_idle(&self, host: &Host, pcpu: Pcpu) -> bool {
        let state = &self.pcpus[pcpu.index()];
        host.current(pcpu).is_none() && state.members.is_empty() && self.realtime.len(pcpu) == 0
    }

    /// Where an entity that wakes is to run: where it was, or where nothing runs.
    fn select(&self, host: &Host, entity: Entity) -> Pcpu {
        let task = &self.tasks[entity.index()];
        let allowed = || host.pcpus().filter(|pcpu| task.affinity.contains(*pcpu));
        let least = || {
            let load = |pcpu: &Pcpu| {
                let state = &self.pcpus[pcpu.index()];
                state.members.len() + self.realtime.len(*pcpu) + usize::from(host.current(*pcpu).is_some())
            };
            allowed().min_by_key(load).unwrap_or(Pcpu(0))
        };
        let Some(home) = task.home.filter(|home| task.affinity.contains(*home)) else { return least() };
        if self.is_idle(host, home) {
            return home;
        }
        let idle = || host.idle().and(task.affinity).iter().filter(|pcpu| self.is_idle(host, *pcpu));
        let after = idle().find(|pcpu| *pcpu > home);
        after.or_else(|| idle().next()).unwrap_or(home)
    }

    /// Puts a runnable entity into the queues of its class at home, and lets it preempt.
    pub(super) fn admit(&mut self, host: &mut Host, entity: Entity, placement: Placement) {
        let task = &self.tasks[entity.index()];
        let Some(home) = task.home else { return };
        if task.priority > 0 {
            self.realtime.push_back(home, entity, task.priority);
        } else {
            self.enqueue(host, home, entity, placement);
        }
        self.preempt(host, home, entity);
    }

    /// Takes a runnable entity out of the queues of its class.
    pub(super) fn dismiss(&mut self, host: &mut Host, entity: Entity) {
        let task = &self.tasks[entity.index()];
        let Some(home) = task.home else { return };
        if task.priority > 0 {
            self.realtime.remove(home, entity);
        } else {
            self.dequeue(host, home, entity, false);
        }
    }

    /// Lets an entity that was woken run at once, if its class, priority and queue say so.
    pub(super) fn preempt(&mut self, host: &mut Host, pcpu: Pcpu, woken: Entity) {
        let Some(current) = host.current(pcpu) else { return host.reschedule(pcpu) };
        let priority = |entity: Entity| self.tasks[entity.index()].priority;
        let preempts = match (priority(woken), priority(current)) {
            (0, 0) => self.preempts_fairly(host, pcpu, woken, current),
            (woken, current) => woken > current,
        };
        if preempts {
            host.reschedule(pcpu);
        }
    }

    /// Gives an entity a home, and takes its load along.
    pub(super) fn settle(&mut self, host: &Host, entity: Entity, pcpu: Pcpu) {
        let now = host.now();
        let task = &mut self.tasks[entity.index()];
        let from = task.home.replace(pcpu);
        let runnable = self.nodes[entity.index()].queued;
        task.load.update(now, f64::from(u8::from(runnable)));
        if from == Some(pcpu) {
            return;
        }
        #[allow(clippy::cast_precision_loss, reason = "a weight is below 2^28")]
        let load = task.load.value() * (self.nodes[entity.index()].weight / SCALE) as f64;
        let group = task.group;
        if let Some(from) = from {
            let cell = self.cell(group, from);
            if !self.nodes[entity.index()].relative {
                self.discipline.depart(&self.cells[cell].queue, &mut self.nodes[entity.index()]);
            }
            self.update_load(now, group, cell);
            self.cells[cell].load.shift(now, -load, &mut self.groups[group.index()].load);
        }
        let cell = self.cell(group, pcpu);
        self.update_load(now, group, cell);
        self.cells[cell].load.shift(now, load, &mut self.groups[group.index()].load);
    }

    /// Makes the queues forget that an entity runs, before it joins others.
    pub(super) fn forget(&mut self, host: &Host, entity: Entity) {
        if let Some(home) = self.tasks[entity.index()].home
            && self.pcpus[home.index()].running == Some(entity)
        {
            self.switch(host.now(), home, None);
        }
    }

    /// Sends away who runs on a physical CPU but may no longer.
    fn evict(&mut self, host: &mut Host, pcpu: Pcpu) {
        let Some(entity) = host.current(pcpu) else { return };
        if !self.tasks[entity.index()].affinity.contains(pcpu)
            && self.tasks[entity.index()].home == Some(pcpu)
        {
            let to = self.select(host, entity);
            self.migrate(host, entity, to);
        }
    }

    /// Moves a runnable entity to another physical CPU.
    pub(super) fn migrate(&mut self, host: &mut Host, entity: Entity, to: Pcpu) {
        self.dismiss(host, entity);
        self.forget(host, entity);
        self.settle(host, entity, to);
        self.admit(host, entity, Placement::Moved);
    }

    pub(super) fn tick(&mut self, host: &mut Host, pcpu: Pcpu) {
        let now = host.now();
        host.arm(self.pcpus[pcpu.index()].tick, now + TICK);
        if self.pcpus[pcpu.index()].running.is_some() && self.tick_fairly(now, pcpu) {
            host.reschedule(pcpu);
        }
        self.offer(host, pcpu);
        if now >= self.pcpus[pcpu.index()].balance_at {
            self.balance(host, pcpu);
        }
    }
}

impl<D: Discipline> HostScheduler for GroupFair<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn add_group(&mut self, group: Group, spec: GroupSpec) {
        let weight = if self.reserved.has(group) { IDLE_WEIGHT } else { u64::from(spec.weight) };
        self.groups.push(GroupState { weight, share: weight * SCALE, load: 0.0 });
    }

    fn add_entity(&mut self, entity: Entity, spec: EntitySpec) {
        self.reserved.add(entity, &spec);
        self.nodes.push(Node { weight: nice_weight(spec.nice), ..Node::default() });
        self.tasks.push(SchedEntity {
            group: spec.group,
            affinity: spec.affinity,
            emulator: spec.emulator,
            boost: Boost::None,
            reserved: None,
            home: None,
            priority: 0,
            load: Average::new(1.0),
            member: None,
            touched: 0,
        });
    }

    fn start(&mut self, host: &mut Host) {
        for pcpu in host.pcpus() {
            self.pcpus.push(FairPcpu {
                queue: RunQueue::default(),
                running: None,
                members: Vec::new(),
                tick: host.add_timer(SchedulerTimer(u32::from(pcpu.0))),
                fading: Vec::new(),
                balance_at: 0,
                failed: 0,
            });
        }
        self.realtime = Waiting::on(self.pcpus.len());
        self.timing = Timing::of(self.pcpus.len().max(self.host_cpus));
        self.discipline.start(self.timing);
        self.cells = vec![Cell::default(); self.groups.len() * self.pcpus.len()];
        self.nodes.resize(self.tasks.len() + self.cells.len(), Node::default());
        for cell in 0..self.cells.len() {
            let share = self.groups[cell / self.pcpus.len()].share;
            let node = self.cell_node(cell);
            self.nodes[node as usize].weight = share;
        }
        for (entity, pcpu) in self.reserved.start(host) {
            self.tasks[entity.index()].affinity = [pcpu].into_iter().collect();
        }
        let dispatches = self.reserved.dispatches(host);
        self.schedule_reserved(host, dispatches);
    }

    fn wake(&mut self, host: &mut Host, entity: Entity) {
        self.reserved.wake(host, entity);
        let node = self.nodes[entity.index()];
        if node.delayed {
            if let Some(home) = self.tasks[entity.index()].home {
                self.resume(host, home, entity);
                self.preempt(host, home, entity);
            }
            return;
        }
        let home = self.tasks[entity.index()].home;
        self.forget(host, entity);
        let pcpu = self.select(host, entity);
        self.settle(host, entity, pcpu);
        self.admit(host, entity, if home.is_none() { Placement::New } else { Placement::Woken });
        self.push(host, entity);
    }

    fn block(&mut self, host: &mut Host, entity: Entity, pcpu: Pcpu) {
        self.reserved.block(entity);
        if self.tasks[entity.index()].priority == 0 {
            self.dequeue(host, pcpu, entity, true);
        }
    }

    fn pick(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity> {
        let dispatches = self.reserved.decide(host);
        self.schedule_reserved(host, dispatches);
        self.evict(host, pcpu);
        let next = self.pick_realtime(host, pcpu).or_else(|| self.pick_fairly(host, pcpu));
        let fair = next.filter(|entity| self.tasks[entity.index()].priority == 0);
        self.switch(host.now(), pcpu, fair);
        let tick = self.pcpus[pcpu.index()].tick;
        match next {
            None => host.cancel(tick),
            Some(_) if host.due(tick) == NEVER => host.arm(tick, (host.now() / TICK + 1) * TICK),
            Some(_) => {}
        }
        next
    }

    fn timer(&mut self, host: &mut Host, timer: SchedulerTimer) {
        if timer == DISPATCH {
            self.reserved.due(host);
        } else if let Ok(pcpu) = u16::try_from(timer.0) {
            self.tick(host, Pcpu(pcpu));
        }
    }

    fn boost(&mut self, host: &mut Host, entity: Entity, level: Boost) {
        self.tasks[entity.index()].boost = level;
        self.reclass(host, entity);
    }

    fn share(&mut self, host: &mut Host, group: Group, permille: u32) {
        let state = &mut self.groups[group.index()];
        state.share = (state.weight * SCALE * u64::from(permille) / 1000).max(2);
        for pcpu in host.pcpus() {
            self.charge_all(host, pcpu);
            self.reweigh_group(host.now(), group, pcpu);
        }
    }

    fn set_affinity(&mut self, host: &mut Host, entity: Entity, affinity: PcpuSet) {
        self.tasks[entity.index()].affinity = affinity;
        let Some(home) = self.tasks[entity.index()].home else { return };
        if affinity.contains(home) {
            return;
        }
        match host.running_on(entity) {
            // Who decides there finds that it may not stay.
            Some(pcpu) => host.reschedule(pcpu),
            None if host.is_runnable(entity) => {
                let to = self.select(host, entity);
                self.migrate(host, entity, to);
            }
            None => {}
        }
    }

    fn slice(&self) -> Nanos {
        self.discipline.granularity()
    }

    fn set_nice(&mut self, host: &mut Host, entity: Entity, nice: i8) {
        let task = &self.tasks[entity.index()];
        let (group, home) = (task.group, task.home);
        if let Some(home) = home {
            self.charge_all(host, home);
        }
        let cell = self.cell(group, home.unwrap_or(Pcpu(0)));
        let queue = &mut self.cells[cell].queue;
        self.discipline.reweigh(queue, &mut self.nodes, entity.0, nice_weight(nice));
        if let Some(home) = home {
            self.reweigh_group(host.now(), group, home);
        }
    }
}
