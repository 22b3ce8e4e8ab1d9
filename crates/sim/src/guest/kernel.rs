//! The kernel of a guest.

use super::window::{Window, WindowSpec};
use crate::machine::Flow;
use crate::program::{Affinity, GuestTask, Packet, SchedClass, Step, TaskState, Waits};
use crate::queue::Nanos;
use frontdesk_engine::{Region, TaskId, nanos};
use frontdesk_scenario::GuestCosts;
use std::collections::VecDeque;

/// Interrupt vectors: those of devices as Linux numbers them, one after the other.
pub(crate) mod vectors {
    pub(crate) const NETWORK: u8 = 0x21;
    pub(crate) const DISK: u8 = 0x22;
    pub(crate) const SOUND: u8 = 0x23;
    pub(crate) const GPU: u8 = 0x24;
    pub(crate) const INPUT: u8 = 0x25;
    /// Linux's for "reschedule".
    pub(crate) const RESCHEDULE: u8 = 0xfd;
}

/// Interrupts that a vCPU's kernel has not handled yet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Interrupt {
    Packet(Packet),
    /// What a task waited for is there: a block, a timer, room in the sound buffer, a frame.
    Wake {
        task: usize,
        io: bool,
        /// The vector, if a device interrupts.
        vector: Option<u8>,
    },
    /// The clock tick.
    Tick,
    /// Another vCPU has put a task on this one's queue.
    Reschedule,
    /// Another VM asks this one, which is the driver domain, for something that costs so much.
    Io {
        cost: Nanos,
    },
}

/// What a guest does to the world.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// It switched to another address space.
    Switch { vcpu: usize, space: TaskId },
    /// It has nothing to run on a vCPU.
    Halt { vcpu: usize },
    /// It goes on after that.
    Resume { vcpu: usize },
    /// A vCPU sent another one an inter-processor interrupt.
    Ipi { from: usize, to: usize },
    /// A vCPU entered the handler of a device's interrupt.
    Interrupt { vcpu: usize, vector: u8 },
    /// A vCPU took an inter-processor interrupt.
    IpiTaken { vcpu: usize },
    /// A task is to be woken at a time.
    Arm { task: usize, at: Nanos },
    /// An I/O-bound task woke from its I/O.
    Woke,
    /// A task did an operation, of so many bytes.
    Done { workload: usize, bytes: u32 },
    /// A task of a file did what it was released for at a time.
    Responded { task: usize, released: Nanos },
    /// A task answered.
    Reply { vcpu: usize, packet: Packet },
    /// A task took bytes that came over TCP.
    Took { vcpu: usize, packet: Packet },
    /// It set its clock anew.
    Clock { vcpu: usize },
    /// A task asks for blocks.
    Disk { vcpu: usize, task: usize, bytes: u32, sequential: bool, write: bool, waits: bool },
    /// It did what another VM asked it for as the driver domain.
    DriverDone,
    /// A task drew a frame.
    Frame { vcpu: usize, task: usize, window: Option<usize>, gpu: Nanos },
    /// Frames of a window were too late to be shown.
    Dropped { window: usize, frames: u64 },
    /// A task gave the sound card something to play.
    Sound { vcpu: usize, task: usize, period: Nanos },
}

/// A vCPU as its kernel sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cpu {
    pub(super) current: Option<usize>,
    pub(super) ready: Vec<usize>,
    pub(crate) pending: VecDeque<Interrupt>,
    /// What the kernel is working on, and the CPU time that is left of it.
    working: Option<Interrupt>,
    pub(super) kernel: Nanos,
    pub(super) reschedule: bool,
    pub(super) slice: Nanos,
    pub(super) floor: Nanos,
    pub(super) halted: bool,
    /// The address space that is loaded.
    pub(super) loaded: Option<TaskId>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Channel {
    /// What its file calls it.
    pub(crate) name: Option<Box<str>>,
    pub(crate) messages: u32,
    pub(crate) waiting: VecDeque<(usize, u32)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Socket {
    /// `None`: keys are what comes to it.
    pub(crate) protocol: Option<frontdesk_engine::Protocol>,
    pub(crate) port: u16,
    pub(super) backlog: VecDeque<Packet>,
    pub(super) waiting: VecDeque<usize>,
}

/// Who runs where while background work is kept apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Isolation {
    /// The address spaces that are background work.
    pub(super) background: Vec<TaskId>,
    /// The vCPUs of everything else.
    pub(super) fast: Affinity,
}

