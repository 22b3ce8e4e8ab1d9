//! Memory that tells which task asks, written by whoever follows the VM's vCPUs.

use frontdesk_engine::TaskId;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;

/// Most vCPUs of a VM whose askers are told.
pub const MAX_VCPUS: u16 = 512;

/// What the kernel calls a BPF map that is an array.
const ARRAY: u64 = 2;

const WORD: u64 = size_of::<AtomicU64>() as u64;

/// Where the words of the vCPUs are: 64 bits each, in bytes from the beginning of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// That of vCPU 0: the task that it runs, or ran last; 0 if that is not known.
    pub current: u64,
    /// The same: the task that it ran when it last notified a disk.
    pub notified: u64,
    /// The same: how often it notified a disk, counted just before or after the disk hears of it.
    pub notifications: u64,
    /// From a vCPU to the next.
    pub stride: u64,
}

/// Why memory is refused.
#[derive(Debug, thiserror::Error)]
pub enum AskersError {
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// It could shrink while it is read, which would end who reads it.
    #[error("the memory is not sealed against shrinking")]
    NotSealed,
    /// The words are not in it.
    #[error("the words of {vcpus} vCPUs at {layout:?} are not in memory of {bytes} bytes, or not aligned")]
    Layout {
        /// vCPUs.
        vcpus: u16,
        /// Where they are said to be.
        layout: Layout,
        /// Bytes of the memory.
        bytes: u64,
    },
}

/// The memory, mapped for reading.
#[derive(Debug)]
pub struct AskersMemory {
    base: NonNull<AtomicU64>,
    bytes: usize,
    layout: Layout,
    vcpus: u16,
}

// SAFETY: the mapping belongs to no thread, and is only read, by atomics.
unsafe impl Send for AskersMemory {}
// SAFETY: as above.
unsafe impl Sync for AskersMemory {}

impl AskersMemory {
    /// Maps what the daemon sent.
    ///
    /// # Errors
    /// [`AskersError`] if it cannot be read safely.
    pub fn map(file: impl AsFd, vcpus: u16, layout: Layout) -> Result<AskersMemory, AskersError> {
        let size = size(file.as_fd())?;
        let end = end(vcpus, layout).filter(|end| *end <= size);
        let bytes = end.and_then(|end| usize::try_from(end).ok());
        let bytes = bytes.ok_or(AskersError::Layout { vcpus, layout, bytes: size })?;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
        let base = base.map_err(failed("mapping it"))?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM).map_err(failed("mapping it"))?;
        Ok(AskersMemory { base, bytes, layout, vcpus })
    }

    /// vCPUs of the VM.
    #[must_use]
    pub fn vcpus(&self) -> u16 {
        self.vcpus
    }

    /// The task that a vCPU runs, or ran last.
    #[must_use]
    pub fn current(&self, vcpu: u16) -> Option<TaskId> {
        self.task(self.layout.current, vcpu)
    }

    /// The task that a vCPU ran when it last notified a disk.
    #[must_use]
    pub fn notified(&self, vcpu: u16) -> Option<TaskId> {
        self.task(self.layout.notified, vcpu)
    }

    /// How often a vCPU notified a disk. One that has notified and is not counted yet runs what it ran then.
    #[must_use]
    pub fn notifications(&self, vcpu: u16) -> u64 {
        self.word(self.layout.notifications, vcpu).unwrap_or(0)
    }

    fn task(&self, first: u64, vcpu: u16) -> Option<TaskId> {
        self.word(first, vcpu).filter(|task| *task != 0).map(TaskId)
    }

    fn word(&self, first: u64, vcpu: u16) -> Option<u64> {
        if vcpu >= self.vcpus {
            return None;
        }
        // Looked at when it was mapped: it is inside, and aligned.
        let index = usize::try_from((first + self.layout.stride * u64::from(vcpu)) / WORD).ok()?;
        // SAFETY: `map` has checked that the words of all vCPUs are in the mapping, which is aligned to pages
        // and as long as `self`; the file cannot shrink. Others may write to it, which atomics allow.
        Some(unsafe { self.base.add(index).as_ref() }.load(Acquire))
    }
}

fn failed(what: &'static str) -> impl Fn(Errno) -> AskersError {
    move |errno| AskersError::System { what, source: errno.into() }
}

/// Bytes that are there for as long as it is mapped: of a file that cannot shrink, or of a BPF array, which
/// never changes its size.
fn size(memory: BorrowedFd<'_>) -> Result<u64, AskersError> {
    let seals = match fcntl_get_seals(memory) {
        Ok(seals) => seals,
        Err(errno) => {
            let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", memory.as_raw_fd()));
            let bytes = told.ok().and_then(|told| array_bytes(&told));
            return bytes.ok_or_else(|| failed("reading its seals")(errno));
        }
    };
    if !seals.contains(SealFlags::SHRINK) {
        return Err(AskersError::NotSealed);
    }
    let size = fstat(memory).map_err(failed("reading its size"))?.st_size;
    Ok(u64::try_from(size).unwrap_or(0))
}

