//! The I/O path: a driver domain, or an emulator thread for each VM, which does the devices' work on a CPU.
//! Where nobody does it, it takes no time.

use super::devices::{GpuFrame, IoJob, IoThread, SOUND_BUFFER};
use super::{EntityRole, World, number};
use crate::feed::id;
use crate::guest::{Interrupt, vectors};
use crate::machine::{Flow, Machine};
use crate::network::SimClient;
use crate::program::Packet;
use crate::queue::{NEVER, Nanos};
use crate::scheduler::Entity;
use frontdesk_engine::{EventKind, MediaDevice, Thread, nanos};
use frontdesk_scenario::{HostCosts, IoPath};

impl World {
    /// A guest asks its I/O path for something.
    pub(super) fn ask(&mut self, machine: &mut Machine, vm: usize, vcpu: usize, job: IoJob) {
        self.queue_job(machine, vm, Some(vcpu), job);
    }

    /// Gives the I/O path of a VM something to do. `by`: the vCPU that asks.
    pub(super) fn queue_job(&mut self, machine: &mut Machine, vm: usize, by: Option<usize>, job: IoJob) {
        if let Some(driver) = &mut self.driver_vm {
            if driver.vm == vm {
                return self.finish_job(machine, job);
            }
            let (driver_vm, cost) = (driver.vm, job.cost(&driver.costs));
            driver.jobs.push_back(job);
            return self.interrupt(machine, driver_vm, 0, Interrupt::Io { cost });
        }
        let Some(thread) = self.vms[vm].io else { return self.finish_job(machine, job) };
        let thread = &mut self.threads[thread];
        thread.jobs.push_back(job);
        let (entity, owner) = (thread.entity, thread.vm);
        if machine.wake(entity)
            && let Some(owner) = owner
        {
            let by = by.map(number);
            self.tell(machine, owner, EventKind::Wake { vm: id(owner), thread: Thread::Emulator(0), by });
        }
    }

    /// Lets a thread of the I/O path do what it is at.
    pub(super) fn work(&mut self, machine: &mut Machine, thread: usize) -> Flow {
        loop {
            let state = &mut self.threads[thread];
            if state.left > 0 {
                return Flow::Continue;
            }
            if let Some(job) = state.current.take() {
                self.finish_job(machine, job);
            } else if let Some(job) = state.jobs.pop_front() {
                state.closing = false;
                state.left = job.cost(&state.costs);
                state.current = Some(job);
            } else if !state.closing && !state.costs.block.is_zero() {
                state.closing = true;
                state.left = nanos(state.costs.block);
            } else {
                state.closing = false;
                return Flow::Block;
            }
        }
    }

    /// The kernel of a VM that is the driver domain has done what another asked for.
    pub(super) fn driver_done(&mut self, machine: &mut Machine) {
        if let Some(job) = self.driver_vm.as_mut().and_then(|driver| driver.jobs.pop_front()) {
            self.finish_job(machine, job);
        }
    }