/// The slice of EEVDF on one CPU (`base_slice_ns`); it grows with the logarithm of their number.
const BASE_SLICE: Nanos = 700_000;
/// Width and height of a window, in pixels.
const FILM: [u16; 2] = [640, 354];
/// Packets that a socket holds; more are dropped.
const BACKLOG: usize = 256;

/// The channels of a sound server: a message in the first asks for a period to be played, one in the second
/// says that it was given to the card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SoundServer {
    pub(crate) asked: usize,
    pub(crate) done: usize,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct GuestKernel {
    pub(super) costs: Costs,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) tasks: Vec<GuestTask>,
    pub(crate) channels: Vec<Channel>,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) windows: Vec<Window>,
    /// Windows of which a frame is to be drawn, in the order in which that was asked for.
    pub(super) asked: VecDeque<usize>,
    /// The channel in which its display server is asked, and those of its sound server, if it has them.
    pub(super) display_server: Option<usize>,
    sound_server: Option<SoundServer>,
    /// Who runs where while its daemon keeps background work apart.
    pub(super) isolation: Option<Isolation>,
    /// When each timer of programs expired last, or was found to have.
    pub(crate) timers: Vec<Option<Nanos>>,
    /// Address spaces that were made.
    spaces: u64,
    pub(crate) now: Nanos,
    pub(crate) effects: Vec<Effect>,
    /// It has just left the guest to notify somebody, who may preempt it before it goes on.
    pub(super) exits: bool,
}

/// [`GuestCosts`] in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    interrupt: Nanos,
    pub(super) receive: Nanos,
    pub(super) send: Nanos,
    pub(super) block: Nanos,
    pub(super) copy_kib: Nanos,
    pub(super) switch: Nanos,
    pub(super) message: Nanos,
    pub(super) frame: Nanos,
    pub(super) slice: Nanos,
    pub(super) granularity: Nanos,
    /// What a task may run before another that wakes takes its place, if that is only seen at clock ticks
    /// (EEVDF).
    pub(super) request: Option<Nanos>,
    sees_stolen: bool,
    /// Whether it has a clock tick.
    pub(super) ticks: bool,
    /// Whether who it notifies may preempt it only when it next uses CPU time, or sleeps.
    one_step: bool,
}

impl Costs {
    pub(super) fn of(costs: &GuestCosts) -> Costs {
        Costs {
            interrupt: nanos(costs.interrupt),
            receive: nanos(costs.receive),
            send: nanos(costs.send),
            block: nanos(costs.block),
            copy_kib: nanos(costs.copy_kib),
            switch: nanos(costs.switch),
            message: nanos(costs.message),
            frame: nanos(costs.frame),
            slice: nanos(costs.slice).max(1),
            granularity: nanos(costs.granularity),
            request: None,
            sees_stolen: costs.sees_stolen_time,
            ticks: !costs.tick.is_zero(),
            one_step: false,
        }
    }
}

impl GuestKernel {
    pub(crate) fn new(vcpus: u16, costs: &GuestCosts) -> GuestKernel {
        let cpu = || Cpu { halted: true, ..Cpu::default() };
        GuestKernel {
            costs: Costs::of(costs),
            cpus: (0..vcpus).map(|_| cpu()).collect(),
            ..GuestKernel::default()
        }
    }

