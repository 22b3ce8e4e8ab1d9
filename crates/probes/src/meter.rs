//! How much each member has run, read from memory that the BPF programs keep (`bpf/reserve.bpf.c`).

mod skeleton;

use crate::BpfError;
use crate::error::{advice, chain};
use crate::libbpf::silence_libbpf;
use frontdesk_engine::Time;
use frontdesk_engine::reservation::Reading;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, MapType, OpenObject, RingBuffer, RingBufferBuilder,
};
use skeleton::{ReserveSkel, ReserveSkelBuilder};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

/// Slots there are (`SLOTS`).
pub const SLOTS: usize = 1024;
/// CPUs that can have a dispatcher (`CPUS`).
const CPUS: usize = 1024;

/// Where the BPF programs count for one member (`struct slot`).
#[repr(C, align(64))]
struct Slot {
    ran: AtomicU64,
    since: AtomicU64,
    woken: AtomicU64,
    ready: AtomicU64,
    ends: AtomicU64,
    late: AtomicU64,
    family: AtomicU64,
    cpu: AtomicU64,
}

/// The loaded programs and their memory.
struct Loaded(ReserveSkel<'static>);

// SAFETY: once loaded, the object is not changed any more; what is used of it from several threads is the
// memory behind its maps, as atomics, and their descriptors.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// The memory shared with the BPF programs.
#[derive(Clone)]
pub struct Slots(Arc<Loaded>);

impl Slots {
    fn slot(&self, index: usize) -> Option<&Slot> {
        let bss = self.0.0.maps.bss_data.as_deref()?;
        // SAFETY: `slots` in `bpf/reserve.bpf.c` is an array of SLOTS structures of eight 64-bit numbers,
        // aligned to 64 bytes, mapped as long as `self.0` lives, and changed by others only as whole numbers.
        let slots: &[Slot; SLOTS] = unsafe { &*std::ptr::from_ref(&bss.slots).cast() };
        slots.get(index)
    }

    /// What a member has done so far.
    #[must_use]
    pub fn read(&self, index: usize, now: Time) -> Reading {
        let Some(slot) = self.slot(index) else { return Reading::default() };
        let mut since = slot.since.load(Ordering::Acquire);
        let mut ran = slot.ran.load(Ordering::Acquire);
        // A switch in between changes both; it does not happen twice in a few nanoseconds.
        let again = slot.since.load(Ordering::Acquire);
        if again != since {
            (since, ran) = (again, slot.ran.load(Ordering::Acquire));
        }
        let running = if since == 0 { 0 } else { now.since(Time(since)) };
        Reading {
            ran_ns: ran.saturating_add(running),
            ready: since != 0 || slot.ready.load(Ordering::Relaxed) != 0,
            woken: Time(slot.woken.load(Ordering::Relaxed)),
        }
    }

    /// CPU time at which the slice of a member ends, as told last.
    #[must_use]
    pub fn ends(&self, index: usize) -> u64 {
        self.slot(index).map_or(0, |slot| slot.ends.load(Ordering::Relaxed))
    }

    /// Tells the programs when the slice of a member ends, in its CPU time (0: it has none), and after when
    /// its waking up matters (0: never).
    pub fn tell(&self, index: usize, ends: u64, late: u64) {
        if let Some(slot) = self.slot(index) {
            slot.ends.store(ends, Ordering::Relaxed);
            slot.late.store(late, Ordering::Relaxed);
        }
    }

    /// Makes a slot ready for another member; `family` if processes that it starts belong to it, too.
    pub fn open(&self, index: usize, ready: bool, family: bool) {
        let Some(slot) = self.slot(index) else { return };
        for field in [&slot.ran, &slot.since, &slot.woken, &slot.ends, &slot.late] {
            field.store(0, Ordering::Relaxed);
        }
        slot.ready.store(ready.into(), Ordering::Relaxed);
        slot.family.store(family.into(), Ordering::Release);
    }

    /// Tells the programs whose dispatcher decides about a member.
    pub fn place(&self, index: usize, cpu: u16) {
        if let Some(slot) = self.slot(index) {
            slot.cpu.store(cpu.into(), Ordering::Relaxed);
        }
    }

    /// Tells the programs when the dispatcher of a CPU plans its next decision: whatever makes one due before
    /// wakes it.
    pub fn arm(&self, cpu: u16, at: Time) {
        let Some(bss) = self.0.0.maps.bss_data.as_deref() else { return };
        // SAFETY: `armed` is an array of CPUS aligned 64-bit numbers, changed by others only as a whole.
        let armed: &[AtomicU64; CPUS] = unsafe { &*std::ptr::from_ref(&bss.armed).cast() };
        if let Some(armed) = armed.get(usize::from(cpu)) {
            armed.store(at.0, Ordering::Release);
        }
    }
}

/// A thread that came into being as a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// Its process.
    pub pid: i32,
    /// Its thread id.
    pub tid: i32,
    /// The slot of its member.
    pub slot: usize,
}

impl Birth {
    /// From a record of the ring (struct birth), or `None` if it is none.
    pub(crate) fn decode(record: &[u8]) -> Option<Birth> {
        let word = |at: usize| record.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        Some(Birth {
            pid: i32::try_from(word(0)?).ok()?,
            tid: i32::try_from(word(4)?).ok()?,
            slot: usize::try_from(word(8)?).ok()?,
        })
    }
}