    fn finish_job(&mut self, machine: &mut Machine, job: IoJob) {
        match job {
            IoJob::PacketIn { vm, packet } => {
                if self.io_path == IoPath::DriverDomain && packet.protocol.is_some() {
                    self.forwarded.push((vm, packet));
                }
                let vector = if packet.protocol.is_some() { vectors::NETWORK } else { vectors::INPUT };
                let to = self.vms[vm].routes.of(vector);
                let asks = |client: &SimClient| client.asks();
                if packet.bytes > 0 && self.clients.get(packet.client as usize).is_some_and(asks) {
                    let runs = machine.host().running_on(self.vms[vm].entities[to]).is_some();
                    self.measure.notified(vm, to, runs, machine.now());
                }
                self.interrupt(machine, vm, to, Interrupt::Packet(packet));
            }
            IoJob::PacketOut { packet: Packet { client, protocol, port, .. }, content } => {
                let now = machine.now();
                let vm = self.clients.get(client as usize).map(|client| client.vm);
                let asked = vm.and_then(|vm| self.vms.get_mut(vm)).map(|vm| &mut vm.asked);
                if content
                    && let Some(vm) = vm
                    && let Some(protocol) = protocol
                    && asked.and_then(|asked| asked.take_if(|asked| *asked == (protocol, port))).is_some()
                {
                    self.tell(machine, vm, EventKind::Reply { vm: id(vm), protocol, port });
                }
                let Some(state) = self.clients.get_mut(client as usize) else { return };
                let timer = state.timer;
                if let Some(at) = state.answered(now) {
                    machine.arm(timer, at);
                }
            }
            IoJob::BlockIn { request } => {
                if !request.write {
                    let read = EventKind::BlockRead { vm: id(request.vm), request: request.id };
                    self.tell(machine, request.vm, read);
                }
                self.disk.submit(request, machine.now());
                self.serve_disk(machine);
            }
            IoJob::BlockDone { request } => {
                if !request.write {
                    let done = EventKind::BlockDone { vm: id(request.vm), request: request.id };
                    self.tell(machine, request.vm, done);
                }
                if let Some(task) = request.task {
                    self.device_wakes(machine, request.vm, task, vectors::DISK);
                }
            }
            IoJob::Tick { vm, vcpu } => {
                self.vms[vm].ticking[vcpu] = false;
                // One that a vCPU has not taken yet stands for all that come meanwhile.
                let guest = &self.vms[vm].guest;
                if !guest.is_idle(vcpu) && !guest.is_to_tick(vcpu) {
                    self.interrupt(machine, vm, vcpu, Interrupt::Tick);
                }
            }
            IoJob::Clock => {}
            IoJob::Sound { vm } => {
                if let Some(task) = self.vms[vm].sound.waiting.pop_front() {
                    self.device_wakes(machine, vm, task, vectors::SOUND);
                }
            }
            IoJob::Frame { vm, window } => {
                if self.io_path == IoPath::Emulator {
                    self.display_update(machine, vm, window);
                }
                self.measure.frame(vm, window, machine.now());
            }
            IoJob::Drawn { vm, task, window } => {
                self.measure.frame(vm, window, machine.now());
                self.device_wakes(machine, vm, task, vectors::GPU);
            }
        }
    }

    /// A device interrupts a VM: what a task waits for is there.
    fn device_wakes(&mut self, machine: &mut Machine, vm: usize, task: usize, vector: u8) {
        let to = self.vms[vm].routes.of(vector);
        self.interrupt(machine, vm, to, Interrupt::Wake { task, io: true, vector: Some(vector) });
    }

    /// The timer of a vCPU's clock tick expired.
    pub(super) fn tick(&mut self, machine: &mut Machine, vm: usize, vcpu: usize) {
        let state = &mut self.vms[vm];
        machine.arm(state.ticks[vcpu], machine.now().saturating_add(self.tick));
        if !std::mem::replace(&mut state.ticking[vcpu], true) {
            self.queue_job(machine, vm, None, IoJob::Tick { vm, vcpu });
        }
    }

    pub(super) fn serve_disk(&mut self, machine: &mut Machine) {
        let now = machine.now();
        while let Some((timer, time)) = self.disk.serve(now) {
            machine.arm(timer, now.saturating_add(time));
        }
        let wakes = self.disk.wakes();
        if wakes > now && wakes != NEVER {
            machine.arm(self.disk_wakes, wakes);
        }
    }

    /// The disk has served a request.
    pub(super) fn block_ended(&mut self, machine: &mut Machine, slot: usize) {
        let Some(request) = self.disk.done(slot, machine.now()) else { return };
        if self.io_path == IoPath::Emulator && !request.write {
            self.tell(machine, request.vm, EventKind::BlockPending { vm: id(request.vm) });
        }
        self.queue_job(machine, request.vm, None, IoJob::BlockDone { request });
        self.serve_disk(machine);
    }

    /// A task gave the sound card a period; it waits while the buffer is full.
    pub(super) fn play(&mut self, machine: &mut Machine, vm: usize, vcpu: usize, task: usize, period: Nanos) {
        self.device_access(machine, vm, vcpu, MediaDevice::Sound, false);
        self.sound_begins(machine, vm);
        let sound = &mut self.vms[vm].sound;
        sound.buffered = (sound.buffered + 1).min(SOUND_BUFFER);
        sound.period = period.max(1);
        let full = sound.buffered == SOUND_BUFFER;
        if full {
            sound.waiting.push_back(task);
        }
        if !std::mem::replace(&mut sound.playing, true) {
            let (timer, at) = (self.vms[vm].sound_timer, machine.now().saturating_add(period));
            machine.arm(timer, at);
        }
        if !full {
            self.interrupt(machine, vm, vcpu, Interrupt::Wake { task, io: true, vector: None });
        }
    }

