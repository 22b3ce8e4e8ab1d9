//! The VMs, their devices, and what happens to them.

use super::devices::{DriverVm, Gpu, GuestDaemon, IoJob, IoThread, Routes, Sound};
use super::measure::{Measure, Measured};
use crate::disk::{DiskModel, DiskRequest, IoClass};
use crate::feed::{Feed, id};
use crate::guest::{Effect, GuestKernel, Interrupt, Stuck, vectors};
use crate::machine::{Flow, Machine, Work};
use crate::network::SimClient;
use crate::program::Packet;
use crate::queue::{NEVER, Nanos, Timer};
use crate::scheduler::{Entity, Pcpu};
use frontdesk_engine::{Event, EventKind, MediaDevice, Protocol, Thread, Time, UserInput, VmId};
use frontdesk_scenario::{IoPath, Tracer};

/// What an entity is.
#[derive(Clone, Copy, Debug)]
pub(super) enum EntityRole {
    Vcpu { vm: usize, vcpu: usize },
    Io { thread: usize },
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimerOwner {
    /// A VM is switched on.
    Boot {
        vm: usize,
    },
    Task {
        vm: usize,
        task: usize,
    },
    Client(usize),
    Disk {
        slot: usize,
    },
    /// The disk has waited for somebody.
    DiskWakes,
    Sound {
        vm: usize,
    },
    /// The clock tick of a vCPU.
    Tick {
        vm: usize,
        vcpu: usize,
    },
    Gpu,
    /// The daemon in a guest looks.
    Daemon {
        vm: usize,
    },
    /// The engine's deadline.
    Engine,
    /// A decision of the engine is to be applied.
    Decision,
    /// It is looked for tasks that wait for each other.
    Watch,
}

#[derive(Debug)]
pub(super) struct SimVm {
    pub(super) guest: GuestKernel,
    pub(super) entities: Vec<Entity>,
    /// The thread that does its I/O, if one does.
    pub(super) io: Option<usize>,
    /// A timer for each task.
    pub(super) timers: Vec<Timer>,
    /// Since when each vCPU waits for a physical CPU.
    pub(super) waiting: Vec<Nanos>,
    pub(super) sound: Sound,
    pub(super) sound_timer: Timer,
    pub(super) ticks: Vec<Timer>,
    /// Whether a tick of each vCPU is on its way.
    pub(super) ticking: Vec<bool>,
    /// Of the last packet that the engine heard of, until the reply to it has been sent.
    pub(super) asked: Option<(Protocol, u16)>,
    pub(super) routes: Routes,
    pub(super) daemon: Option<GuestDaemon>,
    /// How long each vCPU has slept, and since when it does.
    pub(super) slept: Vec<(Nanos, Nanos)>,
}

/// Everything that runs on the machine, and around it.
#[derive(Debug)]
pub(crate) struct World {
    pub(super) roles: Vec<EntityRole>,
    pub(super) sources: Vec<TimerOwner>,
    pub(super) vms: Vec<SimVm>,
    pub(super) threads: Vec<IoThread>,
    /// The VM that is the driver domain, if one is.
    pub(super) driver_vm: Option<DriverVm>,
    pub(super) disk: DiskModel,
    pub(super) disk_wakes: Timer,
    /// Of each VM: whether its requests come first, by hand.
    pub(super) disk_first: Vec<bool>,
    pub(super) gpu: Gpu,
    pub(super) clients: Vec<SimClient>,
    /// Period of the guests' clock ticks; 0: none.
    pub(super) tick: Nanos,
    /// How much packets differ in what they cost.
    pub(super) spread: f64,
    pub(super) requests: u64,
    pub(super) io_path: IoPath,
    /// Packets that the driver domain forwarded since it got the CPU, each with its VM: the hypervisor looks
    /// at them when it takes the CPU from the driver domain (TAVS §4.3.2).
    pub(super) forwarded: Vec<(usize, Packet)>,
    pub(crate) feed: Feed,
    pub(super) measure: Measure,
    pub(crate) trace: Option<Tracer>,
    /// Taken out of guests to be gone through.
    pub(super) effects: Vec<Effect>,
    pub(super) watch: Timer,
}

/// Tasks that wait for each other are looked for this often.
pub(super) const WATCH: Nanos = 1_000_000_000;

impl World {
    /// Begins to measure: what was before does not count.
    pub(crate) fn begin(&mut self, machine: &Machine) {
        self.measure.begin(machine, &self.clients);
    }

    /// Whether anything is shown, or a person starts programs: then it is sampled each second.
    pub(crate) fn is_interactive(&self) -> bool {
        let keys = || self.clients.iter().any(|client| client.protocol.is_none());
        self.vms.iter().any(|vm| !vm.guest.windows.is_empty()) || keys()
    }