/// What wakes its owner when something comes in, and forgets or keeps it.
pub struct Ring {
    ring: RingBuffer<'static>,
    map: MapHandle,
}

impl Ring {
    /// Readable when there is something in it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Takes what is in it. Never waits.
    pub fn drain(&self) {
        // It fails only when interrupted, and is drained the next time.
        let _ = self.ring.consume();
    }
}

// SAFETY: a ring is used by one thread at a time: it is moved to the thread that reads it before its first
// use.
unsafe impl Send for Ring {}

/// The BPF programs, attached.
pub struct MemberMeter {
    /// What was counted.
    pub slots: Slots,
    members: MapHandle,
    _links: Vec<Link>,
}

/// What the meter tells its users of: decisions that are due, each on its CPU, and births.
pub struct MeterEvents {
    /// Readable when a decision is due before it was planned.
    pub kicks: BTreeMap<u16, Ring>,
    /// Makes [`Self::born`] hear of births when it is drained.
    pub births: Ring,
    /// Births.
    pub born: Receiver<Birth>,
}

impl MemberMeter {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// The kernel refuses, and why.
    pub fn open(cpus: &[u16]) -> Result<(MemberMeter, MeterEvents), BpfError> {
        silence_libbpf();
        let setup =
            |step| move |e: libbpf_rs::Error| BpfError::Setup { step, cause: chain(&e), advice: advice() };
        let skel = load(true).or_else(|_| load(false)).map_err(setup("load the meter of reservations"))?;
        let all = MapHandle::try_from(&skel.maps.kicks).map_err(setup("keep a map of the meter open"))?;
        let kicks = cpus.iter().map(|cpu| Ok((*cpu, kicks(&all, *cpu)?))).collect::<Result<_, _>>();
        let kicks = kicks.map_err(setup("make the rings of the meter"))?;
        let attach = |program: &libbpf_rs::ProgramMut<'_>| {
            program.attach_trace().map_err(setup("attach the meter of reservations"))
        };
        let programs = &skel.progs;
        let mut links = vec![
            attach(&programs.on_switch)?,
            attach(&programs.on_wakeup)?,
            attach(&programs.on_birth)?,
            attach(&programs.on_exit)?,
        ];
        if programs.on_switched.autoload() {
            links.push(attach(&programs.on_switched)?);
        }
        let keep = |map| MapHandle::try_from(map).map_err(setup("keep a map of the meter open"));
        let (members, births) = (keep(&skel.maps.members)?, keep(&skel.maps.births)?);
        // As many as the ring holds; more would not fit there either.
        let (sender, born) = sync_channel(4096);
        let decode = move |record: &[u8]| {
            if let Some(birth) = Birth::decode(record) {
                // What does not fit is found by the next look at the target's threads.
                let _ = sender.try_send(birth);
            }
        };
        let births = ring(births, decode).map_err(setup("map a ring of the meter"))?;
        let slots = Slots(Arc::new(Loaded(skel)));
        Ok((MemberMeter { slots, members, _links: links }, MeterEvents { kicks, births, born }))
    }

    /// Counts a thread for the member with this slot.
    ///
    /// # Errors
    /// There are too many.
    pub fn add(&self, tid: i32, slot: usize) -> Result<(), BpfError> {
        let value = u32::try_from(slot).unwrap_or(u32::MAX).to_ne_bytes();
        self.members.update(&tid.to_ne_bytes(), &value, MapFlags::ANY).map_err(|e| BpfError::Setup {
            step: "measure another thread for a reservation",
            cause: chain(&e),
            advice: "at most 16384 threads can have reservations".into(),
        })
    }

    /// Counts a thread no more.
    pub fn remove(&self, tid: i32) {
        // It fails only for what is not there: one that ended is forgotten at once.
        let _ = self.members.delete(&tid.to_ne_bytes());
    }
}

/// Makes what wakes the dispatcher of a CPU. The kernel waits until all CPUs have passed by, so it is done
/// before any is full of reservations.
fn kicks(all: &MapHandle, cpu: u16) -> Result<Ring, libbpf_rs::Error> {
    let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::RingBuf, Some("kicks"), 0, 0, 4096, &opts)?;
    let fd = map.as_fd().as_raw_fd().to_ne_bytes();
    all.update(&u32::from(cpu).to_ne_bytes(), &fd, MapFlags::ANY)?;
    ring(map, |_| {})
}

/// Loads the programs, `after_switches` as well or without the one for that, which older kernels have no
/// place for.
fn load(after_switches: bool) -> Result<ReserveSkel<'static>, libbpf_rs::Error> {
    // At most twice per run of the daemon, some bytes that are not worth a self-referential struct.
    let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = ReserveSkelBuilder::default().open(storage)?;
    open.progs.on_switched.set_autoload(after_switches);
    open.load()
}

fn ring(map: MapHandle, mut take: impl FnMut(&[u8]) + 'static) -> Result<Ring, libbpf_rs::Error> {
    let mut builder = RingBufferBuilder::new();
    builder.add(&map, move |record| {
        take(record);
        0
    })?;
    let ring = builder.build()?;
    Ok(Ring { ring, map })
}
