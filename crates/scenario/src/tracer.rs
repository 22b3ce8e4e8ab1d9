//! Writes down what happens as a timeline.

use crate::timeline::{
    BeliefPoint, BlockMark, BoostSlice, DisplayMark, EpisodeSlice, FrameRatePoint, PacketMark, RunSlice,
    SoundMark, TaskSlice, Timeline, WeightSlice,
};
use frontdesk_engine::{
    Engine, EpisodeCause, Event, EventKind, MediaDevice, Protocol, Region, TaskId, Thread, Time, VmExplain,
    VmId,
};
use std::collections::HashMap;

/// Beliefs and frame rates are sampled this often.
const SAMPLE_NS: u64 = 100_000_000;

/// Builds the timeline of an interval from the events before and in it, and from what an engine thinks of
/// them.
#[derive(Debug, Default)]
pub struct Tracer {
    from: Time,
    to: Time,
    /// When beliefs are sampled next.
    sampled: Time,
    timeline: Timeline,
    index: HashMap<VmId, usize>,
    running: HashMap<(usize, Thread), (Time, u16)>,
    tasks: HashMap<(usize, u16), OnVcpu>,
    /// The packet of each VM that waits for a task switch.
    waiting: HashMap<usize, usize>,
    /// Reads in flight, by VM and request.
    reads: HashMap<(usize, u64), usize>,
    /// The episode of each VM: what it began with, when, and when it ends by itself.
    episodes: HashMap<usize, (EpisodeCause, Time, Time)>,
    /// Weights of vCPUs that are not the usual one, and since when.
    weights: HashMap<(usize, u16), (u32, Time)>,
}

/// What is on a vCPU.
#[derive(Clone, Copy, Debug)]
struct OnVcpu {
    /// The address space loaded last, which a halted guest keeps.
    loaded: Option<TaskId>,
    halted: bool,
    since: Time,
}

impl Tracer {
    /// A timeline between two points in time, of which the first is its zero.
    #[must_use]
    pub fn new(from: Time, to: Time) -> Tracer {
        Tracer { from, to, sampled: from, ..Tracer::default() }
    }

    /// Adds a VM, or whoever else has threads. Events about others are passed over.
    pub fn add_vm(&mut self, vm: VmId, name: &str) {
        self.index.insert(vm, self.timeline.vms.len());
        self.timeline.vms.push(name.to_owned());
    }

    /// Whether a point in time is in the interval.
    #[must_use]
    pub fn within(&self, at: Time) -> bool {
        at >= self.from && at <= self.to
    }

