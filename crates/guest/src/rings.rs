//! The kernel's rings of task switches, one for each CPU.

use crate::tracepoint::{SchedSwitch, Switch};
use perf_event::events::Tracepoint;
use perf_event::{Builder, Clock, Counter, SampleFlag, Sampler};
use perf_event_open_sys::ioctls;
use rustix::io::Errno;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Bytes of a ring, enough for 600 switches. A user may lock 516 KiB for each CPU without further rights.
const RING: usize = 64 << 10;

/// Why there are no rings.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RingError {
    #[error(
        "the kernel does not let this process watch task switches: run it as root, or with the capability CAP_PERFMON \
         (`kernel.perf_event_paranoid` at -1 would do, too)"
    )]
    Denied,
    #[error("cannot watch the task switches of CPU {cpu}: {what}: {source}")]
    Kernel { cpu: u16, what: &'static str, source: io::Error },
}

/// What a ring holds.
pub(crate) enum PerfRecord {
    /// A task switch.
    Switch {
        /// When: `CLOCK_MONOTONIC_RAW`, in nanoseconds.
        at_ns: u64,
        switch: Switch,
    },
    /// The ring was full.
    Lost(u32),
}

/// The ring of a CPU.
///
/// This process runs whenever it is woken, which are two task switches more, and would wake itself without
/// end if it were woken for those. So nobody is told of a switch *to* this process, and where each switch
/// wakes it, one *from* it goes to the same ring but wakes nobody: it tells something only if another task
/// runs afterwards than before.
pub(crate) struct Ring {
    cpu: u16,
    waking: Sampler,
    /// Only to be kept open.
    _silent: Option<Counter>,
}

impl Ring {
    /// Begins to watch `cpu`. Whoever waits is woken `at_once`, which costs whoever is switched to an
    /// interrupt; or else when the ring is half full. Then switches from this process need no counter of
    /// their own, which would look at each switch as well.
    pub(crate) fn open(cpu: u16, tracepoint: &SchedSwitch, at_once: bool) -> Result<Ring, RingError> {
        let failed = |what| {
            move |source: io::Error| match source.kind() {
                io::ErrorKind::PermissionDenied => RingError::Denied,
                _ => RingError::Kernel { cpu, what, source },
            }
        };
        let mut builder = Builder::new(Tracepoint::with_id(tracepoint.id));
        builder
            .any_pid()
            .one_cpu(cpu.into())
            .include_kernel()
            .include_hv()
            .sample_period(1)
            .sample(SampleFlag::TIME | SampleFlag::RAW)
            .clockid(Clock::MONOTONIC_RAW);
        let own = rustix::thread::gettid().as_raw_nonzero();
        let mut silent = None;
        let mut filter = format!("next_pid != {own}");
        if at_once {
            let counter = builder.build().map_err(failed("perf_event_open"))?;
            set_filter(&counter, &format!("prev_pid == {own}")).map_err(failed("filter"))?;
            silent = Some(counter);
            filter = format!("prev_pid != {own} && {filter}");
            builder.wakeup_events(1);
        }
        let waking = builder.build().map_err(failed("perf_event_open"))?;
        set_filter(&waking, &filter).map_err(failed("filter"))?;
        let mut waking = waking.sampled(RING).map_err(failed("mapping the ring"))?;
        waking.enable().map_err(failed("enabling"))?;
        if let Some(silent) = &mut silent {
            set_output(silent, &waking).map_err(failed("sharing the ring"))?;
            silent.enable().map_err(failed("enabling"))?;
        }
        Ok(Ring { cpu, waking, _silent: silent })
    }

    /// The CPU.
    pub(crate) fn cpu(&self) -> u16 {
        self.cpu
    }

    /// Hands out what is in the ring, oldest first, but not more than it held at some time.
    pub(crate) fn drain(&mut self, tracepoint: &SchedSwitch, mut take: impl FnMut(PerfRecord)) {
        // A record has at least 16 bytes.
        for _ in 0..RING / 16 {
            let Some(record) = self.waking.next_record() else { return };
            if let Some(entry) = decode(record.ty(), &record.to_contiguous(), tracepoint) {
                take(entry);
            }
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor stays open as long as the ring is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.waking.as_raw_fd()) }
    }
}

// Types of records in the ring, of enum perf_event_type.
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;

/// Reads a record: a sample is its time, the size of the tracepoint's record, and that record.
fn decode(kind: u32, record: &[u8], tracepoint: &SchedSwitch) -> Option<PerfRecord> {
    let (first, rest) = record.split_first_chunk()?;
    match kind {
        PERF_RECORD_SAMPLE => {
            let (size, raw) = rest.split_first_chunk()?;
            let raw = raw.get(..usize::try_from(u32::from_ne_bytes(*size)).ok()?)?;
            Some(PerfRecord::Switch { at_ns: u64::from_ne_bytes(*first), switch: tracepoint.decode(raw)? })
        }
        PERF_RECORD_LOST => {
            let count = u64::from_ne_bytes(*rest.first_chunk()?);
            Some(PerfRecord::Lost(u32::try_from(count).unwrap_or(u32::MAX)))
        }
        _ => None,
    }
}

/// Lets the kernel record only what passes `filter`.
fn set_filter(counter: &Counter, filter: &str) -> io::Result<()> {
    let filter = CString::new(filter)?;
    // SAFETY: the descriptor is open, and the kernel only reads the string, which ends with a zero.
    check(unsafe { ioctls::SET_FILTER(counter.as_raw_fd(), filter.as_ptr().cast_mut()) })
}

/// Lets what `counter` records go to the ring of `sampler`.
fn set_output(counter: &Counter, sampler: &Sampler) -> io::Result<()> {
    // SAFETY: both descriptors are open. The kernel keeps the ring while it needs it.
    check(unsafe { ioctls::SET_OUTPUT(counter.as_raw_fd(), sampler.as_raw_fd()) })
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The CPUs that are online.
pub(crate) fn cpus() -> io::Result<Vec<u16>> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_cpus(list.trim()).ok_or_else(|| io::Error::other(Errno::INVAL))
}

/// A list like `0-3,6`.
fn parse_cpus(list: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_cpus("0").unwrap(), [0]);
        assert_eq!(parse_cpus("0-2,6,8-9").unwrap(), [0, 1, 2, 6, 8, 9]);
        assert_eq!(parse_cpus(""), None);
        assert_eq!(parse_cpus("0-x"), None);
    }
}
