//! What is counted while a run is measured.

use crate::machine::Machine;
use crate::network::SimClient;
use crate::queue::Nanos;
use crate::scheduler::Entity;
use frontdesk_scenario::{RequestBoosts, RequestTimes};

/// A boost that is going on.
#[derive(Clone, Copy, Debug)]
struct Boosted {
    vm: usize,
    vcpu: u16,
    since: Nanos,
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    /// The entities whose CPU time is each VM's.
    pub(super) entities: Vec<Vec<Entity>>,
    /// Whether the workloads of a VM know when they wake from I/O.
    pub(super) knows_wakes: Vec<bool>,
    /// By client: the VM, if it asks an I/O-bound server.
    pub(super) asks: Vec<Option<usize>>,
    begun: Nanos,
    before: Vec<Nanos>,
    /// By entity: how often it was given a physical CPU, and its CPU time when it began.
    threads: Vec<ThreadTime>,
    responses: Vec<Vec<Nanos>>,
    operations: Vec<Vec<Operations>>,
    /// The vCPUs of each VM for which a request waits, and since when.
    notified: Vec<Vec<(usize, Nanos)>>,
    /// By VM and task.
    responded: Vec<Vec<TaskTimes>>,
    delivery: Vec<Vec<Nanos>>,
    last_woken: Vec<Nanos>,
    boosted: Vec<Boosted>,
    engine_hits: Vec<((usize, u16), u64)>,
    boosts: u64,
    hits: u64,
    /// Begin and end of each boost, by VM.
    boost_spans: Vec<Vec<(Nanos, Nanos)>>,
    /// When the server that a client asks woke and replied last, by client.
    replies: Vec<(Nanos, Nanos)>,
    /// By VM.
    requests: Vec<Vec<RequestTimes>>,
    windows: Vec<Vec<WindowFrames>>,
    underruns: Vec<u64>,
    /// When each second was over, and what each VM had used then.
    seconds: Vec<(Nanos, Vec<Nanos>)>,
}

/// What was seen of a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowFrames {
    /// The workload, by its number in the guest.
    pub(crate) workload: usize,
    /// When each frame was seen.
    pub(crate) seen: Vec<Nanos>,
    pub(crate) dropped: u64,
    /// CPU time that the VM had used when that began.
    pub(crate) cpu_before: Nanos,
    /// What the engine knew of it after each second.
    pub(crate) seconds: Vec<SecondSample>,
}

/// A second of what is shown in a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SecondSample {
    /// When it was over.
    pub(crate) at: Nanos,
    /// CPU time that the VM had used.
    pub(crate) cpu: Nanos,
    /// What the engine knew of the player, if it knew of it: frames a second, desired ones, and what the VM's
    /// share was raised to, in permille.
    pub(crate) player: Option<(f64, f64, u32)>,
    /// Whether it took the player for who a sound server plays for.
    pub(crate) sound_client: Option<bool>,
}

/// How long a task of a file took for what it was released for.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskTimes {
    /// Its workload, by its number in the guest.
    pub(crate) workload: usize,
    /// What its file calls it.
    pub(crate) task: Option<Box<str>>,
    pub(crate) times: Vec<Nanos>,
}

/// How often an entity was given a physical CPU, and CPU time that it used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadTime {
    pub(crate) dispatches: u64,
    pub(crate) cpu: Nanos,
}

/// What a workload did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// How long each took, if the workload says so.
    pub(crate) times: Vec<Nanos>,
    pub(crate) timed: bool,
    last: Nanos,
}

/// What was counted between the beginning and the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) time: Nanos,
    /// CPU time of each VM.
    pub(crate) cpu: Vec<Nanos>,
    /// By entity.
    pub(crate) threads: Vec<ThreadTime>,
    /// Response times by client.
    pub(crate) responses: Vec<Vec<Nanos>>,
    /// How long each client had waited at the end, if it still waited.
    pub(crate) open: Vec<Option<Nanos>>,
    /// By VM and workload.
    pub(crate) operations: Vec<Vec<Operations>>,
    /// By VM and task, of those of files.
    pub(crate) responded: Vec<Vec<TaskTimes>>,
    /// From a request pending for a vCPU until that ran, by VM (TAVS Figure 4(b)).
    pub(crate) delivery: Vec<Vec<Nanos>>,
    pub(crate) boosts: u64,
    pub(crate) hits: u64,
    pub(crate) request_boosts: RequestBoosts,
    /// When it began.
    pub(crate) begun: Nanos,
    /// What was seen of each window, and periods in which the sound card had nothing to play, by VM.
    pub(crate) windows: Vec<Vec<WindowFrames>>,
    pub(crate) underruns: Vec<u64>,
    /// CPU time of each VM in each second, if a person uses one; as fractions of a CPU.
    pub(crate) cpu_seconds: Vec<Vec<f64>>,
    /// Things that happened on the machine since its start.
    pub(crate) happened: u64,
    /// Events that the engine was told since then, if there is one.
    pub(crate) engine_events: Option<u64>,
}