    /// The sound card has played a period.
    pub(super) fn sound_period(&mut self, machine: &mut Machine, vm: usize) {
        let sound = &mut self.vms[vm].sound;
        if sound.buffered == 0 {
            sound.playing = false;
            return self.measure.underrun(vm);
        }
        sound.buffered -= 1;
        let (timer, at) = (self.vms[vm].sound_timer, machine.now().saturating_add(self.vms[vm].sound.period));
        machine.arm(timer, at);
        self.queue_job(machine, vm, None, IoJob::Sound { vm });
    }

    /// A task drew a frame.
    pub(super) fn frame(
        &mut self,
        machine: &mut Machine,
        (vm, vcpu, task): (usize, usize, usize),
        window: Option<usize>,
        gpu: Nanos,
    ) {
        self.device_access(machine, vm, vcpu, MediaDevice::Display, false);
        if gpu == 0 {
            // An emulator tells when it has copied the frame, and the hypervisor when it is written.
            if self.io_path != IoPath::Emulator {
                self.display_update(machine, vm, window);
            }
            if !self.waits_for_copy(vm, window) {
                return self.ask(machine, vm, vcpu, IoJob::Frame { vm, window });
            }
            if let Some(window) = window {
                self.measure.dropped(vm, window, 1);
            }
            return;
        }
        let frame = GpuFrame::new(vm, task, window, gpu);
        self.gpu.queue.push_back(frame);
        if self.gpu.queue.len() == 1 {
            machine.arm(self.gpu.timer, machine.now().saturating_add(frame.part));
        }
    }

    /// Whether a frame of a window waits to be copied: then that one is never seen, for the latest is.
    fn waits_for_copy(&self, vm: usize, window: Option<usize>) -> bool {
        let jobs = match (&self.driver_vm, self.vms[vm].io) {
            (Some(driver), _) => &driver.jobs,
            (None, Some(thread)) => &self.threads[thread].jobs,
            (None, None) => return false,
        };
        jobs.iter()
            .any(|job| matches!(job, IoJob::Frame { vm: of, window: shown } if (*of, *shown) == (vm, window)))
    }

    /// The GPU has completed a part of a frame.
    pub(super) fn gpu_done(&mut self, machine: &mut Machine) {
        let Some(frame) = self.gpu.queue.front_mut() else { return };
        frame.left = frame.left.saturating_sub(1);
        let GpuFrame { vm, task, window, left, .. } = *frame;
        if left == 0 {
            self.gpu.queue.pop_front();
        }
        let next = self.gpu.queue.front().map_or(NEVER, |frame| machine.now().saturating_add(frame.part));
        machine.arm(self.gpu.timer, next);
        self.tell(machine, vm, EventKind::GpuDone { vm: id(vm) });
        if left == 0 {
            self.queue_job(machine, vm, None, IoJob::Drawn { vm, task, window });
        }
    }

    pub(super) fn device_access(
        &mut self,
        machine: &mut Machine,
        vm: usize,
        vcpu: usize,
        device: MediaDevice,
        in_interrupt: bool,
    ) {
        let access = EventKind::DeviceAccess { vm: id(vm), vcpu: number(vcpu), device, in_interrupt };
        self.tell(machine, vm, access);
    }

    fn display_update(&mut self, machine: &mut Machine, vm: usize, window: Option<usize>) {
        let region = window.and_then(|window| self.vms[vm].guest.windows.get(window));
        let region = region.map(|window| window.region);
        self.tell(machine, vm, EventKind::DisplayUpdate { vm: id(vm), region });
    }

    pub(super) fn add_thread(&mut self, entity: Entity, vm: Option<usize>, costs: &HostCosts) -> usize {
        self.roles.push(EntityRole::Io { thread: self.threads.len() });
        self.threads.push(IoThread::new(entity, vm, costs.clone()));
        self.threads.len() - 1
    }
}
