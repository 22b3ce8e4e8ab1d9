//! What the engine is told: events from the sources, each with a monotonic timestamp.

use crate::capabilities::{Capabilities, Standing};
use serde::{Deserialize, Serialize};

/// A point on the host's monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// Nanoseconds from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This point in time plus `nanos`, saturating.
    #[must_use]
    pub const fn plus(self, nanos: u64) -> Time {
        Time(self.0.saturating_add(nanos))
    }
}

/// A virtual machine, numbered by whoever feeds the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VmId(pub u32);

/// A guest task: one guest address space. Its value comes from the source (a masked CR3, a pid); the
/// engine only compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId(pub u64);

/// A host thread of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Thread {
    /// The thread that runs the vCPU with this index.
    Vcpu(u16),
    /// A thread of the VM's I/O path (QEMU's main loop, which is the first, its I/O threads and vhost
    /// workers: the papers' driver domain).
    Emulator(u16),
}

/// Transport protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A rectangle of a VM's display, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Of its left edge.
    pub x: u16,
    /// Of its upper edge.
    pub y: u16,
    /// Its width.
    pub width: u16,
    /// Its height.
    pub height: u16,
}

/// A device for a person's eyes or ears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MediaDevice {
    /// The display, or its graphics processor.
    Display,
    /// The sound card.
    Sound,
}

/// What a person did at a VM's keyboard or mouse. Neither that a key is released nor that a button is pressed
/// or the mouse is moved is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserInput {
    /// Pressed the Enter key.
    Enter,
    /// Pressed another key.
    Key,
    /// Released a button of the mouse.
    Button,
}

/// Something that happened on the host or, seen from outside, in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it happened. Events that arrive late are taken as happening now.
    pub at: Time,
    /// What happened.
    pub kind: EventKind,
}

