//! Goes through a recording again: what the engine believed and when, and how fast it is.

use frontdesk_engine::{
    ActionKind, Boost, Config, ConfigError, Engine, Event, EventKind, Protocol, TaskId, Thread, Time, VmId,
};
use frontdesk_host::Record;
use frontdesk_scenario::{
    BeliefPoint, BlockMark, BoostSlice, Follow, PacketMark, RunSlice, Summary, TaskSlice, Timeline,
};
use indexmap::IndexMap;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Beliefs are sampled this often.
const SAMPLE_NS: u64 = 100_000_000;
/// The engine is timed for at least this long.
const TIMING: Duration = Duration::from_millis(500);

/// What a recording says about one measured interval.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) boosts: u64,
    pub(crate) hits: u64,
    /// From each packet to its boost, in microseconds.
    pub(crate) decisions_us: Vec<f64>,
    pub(crate) lost_events: u64,
    pub(crate) follow: Option<Follow>,
    pub(crate) timeline: Timeline,
}

/// What the workloads of a VM know of their own I/O.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// When an I/O-bound task woke from I/O, in order.
    pub(crate) wakes: Vec<Time>,
    /// The tasks that change their character.
    pub(crate) shifts: Vec<Shift>,
}

/// A task that changes its character.
#[derive(Debug, Default)]
pub(crate) struct Shift {
    /// When it woke from I/O, in order.
    pub(crate) wakes: Vec<Time>,
    /// When it became I/O-bound (true) or CPU-bound.
    pub(crate) changes: Vec<(Time, bool)>,
}

impl Truth {
    fn woke_between(&self, from: Time, to: Time) -> bool {
        let next = self.wakes.partition_point(|wake| *wake < from);
        self.wakes.get(next).is_some_and(|wake| *wake <= to)
    }
}

/// Reads a recording for the interval between two points in time. `truth` is by name of the VM.
pub(crate) fn examine(
    records: &[Record],
    from: Time,
    to: Time,
    truth: &IndexMap<String, Truth>,
) -> Result<Findings, ConfigError> {
    let config = config(records);
    let mut builder = Builder::new(from, to, truth);
    builder.findings.timeline.belief_threshold = config.tavs.belief_threshold;
    let mut engine = Engine::new(config)?;
    let mut sampled = from;
    for record in records {
        match record {
            Record::Event(event) => {
                while event.at >= sampled && sampled <= to {
                    builder.sample(&engine, sampled);
                    sampled = sampled.plus(SAMPLE_NS);
                }
                engine.on_event(event);
                builder.event(&engine, event);
            }
            Record::Deadline(at) => engine.on_deadline(*at),
            Record::Applied { action, latency_ns } => {
                builder.applied(&engine, action.at, action.kind, *latency_ns);
            }
            Record::Vm { vm, name } => builder.name(*vm, name),
            Record::Dropped(count) => builder.findings.lost_events += count,
            Record::Config(config) => engine.configure(config.clone())?,
            Record::VmPolicy { vm, policy } => engine.configure_vm(*vm, *policy)?,
        }
        while engine.poll_action().is_some() {}
    }
    let mut findings = builder.finish();
    findings.follow = follow(records, &findings.timeline, from, to, truth)?;
    Ok(findings)
}

/// How the belief followed tasks that changed their character; `None` if none did.
fn follow(
    records: &[Record],
    timeline: &Timeline,
    from: Time,
    to: Time,
    truth: &IndexMap<String, Truth>,
) -> Result<Option<Follow>, ConfigError> {
    let (mut to_io, mut to_cpu, mut missed, mut wasted) = (Vec::new(), Vec::new(), 0, 0);
    let shifts = truth.iter().flat_map(|(name, truth)| truth.shifts.iter().map(move |shift| (name, shift)));
    for (name, shift) in shifts {
        let Some(vm) = timeline.vms.iter().position(|vm| vm == name) else { continue };
        let within = |at: &Time| *at >= from && *at <= to;
        wasted +=
            timeline.boosts.iter().filter(|boost| boost.vm == vm && !boost.hit).fold(0, |wasted, boost| {
                let at = from.plus(boost.start);
                let last = shift.changes.iter().rev().find(|(change, _)| *change <= at);
                wasted + u64::from(last.is_some_and(|(_, io_bound)| !io_bound))
            });
        let Some(task) = task_that_woke(timeline, vm, &shift.wakes, from) else {
            missed += shift.changes.iter().filter(|(at, _)| within(at)).count() as u64;
            continue;
        };
        let beliefs = beliefs(records, name, task)?;
        let ends = shift.changes.iter().skip(1).map(|(at, _)| *at).chain([to]);
        for ((at, io_bound), end) in shift.changes.iter().zip(ends).filter(|((at, _), _)| within(at)) {
            match beliefs.iter().find(|(when, believed)| when >= at && believed == io_bound) {
                Some((when, _)) if *when <= end => {
                    let lag = Duration::from_nanos(when.since(*at)).as_secs_f64() * 1000.0;
                    if *io_bound { &mut to_io } else { &mut to_cpu }.push(lag);
                }
                // The last change may be followed after the end.
                _ if end == to => {}
                _ => missed += 1,
            }
        }
    }
    let median = |lags: &[f64]| Summary::of(lags).map(|summary| summary.p50);
    let changed = !to_io.is_empty() || !to_cpu.is_empty() || missed > 0;
    Ok(changed.then(|| Follow { to_io_ms: median(&to_io), to_cpu_ms: median(&to_cpu), missed, wasted }))
}

