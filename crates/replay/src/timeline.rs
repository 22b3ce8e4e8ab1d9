//! What ran where and when, from a recording.

use crate::{ReplayError, Rerun};
use frontdesk_engine::{
    ActionKind, Boost, BoostTarget, Event, EventKind, Protocol, TaskId, Thread, Time, VmId,
};
use frontdesk_host::Record;
use frontdesk_scenario::{BeliefPoint, BlockMark, BoostSlice, PacketMark, RunSlice, TaskSlice, Timeline};
use std::collections::{BTreeMap, HashMap};

/// Beliefs are sampled this often.
const SAMPLE_NS: u64 = 100_000_000;

/// What a recording says about one interval.
#[derive(Debug, Default)]
pub struct Examined {
    /// What ran where and when. Whether a boost was a hit is what the engine thought.
    pub timeline: Timeline,
    /// From each packet to the boosts that it led to, in microseconds.
    pub decisions_us: Vec<f64>,
    /// Events lost before they reached the engine, in the whole recording.
    pub lost_events: u64,
}

/// Goes through a recording and builds the timeline of one interval.
#[derive(Debug)]
pub struct TimelineBuilder {
    rerun: Rerun,
    from: Time,
    to: Time,
    /// The latest event.
    last: Time,
    /// When beliefs are sampled next.
    sampled: Time,
    examined: Examined,
    index: HashMap<VmId, usize>,
    running: HashMap<(usize, Thread), (Time, u16)>,
    tasks: HashMap<(usize, u16), OnVcpu>,
    boosted: BTreeMap<(usize, u16), Time>,
    /// The engine's own count of hits, as of the last boost that ended.
    hits: HashMap<(usize, u16), u64>,
    /// When a packet was queued last, per VM.
    packet_at: HashMap<usize, Time>,
    /// The packet that waits for a task switch, per VM.
    waiting: HashMap<usize, usize>,
    /// Reads in flight, by VM and request.
    reads: HashMap<(usize, u64), usize>,
}

/// What is on a vCPU.
#[derive(Clone, Copy, Debug)]
struct OnVcpu {
    /// The address space loaded last, which a halted guest keeps.
    loaded: Option<TaskId>,
    halted: bool,
    since: Time,
}