    /// Its kernel is since Linux 6.6: the running task goes on until it has run for a `slice`, the kernel's
    /// own if that is not said, and a clock tick has seen that.
    pub(crate) fn with_eevdf(mut self, slice: Option<Nanos>) -> GuestKernel {
        let own = BASE_SLICE * u64::from(1 + self.cpus.len().clamp(1, 8).ilog2());
        self.costs.request = Some(slice.unwrap_or(own));
        self
    }

    /// To notify somebody and to go on, or to sleep, is one step for it: nobody comes between the two.
    pub(crate) fn in_one_step(mut self) -> GuestKernel {
        self.costs.one_step = true;
        self
    }

    /// Leaves the guest to notify somebody.
    pub(super) fn exit(&mut self) {
        self.exits = !self.costs.one_step;
    }

    /// Adds a task that starts at once, on the vCPU with the fewest. Returns its number.
    pub(crate) fn add_task(&mut self, workload: usize, program: &[Step], io_bound: bool) -> usize {
        let space = self.new_space();
        self.start(GuestTask { io_bound, ..GuestTask::new(workload, program, space) })
    }

    /// Adds a task with a name, of a class, that may use some vCPUs only.
    pub(crate) fn add_task_of(
        &mut self,
        workload: usize,
        name: &str,
        program: &[Step],
        class: SchedClass,
        affinity: Affinity,
    ) {
        let space = self.new_space();
        let name = Some(name.into());
        self.start(GuestTask { name, class, affinity, ..GuestTask::new(workload, program, space) });
    }

    /// Adds threads that share an address space, one for each program.
    pub(crate) fn add_threads(&mut self, workload: usize, programs: &[Vec<Step>]) {
        let space = self.new_space();
        for program in programs {
            self.start(GuestTask::new(workload, program, space));
        }
    }

    /// Makes the tasks of a workload so nice.
    pub(crate) fn set_nice(&mut self, workload: usize, nice: i8) {
        for task in self.tasks.iter_mut().filter(|task| task.workload == workload) {
            task.class = SchedClass::Fair { nice };
        }
    }

    /// Adds a thread that shares the address space of who shows something in a window.
    pub(crate) fn add_thread(&mut self, window: usize, program: &[Step]) {
        let Window { workload, space, .. } = self.windows[window];
        self.start(GuestTask::new(workload, program, space));
    }

    /// Adds a window of a new address space, of which so many frames may be begun before the first is drawn.
    /// Returns its number, and the channel in which there is a message for each.
    pub(crate) fn add_window(&mut self, spec: WindowSpec, frames: u32) -> (usize, usize) {
        let (space, room) = (self.new_space(), self.add_channel());
        self.channels[room].messages = frames;
        // Side by side, and one below the other.
        let number = u16::try_from(self.windows.len()).unwrap_or(u16::MAX);
        let [x, y] = [number % 2 * FILM[0], (number / 2).min(64) * FILM[1]];
        let region = Region { x, y, width: FILM[0], height: FILM[1] };
        self.windows.push(Window::new(spec, space, room, region));
        (self.windows.len() - 1, room)
    }

    /// Starts a display server if there is none.
    pub(crate) fn add_display_server(&mut self, workload: usize) {
        if self.display_server.is_some() {
            return;
        }
        let server = self.add_channel();
        let draw = Step::Display { window: None, gpu: 0 };
        self.add_task(workload, &[Step::Wait { channel: server, messages: 1 }, draw], false);
        self.display_server = Some(server);
    }

    /// The channels of the sound server, which plays periods of this length; there is one from now on.
    pub(crate) fn sound_server(&mut self, workload: usize, period: Nanos) -> SoundServer {
        if let Some(server) = self.sound_server {
            return server;
        }
        let server = SoundServer { asked: self.add_channel(), done: self.add_channel() };
        let wait = Step::Wait { channel: server.asked, messages: 1 };
        let program = [wait, Step::Play { period }, Step::Send { channel: server.done, messages: 1 }];
        self.add_task(workload, &program, false);
        self.sound_server = Some(server);
        server
    }