/// The task that was on a vCPU most often at these times.
fn task_that_woke(timeline: &Timeline, vm: usize, wakes: &[Time], from: Time) -> Option<TaskId> {
    let mut slices: Vec<&TaskSlice> = timeline.tasks.iter().filter(|slice| slice.vm == vm).collect();
    slices.sort_by_key(|slice| slice.start);
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for wake in wakes.iter().filter(|wake| **wake >= from) {
        let at = wake.since(from);
        let next = slices.partition_point(|slice| slice.start <= at);
        let slice = next.checked_sub(1).map(|index| slices[index]).filter(|slice| slice.end >= at);
        if let Some(slice) = slice {
            *counts.entry(slice.task.as_str()).or_default() += 1;
        }
    }
    let (task, _) = counts.into_iter().max_by_key(|(task, count)| (*count, *task))?;
    u64::from_str_radix(task.strip_prefix("0x")?, 16).ok().map(TaskId)
}

/// Each time at which a task began or ceased to be believed I/O-bound.
fn beliefs(records: &[Record], vm: &str, task: TaskId) -> Result<Vec<(Time, bool)>, ConfigError> {
    let config = config(records);
    let threshold = config.tavs.belief_threshold;
    let mut engine = Engine::new(config)?;
    let id = records.iter().find_map(|record| match record {
        Record::Vm { vm: id, name } if name == vm => Some(*id),
        _ => None,
    });
    let Some(id) = id else { return Ok(Vec::new()) };
    let mut beliefs = Vec::new();
    let mut believed = false;
    for record in records {
        let at = match record {
            Record::Event(event) => {
                engine.on_event(event);
                event.at
            }
            Record::Deadline(at) => {
                engine.on_deadline(*at);
                *at
            }
            _ => continue,
        };
        while engine.poll_action().is_some() {}
        let now = engine.belief(id, task).is_some_and(|belief| belief > threshold);
        if now != believed {
            beliefs.push((at, now));
            believed = now;
        }
    }
    Ok(beliefs)
}

fn config(records: &[Record]) -> Config {
    let config = records.iter().find_map(|record| match record {
        Record::Config(config) => Some(config.clone()),
        _ => None,
    });
    config.unwrap_or_default()
}

/// Events per second of the engine on one core, over the events of a recording.
pub(crate) fn engine_speed(records: &[Record]) -> Result<f64, ConfigError> {
    let config = config(records);
    let events: Vec<&Event> = records
        .iter()
        .filter_map(|record| match record {
            Record::Event(event) => Some(event),
            _ => None,
        })
        .collect();
    let mut handled = 0u64;
    let mut spent = Duration::ZERO;
    while spent < TIMING && !events.is_empty() {
        let mut engine = Engine::new(config.clone())?;
        let start = Instant::now();
        for event in &events {
            engine.on_event(event);
            while engine.poll_action().is_some() {}
        }
        spent += start.elapsed();
        handled += events.len() as u64;
    }
    #[allow(clippy::cast_precision_loss)]
    let handled = handled as f64;
    Ok(if spent.is_zero() { 0.0 } else { handled / spent.as_secs_f64() })
}

/// Builds the timeline of one interval.
struct Builder<'a> {
    from: Time,
    to: Time,
    truth: &'a IndexMap<String, Truth>,
    findings: Findings,
    index: HashMap<VmId, usize>,
    running: HashMap<(usize, Thread), (Time, u16)>,
    tasks: HashMap<(usize, u16), OnVcpu>,
    boosted: BTreeMap<(usize, u16), Time>,
    /// The engine's own count of hits, as of the last boost that ended.
    hits: HashMap<(usize, u16), u64>,
    /// The packet that waits for a task switch, per VM.
    waiting: HashMap<usize, usize>,
    /// Reads in flight, by VM and request.
    reads: HashMap<(usize, u64), usize>,
}

