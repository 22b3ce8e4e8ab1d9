//! The daemon's side.

use crate::entry::{Entry, Interest};
use crate::layout::{CAPACITY, Geometry, Lane, MAGIC, MAX_VCPUS, Mapping, NAME, TaskWords, VERSION, header};
use rustix::fs::{
    AtFlags, CWD, MemfdFlags, Mode, OFlags, SealFlags, StatxFlags, fcntl_get_seals, memfd_create, open, statx,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

/// Descriptors of a process that are looked at. The plugin opens its ring when QEMU starts.
const MAX_DESCRIPTORS: usize = 4096;

/// Opens the ring of the process `pid`; `None` if it has none, that is, if it is not a QEMU with the plugin.
/// Whatever the process has open, this does not wait for it.
///
/// # Errors
/// If there is no such process any more, or the caller may not look into it.
pub fn find(pid: i32) -> io::Result<Option<File>> {
    let link = format!("/memfd:{NAME} (deleted)");
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd"))?.take(MAX_DESCRIPTORS) {
        let path = fd?.path();
        // A descriptor may be closed while we look.
        if std::fs::read_link(&path).is_ok_and(|target| target == Path::new(&link)) {
            return open_memory(&path).map(Some);
        }
    }
    Ok(None)
}

/// Opens a file that is known to be of this host's memory, and no other: a name says nothing, and a file
/// system of the process's own (FUSE) could keep us waiting or, as huge pages can, fail under the mapping.
pub(crate) fn open_memory(path: &Path) -> io::Result<File> {
    let device = |file: &dyn AsFd| {
        // Does not ask the file system.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        statx(file.as_fd(), "", flags, StatxFlags::TYPE)
            .map(|found| (found.stx_dev_major, found.stx_dev_minor))
    };
    let pinned = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let memory = memfd_create("device", MemfdFlags::CLOEXEC)?;
    if device(&pinned)? != device(&memory)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is called a ring, but is not in memory"));
    }
    // With a lease on it, an open that waits would wait for its holder.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(File::from(rustix::fs::openat(
        CWD,
        format!("/proc/self/fd/{}", pinned.as_raw_fd()),
        flags,
        Mode::empty(),
    )?))
}

/// Why a file cannot be used as a ring.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A system call on the file failed.
    #[error("cannot attach to the ring: {what}: {source}")]
    System {
        /// The call.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The file could shrink under the reader.
    #[error("the ring is not sealed against resizing")]
    NotSealed,
    /// It does not begin as a ring does.
    #[error("this is no ring: its magic number is {0:#x}")]
    Magic(u64),
    /// The plugin is of another release.
    #[error(
        "the ring has layout version {0}, this program reads {VERSION}: use the plugin of the same release"
    )]
    Version(u64),
    /// A number in the header makes no sense.
    #[error("the ring's header is damaged: {what} is {value}")]
    Header {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u64,
    },
}

/// The reading side of a ring.
#[derive(Debug)]
pub struct Consumer {
    mapping: Mapping,
    geometry: Geometry,
    eventfd: i32,
    cursors: Vec<Cursor>,
}

/// What the consumer itself knows of a lane: the copy in shared memory is for the producer to read.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    head: u64,
    /// The producer's count of dropped entries when we attached.
    dropped_before: u64,
    /// Entries that made no sense, or were too many.
    pub(crate) unreadable: u64,
}

impl Consumer {
    /// Attaches to the ring in `file` and starts with the next entry: what lies in it from before is skipped.
    /// A ring has one consumer at a time; a second one would make both lose entries.
    ///
    /// # Errors
    /// [`AttachError`] if the file is not a ring that this version can read safely.
    pub fn attach(file: File) -> Result<Consumer, AttachError> {
        Consumer::with_capacity(file, CAPACITY)
    }

    /// Attaches to one whose lanes hold `expected` entries: the room that the other side may make us touch.
    pub(crate) fn with_capacity(file: File, expected: u32) -> Result<Consumer, AttachError> {
        let failed = |what| move |source: io::Error| AttachError::System { what, source };
        let seals = fcntl_get_seals(&file).map_err(|errno| failed("reading its seals")(errno.into()))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(AttachError::NotSealed);
        }
        let size = file.metadata().map_err(failed("reading its size"))?.len();
        if size < (header::WORDS * size_of::<u64>()) as u64 {
            return Err(AttachError::Header { what: "its size", value: size });
        }
        let map = |words| Mapping::new(&file, words).map_err(|errno| failed("mapping it")(errno.into()));