impl Measure {
    /// `timed`: by VM and workload, whether its operations take a measured time.
    pub(super) fn new(vms: usize, timed: Vec<Vec<bool>>) -> Measure {
        let operations = timed.into_iter().map(|workloads| {
            workloads.into_iter().map(|timed| Operations { timed, ..Operations::default() }).collect()
        });
        Measure {
            operations: operations.collect(),
            notified: vec![Vec::new(); vms],
            responded: vec![Vec::new(); vms],
            delivery: vec![Vec::new(); vms],
            last_woken: vec![0; vms],
            boost_spans: vec![Vec::new(); vms],
            requests: vec![Vec::new(); vms],
            underruns: vec![0; vms],
            ..Measure::default()
        }
    }

    pub(super) fn begin(&mut self, machine: &Machine, clients: &[SimClient]) {
        self.begun = machine.now();
        self.before = self.cpu(machine);
        let host = machine.host();
        let thread = |entity| ThreadTime { dispatches: 0, cpu: host.ran(entity) };
        self.threads = host.entities().map(thread).collect();
        self.responses = vec![Vec::new(); clients.len()];
        self.replies.resize(clients.len(), (0, 0));
        self.delivery.iter_mut().for_each(Vec::clear);
        self.responded.iter_mut().for_each(Vec::clear);
        for workload in self.operations.iter_mut().flatten() {
            *workload = Operations { timed: workload.timed, last: workload.last, ..Operations::default() };
        }
        for (windows, before) in self.windows.iter_mut().zip(&self.before) {
            for window in windows {
                let workload = window.workload;
                *window = WindowFrames { workload, cpu_before: *before, ..WindowFrames::default() };
            }
        }
        self.underruns.fill(0);
        self.seconds = vec![(self.begun, self.before.clone())];
        (self.boosts, self.hits) = (0, 0);
        self.boost_spans.iter_mut().for_each(Vec::clear);
    }

    fn cpu(&self, machine: &Machine) -> Vec<Nanos> {
        let of = |entities: &Vec<Entity>| entities.iter().map(|entity| machine.host().ran(*entity)).sum();
        self.entities.iter().map(of).collect()
    }

    pub(super) fn finish(self, machine: &Machine, clients: &[SimClient]) -> Measured {
        let cpu = self.cpu(machine);
        let mut request_boosts = RequestBoosts::default();
        for (boosts, requests) in self.boost_spans.iter().zip(&self.requests) {
            request_boosts.add(RequestBoosts::of(boosts, requests));
        }
        let cpu_seconds = (0..cpu.len()).map(|vm| {
            let used = |pair: &[(Nanos, Vec<Nanos>)]| {
                #[allow(clippy::cast_precision_loss)] // Of about a second.
                let [used, time] = [pair[1].1[vm] - pair[0].1[vm], pair[1].0 - pair[0].0].map(|of| of as f64);
                used / time.max(1.0)
            };
            self.seconds.windows(2).map(used).collect()
        });
        let threads = machine
            .host()
            .entities()
            .zip(&self.threads)
            .map(|(entity, before)| ThreadTime { cpu: machine.host().ran(entity) - before.cpu, ..*before });
        Measured {
            cpu_seconds: cpu_seconds.collect(),
            time: machine.now() - self.begun,
            cpu: cpu.iter().zip(&self.before).map(|(now, before)| now - before).collect(),
            threads: threads.collect(),
            responded: self.responded,
            responses: self.responses,
            open: clients.iter().map(|client| client.waits(machine.now())).collect(),
            operations: self.operations,
            delivery: self.delivery,
            boosts: self.boosts,
            hits: self.hits,
            request_boosts,
            begun: self.begun,
            windows: self.windows,
            underruns: self.underruns,
            happened: machine.happened(),
            engine_events: None,
        }
    }

    pub(super) fn answered(&mut self, client: usize, response: Nanos, sent: Nanos) {
        if sent >= self.begun
            && let Some(responses) = self.responses.get_mut(client)
        {
            responses.push(response);
            if let Some(vm) = self.asks.get(client).copied().flatten() {
                let (woke, replied) = self.replies[client];
                self.requests[vm].push(RequestTimes { sent, woke, replied, received: sent + response });
            }
        }
    }

    /// A server of a VM sends its answer to a client.
    pub(super) fn replied(&mut self, vm: usize, client: usize, now: Nanos) {
        if let Some(reply) = self.replies.get_mut(client) {
            *reply = (self.last_woken[vm], now);
        }
    }

    pub(super) fn done(&mut self, vm: usize, workload: usize, bytes: u32, now: Nanos) {
        let operations = &mut self.operations[vm][workload];
        operations.count += 1;
        operations.bytes += u64::from(bytes);
        if operations.timed {
            let since = std::mem::replace(&mut operations.last, now);
            operations.times.push(now - since);
        }
    }