    /// Notes what the engine knows of what is shown.
    pub(crate) fn sample(&mut self, machine: &Machine) {
        let (vms, feed) = (&self.vms, &self.feed);
        self.measure.sample(machine, |vm, window| {
            let Some(window) = vms[vm].guest.windows.get(window) else { return (None, None) };
            (feed.player(vm, window.space), feed.is_sound_client(vm, window.space))
        });
    }

    /// What was measured, and what was written down.
    pub(crate) fn finish(self, machine: &Machine) -> (Measured, Option<Tracer>) {
        let mut measured = self.measure.finish(machine, &self.clients);
        measured.engine_events = self.feed.events();
        for (times, vm) in measured.responded.iter_mut().zip(&self.vms) {
            for (times, task) in times.iter_mut().zip(&vm.guest.tasks) {
                (times.workload, times.task) = (task.workload, task.name.clone());
            }
        }
        (measured, self.trace)
    }

    /// The tasks that will never go on, with their VM.
    pub(crate) fn deadlocked(&self) -> impl Iterator<Item = (usize, Stuck)> {
        let guests =
            self.vms.iter().map(|vm| &vm.guest).enumerate().filter(|(_, guest)| guest.can_deadlock());
        guests.flat_map(|(vm, guest)| guest.deadlocked().into_iter().map(move |stuck| (vm, stuck)))
    }

    /// The guest of a VM.
    pub(crate) fn guest(&self, vm: usize) -> &GuestKernel {
        &self.vms[vm].guest
    }

    pub(super) fn tell(&mut self, machine: &mut Machine, vm: usize, kind: EventKind) {
        self.feed.tell(machine, vm, kind, &mut self.measure, self.trace.as_mut());
    }

    /// An interrupt is pending for a vCPU.
    pub(super) fn interrupt(&mut self, machine: &mut Machine, vm: usize, vcpu: usize, interrupt: Interrupt) {
        let state = &mut self.vms[vm];
        state.guest.cpus[vcpu].pending.push_back(interrupt);
        self.kick(machine, vm, vcpu);
    }

    fn kick(&mut self, machine: &mut Machine, vm: usize, vcpu: usize) {
        let state = &mut self.vms[vm];
        let entity = state.entities[vcpu];
        if machine.wake(entity) {
            let now = machine.now();
            state.waiting[vcpu] = now;
            let (slept, since) = &mut state.slept[vcpu];
            *slept += now - std::mem::replace(since, now);
            self.tell(
                machine,
                vm,
                EventKind::Wake { vm: id(vm), thread: Thread::Vcpu(number(vcpu)), by: None },
            );
        } else {
            machine.poke(entity);
        }
    }

    /// Does what a guest wants of the world.
    pub(super) fn apply(&mut self, machine: &mut Machine, vm: usize) {
        let mut effects =
            std::mem::replace(&mut self.vms[vm].guest.effects, std::mem::take(&mut self.effects));
        for effect in effects.drain(..) {
            self.effect(machine, vm, effect);
        }
        self.effects = effects;
    }