    /// Slices, marks and points so far: a measure of the memory that they take.
    #[must_use]
    pub fn marks(&self) -> usize {
        let timeline = &self.timeline;
        let ran = timeline.runs.len() + timeline.tasks.len() + timeline.boosts.len();
        let seen = timeline.updates.len() + timeline.sounds.len() + timeline.frame_rates.len();
        let slow = timeline.episodes.len() + timeline.weights.len();
        ran + slow + seen + timeline.packets.len() + timeline.reads.len() + timeline.beliefs.len()
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

    /// Notes an event, of which the engine was told before.
    pub fn event(&mut self, event: &Event, engine: Option<&Engine>) {
        let at = event.at;
        self.episode(event, engine);
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
                self.task(vm, vcpu, at, |on| OnVcpu { halted: true, since: at, ..on });
            }
            EventKind::Resume { vm, vcpu } => {
                self.task(vm, vcpu, at, |on| OnVcpu { halted: false, since: at, ..on });
            }
            EventKind::Packet { vm: id, protocol, port } => {
                let Some(vm) = self.index.get(&id).copied().filter(|_| self.within(at)) else { return };
                let protocol = match protocol {
                    Protocol::Tcp => "tcp",
                    Protocol::Udp => "udp",
                };
                self.waiting.insert(vm, self.timeline.packets.len());
                self.timeline.packets.push(PacketMark {
                    vm,
                    protocol: protocol.to_owned(),
                    port,
                    at: self.offset(at),
                    task_delay: None,
                    decision: decision(engine, id),
                });
            }
            EventKind::BlockRead { vm, request } => {
                let Some(vm) = self.index.get(&vm).copied().filter(|_| self.within(at)) else { return };
                self.reads.insert((vm, request), self.timeline.reads.len());
                let read = BlockMark { vm, at: self.offset(at), done: None, decision: String::new() };
                self.timeline.reads.push(read);
            }
            EventKind::BlockDone { vm: id, request } => {
                let Some(vm) = self.index.get(&id).copied() else { return };
                let Some(read) = self.reads.remove(&(vm, request)) else { return };
                let done = Some(self.offset(at));
                let read = &mut self.timeline.reads[read];
                (read.done, read.decision) = (done, decision(engine, id));
            }
            EventKind::DisplayUpdate { vm, region } => {
                let Some(vm) = self.index.get(&vm).copied().filter(|_| self.within(at)) else { return };
                let region = region.map_or_else(
                    || "all".to_owned(),
                    |Region { x, y, width, height }| format!("{width}x{height}+{x}+{y}"),
                );
                self.timeline.updates.push(DisplayMark { vm, at: self.offset(at), region });
            }
            EventKind::DeviceAccess { vm: id, vcpu, device: MediaDevice::Sound, in_interrupt } => {
                let Some(vm) = self.index.get(&id).copied().filter(|_| self.within(at)) else { return };
                let task = self.on_vcpu(id, vcpu).filter(|_| !in_interrupt).map(task_name);
                self.timeline.sounds.push(SoundMark { vm, at: self.offset(at), vcpu, task });
            }
            _ => {}
        }
    }

    /// Notes an episode that an event began or ended.
    fn episode(&mut self, event: &Event, engine: Option<&Engine>) {
        let (EventKind::Input { vm: id, .. }
        | EventKind::Packet { vm: id, .. }
        | EventKind::DeviceAccess { vm: id, device: MediaDevice::Sound, .. }) = event.kind
        else {
            return;
        };
        let (Some(vm), Some(engine)) = (self.index.get(&id).copied(), engine) else { return };
        let (before, now) = (self.episodes.get(&vm).copied(), engine.episode(id));
        if before == now {
            return;
        }
        if let Some(ended) = before {
            self.end_episode(vm, ended, event.at);
        }
        match now {
            Some(begun) => self.episodes.insert(vm, begun),
            None => self.episodes.remove(&vm),
        };
    }

    fn end_episode(&mut self, vm: usize, (cause, since, until): (EpisodeCause, Time, Time), at: Time) {
        if let Some((start, end)) = self.span(since, until.min(at)) {
            self.timeline.episodes.push(EpisodeSlice { vm, cause: cause.to_string(), start, end });
        }
    }

    /// Notes that a vCPU gets a weight, in permille of the usual one.
    pub fn weight(&mut self, vm: VmId, vcpu: u16, permille: u32, at: Time) {
        let Some(vm) = self.index.get(&vm).copied() else { return };
        if self.weights.get(&(vm, vcpu)).is_some_and(|(before, _)| *before == permille) {
            return;
        }
        self.end_weight(vm, vcpu, at);
        if permille != 1000 {
            self.weights.insert((vm, vcpu), (permille, at));
        }
    }

    fn end_weight(&mut self, vm: usize, vcpu: u16, at: Time) {
        let Some((permille, since)) = self.weights.remove(&(vm, vcpu)) else { return };
        if let Some((start, end)) = self.span(since, at) {
            self.timeline.weights.push(WeightSlice { vm, vcpu, permille, start, end });
        }
    }

    fn end_run(&mut self, vm: usize, thread: Thread, at: Time) {
        let Some((since, pcpu)) = self.running.remove(&(vm, thread)) else { return };
        if let Some((start, end)) = self.span(since, at) {
            let thread = match thread {
                Thread::Vcpu(index) => format!("vCPU {index}"),
                Thread::Emulator(index) => format!("emulator {index}"),
            };
            self.timeline.runs.push(RunSlice { vm, thread, pcpu, start, end });
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
            let offset = self.offset(at);
            let packet = &mut self.timeline.packets[packet];
            packet.task_delay = Some(offset.saturating_sub(packet.at));
        }
    }

    fn end_task(&mut self, vm: usize, vcpu: u16, on: OnVcpu, at: Time) {
        let Some((start, end)) = self.span(on.since, at) else { return };
        let task = on.loaded.filter(|_| !on.halted).map_or_else(|| "idle".to_owned(), task_name);
        self.timeline.tasks.push(TaskSlice { vm, vcpu, task, start, end });
    }

    /// Notes a boost that has ended, if it began in the interval. `hit`: whether an I/O-bound task ran in it.
    pub fn boost(&mut self, vm: VmId, vcpu: u16, since: Time, until: Time, hit: bool) {
        let Some(vm) = self.index.get(&vm).copied().filter(|_| self.within(since)) else { return };
        let (start, end) = (self.offset(since), self.offset(until));
        self.timeline.boosts.push(BoostSlice { vm, vcpu, start, end, hit });
    }

    /// Notes the degrees of belief and the frame rates as they are before what happens at `now`, if it is
    /// time again.
    pub fn sample(&mut self, now: Time, engine: Option<&Engine>) {
        let at = self.sampled;
        if now < at || at > self.to {
            return;
        }
        // The same goes for all times since the last event.
        self.sampled = at.plus((now.since(at) / SAMPLE_NS + 1).saturating_mul(SAMPLE_NS));
        let Some(engine) = engine else { return };
        for (id, vm) in &self.index {
            let Some(explain) = engine.explain(*id) else { continue };
            let believed = explain.tasks.iter().filter(|task| task.belief != 0);
            self.timeline.beliefs.extend(believed.map(|task| BeliefPoint {
                vm: *vm,
                task: task_name(task.id),
                at: at.since(self.from),
                belief: task.belief,
            }));
            self.timeline.frame_rates.extend(frame_rates(&explain, *vm, at.since(self.from)));
        }
    }

    /// The timeline, up to the end of the interval or of what happened, `last`. A task whose degree of belief
    /// is above `belief_threshold` counts as I/O-bound.
    #[must_use]
    pub fn finish(mut self, last: Time, belief_threshold: i32) -> Timeline {
        self.to = self.to.min(last);
        let running: Vec<(usize, Thread)> = self.running.keys().copied().collect();
        running.into_iter().for_each(|(vm, thread)| self.end_run(vm, thread, self.to));
        let on: Vec<_> = self.tasks.iter().map(|((vm, vcpu), on)| (*vm, *vcpu, *on)).collect();
        on.into_iter().for_each(|(vm, vcpu, on)| self.end_task(vm, vcpu, on, self.to));
        let episodes = std::mem::take(&mut self.episodes);
        episodes.into_iter().for_each(|(vm, episode)| self.end_episode(vm, episode, self.to));
        let weights: Vec<(usize, u16)> = self.weights.keys().copied().collect();
        weights.into_iter().for_each(|(vm, vcpu)| self.end_weight(vm, vcpu, self.to));
        let mut timeline = self.timeline;
        timeline.belief_threshold = belief_threshold;
        timeline.runs.sort_by_key(|slice| (slice.start, slice.pcpu));
        timeline.tasks.sort_by_key(|slice| (slice.start, slice.vm, slice.vcpu));
        timeline.boosts.sort_by_key(|slice| (slice.start, slice.vm, slice.vcpu));
        timeline.episodes.sort_by_key(|slice| (slice.start, slice.vm));
        timeline.weights.sort_by_key(|slice| (slice.start, slice.vm, slice.vcpu));
        timeline.frame_rates.sort_by(|a, b| (a.at, a.vm, &a.task).cmp(&(b.at, b.vm, &b.task)));
        timeline.beliefs.sort_by(|a, b| (a.at, a.vm, &a.task).cmp(&(b.at, b.vm, &b.task)));
        timeline
    }
}

/// How many frames a second the players of a VM show.
fn frame_rates(explain: &VmExplain, vm: usize, at: u64) -> impl Iterator<Item = FrameRatePoint> {
    let players = explain.multimedia.iter().flat_map(|media| &media.players);
    players.map(move |player| FrameRatePoint {
        vm,
        task: task_name(player.task),
        at,
        rate: player.frame_rate,
        desired: player.desired_rate,
        share_permille: player.share_permille,
    })
}

/// What an engine decided last about a VM, in words.
fn decision(engine: Option<&Engine>, vm: VmId) -> String {
    let decision = engine.and_then(|engine| engine.decision(vm));
    decision.map(|decision| decision.verdict.to_string()).unwrap_or_default()
}

/// A guest task as shown to people.
#[must_use]
pub fn task_name(task: TaskId) -> String {
    format!("{:#x}", task.0)
}
