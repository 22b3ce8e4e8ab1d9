//! The scheduler itself.

use super::priority::Priority;
use super::queue::RunQueue;
use crate::queue::{Nanos, Timer};
use crate::rng::Rng;
use crate::scheduler::{
    Entity, EntitySpec, Group, GroupSpec, Host, HostScheduler, Pcpu, PcpuSet, SchedulerTimer,
};
use frontdesk_engine::{Boost, nanos};
use frontdesk_scenario::Credit as Config;

#[derive(Debug)]
pub(super) struct CreditVcpu {
    pub(super) group: Group,
    affinity: PcpuSet,
    pub(super) pcpu: Pcpu,
    /// Xen's own priority, which may be as old as the last accounting: never [`Priority::Multimedia`].
    pub(super) stored: Priority,
    /// The engine's wish.
    wish: Boost,
    pub(super) credit: i64,
    /// Run time already charged, with fine accounting: `Host::ran` as it was, less what is below a credit.
    pub(super) charged: Nanos,
    /// Whether it earns credits.
    pub(super) active: bool,
    /// It has reached its domain's cap and must not run.
    pub(super) parked: bool,
    pub(super) queued: bool,
}

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) spec: GroupSpec,
    /// Weight after the engine's `Share`.
    pub(super) weight: i64,
    /// Its vCPUs that earn credits, the latest first.
    pub(super) active: Vec<Entity>,
}

#[derive(Debug)]
pub(super) struct CreditPcpu {
    pub(super) queue: RunQueue,
    pub(super) slice: Timer,
    pub(super) tick: Timer,
    /// When slice and tick are due by their own clock; timers may be off.
    slice_due: Nanos,
    tick_due: Nanos,
    /// The accounting after which the queue was sorted.
    pub(super) sorted: u64,
}

/// Xen's credit scheduler.
#[derive(Debug, Default)]
pub struct Credit {
    pub(super) config: Config,
    pub(super) tick: Nanos,
    pub(super) slice: Nanos,
    slop: Nanos,
    /// Where the phases of the physical CPUs' ticks are drawn from, if each has its own.
    phases: Option<Rng>,
    pub(super) vcpus: Vec<CreditVcpu>,
    pub(super) domains: Vec<Domain>,
    /// Domains with active vCPUs, in the order in which they are served.
    pub(super) active: Vec<Group>,
    pub(super) pcpus: Vec<CreditPcpu>,
    pub(super) accounting: Option<Timer>,
    /// Sum of all credits after the last accounting.
    pub(super) balance: i64,
    /// Accountings so far.
    pub(super) epoch: u64,
    pub(super) ticks: u64,
}

impl Credit {
    /// A scheduler without vCPUs. `phases`: where the phases of the ticks are drawn from, if they are
    /// staggered.
    #[must_use]
    pub fn new(config: &Config, phases: Rng) -> Credit {
        let tick = nanos(config.tick);
        Credit {
            tick,
            slice: tick.saturating_mul(u64::from(config.slice_ticks)),
            slop: nanos(config.timer_slop),
            phases: config.staggered_ticks.then_some(phases),
            config: config.clone(),
            ..Credit::default()
        }
    }

    pub(super) fn vcpu(&mut self, entity: Entity) -> &mut CreditVcpu {
        &mut self.vcpus[entity.index()]
    }

    /// The priority by which a vCPU is scheduled: Xen's, or what the engine wishes above it.
    pub(super) fn priority(&self, entity: Entity) -> Priority {
        let vcpu = &self.vcpus[entity.index()];
        let wish =
            match vcpu.wish {
                Boost::None => Priority::Idle,
                // Of multimedia events only those of a VM that is UNDER count.
                level if level > Boost::Io && self.config.multimedia_boost => {
                    if vcpu.stored > Priority::Over { Priority::Multimedia } else { Priority::Idle }
                }
                _ => Priority::Boost,
            };
        vcpu.stored.max(wish)
    }

    fn current_priority(&self, host: &Host, pcpu: Pcpu) -> Priority {
        host.current(pcpu).map_or(Priority::Idle, |entity| self.priority(entity))
    }

    /// Queues a vCPU behind those of its priority, or before them.
    pub(super) fn enqueue(&mut self, entity: Entity, first: bool) {
        let priority = self.priority(entity);
        let vcpu = &mut self.vcpus[entity.index()];
        vcpu.queued = true;
        self.pcpus[vcpu.pcpu.index()].queue.insert(entity, priority, first);
    }

