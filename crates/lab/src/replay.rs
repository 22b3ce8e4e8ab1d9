//! Goes through a recording again: what the engine believed and when, and how fast it is.

use frontdesk_engine::{
    ActionKind, Boost, Config, ConfigError, Engine, Event, EventKind, Protocol, TaskId, Thread, Time, VmId,
};
use frontdesk_host::Record;
use frontdesk_scenario::{BeliefPoint, BoostSlice, PacketMark, RunSlice, TaskSlice, Timeline};
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
    pub(crate) timeline: Timeline,
}

/// Reads a recording for the interval between two points in time.
pub(crate) fn examine(records: &[Record], from: Time, to: Time) -> Result<Findings, ConfigError> {
    let config = config(records);
    let mut builder = Builder::new(from, to);
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
            Record::Config(_) => {}
        }
        while engine.poll_action().is_some() {}
    }
    Ok(builder.finish())
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
struct Builder {
    from: Time,
    to: Time,
    findings: Findings,
    index: HashMap<VmId, usize>,
    running: HashMap<(usize, Thread), (Time, u16)>,
    tasks: HashMap<(usize, u16), OnVcpu>,
    boosted: BTreeMap<(usize, u16), Time>,
    /// The engine's own count of hits, as of the last boost that ended.
    hits: HashMap<(usize, u16), u64>,
    /// The packet that waits for a task switch, per VM.
    waiting: HashMap<usize, usize>,
}

/// What is on a vCPU.
#[derive(Clone, Copy)]
struct OnVcpu {
    /// The address space loaded last, which a halted guest keeps.
    loaded: Option<TaskId>,
    halted: bool,
    since: Time,
}

impl Builder {
    fn new(from: Time, to: Time) -> Builder {
        Builder {
            from,
            to,
            findings: Findings::default(),
            index: HashMap::new(),
            running: HashMap::new(),
            tasks: HashMap::new(),
            boosted: BTreeMap::new(),
            hits: HashMap::new(),
            waiting: HashMap::new(),
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
        let decision =
            engine.explain(id).and_then(|vm| vm.decision).map(|decision| decision.verdict.to_string());
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
            decision: decision.unwrap_or_default(),
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
                let explain = engine.explain(id).and_then(|vm| vm.vcpus.into_iter().nth(usize::from(vcpu)));
                let hits = explain.map_or(0, |vcpu| vcpu.hits);
                let before = self.hits.insert((vm, vcpu), hits).unwrap_or(0);
                self.end_boost(vm, vcpu, at, hits > before);
            }
        }
    }

    fn end_boost(&mut self, vm: usize, vcpu: u16, at: Time, hit: bool) {
        let Some(since) = self.boosted.remove(&(vm, vcpu)).filter(|since| self.within(*since)) else {
            return;
        };
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

fn task_name(task: TaskId) -> String {
    format!("{:#x}", task.0)
}
