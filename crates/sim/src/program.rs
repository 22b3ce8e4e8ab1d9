//! What guest tasks do: small programs, which a guest interprets.

use crate::queue::Nanos;
use frontdesk_engine::{Protocol, TaskId};

/// A step of a program. After the last one comes the first again, unless that is [`Step::End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Uses CPU time.
    Compute(Nanos),
    /// Sleeps.
    Sleep(Nanos),
    /// Sleeps until the next multiple of this.
    SleepUntil(Nanos),
    /// Waits for a packet on a socket, by its number in the guest. With a period: only in every other period,
    /// counted from the start; in those between, the program goes on at the step given.
    Receive {
        /// The socket.
        socket: usize,
        /// Length of a period, and where the program goes on in those without answers.
        shift: Option<(Nanos, usize)>,
    },
    /// Answers the packet received last.
    Reply,
    /// Reads from the disk and waits for it.
    Read {
        /// How much.
        bytes: u32,
        /// Whether it follows the read before; otherwise it is anywhere on the disk.
        sequential: bool,
    },
    /// Writes to the disk.
    Write {
        /// How much.
        bytes: u32,
        /// Whether it waits for that.
        sync: bool,
    },
    /// Puts messages into a channel.
    Send {
        /// The channel, by its number in the guest.
        channel: usize,
        /// How many.
        messages: u32,
    },
    /// Takes messages out of a channel, and waits until there are so many.
    Wait {
        /// The channel.
        channel: usize,
        /// How many.
        messages: u32,
    },
    /// Wakes the first, or all, of those that wait in a channel for a signal; it is lost if nobody does.
    Signal {
        /// The channel.
        channel: usize,
        /// Whether all are woken.
        all: bool,
    },
    /// Waits for a signal in a channel; from the same moment on a mutex, which is a channel with a message
    /// while it is free, is free.
    WaitSignal {
        /// The channel.
        channel: usize,
        /// The mutex.
        mutex: Option<usize>,
    },
    /// Sleeps until a timer expires, which runs from when it expired last, or at first from when the task
    /// began.
    Timer {
        /// The timer, by its number in the guest.
        timer: usize,
        /// From one expiry to the next.
        period: Nanos,
        /// Whether an expiry that was missed is made up for; otherwise the timer runs from when that was
        /// found out.
        absolute: bool,
    },
    /// Works at the next frame of a window until it can be drawn.
    Prepare {
        /// The window, by its number in the guest.
        window: usize,
    },
    /// Sleeps until the first frame of a window that is ready is due.
    Due {
        /// The window.
        window: usize,
    },
    /// Takes that frame, to show it if it is not too late for that.
    Show {
        /// The window.
        window: usize,
        /// Where the program goes on if it is too late.
        late: usize,
    },
    /// Asks the display server to draw a frame.
    Draw {
        /// The window.
        window: usize,
    },
    /// Draws a frame: on the framebuffer, which the emulator copies, or on the GPU, which is waited for.
    Display {
        /// The window; without it, the one that a display server was asked for first.
        window: Option<usize>,
        /// Time that the GPU takes for it; 0: the framebuffer.
        gpu: Nanos,
    },
    /// Gives the sound card a period to play, and waits while its buffer is full.
    Play {
        /// Length of the period.
        period: Nanos,
    },
    /// An operation of the workload is done, of so many bytes.
    Done {
        /// Bytes moved, if it moves some.
        bytes: u32,
    },
    /// Goes back to a step so many times.
    Repeat {
        /// Where to.
        from: usize,
        /// How many times.
        times: u32,
    },
    /// Goes on in an address space that nobody has seen before, as a new process does.
    NewSpace,
    /// The task ends.
    End,
}

/// A packet on its way to a VM, or a key that is pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Transport protocol; `None` of a key.
    pub protocol: Option<Protocol>,
    /// Destination port; of a key, the number of the workload that it starts.
    pub port: u16,
    /// Payload; a packet without any is the kernel's alone.
    pub bytes: u32,
    /// The client that sent it, by its number.
    pub client: u32,
    /// When the VM's host had it.
    pub arrived: Nanos,
    /// What handling it costs, in thousandths of what it costs on average.
    pub effort: u32,
}

impl Packet {
    /// What handling this packet costs where one costs so much on average.
    pub(crate) fn cost(&self, average: Nanos) -> Nanos {
        average.saturating_mul(u64::from(self.effort)) / 1_000
    }
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// A point in time.
    Time,
    /// A packet on a socket.
    Packet {
        /// The socket.
        socket: usize,
    },
    /// The disk.
    Disk,
    /// Messages in a channel.
    Messages {
        /// The channel.
        channel: usize,
    },
    /// The sound card.
    Sound,
    /// The GPU.
    Gpu,
    /// Nothing any more: it has ended.
    Nothing,
}

