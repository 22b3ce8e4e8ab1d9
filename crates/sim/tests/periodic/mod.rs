//! Periodic task sets on one pCPU: each task is a VM with one vCPU, under the engine's reservations or under
//! fixed priorities.

use frontdesk_engine::Boost;
use frontdesk_engine::reservation::Reservation;
use frontdesk_sim::{
    Entity, EntitySpec, Flow, Group, GroupSpec, Host, HostScheduler, Machine, NEVER, Nanos, Pcpu, PcpuSet,
    Rng, SchedulerTimer, Timer, Work, edf,
};
use serde::Deserialize;

/// One tick, a microsecond.
const TICK: Nanos = 1_000;

/// Who comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    EarliestDeadlineFirst,
    RateMonotonic,
}

/// Period and execution time of each task, in ticks. All begin at time 0; a deadline is the end of the
/// period.
#[derive(Clone, Debug)]
pub(crate) struct TaskSet {
    pub(crate) tasks: Vec<(u64, u64)>,
}

/// What became of a job, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "(u64, Option<u64>, bool)")]
pub(crate) struct Job {
    pub(crate) release: u64,
    /// When it was done or aborted, unless the end came before.
    pub(crate) end: Option<u64>,
    /// Its deadline found it unfinished.
    pub(crate) aborted: bool,
}

impl From<(u64, Option<u64>, bool)> for Job {
    fn from((release, end, aborted): (u64, Option<u64>, bool)) -> Job {
        Job { release, end, aborted }
    }
}

impl TaskSet {
    /// 2 to 6 tasks that use 0.6 to 1.2 of a CPU together. No two of them have deadlines at the same time
    /// within `duration`, for then either order would be right.
    pub(crate) fn random(rng: &mut Rng, duration: u64) -> TaskSet {
        loop {
            let count = rng.uniform(2, 6);
            let load = rng.uniform(600, 1200);
            let parts: Vec<u64> = (0..count).map(|_| rng.uniform(1, 100)).collect();
            let whole: u64 = parts.iter().sum();
            let tasks: Vec<_> = parts
                .iter()
                .map(|part| {
                    let period = rng.uniform(2_000, 40_000);
                    (period, (period * load * part / whole / 1000).clamp(20, period))
                })
                .collect();
            let apart = |at: usize| tasks[..at].iter().all(|other| lcm(other.0, tasks[at].0) > duration);
            if (0..tasks.len()).all(apart) {
                return TaskSet { tasks };
            }
        }
    }

    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn utilisation(&self) -> f64 {
        self.tasks.iter().map(|(period, execution)| *execution as f64 / *period as f64).sum()
    }