    /// A request is pending for a vCPU, which may run.
    pub(super) fn notified(&mut self, vm: usize, vcpu: usize, runs: bool, now: Nanos) {
        let waiting = &mut self.notified[vm];
        if runs {
            self.delivery[vm].push(0);
        } else if !waiting.iter().any(|(notified, _)| *notified == vcpu) {
            waiting.push((vcpu, now));
        }
    }

    /// A vCPU runs, and with that has what waited for it.
    pub(super) fn delivered(&mut self, vm: usize, vcpu: usize, now: Nanos) {
        let waiting = &mut self.notified[vm];
        if let Some(place) = waiting.iter().position(|(notified, _)| *notified == vcpu) {
            let (_, since) = waiting.swap_remove(place);
            self.delivery[vm].push(now - since);
        }
    }

    /// An entity was given a physical CPU.
    pub(super) fn dispatched(&mut self, entity: Entity) {
        if let Some(thread) = self.threads.get_mut(entity.index()) {
            thread.dispatches += 1;
        }
    }

    /// A task of a file has done what it was released for at a time.
    pub(super) fn responded(&mut self, vm: usize, task: usize, released: Nanos, now: Nanos) {
        if released < self.begun {
            return;
        }
        let tasks = &mut self.responded[vm];
        if tasks.len() <= task {
            tasks.resize(task + 1, TaskTimes::default());
        }
        tasks[task].times.push(now - released);
    }

    pub(super) fn woke(&mut self, vm: usize, now: Nanos) {
        self.last_woken[vm] = now;
    }

    pub(crate) fn boosted(&mut self, vm: usize, vcpu: u16, now: Nanos) {
        self.boosted.push(Boosted { vm, vcpu, since: now });
    }

    /// A boost has ended: since when it was, and whether an I/O-bound task woke in it. By what the workloads
    /// know, or else by what the engine counts.
    pub(crate) fn boost_ended(
        &mut self,
        vm: usize,
        vcpu: u16,
        engine_hits: u64,
        now: Nanos,
    ) -> Option<(Nanos, bool)> {
        let place = self.boosted.iter().position(|boosted| (boosted.vm, boosted.vcpu) == (vm, vcpu))?;
        let since = self.boosted.swap_remove(place).since;
        let before = match self.engine_hits.iter_mut().find(|(key, _)| *key == (vm, vcpu)) {
            Some((_, hits)) => std::mem::replace(hits, engine_hits),
            None => {
                self.engine_hits.push(((vm, vcpu), engine_hits));
                0
            }
        };
        let hit = if self.knows_wakes[vm] { self.last_woken[vm] >= since } else { engine_hits > before };
        if since >= self.begun {
            self.boosts += 1;
            self.hits += u64::from(hit);
            self.boost_spans[vm].push((since, now));
        }
        Some((since, hit))
    }

    /// The windows of the next VM, by their workloads.
    pub(super) fn add_windows(&mut self, workloads: impl Iterator<Item = usize>) {
        let window = |workload| WindowFrames { workload, ..WindowFrames::default() };
        self.windows.push(workloads.map(window).collect());
    }

    /// A frame of a window is to be seen.
    pub(super) fn frame(&mut self, vm: usize, window: Option<usize>, now: Nanos) {
        if let Some(window) = window.and_then(|window| self.windows[vm].get_mut(window)) {
            window.seen.push(now);
        }
    }

    /// Frames of a window were too late to be shown.
    pub(super) fn dropped(&mut self, vm: usize, window: usize, frames: u64) {
        self.windows[vm][window].dropped += frames;
    }

    /// A second is over, after which the engine knows this of the tasks of windows, by VM and window: as
    /// players, and whether one is a sound server's client.
    pub(super) fn sample(
        &mut self,
        machine: &Machine,
        player: impl Fn(usize, usize) -> (Option<(f64, f64, u32)>, Option<bool>),
    ) {
        let cpu = self.cpu(machine);
        for (vm, windows) in self.windows.iter_mut().enumerate() {
            for (number, window) in windows.iter_mut().enumerate() {
                let (player, sound_client) = player(vm, number);
                let at = machine.now();
                window.seconds.push(SecondSample { at, cpu: cpu[vm], player, sound_client });
            }
        }
        self.seconds.push((machine.now(), cpu));
    }

    pub(super) fn underrun(&mut self, vm: usize) {
        self.underruns[vm] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_for_several_vcpus_are_delivered_each_when_its_own_runs() {
        let mut measure = Measure::new(1, Vec::new());
        measure.notified(0, 0, false, 10);
        measure.notified(0, 1, false, 20);
        // Another one for a vCPU that waits already comes with the first.
        measure.notified(0, 0, false, 22);
        measure.delivered(0, 1, 25);
        measure.notified(0, 1, true, 30);
        measure.delivered(0, 0, 40);
        measure.delivered(0, 0, 50);
        assert_eq!(measure.delivery[0], [5, 0, 30]);
    }
}
