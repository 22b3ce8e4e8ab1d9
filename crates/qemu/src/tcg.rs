//! QEMU's TCG plugin as a source of events: what a guest does on its vCPUs, read from the plugin's
//! shared-memory ring.

use frontdesk_engine::{Event, EventKind, MediaDevice, TaskId, Time, VmId};
use frontdesk_ring::{AttachError, Consumer, Entry, EntryKind, Interest, TaskWords};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::ReadWriteFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Why the ring of a QEMU process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TcgError {
    /// A system call on the process failed.
    #[error("guest events of QEMU process {pid}: {what}: {source}")]
    System {
        /// The process.
        pid: i32,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The ring is not one that this version reads.
    #[error("guest events of QEMU process {pid}: {source}")]
    Attach {
        /// The process.
        pid: i32,
        /// What is wrong.
        source: AttachError,
    },
    /// The ring names a descriptor that is no eventfd.
    #[error(
        "guest events of QEMU process {pid}: its ring names descriptor {fd} for wake-ups, \
         which is {what}, not an eventfd"
    )]
    Eventfd {
        /// The process.
        pid: i32,
        /// Number of the descriptor in that process.
        fd: i32,
        /// What it is.
        what: PathBuf,
    },
}

/// Entries of a VM that are taken at a time: more than an honest guest makes between two looks, so few that
/// nobody else waits long.
const MAX_ENTRIES: usize = 8192;
/// And so many in a millisecond, for long: sixty-four vCPUs that each switch to another task once. Whoever
/// fills its ring all the time takes a hundredth of a core from the host then.
const PACE: u64 = 64;
/// Of many VMs that do so, all together: as much as of three.
const PACE_OF_ALL: u64 = 192;
/// But each, however many there are: one vCPU that switches this often gets nothing else done.
const LEAST_PACE: u64 = 8;

/// The guest events of one VM.
#[derive(Debug)]
pub struct TcgSource {
    ring: Consumer,
    /// What holds the ring, for reading only.
    memory: OwnedFd,
    wake: OwnedFd,
    /// What [`take_dropped`](Self::take_dropped) has reported.
    reported: u64,
    /// How many entries may be taken, and since when there are more.
    allowance: u64,
    refilled: Time,
}