    fn effect(&mut self, machine: &mut Machine, vm: usize, effect: Effect) {
        let now = machine.now();
        match effect {
            Effect::Switch { vcpu, space } => {
                self.tell(machine, vm, EventKind::TaskSwitch { vm: id(vm), vcpu: number(vcpu), task: space });
            }
            Effect::Halt { vcpu } => {
                self.tell(machine, vm, EventKind::Halt { vm: id(vm), vcpu: number(vcpu) });
            }
            Effect::Resume { vcpu } => {
                self.tell(machine, vm, EventKind::Resume { vm: id(vm), vcpu: number(vcpu) });
            }
            Effect::Ipi { from, to } => {
                let target = 1u64.checked_shl(number(to).into()).unwrap_or(0);
                let ipi = EventKind::Ipi {
                    vm: id(vm),
                    vcpu: number(from),
                    to: target,
                    vector: vectors::RESCHEDULE,
                };
                self.tell(machine, vm, ipi);
                self.interrupt(machine, vm, to, Interrupt::Reschedule);
            }
            Effect::Interrupt { vcpu, vector } => {
                self.tell(machine, vm, EventKind::Interrupt { vm: id(vm), vcpu: number(vcpu), vector });
                if vector == vectors::SOUND {
                    self.device_access(machine, vm, vcpu, MediaDevice::Sound, true);
                }
            }
            Effect::IpiTaken { vcpu } => {
                self.tell(machine, vm, EventKind::IpiTaken { vm: id(vm), vcpu: number(vcpu) });
            }
            Effect::Arm { task, at } => machine.arm(self.vms[vm].timers[task], at),
            Effect::Woke => self.measure.woke(vm, now),
            Effect::Done { workload, bytes } => self.measure.done(vm, workload, bytes, now),
            Effect::Responded { task, released } => self.measure.responded(vm, task, released, now),
            Effect::Reply { vcpu, packet } => {
                self.measure.replied(vm, packet.client as usize, now);
                self.ask(machine, vm, vcpu, IoJob::PacketOut { packet, content: true });
            }
            Effect::Took { vcpu, packet } => {
                self.ask(machine, vm, vcpu, IoJob::PacketOut { packet, content: false });
            }
            Effect::Clock { vcpu } => self.ask(machine, vm, vcpu, IoJob::Clock),
            Effect::Disk { vcpu, task, bytes, sequential, write, waits } => {
                self.requests += 1;
                let asks = &self.vms[vm].guest.tasks[task];
                let first = self.disk_first[vm];
                let request = DiskRequest {
                    id: self.requests,
                    vm,
                    vcpu,
                    asker: task,
                    space: asks.space,
                    workload: asks.workload,
                    task: waits.then_some(task),
                    bytes,
                    sequential,
                    class: if first { IoClass::High } else { IoClass::Common },
                    write,
                };
                self.ask(machine, vm, vcpu, IoJob::BlockIn { request });
            }
            Effect::Frame { vcpu, task, window, gpu } => self.frame(machine, (vm, vcpu, task), window, gpu),
            Effect::DriverDone => self.driver_done(machine),
            Effect::Dropped { window, frames } => self.measure.dropped(vm, window, frames),
            Effect::Sound { vcpu, task, period } => self.play(machine, vm, vcpu, task, period),
        }
    }

    /// A packet of so many bytes arrives at the host.
    fn arrive(&mut self, machine: &mut Machine, client: usize, bytes: u32) {
        let client_state = &mut self.clients[client];
        let effort = client_state.effort(self.spread);
        let vm = client_state.vm;
        let packet = Packet {
            protocol: client_state.protocol,
            port: client_state.port,
            bytes,
            client: u32::try_from(client).unwrap_or(u32::MAX),
            arrived: machine.now(),
            effort,
        };
        if packet.protocol.is_none() {
            self.tell(machine, vm, EventKind::Input { vm: id(vm), input: UserInput::Enter });
            self.disk.input(vm, UserInput::Enter, machine.now());
            self.call_daemon(machine, vm);
        } else if self.io_path != IoPath::DriverDomain {
            self.pending_packet(machine, vm, packet);
        }
        self.queue_job(machine, vm, None, IoJob::PacketIn { vm, packet });
    }

    /// A packet is pending for a VM, as far as the engine is concerned. As on a real host it does not hear of
    /// those that do not count.
    fn pending_packet(&mut self, machine: &mut Machine, vm: usize, packet: Packet) {
        if packet.bytes == 0 && !self.feed.hears_acknowledgements() {
            return;
        }
        let Some(protocol) = packet.protocol else { return };
        // A driver domain sees packets pass, and does not tell what answers what.
        self.vms[vm].asked = (self.io_path != IoPath::DriverDomain).then_some((protocol, packet.port));
        let kind = EventKind::Packet { vm: id(vm), protocol, port: packet.port };
        self.tell(machine, vm, kind);
    }

    /// The driver domain has lost the CPU.
    fn inspect_forwarded(&mut self, machine: &mut Machine) {
        let mut forwarded = std::mem::take(&mut self.forwarded);
        for (vm, packet) in forwarded.drain(..) {
            self.pending_packet(machine, vm, packet);
        }
        self.forwarded = forwarded;
    }
}

impl Work for World {
    fn ran(&mut self, entity: Entity, time: Nanos) {
        match self.roles[entity.index()] {
            EntityRole::Vcpu { vm, vcpu } => self.vms[vm].guest.ran(vcpu, time),
            EntityRole::Io { thread } => self.threads[thread].ran(time),
        }
    }

    fn next(&mut self, entity: Entity) -> Nanos {
        match self.roles[entity.index()] {
            EntityRole::Vcpu { vm, vcpu } => self.vms[vm].guest.next(vcpu),
            EntityRole::Io { thread } => self.threads[thread].next(),
        }
    }

    fn reached(&mut self, machine: &mut Machine, entity: Entity) -> Flow {
        match self.roles[entity.index()] {
            EntityRole::Vcpu { vm, vcpu } => {
                let flow = self.vms[vm].guest.reached(vcpu, machine.now());
                self.apply(machine, vm);
                // What it did may have come back to it at once.
                if flow == Flow::Block && self.vms[vm].guest.wants(vcpu) { Flow::Continue } else { flow }
            }
            EntityRole::Io { thread } => self.work(machine, thread),
        }
    }

