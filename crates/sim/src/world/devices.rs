//! The devices of VMs, and the threads that do their work.

use crate::disk::DiskRequest;
use crate::program::Packet;
use crate::queue::{Nanos, Timer};
use crate::scheduler::Entity;
use frontdesk_engine::nanos;
use frontdesk_scenario::HostCosts;
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
    },
    /// Tells a VM that the GPU has drawn a frame.
    Drawn {
        vm: usize,
        task: usize,
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

    pub(super) fn cost(&self, job: &IoJob) -> Nanos {
        nanos(match job {
            IoJob::PacketIn { packet, .. } => return packet.cost(nanos(self.costs.packet_in)),
            IoJob::PacketOut { packet, .. } => return packet.cost(nanos(self.costs.packet_out)),
            IoJob::BlockIn { .. } => self.costs.block_request,
            IoJob::BlockDone { .. } => self.costs.block_done,
            IoJob::Tick { .. } => self.costs.timer,
            IoJob::Clock => return 0,
            IoJob::Sound { .. } | IoJob::Frame { .. } | IoJob::Drawn { .. } => self.costs.media,
        })
    }
}

/// The sound card of a VM: a buffer that is played, and an interrupt for each period.
#[derive(Debug, Default)]
pub(super) struct Sound {
    /// Periods in the buffer.
    pub(super) buffered: u32,
    pub(super) period: Nanos,
    /// The task that waits for room.
    pub(super) waiting: Option<usize>,
    /// Whether the clock of the card runs.
    pub(super) playing: bool,
}

/// Periods that a sound buffer holds.
pub(super) const SOUND_BUFFER: u32 = 4;

/// The host's GPU, which draws one frame after the other.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) timer: Timer,
    pub(super) queue: VecDeque<(usize, usize, Nanos)>,
}

impl Gpu {
    pub(super) fn new(timer: Timer) -> Gpu {
        Gpu { timer, queue: VecDeque::new() }
    }
}