impl TcgSource {
    /// Attaches to the plugin in the QEMU process `pid`; `None` if that QEMU runs without it. Events from
    /// before are skipped.
    ///
    /// # Errors
    /// [`TcgError`] if the process cannot be looked into, or its ring is not as it should be.
    pub fn find(pid: i32) -> Result<Option<TcgSource>, TcgError> {
        let failed = |what| move |source: io::Error| TcgError::System { pid, what, source };
        let Some(file) = frontdesk_ring::find(pid).map_err(failed("looking for its ring"))? else {
            return Ok(None);
        };
        let memory = open(
            format!("/proc/self/fd/{}", file.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK,
            Mode::empty(),
        )
        .map_err(|errno| failed("opening its ring for reading")(errno.into()))?;
        let ring = Consumer::attach(file).map_err(|source| TcgError::Attach { pid, source })?;

        let process =
            Pid::from_raw(pid).ok_or_else(|| failed("its number")(io::ErrorKind::InvalidInput.into()))?;
        let process =
            pidfd_open(process, PidfdFlags::empty()).map_err(|error| failed("pidfd_open")(error.into()))?;
        let wake = pidfd_getfd(&process, ring.eventfd(), PidfdGetfdFlags::empty())
            .map_err(|error| failed("fetching its eventfd")(error.into()))?;
        // The number comes from the guest's side of the fence: make sure that we got no socket or file of
        // QEMU's.
        let what = std::fs::read_link(format!("/proc/self/fd/{}", wake.as_raw_fd()))
            .map_err(failed("looking at its eventfd"))?;
        if what != Path::new("anon_inode:[eventfd]") {
            return Err(TcgError::Eventfd { pid, fd: ring.eventfd(), what });
        }
        let allowance = MAX_ENTRIES as u64;
        Ok(Some(TcgSource { ring, memory, wake, reported: 0, allowance, refilled: Time(0) }))
    }

    /// Memory in which the tasks of the vCPUs can be looked up, for reading only, and where they are in it.
    /// It is sealed against shrinking.
    #[must_use]
    pub fn task_words(&self) -> (BorrowedFd<'_>, TaskWords) {
        (self.memory.as_fd(), self.ring.task_words())
    }

    /// Becomes readable when something of interest happens on an [armed](Self::arm) vCPU.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes [`wake_fd`](Self::wake_fd) wait for the next wake-up.
    pub fn clear_wake(&self) {
        // The eventfd does not block as the plugin made it, but a hostile QEMU could have changed that, and
        // read it at the same time.
        let (mut count, no_wait) = ([0u8; 8], ReadWriteFlags::NOWAIT);
        let _ = rustix::io::preadv2(&self.wake, &mut [IoSliceMut::new(&mut count)], u64::MAX, no_wait);
    }

    /// Asks for one wake-up when something of interest happens on `vcpu` next. Drain afterwards: what
    /// happened just before does not wake.
    pub fn arm(&self, vcpu: u16, interest: Interest) {
        self.ring.arm(vcpu, interest);
    }

    /// Withdraws [`arm`](Self::arm). A wake-up may already be under way.
    pub fn disarm(&self, vcpu: u16) {
        self.ring.disarm(vcpu);
    }

    /// The task that `vcpu` runs, or ran last if it is halted; `None` before its first switch.
    #[must_use]
    pub fn current_task(&self, vcpu: u16) -> Option<TaskId> {
        self.ring.current_task(vcpu).map(TaskId)
    }

    /// Appends what happened on all vCPUs since the last call to `out`, as events of `vm`: in order for each
    /// vCPU, one vCPU after the other. `now` is the monotonic time. Of too many, the rest is
    /// [lost](Self::take_dropped); `sources` are drained by turns, and what is too many depends on it.
    pub fn drain(&mut self, vm: VmId, now: Time, sources: usize, out: &mut Vec<Event>) {
        let first = out.len();
        let most = self.refill(now, sources);
        for vcpu in 0..self.ring.vcpus() {
            let limit = most.saturating_sub(out.len() - first);
            self.ring.drain(vcpu, limit, |Entry { at_ns, kind }| {
                let kind = match kind {
                    EntryKind::Switch { task } => EventKind::TaskSwitch { vm, vcpu, task: TaskId(task) },
                    EntryKind::Halt => EventKind::Halt { vm, vcpu },
                    EntryKind::Resume => EventKind::Resume { vm, vcpu },
                    EntryKind::Ipi { to, vector } => EventKind::Ipi { vm, vcpu, to, vector },
                    EntryKind::Interrupt { vector } => EventKind::Interrupt { vm, vcpu, vector },
                    EntryKind::IpiTaken => EventKind::IpiTaken { vm, vcpu },
                    EntryKind::Access { sound, in_interrupt } => {
                        let device = if sound { MediaDevice::Sound } else { MediaDevice::Display };
                        EventKind::DeviceAccess { vm, vcpu, device, in_interrupt }
                    }
                };
                out.push(Event { at: Time(at_ns), kind });
            });
        }
        self.allowance = self.allowance.saturating_sub((out.len() - first) as u64);
    }

    /// How many entries may be taken now.
    fn refill(&mut self, now: Time, sources: usize) -> usize {
        const MS: u64 = 1_000_000;
        let passed = now.since(self.refilled) / MS;
        let part = PACE_OF_ALL / u64::try_from(sources.max(1)).unwrap_or(u64::MAX);
        let more = passed.saturating_mul(part.clamp(LEAST_PACE, PACE));
        self.allowance = self.allowance.saturating_add(more).min(MAX_ENTRIES as u64);
        self.refilled = self.refilled.plus(passed.saturating_mul(MS));
        usize::try_from(self.allowance).unwrap_or(MAX_ENTRIES)
    }

    /// Events lost since the last call.
    #[must_use]
    pub fn take_dropped(&mut self) -> u64 {
        let total =
            (0..self.ring.vcpus()).fold(0u64, |sum, vcpu| sum.saturating_add(self.ring.dropped(vcpu)));
        let new = total.saturating_sub(self.reported);
        self.reported = total;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_ring::Producer;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn wake_is_pending(source: &TcgSource) -> bool {
        let mut fds = [PollFd::new(&source.wake, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    // One test, because a process is found by its first ring.
    #[test]
    fn follows_the_ring_of_a_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(TcgSource::find(pid).unwrap().is_none());

        let producer = Producer::create(4).unwrap();
        let push = |vcpu, at_ns, kind| producer.push(vcpu, Entry { at_ns, kind });
        let mut source = TcgSource::find(pid).unwrap().unwrap();
        let vm = VmId(3);
        assert_eq!(source.current_task(1), None);
        source.arm(1, Interest::TASKS);
        push(0, 10, EntryKind::Resume);
        push(0, 11, EntryKind::Ipi { to: 2, vector: 0xfd });
        push(1, 12, EntryKind::IpiTaken);
        push(1, 12, EntryKind::Interrupt { vector: 0x23 });
        assert!(!wake_is_pending(&source), "the armed vCPU did nothing of interest");
        push(1, 12, EntryKind::Switch { task: 0x5000 });
        push(1, 12, EntryKind::Access { sound: true, in_interrupt: false });
        push(1, 13, EntryKind::Halt);
        assert!(wake_is_pending(&source));
        // Not even if QEMU has made it one that blocks.
        rustix::io::ioctl_fionbio(&source.wake, false).unwrap();
        source.clear_wake();
        source.clear_wake();
        assert!(!wake_is_pending(&source));
        assert_eq!(source.current_task(1), Some(TaskId(0x5000)));

        let mut events = Vec::new();
        source.drain(vm, Time(0), 1, &mut events);
        let event = |at, kind| Event { at: Time(at), kind };
        assert_eq!(
            events,
            [
                event(10, EventKind::Resume { vm, vcpu: 0 }),
                event(11, EventKind::Ipi { vm, vcpu: 0, to: 2, vector: 0xfd }),
                event(12, EventKind::IpiTaken { vm, vcpu: 1 }),
                event(12, EventKind::Interrupt { vm, vcpu: 1, vector: 0x23 }),
                event(12, EventKind::TaskSwitch { vm, vcpu: 1, task: TaskId(0x5000) }),
                event(
                    12,
                    EventKind::DeviceAccess { vm, vcpu: 1, device: MediaDevice::Sound, in_interrupt: false }
                ),
                event(13, EventKind::Halt { vm, vcpu: 1 }),
            ]
        );

        for at in 0..u64::from(frontdesk_ring::CAPACITY) + 5 {
            push(0, at, EntryKind::Halt);
        }
        assert_eq!(source.take_dropped(), 5);
        assert_eq!(source.take_dropped(), 0);

        // All its lanes are full: so many are taken, and the rest is lost for it.
        source.drain(vm, Time(0), 1, &mut events);
        for at in 0..u64::from(frontdesk_ring::CAPACITY) {
            (0..4).for_each(|vcpu| push(vcpu, at, EntryKind::Halt));
        }
        events.clear();
        let mut now = Time(1_000_000_000);
        source.drain(vm, now, 1, &mut events);
        assert_eq!(events.len(), MAX_ENTRIES);
        assert_eq!(source.take_dropped(), 2 * u64::from(frontdesk_ring::CAPACITY));

        // And so it goes on: what is taken then depends on how long it was, and of how many.
        let after = [(0, 1, 0), (1, 1, 64), (2, 3, 128), (2, 8, 48), (1, 100, 8), (1_000, 1, 4096)];
        for (ms, sources, taken) in after {
            (0..u64::from(frontdesk_ring::CAPACITY)).for_each(|at| push(0, at, EntryKind::Halt));
            now = now.plus(ms * 1_000_000);
            events.clear();
            source.drain(vm, now, sources, &mut events);
            assert_eq!(events.len(), taken, "after {ms} ms, of {sources}");
        }
    }
}