    fn start(&mut self, task: GuestTask) -> usize {
        let number = self.tasks.len();
        let allowed = (0..self.cpus.len()).filter(|cpu| task.affinity.contains(*cpu));
        let least = allowed.min_by_key(|cpu| self.cpus[*cpu].ready.len()).unwrap_or(0);
        self.tasks.push(GuestTask { vcpu: least, ..task });
        self.cpus[least].ready.push(number);
        number
    }

    pub(crate) fn add_channel(&mut self) -> usize {
        self.channels.push(Channel::default());
        self.channels.len() - 1
    }

    pub(crate) fn add_socket(&mut self, protocol: Option<frontdesk_engine::Protocol>, port: u16) -> usize {
        self.sockets.push(Socket { protocol, port, backlog: VecDeque::new(), waiting: VecDeque::new() });
        self.sockets.len() - 1
    }

    /// As page-aligned addresses look.
    pub(super) fn new_space(&mut self) -> TaskId {
        self.spaces += 1;
        TaskId(self.spaces << 12)
    }

    /// Whether a vCPU has something to do.
    pub(crate) fn wants(&self, vcpu: usize) -> bool {
        let cpu = &self.cpus[vcpu];
        cpu.current.is_some() || !cpu.ready.is_empty() || !cpu.pending.is_empty() || cpu.working.is_some()
    }

    /// Whether a vCPU has nothing to do until it is interrupted.
    pub(crate) fn is_idle(&self, vcpu: usize) -> bool {
        self.cpus[vcpu].halted
    }

    /// Whether a clock tick waits until a vCPU runs.
    pub(crate) fn is_to_tick(&self, vcpu: usize) -> bool {
        self.cpus[vcpu].pending.iter().any(|interrupt| matches!(interrupt, Interrupt::Tick))
    }

    /// A vCPU has run for so long.
    pub(crate) fn ran(&mut self, vcpu: usize, time: Nanos) {
        let cpu = &mut self.cpus[vcpu];
        let kernel = time.min(cpu.kernel);
        cpu.kernel -= kernel;
        let time = time - kernel;
        if let Some(current) = cpu.current {
            let task = &mut self.tasks[current];
            task.left = task.left.saturating_sub(time);
            self.charge(vcpu, time);
        }
    }

    /// A vCPU got a physical CPU again after so long. A guest that does not hear of stolen time takes it for
    /// its own.
    pub(crate) fn stolen(&mut self, vcpu: usize, time: Nanos) {
        if !self.costs.sees_stolen {
            self.charge(vcpu, time);
        }
    }

    /// CPU time until something happens on a vCPU that runs.
    pub(crate) fn next(&self, vcpu: usize) -> Nanos {
        let cpu = &self.cpus[vcpu];
        if cpu.kernel > 0 {
            return cpu.kernel;
        }
        if cpu.working.is_some() || !cpu.pending.is_empty() || cpu.reschedule {
            return 0;
        }
        let Some(current) = cpu.current else { return 0 };
        let left = self.tasks[current].left;
        if cpu.ready.is_empty() || self.goes_by_ticks(vcpu) { left } else { left.min(cpu.slice) }
    }