impl TimelineBuilder {
    /// A timeline between two points in time, of which the first is its zero.
    #[must_use]
    pub fn new(from: Time, to: Time) -> TimelineBuilder {
        TimelineBuilder {
            rerun: Rerun::new(),
            from,
            to,
            last: from,
            sampled: from,
            examined: Examined::default(),
            index: HashMap::new(),
            running: HashMap::new(),
            tasks: HashMap::new(),
            boosted: BTreeMap::new(),
            hits: HashMap::new(),
            packet_at: HashMap::new(),
            waiting: HashMap::new(),
            reads: HashMap::new(),
        }
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// The recording does not begin as it should, or its parameters are refused.
    pub fn add(&mut self, record: &Record) -> Result<(), ReplayError> {
        if let Record::Event(event) = record {
            self.sample(event.at);
        }
        self.rerun.tell(record)?;
        match record {
            Record::Event(event) => {
                self.last = self.last.max(event.at);
                self.event(event);
            }
            Record::Applied { action, latency_ns } => self.applied(action.at, action.kind, *latency_ns),
            Record::Vm { vm, name } => self.name(*vm, name),
            _ => {}
        }
        while self.rerun.poll_action().is_some() {}
        Ok(())
    }

    /// Slices, marks and points so far: a measure of the memory that they take.
    #[must_use]
    pub fn marks(&self) -> usize {
        let timeline = &self.examined.timeline;
        let ran = timeline.runs.len() + timeline.tasks.len() + timeline.boosts.len();
        ran + timeline.packets.len() + timeline.reads.len() + timeline.beliefs.len()
    }

    fn decision(&self, vm: VmId) -> String {
        let decision = self.rerun.engine().and_then(|engine| engine.decision(vm));
        decision.map(|decision| decision.verdict.to_string()).unwrap_or_default()
    }

    fn name(&mut self, vm: VmId, name: &str) {
        self.index.insert(vm, self.examined.timeline.vms.len());
        self.examined.timeline.vms.push(name.to_owned());
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

    fn event(&mut self, event: &Event) {
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
            // It goes on.
            EventKind::TaskSeen { vm, vcpu, task } if self.on_vcpu(vm, vcpu) == Some(task) => {}
            EventKind::TaskSwitch { vm, vcpu, task } | EventKind::TaskSeen { vm, vcpu, task } => {
                self.task(vm, vcpu, at, |_| OnVcpu { loaded: Some(task), halted: false, since: at });
            }
            EventKind::Halt { vm, vcpu } => {
                self.task(vm, vcpu, at, |on| OnVcpu { halted: true, since: at, ..on })
            }
            EventKind::Resume { vm, vcpu } => {
                self.task(vm, vcpu, at, |on| OnVcpu { halted: false, since: at, ..on });
            }
            EventKind::Packet { vm, protocol, port } => self.packet(vm, protocol, port, at),
            EventKind::BlockRead { vm, request } => {
                let Some(vm) = self.index.get(&vm).copied().filter(|_| self.within(at)) else { return };
                let reads = &mut self.examined.timeline.reads;
                self.reads.insert((vm, request), reads.len());
                reads.push(BlockMark { vm, at: at.since(self.from), done: None, decision: String::new() });
            }
            EventKind::BlockDone { vm: id, request } => {
                let Some(vm) = self.index.get(&id).copied() else { return };
                let Some(read) = self.reads.remove(&(vm, request)) else { return };
                let (done, decision) = (self.offset(at), self.decision(id));
                let read = &mut self.examined.timeline.reads[read];
                (read.done, read.decision) = (Some(done), decision);
            }
            EventKind::Lost { count, .. } => {
                self.examined.lost_events = self.examined.lost_events.saturating_add(count);
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
            self.examined.timeline.runs.push(RunSlice { vm, thread, pcpu, start, end });
        }
    }

    fn on_vcpu(&self, vm: VmId, vcpu: u16) -> Option<TaskId> {
        let on = self.tasks.get(&(*self.index.get(&vm)?, vcpu))?;
        on.loaded.filter(|_| !on.halted)
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
            let packet = &mut self.examined.timeline.packets[packet];
            packet.task_delay = Some(at.min(self.to).since(self.from).saturating_sub(packet.at));
        }
    }

    fn end_task(&mut self, vm: usize, vcpu: u16, on: OnVcpu, at: Time) {
        let Some((start, end)) = self.span(on.since, at) else { return };
        let task = on.loaded.filter(|_| !on.halted).map_or_else(|| "idle".to_owned(), task_name);
        self.examined.timeline.tasks.push(TaskSlice { vm, vcpu, task, start, end });
    }

    fn packet(&mut self, id: VmId, protocol: Protocol, port: u16, at: Time) {
        let Some(vm) = self.index.get(&id).copied().filter(|_| self.within(at)) else { return };
        self.packet_at.insert(vm, at);
        let protocol = match protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        let decision = self.decision(id);
        let packets = &mut self.examined.timeline.packets;
        self.waiting.insert(vm, packets.len());
        let at = at.since(self.from);
        packets.push(PacketMark { vm, protocol: protocol.to_owned(), port, at, task_delay: None, decision });
    }

    fn applied(&mut self, at: Time, kind: ActionKind, latency_ns: u64) {
        let ActionKind::Boost { vm: id, target: BoostTarget::Vcpu(vcpu), level } = kind else { return };
        let Some(vm) = self.index.get(&id).copied() else { return };
        match level {
            Boost::Io | Boost::Multimedia => {
                self.boosted.entry((vm, vcpu)).or_insert(at);
                if self.within(at) && self.packet_at.get(&vm) == Some(&at) {
                    #[allow(clippy::cast_precision_loss)]
                    self.examined.decisions_us.push(latency_ns as f64 / 1000.0);
                }
            }
            Boost::None => {
                let engine = self.rerun.engine();
                let hits = engine.and_then(|engine| engine.boost_hits(id, vcpu)).unwrap_or(0);
                let before = self.hits.insert((vm, vcpu), hits).unwrap_or(0);
                self.end_boost(vm, vcpu, at, hits > before);
            }
        }
    }

    fn end_boost(&mut self, vm: usize, vcpu: u16, at: Time, hit: bool) {
        let Some(since) = self.boosted.remove(&(vm, vcpu)).filter(|since| self.within(*since)) else {
            return;
        };
        let (start, end) = (self.offset(since), self.offset(at));
        self.examined.timeline.boosts.push(BoostSlice { vm, vcpu, start, end, hit });
    }

    /// Notes the degrees of belief as they were before an event, if it is time again.
    fn sample(&mut self, now: Time) {
        let at = self.sampled;
        if now < at || at > self.to {
            return;
        }
        // The same goes for all times since the last event.
        self.sampled = at.plus((now.since(at) / SAMPLE_NS + 1).saturating_mul(SAMPLE_NS));
        let Some(engine) = self.rerun.engine() else { return };
        for (id, vm) in &self.index {
            let Some(explain) = engine.explain(*id) else { continue };
            for task in &explain.tasks {
                if task.belief != 0 {
                    let point = BeliefPoint {
                        vm: *vm,
                        task: task_name(task.task),
                        at: at.since(self.from),
                        belief: task.belief,
                    };
                    self.examined.timeline.beliefs.push(point);
                }
            }
        }
    }

    /// The timeline, up to the end of the interval or of the recording.
    #[must_use]
    pub fn finish(mut self) -> Examined {
        self.to = self.to.min(self.last);
        if let Some(engine) = self.rerun.engine() {
            self.examined.timeline.belief_threshold = engine.config().tavs.belief_threshold;
        }
        let running: Vec<(usize, Thread)> = self.running.keys().copied().collect();
        running.into_iter().for_each(|(vm, thread)| self.end_run(vm, thread, self.to));
        let on: Vec<_> = self.tasks.iter().map(|((vm, vcpu), on)| (*vm, *vcpu, *on)).collect();
        on.into_iter().for_each(|(vm, vcpu, on)| self.end_task(vm, vcpu, on, self.to));
        let timeline = &mut self.examined.timeline;
        timeline.runs.sort_by_key(|slice| (slice.start, slice.pcpu));
        timeline.tasks.sort_by_key(|slice| (slice.start, slice.vm, slice.vcpu));
        timeline.boosts.sort_by_key(|slice| (slice.start, slice.vm, slice.vcpu));
        timeline.beliefs.sort_by(|a, b| (a.at, a.vm, &a.task).cmp(&(b.at, b.vm, &b.task)));
        self.examined
    }
}

fn task_name(task: TaskId) -> String {
    format!("{:#x}", task.0)
}