/// Bytes of a BPF array of which the kernel tells this; `None` if it tells of something else.
fn array_bytes(told: &str) -> Option<u64> {
    let number = |what| {
        let line = told.lines().find_map(|line: &str| line.strip_prefix(what))?;
        line.strip_prefix(':')?.trim().parse::<u64>().ok()
    };
    if number("map_type")? != ARRAY {
        return None;
    }
    number("value_size")?.checked_next_multiple_of(WORD)?.checked_mul(number("max_entries")?)
}

/// Where the last word of all ends, if all have a place that can be.
fn end(vcpus: u16, layout: Layout) -> Option<u64> {
    let words = [layout.current, layout.notified, layout.notifications];
    let aligned = words.iter().chain([&layout.stride]).all(|at| at.is_multiple_of(WORD));
    let last = u64::from(vcpus.checked_sub(1).filter(|last| *last < MAX_VCPUS)?);
    let first = words.into_iter().max()?;
    let end = layout.stride.checked_mul(last)?.checked_add(first)?.checked_add(WORD)?;
    aligned.then_some(end)
}

impl Drop for AskersMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;

    fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("askers", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    const LAYOUT: Layout = Layout { current: 64, notified: 72, notifications: 80, stride: 128 };

    #[test]
    fn each_vcpu_has_its_words() {
        let file = File::from(memory(4096, SealFlags::SHRINK));
        for (at, task) in [(64, 7_u64), (72, 8), (192, 9)] {
            file.write_all_at(&task.to_ne_bytes(), at).unwrap();
        }
        let askers = AskersMemory::map(&file, 2, LAYOUT).unwrap();
        assert_eq!([0, 1, 2].map(|vcpu| askers.current(vcpu)), [Some(TaskId(7)), Some(TaskId(9)), None]);
        assert_eq!([0, 1].map(|vcpu| askers.notified(vcpu)), [Some(TaskId(8)), None]);
        assert_eq!(askers.notifications(1), 0);
        file.write_all_at(&3_u64.to_ne_bytes(), 208).unwrap();
        assert_eq!(askers.notifications(1), 3);
        file.write_all_at(&5_u64.to_ne_bytes(), 200).unwrap();
        assert_eq!(askers.notified(1), Some(TaskId(5)), "it is shared");
    }

    #[test]
    fn memory_that_can_shrink_is_too_small_or_none_is_refused() {
        let refused = |file: OwnedFd, vcpus, layout| AskersMemory::map(file, vcpus, layout).unwrap_err();
        assert!(matches!(refused(memory(4096, SealFlags::GROW), 1, LAYOUT), AskersError::NotSealed));
        let sealed = || memory(200, SealFlags::SHRINK);
        AskersMemory::map(sealed(), 1, LAYOUT).unwrap();
        let odd = |change: fn(&mut Layout)| {
            let mut layout = LAYOUT;
            change(&mut layout);
            layout
        };
        for (vcpus, layout) in [
            (0, LAYOUT),
            (2, odd(|layout| layout.stride = 136)),
            (1, odd(|layout| layout.notifications = 196)),
            (MAX_VCPUS + 1, odd(|layout| layout.stride = 0)),
            (1, odd(|layout| layout.current = 65)),
            (1, odd(|layout| layout.notified = 200)),
            (3, odd(|layout| layout.stride = u64::MAX - 7)),
            (1, odd(|layout| layout.current = u64::MAX - 7)),
        ] {
            let error = refused(sealed(), vcpus, layout);
            assert!(matches!(error, AskersError::Layout { .. }), "{vcpus} {layout:?}: {error}");
        }
        let pipe = rustix::pipe::pipe().unwrap().0;
        assert!(matches!(refused(pipe, 1, LAYOUT), AskersError::System { .. }));
    }

    #[test]
    fn of_bpf_maps_arrays_have_a_size() {
        let told = |kind, value, entries| {
            format!(
                "pos:\t0\nmap_type:\t{kind}\nkey_size:\t4\nvalue_size:\t{value}\nmax_entries:\t{entries}\n"
            )
        };
        assert_eq!(array_bytes(&told(2, 64, 512)), Some(64 * 512));
        assert_eq!(array_bytes(&told(2, 20, 3)), Some(24 * 3), "each begins at a word");
        assert_eq!(array_bytes(&told(1, 64, 512)), None, "a hash table");
        assert_eq!(array_bytes(&told(2, u64::MAX, 512)), None);
        assert_eq!(array_bytes("pos:\t0\nmap_type:\t2\n"), None);
        assert_eq!(array_bytes("pos:\t0\nflags:\t02\n"), None, "a file");
    }
}