    /// Runs it; returns the jobs of each task.
    pub(crate) fn run(&self, policy: Policy, duration: u64) -> Vec<Vec<Job>> {
        let scheduler: Box<dyn HostScheduler> = match policy {
            Policy::EarliestDeadlineFirst => {
                let reservation = |(period, execution): &(u64, u64)| Reservation {
                    period_ns: period * TICK,
                    slice_ns: execution * TICK,
                    hard: true,
                    phase_ns: None,
                };
                let groups = (0..).map(Group).zip(self.tasks.iter().map(reservation));
                edf(&groups.collect::<Vec<_>>())
            }
            Policy::RateMonotonic => Box::new(FixedPriority {
                periods: self.tasks.iter().map(|(period, _)| *period).collect(),
                ready: Vec::new(),
            }),
        };
        let mut machine = Machine::new(1, scheduler, 0);
        let mut jobs = Jobs::default();
        for (period, execution) in &self.tasks {
            let group = machine.add_group(GroupSpec::of_weight(1024)).unwrap();
            let spec = EntitySpec { group, affinity: PcpuSet::first(1), nice: 0, emulator: false };
            let entity = machine.add_entity(spec).unwrap();
            let release = machine.add_timer(entity.0);
            jobs.tasks.push(Task {
                period: period * TICK,
                execution: execution * TICK,
                release,
                ends_at: 0,
                jobs: Vec::new(),
            });
        }
        machine.start();
        for task in &jobs.tasks {
            machine.arm(task.release, 0);
        }
        machine.run_until(&mut jobs, duration * TICK).unwrap();
        let told = |job: &(Nanos, Option<Nanos>, bool)| Job {
            release: job.0 / TICK,
            end: job.1.map(|end| end / TICK),
            aborted: job.2,
        };
        jobs.tasks.iter().map(|task| task.jobs.iter().map(told).collect()).collect()
    }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

struct Task {
    period: Nanos,
    execution: Nanos,
    release: Timer,
    /// CPU time that it will have used when the current job is done.
    ends_at: Nanos,
    jobs: Vec<(Nanos, Option<Nanos>, bool)>,
}

/// The jobs of all tasks, as the work of a machine.
#[derive(Default)]
struct Jobs {
    tasks: Vec<Task>,
    ran: Vec<Nanos>,
}

impl Jobs {
    /// Writes down that the current job of a task is done, if it is.
    fn finish(&mut self, machine: &Machine, entity: Entity) -> bool {
        let task = &mut self.tasks[entity.index()];
        let done = machine.host().ran(entity) >= task.ends_at;
        if let Some(job) = task.jobs.last_mut().filter(|job| done && job.1.is_none()) {
            job.1 = Some(machine.now());
        }
        done
    }
}

impl Work for Jobs {
    fn ran(&mut self, entity: Entity, time: Nanos) {
        self.ran.resize(self.tasks.len(), 0);
        self.ran[entity.index()] += time;
    }

    fn next(&mut self, entity: Entity) -> Nanos {
        let ran = self.ran.get(entity.index()).copied().unwrap_or(0);
        self.tasks[entity.index()].ends_at.checked_sub(ran).unwrap_or(NEVER)
    }

    fn reached(&mut self, machine: &mut Machine, entity: Entity) -> Flow {
        if self.finish(machine, entity) { Flow::Block } else { Flow::Continue }
    }

    fn stopped(&mut self, machine: &mut Machine, entity: Entity, _: bool) {
        // Its slice may end with its work, and then it is stopped before it can say that it is done.
        self.finish(machine, entity);
    }

    fn timer(&mut self, machine: &mut Machine, token: u32) {
        let now = machine.now();
        let entity = Entity(token);
        let ran = machine.host().ran(entity);
        let task = &mut self.tasks[entity.index()];
        if let Some(job) = task.jobs.last_mut().filter(|job| job.1.is_none()) {
            *job = (job.0, Some(now), ran < task.ends_at);
        }
        task.jobs.push((now, None, false));
        task.ends_at = ran + task.execution;
        machine.arm(task.release, now + task.period);
        if !machine.wake(entity) {
            machine.poke(entity);
        }
    }
}

/// Rate-monotonic scheduling of one pCPU: the shortest period first.
#[derive(Debug)]
struct FixedPriority {
    periods: Vec<u64>,
    ready: Vec<Entity>,
}

impl HostScheduler for FixedPriority {
    fn name(&self) -> &'static str {
        "rate-monotonic"
    }
    fn add_group(&mut self, _: Group, _: GroupSpec) {}
    fn add_entity(&mut self, _: Entity, _: EntitySpec) {}
    fn start(&mut self, _: &mut Host) {}
    fn wake(&mut self, host: &mut Host, entity: Entity) {
        self.ready.push(entity);
        host.reschedule(Pcpu(0));
    }
    fn block(&mut self, _: &mut Host, _: Entity, _: Pcpu) {}
    fn pick(&mut self, host: &mut Host, pcpu: Pcpu) -> Option<Entity> {
        self.ready.extend(host.current(pcpu));
        let next = self.ready.iter().copied().min_by_key(|entity| self.periods[entity.index()]);
        self.ready.retain(|entity| Some(*entity) != next);
        next
    }
    fn timer(&mut self, _: &mut Host, _: SchedulerTimer) {}
    fn boost(&mut self, _: &mut Host, _: Entity, _: Boost) {}
    fn share(&mut self, _: &mut Host, _: Group, _: u32) {}
}