/// How a guest's scheduler treats a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SchedClass {
    /// It shares the CPU by weight (`SCHED_OTHER`).
    Fair { nice: i8 },
    /// It runs before those of lower priority until it waits (`SCHED_FIFO`).
    Fifo { priority: u8 },
    /// It runs before those of lower priority, in turns with its equals (`SCHED_RR`).
    RoundRobin { priority: u8 },
}

impl Default for SchedClass {
    fn default() -> Self {
        SchedClass::Fair { nice: 0 }
    }
}

impl SchedClass {
    /// Who has more of this runs first; 0 in the fair class.
    pub(crate) fn rank(self) -> u8 {
        match self {
            SchedClass::Fair { .. } => 0,
            SchedClass::Fifo { priority } | SchedClass::RoundRobin { priority } => priority,
        }
    }
}

/// The vCPUs that a task may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Affinity(u16);

impl Default for Affinity {
    fn default() -> Self {
        Affinity(u16::MAX)
    }
}

impl Affinity {
    pub(crate) fn none() -> Affinity {
        Affinity(0)
    }

    pub(crate) fn add(&mut self, vcpu: usize) {
        self.0 |= 1 << (vcpu % 16);
    }

    pub(crate) fn contains(self, vcpu: usize) -> bool {
        self.0 & (1 << (vcpu % 16)) != 0
    }

    /// The vCPUs from one on.
    pub(crate) fn from(vcpu: usize) -> Affinity {
        Affinity(u16::MAX << vcpu.min(15))
    }

    /// Those of both.
    pub(crate) fn and(self, other: Affinity) -> Affinity {
        Affinity(self.0 & other.0)
    }

    /// All others.
    pub(crate) fn others(self) -> Affinity {
        Affinity(!self.0)
    }
}

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    Ready,
    Running,
    Blocked(Waits),
}

/// A task of a guest.
#[derive(Clone, Debug)]
pub(crate) struct GuestTask {
    /// Its workload, by its number in the guest.
    pub(crate) workload: usize,
    /// What its file calls it.
    pub(crate) name: Option<Box<str>>,
    pub(crate) program: Box<[Step]>,
    pub(crate) at: usize,
    /// Whether the CPU time of the present step is paid.
    pub(crate) paid: bool,
    /// CPU time until something happens.
    pub(crate) left: Nanos,
    /// How often each [`Step::Repeat`] was taken, in order of nesting.
    pub(crate) repeats: Vec<u32>,
    pub(crate) state: TaskState,
    /// Since when it waits, if it does.
    pub(crate) since: Nanos,
    pub(crate) vruntime: Nanos,
    /// The vCPU that it was on last.
    pub(crate) vcpu: usize,
    pub(crate) class: SchedClass,
    pub(crate) affinity: Affinity,
    /// When it ran first.
    pub(crate) began: Option<Nanos>,
    /// Since when it could do what it is at: its timer expired, its sleep was over, or it was resumed.
    pub(crate) released: Option<Nanos>,
    /// Whether it has used CPU time for that.
    pub(crate) worked: bool,
    pub(crate) space: TaskId,
    pub(crate) request: Option<Packet>,
    /// Whether it waits for I/O and then computes next to nothing.
    pub(crate) io_bound: bool,
    /// It was woken by I/O and has not run since.
    pub(crate) woken: bool,
}

impl GuestTask {
    pub(crate) fn new(workload: usize, program: &[Step], space: TaskId) -> GuestTask {
        let repeats = program.iter().filter(|step| matches!(step, Step::Repeat { .. })).count();
        GuestTask {
            workload,
            name: None,
            program: program.into(),
            at: 0,
            paid: false,
            left: 0,
            repeats: vec![0; repeats],
            state: TaskState::Ready,
            since: 0,
            vruntime: 0,
            vcpu: 0,
            class: SchedClass::default(),
            affinity: Affinity::default(),
            began: None,
            released: None,
            worked: false,
            space,
            request: None,
            io_bound: false,
            woken: false,
        }
    }

    pub(crate) fn step(&self) -> Step {
        self.program.get(self.at).copied().unwrap_or(Step::End)
    }

    /// Goes to the next step.
    pub(crate) fn advance(&mut self) {
        self.at = if self.at + 1 < self.program.len() { self.at + 1 } else { 0 };
        self.paid = false;
    }

    pub(crate) fn jump(&mut self, to: usize) {
        self.at = to;
        self.paid = false;
    }

    /// Takes a [`Step::Repeat`]: back, or on.
    pub(crate) fn repeat(&mut self, from: usize, times: u32) {
        let place = self.program[..self.at].iter().filter(|step| matches!(step, Step::Repeat { .. })).count();
        if self.repeats[place] < times {
            self.repeats[place] += 1;
            self.jump(from);
        } else {
            self.repeats[place] = 0;
            self.advance();
        }
    }
}