/// What is on a vCPU.
#[derive(Clone, Copy)]
struct OnVcpu {
    /// The address space loaded last, which a halted guest keeps.
    loaded: Option<TaskId>,
    halted: bool,
    since: Time,
}

impl<'a> Builder<'a> {
    fn new(from: Time, to: Time, truth: &'a IndexMap<String, Truth>) -> Builder<'a> {
        Builder {
            from,
            to,
            truth,
            findings: Findings::default(),
            index: HashMap::new(),
            running: HashMap::new(),
            tasks: HashMap::new(),
            boosted: BTreeMap::new(),
            hits: HashMap::new(),
            waiting: HashMap::new(),
            reads: HashMap::new(),
        }
    }

    fn name(&mut self, vm: VmId, name: &str) {
        self.index.insert(vm, self.findings.timeline.vms.len());
        self.findings.timeline.vms.push(name.to_owned());
    }

    /// Nanoseconds since the start of the interval, kept within it.
    fn offset(&self, at: Time) -> u64 {
        at.min(self.to).since(self.from)
    }

    /// The part of a span that lies in the interval.
    fn span(&self, since: Time, until: Time) -> Option<(u64, u64)> {
        let (start, end) = (self.offset(since), self.offset(until));
        (end > start).then_some((start, end))
    }

    fn within(&self, at: Time) -> bool {
        at >= self.from && at <= self.to
    }

    fn event(&mut self, engine: &Engine, event: &Event) {
        let at = event.at;
        match event.kind {
            EventKind::Run { vm, thread, pcpu } => {
                let Some(vm) = self.index.get(&vm).copied() else { return };
                self.running.insert((vm, thread), (at, pcpu));
            }
            EventKind::Stop { vm, thread, .. } => {
                let Some(vm) = self.index.get(&vm).copied() else { return };
                self.end_run(vm, thread, at);
            }
            EventKind::TaskSwitch { vm, vcpu, task } => {
                self.task(vm, vcpu, at, |_| OnVcpu { loaded: Some(task), halted: false, since: at });
            }
            EventKind::Halt { vm, vcpu } => {
                self.task(vm, vcpu, at, |on| OnVcpu { halted: true, since: at, ..on })
            }
            EventKind::Resume { vm, vcpu } => {
                self.task(vm, vcpu, at, |on| OnVcpu { halted: false, since: at, ..on });
            }
            EventKind::Packet { vm, protocol, port } => self.packet(engine, vm, protocol, port, at),
            EventKind::BlockRead { vm, request } => {
                let Some(vm) = self.index.get(&vm).copied().filter(|_| self.within(at)) else { return };
                let reads = &mut self.findings.timeline.reads;
                self.reads.insert((vm, request), reads.len());
                reads.push(BlockMark { vm, at: at.since(self.from), done: None, decision: String::new() });
            }
            EventKind::BlockDone { vm: id, request } => {
                let Some(vm) = self.index.get(&id).copied() else { return };
                let Some(read) = self.reads.remove(&(vm, request)) else { return };
                let read = &mut self.findings.timeline.reads[read];
                read.done = Some(at.min(self.to).since(self.from));
                read.decision = decision(engine, id);
            }
            EventKind::Lost { count, .. } => {
                self.findings.lost_events = self.findings.lost_events.saturating_add(count);
            }
            _ => {}
        }
    }

    fn end_run(&mut self, vm: usize, thread: Thread, at: Time) {
        let Some((since, pcpu)) = self.running.remove(&(vm, thread)) else { return };
        if let Some((start, end)) = self.span(since, at) {
            let thread = match thread {
                Thread::Vcpu(index) => format!("vCPU {index}"),
                Thread::Emulator(index) => format!("emulator {index}"),
            };
            self.findings.timeline.runs.push(RunSlice { vm, thread, pcpu, start, end });
        }
    }

    fn task(&mut self, vm: VmId, vcpu: u16, at: Time, change: impl FnOnce(OnVcpu) -> OnVcpu) {
        let Some(vm) = self.index.get(&vm).copied() else { return };
        let before = self.tasks.get(&(vm, vcpu)).copied();
        let after = change(before.unwrap_or(OnVcpu { loaded: None, halted: true, since: at }));
        self.tasks.insert((vm, vcpu), after);
        if let Some(before) = before {
            self.end_task(vm, vcpu, before, at);
        }
        // Waking from idle to the task that was loaded all along is a switch as good as any.
        if !after.halted
            && let Some(packet) = self.waiting.remove(&vm)
        {
            let packet = &mut self.findings.timeline.packets[packet];
            packet.task_delay = Some(at.min(self.to).since(self.from).saturating_sub(packet.at));
        }
    }

    fn end_task(&mut self, vm: usize, vcpu: u16, on: OnVcpu, at: Time) {
        let Some((start, end)) = self.span(on.since, at) else { return };
        let task = on.loaded.filter(|_| !on.halted).map_or_else(|| "idle".to_owned(), task_name);
        self.findings.timeline.tasks.push(TaskSlice { vm, vcpu, task, start, end });
    }

    fn packet(&mut self, engine: &Engine, id: VmId, protocol: Protocol, port: u16, at: Time) {
        let Some(vm) = self.index.get(&id).copied().filter(|_| self.within(at)) else { return };
        let protocol = match protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        let packets = &mut self.findings.timeline.packets;
        self.waiting.insert(vm, packets.len());
        let at = at.since(self.from);
        packets.push(PacketMark {
            vm,
            protocol: protocol.to_owned(),
            port,
            at,
            task_delay: None,
            decision: decision(engine, id),
        });
    }

    fn applied(&mut self, engine: &Engine, at: Time, kind: ActionKind, latency_ns: u64) {
        let ActionKind::Boost { vm: id, vcpu, level } = kind else { return };
        let Some(vm) = self.index.get(&id).copied() else { return };
        match level {
            Boost::Io => {
                self.boosted.insert((vm, vcpu), at);
                if self.within(at) {
                    #[allow(clippy::cast_precision_loss)]
                    self.findings.decisions_us.push(latency_ns as f64 / 1000.0);
                }
            }
            Boost::None => {
                let hits = engine.boost_hits(id, vcpu).unwrap_or(0);
                let before = self.hits.insert((vm, vcpu), hits).unwrap_or(0);
                self.end_boost(vm, vcpu, at, hits > before);
            }
        }
    }

    fn end_boost(&mut self, vm: usize, vcpu: u16, at: Time, hit: bool) {
        let Some(since) = self.boosted.remove(&(vm, vcpu)).filter(|since| self.within(*since)) else {
            return;
        };
        let truth = self.truth.get(&self.findings.timeline.vms[vm]);
        let hit = truth.map_or(hit, |truth| truth.woke_between(since, at));
        self.findings.boosts += 1;
        self.findings.hits += u64::from(hit);
        let (start, end) = (self.offset(since), self.offset(at));
        self.findings.timeline.boosts.push(BoostSlice { vm, vcpu, start, end, hit });
    }

    fn sample(&mut self, engine: &Engine, at: Time) {
        for (id, vm) in &self.index {
            let Some(explain) = engine.explain(*id) else { continue };
            for task in explain.vcpus.iter().flat_map(|vcpu| &vcpu.tasks) {
                if task.belief != 0 {
                    let point = BeliefPoint {
                        vm: *vm,
                        task: task_name(task.task),
                        at: at.since(self.from),
                        belief: task.belief,
                    };
                    self.findings.timeline.beliefs.push(point);
                }
            }
        }
    }

    fn finish(mut self) -> Findings {
        let running: Vec<(usize, Thread)> = self.running.keys().copied().collect();
        running.into_iter().for_each(|(vm, thread)| self.end_run(vm, thread, self.to));
        let on: Vec<_> = self.tasks.iter().map(|((vm, vcpu), on)| (*vm, *vcpu, *on)).collect();
        on.into_iter().for_each(|(vm, vcpu, on)| self.end_task(vm, vcpu, on, self.to));
        let timeline = &mut self.findings.timeline;
        timeline.runs.sort_by_key(|slice| (slice.start, slice.pcpu));
        timeline.tasks.sort_by_key(|slice| (slice.start, slice.vm, slice.vcpu));
        timeline.boosts.sort_by_key(|slice| (slice.start, slice.vm, slice.vcpu));
        timeline.beliefs.sort_by(|a, b| (a.at, a.vm, &a.task).cmp(&(b.at, b.vm, &b.task)));
        self.findings
    }
}

/// What the engine decided last about a VM, in words.
fn decision(engine: &Engine, vm: VmId) -> String {
    engine.decision(vm).map(|decision| decision.verdict.to_string()).unwrap_or_default()
}

fn task_name(task: TaskId) -> String {
    format!("{:#x}", task.0)
}