/// The kinds of [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// A VM is followed from now on. Adding a VM that is already known starts it afresh.
    VmAdded {
        /// The VM.
        vm: VmId,
        /// Number of vCPUs.
        vcpus: u16,
        /// Weight of the VM among the others, as its control group has it.
        weight: u32,
    },
    /// A VM is gone.
    VmRemoved {
        /// The VM.
        vm: VmId,
    },
    /// A host thread of the VM got a physical CPU.
    Run {
        /// The VM.
        vm: VmId,
        /// Which of its threads.
        thread: Thread,
        /// The physical CPU.
        pcpu: u16,
    },
    /// A host thread of the VM lost its physical CPU.
    Stop {
        /// The VM.
        vm: VmId,
        /// Which of its threads.
        thread: Thread,
        /// Whether it still wants to run (it was preempted) rather than sleeps.
        runnable: bool,
    },
    /// A sleeping host thread of the VM became runnable.
    Wake {
        /// The VM.
        vm: VmId,
        /// Which of its threads.
        thread: Thread,
        /// The vCPU that woke it, if its own VM did: the guest has a request for the thread.
        by: Option<u16>,
    },
    /// The guest switched to another address space on a vCPU.
    TaskSwitch {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
        /// The task that runs from now on.
        task: TaskId,
    },
    /// The guest halted a vCPU: nothing to run.
    Halt {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
    },
    /// A halted vCPU goes on.
    Resume {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
    },
    /// The guest sent an inter-processor interrupt.
    Ipi {
        /// The VM.
        vm: VmId,
        /// Index of the sending vCPU.
        vcpu: u16,
        /// The vCPUs that it goes to: a bit for each index below 64. Whether the sender is among them is as
        /// the guest asked for.
        to: u64,
        /// Interrupt vector.
        vector: u8,
    },
    /// A packet that some guest task may be waiting for was queued towards the VM (TAVS §3.3.2).
    Packet {
        /// The VM.
        vm: VmId,
        /// Transport protocol.
        protocol: Protocol,
        /// Destination port.
        port: u16,
    },
    /// The VM's I/O path took up the guest's request to read a block (TAVS §3.3.1). The guest made it when it
    /// woke the I/O path, if it did.
    BlockRead {
        /// The VM.
        vm: VmId,
        /// Identifies the request until it is done.
        request: u64,
    },
    /// A thread of the VM's I/O path woke up, probably to complete a block read: a sign that comes before
    /// [`BlockDone`](EventKind::BlockDone) but does not say which read it is.
    BlockPending {
        /// The VM.
        vm: VmId,
    },
    /// A block read is complete and its interrupt pending.
    BlockDone {
        /// The VM.
        vm: VmId,
        /// The request that is done.
        request: u64,
    },
    /// Events were lost before they reached the engine. What it believes about run times is not to be
    /// trusted until the next event of each thread.
    Lost {
        /// The VM whose events were lost; `None` if any may be.
        vm: Option<VmId>,
        /// How many.
        count: u64,
    },
    /// The guest was reset: its tasks are void. What its ports lead to, and what it has used, stays.
    VmReset {
        /// The VM.
        vm: VmId,
    },
    /// The guest's vCPUs were stopped, and nobody in it is served until [`VmResumed`](EventKind::VmResumed).
    VmPaused {
        /// The VM.
        vm: VmId,
    },
    /// The guest's vCPUs go on.
    VmResumed {
        /// The VM.
        vm: VmId,
    },
    /// A vCPU was plugged in. What is known of the others stays.
    VcpuAdded {
        /// The VM.
        vm: VmId,
        /// Index of the new vCPU.
        vcpu: u16,
    },
    /// A vCPU was unplugged. What is known of the others stays.
    VcpuRemoved {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU that is gone.
        vcpu: u16,
    },
    /// Somebody gave the VM another weight.
    Weight {
        /// The VM.
        vm: VmId,
        /// Its weight among the others from now on, as in [`VmAdded`](EventKind::VmAdded).
        weight: u32,
    },
    /// A task was seen on a vCPU, by a source that looks now and then: when it was dispatched, and what else
    /// ran since the last look, is not known. Comes again while the same task is seen there.
    TaskSeen {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
        /// The task that runs.
        task: TaskId,
    },
    /// A vCPU took the interrupt of a device: it entered the handler.
    Interrupt {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
        /// Interrupt vector: the guest has given each device, or queue of one, its own on this vCPU.
        vector: u8,
    },
    /// A vCPU took an inter-processor interrupt that was sent to it.
    IpiTaken {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
    },
    /// Somebody gave a vCPU's thread another weight inside its VM, as a nice value does.
    VcpuWeight {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
        /// Its weight in permille of an ordinary thread's; 1000 until said.
        permille: u32,
    },
    /// The VM sent a packet with content from the port that the last [`Packet`](EventKind::Packet) was for,
    /// and had sent none since: the answer to it, or its beginning. Where this is not told, the guest's
    /// doorbells are the sign of an answer.
    Reply {
        /// The VM.
        vm: VmId,
        /// Transport protocol.
        protocol: Protocol,
        /// Source port.
        port: u16,
    },
    /// What the world can do from now on. Until it says so, the default.
    World(Capabilities),
    /// How a VM stands from now on. One that is added anew stands as [acting](Standing::Acting).
    Standing {
        /// The VM.
        vm: VmId,
        /// How it stands.
        standing: Standing,
    },
    /// Whether somebody limits the CPU time that the VM may have. Until that is said, nobody does.
    Limited {
        /// The VM.
        vm: VmId,
        /// If so, it gets what it is allowed, and is never owed any.
        limited: bool,
    },
    /// The guest changed what its display shows (MM §5.1.1).
    DisplayUpdate {
        /// The VM.
        vm: VmId,
        /// What was drawn; `None` for a flip, which shows another picture as a whole.
        region: Option<Region>,
    },
    /// A vCPU accessed a display or a sound card (MM §5.1.1).
    DeviceAccess {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
        /// Which of them.
        device: MediaDevice,
        /// Whether it did so in the handler of an interrupt: then not for the task that runs on it.
        in_interrupt: bool,
    },
    /// The VM's graphics processor completed what it was told to do (MM §5.1.2).
    GpuDone {
        /// The VM.
        vm: VmId,
    },
    /// A timer expired that the guest had set on a vCPU (MM §5.3). Where this is not told, the wake-up of a
    /// vCPU that the guest has halted stands for it.
    Timer {
        /// The VM.
        vm: VmId,
        /// Index of the vCPU.
        vcpu: u16,
    },
    /// Somebody uses the VM (vAMP §3.1.2).
    Input {
        /// The VM.
        vm: VmId,
        /// What was done.
        input: UserInput,
    },
    /// The guest keeps its background work on vCPUs of its own, which it gives to nothing else, as far as it
    /// says (vAMP §3.3).
    Isolated {
        /// The VM.
        vm: VmId,
        /// These vCPUs: a bit for each index below 64; 0 when it does no longer.
        slow: u64,
    },
    /// Threads of the VM's emulator that are not told of one by one ran on a physical CPU since this was told
    /// last.
    OthersRan {
        /// The VM.
        vm: VmId,
        /// The physical CPU.
        pcpu: u16,
        /// For how long, in nanoseconds, all of them together.
        ran_ns: u64,
        /// For how long those that have stopped there had waited for it, runnable, in nanoseconds: more than
        /// the time since then, if several did at once.
        #[serde(default)]
        waited_ns: u64,
    },
}