    pub(super) fn dequeue(&mut self, entity: Entity) {
        let vcpu = &mut self.vcpus[entity.index()];
        vcpu.queued = false;
        self.pcpus[vcpu.pcpu.index()].queue.remove(entity);
    }

    /// Lets physical CPUs know that `entity` waits: its own if it has strictly higher priority than what runs
    /// there, and the idle ones if its own is busy.
    pub(super) fn tickle(&self, host: &mut Host, entity: Entity) {
        let vcpu = &self.vcpus[entity.index()];
        let running = self.current_priority(host, vcpu.pcpu);
        if self.priority(entity) > running {
            host.reschedule(vcpu.pcpu);
        }
        if running > Priority::Idle {
            host.idle().and(vcpu.affinity).iter().for_each(|pcpu| host.reschedule(pcpu));
        }
    }

    /// Takes a waiting vCPU of strictly higher priority than `than` from another physical CPU, the next one
    /// first.
    fn steal(&mut self, host: &Host, pcpu: Pcpu, than: Priority) -> Option<Entity> {
        let after = host.pcpus().skip(pcpu.index() + 1);
        for peer in after.chain(host.pcpus().take(pcpu.index())) {
            // An idle one is about to take up its work itself.
            if host.current(peer).is_none() {
                continue;
            }
            let queue = &self.pcpus[peer.index()].queue;
            let higher = queue.iter().take_while(|(_, priority)| *priority > than);
            let found = higher
                .map(|(entity, _)| entity)
                .find(|entity| self.vcpus[entity.index()].affinity.contains(pcpu));
            if let Some(entity) = found {
                self.dequeue(entity);
                self.vcpu(entity).pcpu = pcpu;
                return Some(entity);
            }
        }
        None
    }

    /// Whether who runs on `pcpu` is about to be preempted by a boosted driver domain.
    fn driver_preempts(&self, pcpu: Pcpu, current: Priority) -> bool {
        let head = self.pcpus[pcpu.index()].queue.head();
        head.is_some_and(|(entity, priority)| {
            let group = self.vcpus[entity.index()].group;
            priority == Priority::Boost && priority > current && self.domains[group.index()].spec.driver
        })
    }

    /// When a timer really fires that is set to `due`.
    fn fires(&self, due: Nanos) -> Nanos {
        if self.config.timers_late { due.saturating_add(self.slop) } else { due }
    }

    /// Up to which due time timers fire together with one that fires now.
    fn horizon(&self, now: Nanos) -> Nanos {
        if self.config.timers_late { now } else { now.saturating_add(self.slop) }
    }

    /// A physical CPU's timer fired: what is due is done, its tick first.
    fn pcpu_timer(&mut self, host: &mut Host, pcpu: Pcpu) {
        let horizon = self.horizon(host.now());
        if self.pcpus[pcpu.index()].tick_due <= horizon {
            self.tick(host, pcpu);
            let due = host.now() + self.tick;
            let fires = self.fires(due);
            let state = &mut self.pcpus[pcpu.index()];
            state.tick_due = due;
            host.arm(state.tick, fires);
        }
        let state = &mut self.pcpus[pcpu.index()];
        if state.slice_due <= horizon {
            state.slice_due = Nanos::MAX;
            host.cancel(state.slice);
            host.reschedule(pcpu);
        }
    }
}

