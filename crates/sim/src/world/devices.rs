//! The devices of VMs, and the threads that do their work.

use crate::disk::DiskRequest;
use crate::guest::vectors;
use crate::program::Packet;
use crate::queue::{Nanos, Timer};
use crate::scheduler::Entity;
use frontdesk_engine::nanos;
use frontdesk_scenario::{Extension, HostCosts, Interrupts};
use std::collections::VecDeque;

/// What the I/O path has to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum IoJob {
    PacketIn {
        vm: usize,
        packet: Packet,
    },
    /// The answer to a packet: with content, or the bare acknowledgement that it was taken.
    PacketOut {
        packet: Packet,
        content: bool,
    },
    BlockIn {
        request: DiskRequest,
    },
    BlockDone {
        request: DiskRequest,
    },
    /// Takes note that the clock of a vCPU expired, and tells it if it does not idle.
    Tick {
        vm: usize,
        vcpu: usize,
    },
    /// Waits for another time from now on, as a vCPU has set its clock.
    Clock,
    /// Tells a VM that a period of sound was played.
    Sound {
        vm: usize,
    },
    /// Copies a frame to where it is seen.
    Frame {
        vm: usize,
        window: Option<usize>,
    },
    /// Tells a VM that the GPU has drawn a frame.
    Drawn {
        vm: usize,
        task: usize,
        window: Option<usize>,
    },
}

/// A thread of the I/O path.
#[derive(Debug)]
pub(super) struct IoThread {
    pub(super) entity: Entity,
    /// Whose it is; a driver domain is nobody's.
    pub(super) vm: Option<usize>,
    pub(super) costs: HostCosts,
    pub(super) jobs: VecDeque<IoJob>,
    pub(super) current: Option<IoJob>,
    pub(super) left: Nanos,
    /// Nothing is left to do, and it is on its way to sleep.
    pub(super) closing: bool,
}

impl IoThread {
    pub(super) fn new(entity: Entity, vm: Option<usize>, costs: HostCosts) -> IoThread {
        IoThread { entity, vm, costs, jobs: VecDeque::new(), current: None, left: 0, closing: false }
    }

    pub(super) fn ran(&mut self, time: Nanos) {
        self.left = self.left.saturating_sub(time);
    }

    pub(super) fn next(&self) -> Nanos {
        // One on its way to sleep finishes that first: the guest's notification may find it awake.
        self.left
    }
}

impl IoJob {
    /// CPU time that it takes.
    pub(super) fn cost(&self, costs: &HostCosts) -> Nanos {
        nanos(match self {
            IoJob::PacketIn { packet, .. } => return packet.cost(nanos(costs.packet_in)),
            IoJob::PacketOut { packet, .. } => return packet.cost(nanos(costs.packet_out)),
            IoJob::BlockIn { .. } => costs.block_request,
            IoJob::BlockDone { .. } => costs.block_done,
            IoJob::Tick { .. } => costs.timer,
            IoJob::Clock => return 0,
            IoJob::Sound { .. } => costs.sound,
            IoJob::Frame { .. } | IoJob::Drawn { .. } => costs.frame,
        })
    }
}

/// A VM that is the driver domain.
#[derive(Debug)]
pub(super) struct DriverVm {
    pub(super) vm: usize,
    pub(super) costs: HostCosts,
    /// What its kernel has to do for others.
    pub(super) jobs: VecDeque<IoJob>,
}

/// The vCPU that each device of a VM interrupts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Routes {
    own: Interrupts,
    vcpus: usize,
    /// The one that all interrupt for now.
    pub(super) pinned: Option<usize>,
}

impl Routes {
    pub(super) fn new(own: Interrupts, vcpus: usize) -> Routes {
        Routes { own, vcpus, pinned: None }
    }

    /// Where the interrupt of a device goes.
    pub(super) fn of(&self, vector: u8) -> usize {
        let own = match vector {
            vectors::DISK => self.own.disk,
            vectors::SOUND => self.own.sound,
            vectors::GPU => self.own.gpu,
            vectors::INPUT => self.own.input,
            _ => self.own.network,
        };
        self.pinned.unwrap_or_else(|| usize::from(own).min(self.vcpus - 1))
    }
}

/// The daemon in a guest that keeps background work apart in episodes (vAMP §3.3).
#[derive(Clone, Debug)]
pub(super) struct GuestDaemon {
    pub(super) extension: Extension,
    pub(super) timer: Timer,
    /// vCPUs that are left to what is no background work; 0 outside of episodes.
    pub(super) fast: usize,
    /// How long each vCPU had slept at the last look.
    pub(super) slept: Vec<Nanos>,
    pub(super) looked: Nanos,
}

/// The sound card of a VM: a buffer that is played, and an interrupt for each period.
#[derive(Debug, Default)]
pub(super) struct Sound {
    /// Periods in the buffer.
    pub(super) buffered: u32,
    pub(super) period: Nanos,
    /// The tasks that wait for room.
    pub(super) waiting: VecDeque<usize>,
    /// Whether the clock of the card runs.
    pub(super) playing: bool,
}

/// Periods that a sound buffer holds.
pub(super) const SOUND_BUFFER: u32 = 4;

/// What a GPU completes for a frame, as that of the paper does (MM §5.1.2). It says so each time, but who
/// waits for the frame is only interrupted at the end.
const GPU_PARTS: u32 = 110;

/// A frame for the GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct GpuFrame {
    pub(super) vm: usize,
    pub(super) task: usize,
    pub(super) window: Option<usize>,
    /// Time for each of its parts, and how many are left.
    pub(super) part: Nanos,
    pub(super) left: u32,
}

impl GpuFrame {
    pub(super) fn new(vm: usize, task: usize, window: Option<usize>, time: Nanos) -> GpuFrame {
        let part = (time / u64::from(GPU_PARTS)).max(1);
        GpuFrame { vm, task, window, part, left: GPU_PARTS }
    }
}

/// The host's GPU, which draws one frame after the other.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) timer: Timer,
    pub(super) queue: VecDeque<GpuFrame>,
}

impl Gpu {
    pub(super) fn new(timer: Timer) -> Gpu {
        Gpu { timer, queue: VecDeque::new() }
    }
}
