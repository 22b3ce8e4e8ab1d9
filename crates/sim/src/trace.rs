//! What happened, as the timeline that the report shows.

use crate::queue::Nanos;
use crate::scheduler::{Entity, Pcpu};
use frontdesk_engine::{Protocol, TaskId};
use frontdesk_scenario::{BeliefPoint, BlockMark, BoostSlice, PacketMark, RunSlice, TaskSlice, Timeline};

/// What is on a vCPU.
#[derive(Clone, Copy, Debug, Default)]
struct OnVcpu {
    loaded: Option<TaskId>,
    halted: bool,
    since: Nanos,
}

/// Writes down what happens from a time on.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    from: Nanos,
    timeline: Timeline,
    /// Of each entity: whose it is, and what it is called.
    names: Vec<(Option<usize>, String)>,
    running: Vec<Option<(Nanos, Pcpu)>>,
    vcpus: Vec<Vec<OnVcpu>>,
    /// The packet of each VM after which no other task has run.
    waiting: Vec<Option<usize>>,
    reads: Vec<(u64, usize)>,
}

impl Tracer {
    /// `vms`: names and number of vCPUs. `names`: of each entity, whose it is, and what it is called.
    pub(crate) fn new(
        from: Nanos,
        vms: &[(String, usize)],
        names: Vec<(Option<usize>, String)>,
        threshold: i32,
    ) -> Tracer {
        let mut all: Vec<String> = vms.iter().map(|(name, _)| name.clone()).collect();
        if names.iter().any(|(vm, _)| vm.is_none()) {
            all.push("driver domain".to_owned());
        }
        let timeline = Timeline { vms: all, belief_threshold: threshold, ..Timeline::default() };
        let on = OnVcpu { since: from, ..OnVcpu::default() };
        Tracer {
            from,
            timeline,
            running: vec![None; names.len()],
            names,
            vcpus: vms.iter().map(|(_, vcpus)| vec![on; *vcpus]).collect(),
            waiting: vec![None; vms.len()],
            reads: Vec::new(),
        }
    }

    pub(crate) fn run(&mut self, now: Nanos, entity: Entity, pcpu: Pcpu) {
        self.running[entity.index()] = Some((now, pcpu));
    }

    pub(crate) fn stop(&mut self, now: Nanos, entity: Entity) {
        let Some((since, pcpu)) = self.running[entity.index()].take() else { return };
        let (vm, thread) = &self.names[entity.index()];
        self.timeline.runs.push(RunSlice {
            vm: vm.unwrap_or(self.timeline.vms.len() - 1),
            thread: thread.clone(),
            pcpu: pcpu.0,
            start: since - self.from,
            end: now - self.from,
        });
    }

    pub(crate) fn task(&mut self, now: Nanos, vm: usize, vcpu: usize, space: Option<TaskId>) {
        self.change(now, vm, vcpu, |on| OnVcpu { loaded: space, halted: false, since: on.since });
    }

    pub(crate) fn halt(&mut self, now: Nanos, vm: usize, vcpu: usize) {
        self.change(now, vm, vcpu, |on| OnVcpu { halted: true, ..on });
    }

    pub(crate) fn resume(&mut self, now: Nanos, vm: usize, vcpu: usize) {
        self.change(now, vm, vcpu, |on| OnVcpu { halted: false, ..on });
    }

    fn change(&mut self, now: Nanos, vm: usize, vcpu: usize, change: impl FnOnce(OnVcpu) -> OnVcpu) {
        let before = self.vcpus[vm][vcpu];
        let after = OnVcpu { since: now, ..change(before) };
        self.vcpus[vm][vcpu] = after;
        if now > before.since {
            let (start, end) = (before.since - self.from, now - self.from);
            let task = before.loaded.filter(|_| !before.halted).map_or_else(|| "idle".to_owned(), name);
            let vcpu = u16::try_from(vcpu).unwrap_or(u16::MAX);
            self.timeline.tasks.push(TaskSlice { vm, vcpu, task, start, end });
        }
        if !after.halted
            && let Some(packet) = self.waiting[vm].take()
        {
            let packet = &mut self.timeline.packets[packet];
            packet.task_delay = Some((now - self.from).saturating_sub(packet.at));
        }
    }

    pub(crate) fn packet(&mut self, now: Nanos, vm: usize, protocol: Protocol, port: u16, decision: String) {
        self.waiting[vm] = Some(self.timeline.packets.len());
        let protocol = match protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        let mark = PacketMark {
            vm,
            protocol: protocol.to_owned(),
            port,
            at: now - self.from,
            task_delay: None,
            decision,
        };
        self.timeline.packets.push(mark);
    }

    pub(crate) fn read(&mut self, now: Nanos, vm: usize, request: u64) {
        self.reads.push((request, self.timeline.reads.len()));
        self.timeline.reads.push(BlockMark { vm, at: now - self.from, done: None, decision: String::new() });
    }

    pub(crate) fn read_done(&mut self, now: Nanos, request: u64, decision: String) {
        let Some(place) = self.reads.iter().position(|(other, _)| *other == request) else { return };
        let read = &mut self.timeline.reads[self.reads.swap_remove(place).1];
        (read.done, read.decision) = (Some(now - self.from), decision);
    }

    pub(crate) fn boost(&mut self, vm: usize, vcpu: u16, since: Nanos, now: Nanos, hit: bool) {
        if since >= self.from {
            let (start, end) = (since - self.from, now - self.from);
            self.timeline.boosts.push(BoostSlice { vm, vcpu, start, end, hit });
        }
    }

    pub(crate) fn belief(&mut self, now: Nanos, vm: usize, task: TaskId, belief: i32) {
        self.timeline.beliefs.push(BeliefPoint { vm, task: name(task), at: now - self.from, belief });
    }

    /// The timeline up to a time.
    pub(crate) fn finish(mut self, now: Nanos, arm: &str, repeat: u32) -> Timeline {
        for entity in 0..self.running.len() {
            self.stop(now, Entity(u32::try_from(entity).unwrap_or(u32::MAX)));
        }
        for vm in 0..self.vcpus.len() {
            for vcpu in 0..self.vcpus[vm].len() {
                self.change(now, vm, vcpu, |on| OnVcpu { halted: true, ..on });
            }
        }
        let mut timeline = self.timeline;
        timeline.runs.sort_by_key(|slice| (slice.start, slice.pcpu));
        timeline.tasks.sort_by_key(|slice| (slice.start, slice.vm, slice.vcpu));
        timeline.boosts.sort_by_key(|slice| (slice.start, slice.vm, slice.vcpu));
        (timeline.arm, timeline.repeat) = (arm.to_owned(), repeat);
        timeline
    }
}

fn name(task: TaskId) -> String {
    format!("{:#x}", task.0)
}