    fn timer(&mut self, machine: &mut Machine, token: u32) {
        let now = machine.now();
        match self.sources[token as usize] {
            TimerOwner::Boot { vm } => {
                (0..self.vms[vm].entities.len()).for_each(|vcpu| self.kick(machine, vm, vcpu))
            }
            TimerOwner::Task { vm, task } => {
                let vcpu = self.vms[vm].guest.tasks[task].vcpu;
                // Without an emulator the hypervisor keeps the guests' one-shot timers itself.
                if self.io_path != IoPath::Emulator && !self.vms[vm].guest.windows.is_empty() {
                    self.tell(machine, vm, EventKind::Timer { vm: id(vm), vcpu: number(vcpu) });
                }
                self.interrupt(machine, vm, vcpu, Interrupt::Wake { task, io: false, vector: None });
            }
            TimerOwner::Client(client) => {
                let state = &mut self.clients[client];
                let wish = state.timer(now);
                let timer = state.timer;
                machine.arm(timer, wish.timer);
                if let Some((response, sent)) = wish.response {
                    self.measure.answered(client, response, sent);
                }
                if let Some(bytes) = wish.arrives {
                    self.arrive(machine, client, bytes);
                }
            }
            TimerOwner::Disk { slot } => self.block_ended(machine, slot),
            TimerOwner::DiskWakes => self.serve_disk(machine),
            TimerOwner::Sound { vm } => self.sound_period(machine, vm),
            TimerOwner::Tick { vm, vcpu } => self.tick(machine, vm, vcpu),
            TimerOwner::Gpu => self.gpu_done(machine),
            TimerOwner::Daemon { vm } => self.daemon_looks(machine, vm),
            TimerOwner::Engine => self.feed.deadline(machine, &mut self.measure, self.trace.as_mut()),
            TimerOwner::Decision => self.feed.decided(machine, &mut self.measure, self.trace.as_mut()),
            TimerOwner::Watch => {
                if self.deadlocked().next().is_some() {
                    return machine.halt();
                }
                machine.arm(self.watch, now.saturating_add(WATCH));
            }
        }
    }

    fn dispatched(&mut self, machine: &mut Machine, entity: Entity, pcpu: Pcpu) {
        let now = machine.now();
        self.measure.dispatched(entity);
        let (vm, thread) = match self.roles[entity.index()] {
            EntityRole::Vcpu { vm, vcpu } => {
                let since = std::mem::replace(&mut self.vms[vm].waiting[vcpu], NEVER);
                if since != NEVER {
                    self.vms[vm].guest.stolen(vcpu, now.saturating_sub(since));
                }
                self.measure.delivered(vm, vcpu, now);
                (vm, Thread::Vcpu(number(vcpu)))
            }
            EntityRole::Io { thread } => match self.threads[thread].vm {
                Some(vm) => (vm, Thread::Emulator(0)),
                None => {
                    return self.trace_driver(now, |vm, thread| EventKind::Run { vm, thread, pcpu: pcpu.0 });
                }
            },
        };
        self.tell(machine, vm, EventKind::Run { vm: id(vm), thread, pcpu: pcpu.0 });
    }

    fn stopped(&mut self, machine: &mut Machine, entity: Entity, runnable: bool) {
        let now = machine.now();
        let (vm, thread) = match self.roles[entity.index()] {
            EntityRole::Vcpu { vm, vcpu } => {
                self.vms[vm].waiting[vcpu] = if runnable { now } else { NEVER };
                self.vms[vm].slept[vcpu].1 = now;
                if self.driver_vm.as_ref().is_some_and(|driver| driver.vm == vm) {
                    self.inspect_forwarded(machine);
                }
                (vm, Thread::Vcpu(number(vcpu)))
            }
            EntityRole::Io { thread } => match self.threads[thread].vm {
                Some(vm) => (vm, Thread::Emulator(0)),
                None => {
                    self.trace_driver(now, |vm, thread| EventKind::Stop { vm, thread, runnable });
                    return self.inspect_forwarded(machine);
                }
            },
        };
        self.tell(machine, vm, EventKind::Stop { vm: id(vm), thread, runnable });
    }
}

impl World {
    /// Notes what the driver domain does, of which no engine is told.
    fn trace_driver(&mut self, now: Nanos, kind: impl FnOnce(VmId, Thread) -> EventKind) {
        if let Some(trace) = &mut self.trace {
            let kind = kind(id(self.vms.len()), Thread::Emulator(0));
            trace.event(&Event { at: Time(now), kind }, None);
        }
    }
}

pub(super) fn number(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}