    /// Does what happens on a vCPU now. The caller takes the [`effects`](GuestKernel::effects) afterwards.
    pub(crate) fn reached(&mut self, vcpu: usize, now: Nanos) -> Flow {
        self.now = now;
        self.exits = false;
        loop {
            let cpu = &mut self.cpus[vcpu];
            if cpu.kernel > 0 || self.exits {
                return Flow::Continue;
            }
            if let Some(interrupt) = cpu.working.take() {
                self.handle(vcpu, interrupt);
                continue;
            }
            if let Some(interrupt) = cpu.pending.pop_front() {
                let resumes = std::mem::take(&mut cpu.halted);
                cpu.working = Some(interrupt);
                cpu.kernel = match interrupt {
                    Interrupt::Packet(packet) => packet.cost(self.costs.receive),
                    Interrupt::Io { cost } => cost,
                    Interrupt::Wake { .. } | Interrupt::Tick | Interrupt::Reschedule => self.costs.interrupt,
                };
                if resumes {
                    self.effects.push(Effect::Resume { vcpu });
                }
                match interrupt {
                    Interrupt::Packet(Packet { protocol, .. }) => {
                        let vector = if protocol.is_some() { vectors::NETWORK } else { vectors::INPUT };
                        self.effects.push(Effect::Interrupt { vcpu, vector });
                    }
                    Interrupt::Wake { vector: Some(vector), .. } => {
                        self.effects.push(Effect::Interrupt { vcpu, vector })
                    }
                    Interrupt::Reschedule => self.effects.push(Effect::IpiTaken { vcpu }),
                    // Not of a device.
                    Interrupt::Wake { vector: None, .. } | Interrupt::Tick | Interrupt::Io { .. } => {}
                }
                if resumes {
                    self.set_clock(vcpu);
                }
                continue;
            }
            if cpu.slice == 0 && !cpu.ready.is_empty() && !self.goes_by_ticks(vcpu) {
                self.end_turn(vcpu);
            }
            let cpu = &self.cpus[vcpu];
            if cpu.reschedule || cpu.current.is_none() {
                if !self.schedule(vcpu) {
                    self.cpus[vcpu].halted = true;
                    self.effects.push(Effect::Halt { vcpu });
                    return Flow::Block;
                }
                continue;
            }
            let Some(current) = cpu.current else { continue };
            if self.tasks[current].left > 0 {
                return Flow::Continue;
            }
            if !self.execute(vcpu, current) {
                return Flow::Continue;
            }
        }
    }

    fn handle(&mut self, vcpu: usize, interrupt: Interrupt) {
        match interrupt {
            Interrupt::Packet(packet) => self.packet(vcpu, packet),
            Interrupt::Wake { task, io, .. } => {
                // A timer may come late, when the task has long gone on.
                match (self.tasks[task].state, io) {
                    (TaskState::Blocked(Waits::Disk | Waits::Sound | Waits::Gpu), true)
                    | (TaskState::Blocked(Waits::Time), false) => {}
                    // The period without answers begins.
                    (TaskState::Blocked(Waits::Packet { socket }), false) => {
                        self.sockets[socket].waiting.retain(|waiting| *waiting != task);
                    }
                    _ => return,
                }
                self.wake(vcpu, task, io);
            }
            Interrupt::Tick => {
                if self.renew(vcpu) && !self.cpus[vcpu].ready.is_empty() {
                    self.end_turn(vcpu);
                }
                self.set_clock(vcpu);
            }
            Interrupt::Reschedule => self.cpus[vcpu].reschedule = true,
            Interrupt::Io { .. } => {
                self.exit();
                self.effects.push(Effect::DriverDone);
            }
        }
    }

    /// The kernel programs its next clock tick, after one and when it stops idling: who emulates the clock
    /// hears of it.
    fn set_clock(&mut self, vcpu: usize) {
        if self.costs.ticks {
            self.exit();
            self.effects.push(Effect::Clock { vcpu });
        }
    }

    pub(super) fn packet(&mut self, vcpu: usize, packet: Packet) {
        if packet.bytes == 0 {
            return;
        }
        let to = |socket: &Socket| socket.port == packet.port && socket.protocol == packet.protocol;
        let Some(number) = self.sockets.iter().position(to) else { return };
        let socket = &mut self.sockets[number];
        if let Some(task) = socket.waiting.pop_front() {
            self.tasks[task].request = Some(packet);
            self.tasks[task].advance();
            self.wake(vcpu, task, true);
        } else if socket.backlog.len() < BACKLOG {
            socket.backlog.push_back(packet);
        }
    }
}

#[cfg(test)]
mod tests;