impl HostScheduler for Credit {
    fn name(&self) -> &'static str {
        "credit"
    }

    fn add_group(&mut self, _group: Group, spec: GroupSpec) {
        self.domains.push(Domain { spec, weight: i64::from(spec.weight), active: Vec::new() });
    }

    fn add_entity(&mut self, entity: Entity, spec: EntitySpec) {
        // Spread over the physical CPUs, as Xen does when it makes a vCPU.
        let places: Vec<Pcpu> = spec.affinity.iter().collect();
        let pcpu = places.get(entity.index() % places.len().max(1)).copied().unwrap_or(Pcpu(0));
        self.vcpus.push(CreditVcpu {
            group: spec.group,
            affinity: spec.affinity,
            pcpu,
            stored: Priority::Under,
            wish: Boost::None,
            credit: 0,
            charged: 0,
            active: false,
            parked: false,
            queued: false,
        });
    }

    fn start(&mut self, host: &mut Host) {
        let all = PcpuSet::from_iter(host.pcpus());
        for entity in 0..self.vcpus.len() {
            // What was spread over more physical CPUs than there are.
            let vcpu = &mut self.vcpus[entity];
            let places: Vec<Pcpu> = vcpu.affinity.and(all).iter().collect();
            vcpu.pcpu = places[entity % places.len().max(1)];
        }
        for pcpu in host.pcpus() {
            let number = u32::from(pcpu.0) * 2;
            let slice = host.add_timer(SchedulerTimer(number));
            let tick = host.add_timer(SchedulerTimer(number + 1));
            let phase = self.phases.as_mut().map_or(self.tick, |rng| rng.uniform(1, self.tick));
            let due = host.now() + phase;
            host.arm(tick, self.fires(due));
            self.pcpus.push(CreditPcpu {
                queue: RunQueue::default(),
                slice,
                tick,
                slice_due: Nanos::MAX,
                tick_due: due,
                sorted: 0,
            });
        }
        if self.config.accounting_timer {
            let timer = host.add_timer(SchedulerTimer(u32::MAX));
            host.arm(timer, self.fires(host.now() + self.accounting_period()));
            self.accounting = Some(timer);
        }
    }

    fn wake(&mut self, host: &mut Host, entity: Entity) {
        let vcpu = self.vcpu(entity);
        if vcpu.parked {
            return;
        }
        if vcpu.stored == Priority::Under {
            vcpu.stored = Priority::Boost;
        }
        self.enqueue(entity, false);
        self.tickle(host, entity);
    }

    fn block(&mut self, host: &mut Host, entity: Entity, _pcpu: Pcpu) {
        self.charge_measured(host, entity);
    }

    fn pick(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity> {
        if let Some(current) = host.current(pcpu) {
            self.charge_measured(host, current);
            if !self.vcpu(current).parked {
                let first = self.config.head_of_list && self.driver_preempts(pcpu, self.priority(current));
                self.enqueue(current, first);
            }
        }
        let head = self.pcpus[pcpu.index()].queue.head();
        let next = match head {
            Some((entity, priority)) if priority > Priority::Over => Some(entity),
            _ => {
                let than = head.map_or(Priority::Idle, |(_, priority)| priority);
                match self.steal(host, pcpu, than) {
                    Some(stolen) => {
                        self.arm_slice(host, pcpu);
                        return Some(stolen);
                    }
                    None => head.map(|(entity, _)| entity),
                }
            }
        };
        if let Some(next) = next {
            self.dequeue(next);
        }
        self.arm_slice(host, pcpu);
        next
    }

    fn timer(&mut self, host: &mut Host, timer: SchedulerTimer) {
        if timer == SchedulerTimer(u32::MAX) {
            self.account(host);
            if let Some(timer) = self.accounting {
                host.arm(timer, self.fires(host.now() + self.accounting_period()));
            }
            return;
        }
        self.pcpu_timer(host, Pcpu(u16::try_from(timer.0 / 2).unwrap_or(u16::MAX)));
    }

    /// TAVS §4.2: a boosted vCPU is queued again with its new priority, whatever it was; one whose boost is
    /// revoked gives way.
    fn boost(&mut self, host: &mut Host, entity: Entity, level: Boost) {
        let vcpu = self.vcpu(entity);
        let lowered = level < vcpu.wish;
        vcpu.wish = level;
        if vcpu.queued {
            self.dequeue(entity);
            self.enqueue(entity, false);
            if !lowered {
                self.tickle(host, entity);
            }
        } else if lowered && let Some(pcpu) = host.running_on(entity) {
            host.reschedule(pcpu);
        }
    }

    fn charges_boosts(&self) -> bool {
        true
    }

    fn slice(&self) -> Nanos {
        self.slice
    }

    fn share(&mut self, _host: &mut Host, group: Group, permille: u32) {
        let domain = &mut self.domains[group.index()];
        domain.weight = (i64::from(domain.spec.weight) * i64::from(permille) / 1000).max(1);
    }
}

impl Credit {
    /// Every decision arms a whole slice, even if the same vCPU goes on.
    fn arm_slice(&mut self, host: &mut Host, pcpu: Pcpu) {
        let due = host.now().saturating_add(self.slice);
        let fires = self.fires(due);
        let state = &mut self.pcpus[pcpu.index()];
        state.slice_due = due;
        host.arm(state.slice, fires);
    }
}

#[cfg(test)]
mod tests;