        let head = map(header::WORDS)?;
        let word = |index: usize| head.words()[index].load(Acquire);
        match word(header::MAGIC) {
            MAGIC => {}
            other => return Err(AttachError::Magic(other)),
        }
        match word(header::VERSION) {
            VERSION => {}
            other => return Err(AttachError::Version(other)),
        }
        // Each number is read once and checked: the other side may change it while we look.
        let (vcpus, capacity) = (word(header::VCPUS), word(header::CAPACITY));
        let eventfd = word(header::EVENTFD);
        let damaged = |what, value| AttachError::Header { what, value };
        let geometry = Geometry {
            vcpus: u16::try_from(vcpus)
                .ok()
                .filter(|vcpus| (1..=MAX_VCPUS).contains(vcpus))
                .ok_or(damaged("the number of vCPUs", vcpus))?,
            capacity: u32::try_from(capacity)
                .ok()
                .filter(|capacity| *capacity == expected)
                .ok_or(damaged("the capacity", capacity))?,
        };
        let eventfd = i32::try_from(eventfd).map_err(|_| damaged("the eventfd", eventfd))?;
        if size < geometry.bytes() {
            return Err(damaged("its size", size));
        }

        let mapping = map(geometry.words())?;
        let cursors = (0..geometry.vcpus)
            .filter_map(|vcpu| mapping.lane(geometry, vcpu))
            .map(|lane| {
                let head = lane.tail.load(Acquire);
                lane.head.store(head, Release);
                Cursor { head, dropped_before: lane.dropped.load(Relaxed), unreadable: 0 }
            })
            .collect();
        Ok(Consumer { mapping, geometry, eventfd, cursors })
    }

    /// Number of vCPUs that the VM can have.
    #[must_use]
    pub fn vcpus(&self) -> u16 {
        self.geometry.vcpus
    }

    /// Number of the wake-up eventfd *in the producer's process*. Unchecked: it may be any descriptor, or
    /// none.
    #[must_use]
    pub fn eventfd(&self) -> i32 {
        self.eventfd
    }

    /// The task that `vcpu` runs, or ran last if it is halted; `None` before its first switch.
    #[must_use]
    pub fn current_task(&self, vcpu: u16) -> Option<u64> {
        let lane = self.mapping.lane(self.geometry, vcpu)?;
        Some(lane.current.load(Relaxed)).filter(|task| *task != 0)
    }

    /// Where in the memfd the tasks of the vCPUs are.
    #[must_use]
    pub fn task_words(&self) -> TaskWords {
        self.geometry.task_words()
    }

    /// Asks for one wake-up at the next entry of `vcpu` that is of interest, in place of what was asked for
    /// before. Drain after arming, or what happened just before is missed.
    pub fn arm(&self, vcpu: u16, interest: Interest) {
        if let Some(lane) = self.mapping.lane(self.geometry, vcpu) {
            ask(&lane, interest);
        }
    }

    /// Withdraws [`arm`](Self::arm). A wake-up may already be under way.
    pub fn disarm(&self, vcpu: u16) {
        if let Some(lane) = self.mapping.lane(self.geometry, vcpu) {
            lane.armed.store(0, Relaxed);
        }
    }

    /// Gives the entries of `vcpu` since the last call to `each`, oldest first: at most as many as the lane
    /// holds, and at most `limit`. Of more, the oldest are lost.
    pub fn drain(&mut self, vcpu: u16, limit: usize, each: impl FnMut(Entry)) {
        let Some(lane) = self.mapping.lane(self.geometry, vcpu) else { return };
        let Some(cursor) = self.cursors.get_mut(usize::from(vcpu)) else { return };
        take(&lane, cursor, self.geometry, limit, each);
    }

    /// Entries of `vcpu` lost since attaching: dropped by the producer because the lane was full,
    /// unreadable, or beyond a limit.
    #[must_use]
    pub fn dropped(&self, vcpu: u16) -> u64 {
        let lane = self.mapping.lane(self.geometry, vcpu);
        let (Some(lane), Some(cursor)) = (lane, self.cursors.get(usize::from(vcpu))) else { return 0 };
        lane.dropped.load(Relaxed).wrapping_sub(cursor.dropped_before).saturating_add(cursor.unreadable)
    }
}

/// Asks for a wake-up. No system call, as in [`take`]: Miri looks at both.
pub(crate) fn ask(lane: &Lane<'_>, interest: Interest) {
    lane.armed.store(interest.bits(), Relaxed);
    // Pairs with the fence in `append`.
    fence(SeqCst);
}

/// Takes the new entries of a lane.
pub(crate) fn take(
    lane: &Lane<'_>,
    cursor: &mut Cursor,
    geometry: Geometry,
    limit: usize,
    mut each: impl FnMut(Entry),
) {
    // Acquire: the entries below the tail are written.
    let tail = lane.tail.load(Acquire);
    let new = tail.wrapping_sub(cursor.head);
    // More than fit, or a tail that went back: no honest producer does that.
    let readable = new.min(u64::from(geometry.capacity)).min(limit as u64);
    cursor.unreadable = cursor.unreadable.saturating_add(new - readable);
    for back in (1..=readable).rev() {
        let words = lane.entry(tail.wrapping_sub(back));
        match Entry::decode(words.each_ref().map(|word| word.load(Relaxed))) {
            Some(entry) => each(entry),
            None => cursor.unreadable = cursor.unreadable.saturating_add(1),
        }
    }
    cursor.head = tail;
    // Release: our reads of the slots come before the producer writes them again.
    lane.head.store(tail, Release);
}
