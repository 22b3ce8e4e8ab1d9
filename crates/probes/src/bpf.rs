//! The kernel as a source of events: scheduling of followed threads, packets towards followed taps, reads of
//! followed VMs' disks, what changes on their displays and what a person does there, heard by eBPF programs
//! that filter in the kernel.
//!
//! # Reads
//! Two probes on QEMU's own accounting functions (`block_acct_start`, `block_acct_done` and
//! `block_acct_failed`) tell which read begins and which ends (TAVS §3.3.1). Every disk device of QEMU calls
//! them once for each request of the guest, whatever the disk is stored in and however that is read, they
//! have been the same for many years, and QEMU exports them because its modules need them. A third sign comes
//! earlier than the end: a thread of the I/O path that is woken while reads are in flight is about to end
//! one.
//!
//! The other places to look are not as good. QEMU's virtio-blk traces are text, have to be switched on in
//! each VM, and can block QEMU when nobody reads them. The plugin sees neither requests (a write to memory)
//! nor their end. The kernel's block events know nothing of what the host's page cache answers, nor of remote
//! storage, nor of the guest's requests.
//!
//! A probe costs the VM that reads a trap when a read begins and when it ends, and a record for each, some of
//! which wake the daemon: some 3 % of the throughput of a VM that does nothing but read at 20 MB/s
//! (`scenarios/tavs/hackbench.toml`; what it measures is in `docs/results/tavs.md`).
//!
//! # Displays
//! A probe on `dpy_gfx_update`, which every display device of QEMU calls with the rectangle that it has
//! drawn, tells a VM's frames (MM §5.1.1), whoever looks at them. One on `virtio_gpu_ctrl_response` tells
//! what a virtio-gpu has completed (MM §5.1.2), also where the picture itself does not pass through QEMU. A
//! hit takes some ten microseconds.
//!
//! # Input
//! A probe on `qemu_input_event_send_impl`, through which every key and button comes to a guest's devices,
//! tells that a person does something (vAMP §3.1.2): whether it is Enter, another key or a button, and
//! nothing more of what is typed. QEMU exports it, and what it is called with is described by its interface
//! to management (`qapi/ui.json`), the same from 7.2 to 10.0. Motions of the mouse end in the kernel.

pub(crate) mod abi;
mod others;
mod probe;
mod process;
mod skeleton;

pub use probe::{PROGRAMS, probe, probe_functions};
pub use process::{GPU_MODULE, Heard, Probes, QemuProbes};

use crate::BpfError;
use crate::channel::{Channel, Maps};
use crate::error::{advice, chain, refusal};
use crate::libbpf::{keep, setup, silence_libbpf};
use crate::packet::{self, MAX_TAPS};
use abi::Counter;
use frontdesk_engine::{Event, EventKind, Thread, VmId};
use frontdesk_linux::Tap;
use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, OpenObject,
    skel::{OpenSkel as _, SkelBuilder as _},
};
use others::Others;
use probe::first_refused;
use process::Programs;
use skeleton::FrontdeskSkelBuilder;
use std::{collections::HashMap, mem::MaybeUninit, os::fd::BorrowedFd, sync::Arc};

/// What the programs have counted since they were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BpfStats {
    /// Packets transmitted towards followed VMs.
    pub packets: u64,
    /// Of these, pushed as events.
    pub pushed: u64,
    /// Of the pushed ones, those that woke the reader.
    pub woken: u64,
    /// TCP segments that no task waits for, where they do not [count](BpfSource::count_acknowledgements):
    /// pure acknowledgements and handshakes.
    pub no_payload: u64,
    /// Neither TCP nor UDP, a later fragment, or with headers outside the packet's linear part.
    pub other: u64,
    /// Held back by the flood guard: beyond 16 packets of a tap, updates of a display, or keys and buttons of
    /// a VM, within a millisecond.
    pub suppressed: u64,
    /// Records of any kind lost because the ring was full, or their VM had more to say of its threads than
    /// 256 records in a millisecond.
    pub lost: u64,
    /// Reads of followed VMs that ended.
    pub reads: u64,
    /// Updates of followed VMs' displays.
    pub updates: u64,
}

/// Loaded and attached BPF programs.
///
/// The state of a thread becomes known at its next switch: a thread that already runs when it is followed is
/// first heard of when it stops.
///
/// Thread ids are those of the initial pid namespace. The programs detach when this value is dropped or its
/// process dies.
pub struct BpfSource {
    channel: Channel,
    threads: MapHandle,
    taps: MapHandle,
    acknowledgements: MapHandle,
    processes: MapHandle,
    budgets: MapHandle,
    others: Others,
    followed: HashMap<VmId, MapKeys>,
    _links: Vec<Link>,
    programs: Arc<Programs>,
}

/// What is in the maps for one VM.
#[derive(Default)]
struct MapKeys {
    tids: Vec<[u8; 4]>,
    taps: Vec<[u8; 20]>,
    process: Option<[u8; 4]>,
    probes: Option<Probes>,
}

impl BpfSource {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// [`BpfError::Program`] names the program that was refused and what the host seems to lack: privilege,
    /// type information (BTF), a tracepoint, or freedom from lockdown.
    pub fn open() -> Result<BpfSource, BpfError> {
        silence_libbpf();
        // The probes are attached when a VM is followed, so the programs must stay; what they borrow is some
        // bytes that are not worth a self-referential struct.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let open = FrontdeskSkelBuilder::default().open(storage).map_err(setup("open the BPF object"))?;
        let skel = match open.load() {
            Ok(skel) => skel,
            // Which program was it? Only loading them one by one tells.
            Err(e) => return Err(first_refused().unwrap_or_else(|| setup("load the BPF object")(e))),
        };
        let mut links = Vec::new();
        let programs = &skel.progs;
        // Who wakes a thread is to be known before it is told that it was woken.
        let traced = [
            &programs.on_switch,
            &programs.on_waking,
            &programs.on_wakeup,
            &programs.on_transmit,
            &programs.on_receive,
        ];
        for (&(program, _), code) in PROGRAMS.iter().zip(traced) {
            links.push(code.attach_trace().map_err(|e| BpfError::Program {
                program,
                cause: chain(&e),
                advice: advice(),
            })?);
        }
        let maps = &skel.maps;
        let channel = Maps { ring: &maps.ring, lost: &maps.lost, counters: &maps.counters };
        let channel = Channel::open(&channel, abi::decode, Counter::Lost as u32)?;
        Ok(BpfSource {
            channel,
            threads: keep(&maps.threads)?,
            taps: keep(&maps.taps)?,
            acknowledgements: keep(&maps.acknowledgements)?,
            processes: keep(&maps.processes)?,
            budgets: keep(&maps.budgets)?,
            others: Others::new(keep(&maps.others)?),
            followed: HashMap::new(),
            _links: links,
            programs: Arc::new(Programs(skel)),
        })
    }

    /// From now on TCP segments without payload count as packets, too (TAVS §4.3.2), or do not; at first they
    /// do not.
    ///
    /// # Errors
    /// If the map cannot be written, which no working kernel makes happen.
    pub fn count_acknowledgements(&self, count: bool) -> Result<(), BpfError> {
        let value = u32::from(count).to_ne_bytes();
        let update = self.acknowledgements.update(&[0; 4], &value, MapFlags::ANY);
        update.map_err(setup("say which packets count"))
    }

    /// Follows a VM's threads (by thread id) and taps. A VM that is followed already is followed afresh.
    /// Returns what it goes on without: taps that another VM has, beyond [`MAX_TAPS`], or for which there is
    /// no room. A process may say that it has any.
    ///
    /// # Errors
    /// If an id is impossible, is followed for another VM, or does not fit in (16384 threads, 1024 VMs). The
    /// VM is then not followed at all.
    pub fn follow(
        &mut self,
        vm: VmId,
        threads: &[(i32, Thread)],
        taps: &[Tap],
    ) -> Result<Vec<BpfError>, BpfError> {
        self.unfollow(vm);
        self.refollow(vm, threads, taps)
    }

    fn insert(
        &mut self,
        vm: VmId,
        threads: &[(i32, Thread)],
        taps: &[Tap],
    ) -> Result<Vec<BpfError>, BpfError> {
        let fail = |what: String, cause: String| BpfError::Follow { vm, what, cause };
        let entry = self.followed.entry(vm).or_default();
        self.channel.follow(vm)?;
        self.budgets
            .update(&vm.0.to_ne_bytes(), &0_u64.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| fail("the budget".to_owned(), refusal(&e, "1024 VMs")))?;
        for &(tid, thread) in threads {
            let what = || format!("thread {tid} ({thread:?})");
            let key = u32::try_from(tid).ok().filter(|&tid| tid > 0);
            let key = key.ok_or_else(|| fail(what(), "no such thread id".into()))?.to_ne_bytes();
            self.threads
                .update(&key, &abi::thread_value(vm, thread), MapFlags::NO_EXIST)
                .map_err(|e| fail(what(), refusal(&e, "16384 threads")))?;
            entry.tids.push(key);
        }
        let mut left_out = Vec::new();
        for (index, tap) in taps.iter().enumerate() {
            let inserted = match packet::tap_key(tap.netns, &tap.ifname) {
                None => Err(format!("a name has 1 to {} bytes", packet::NAME_MAX)),
                Some(_) if index >= MAX_TAPS => Err(format!("a VM has {MAX_TAPS} at most")),
                Some(key) => self
                    .taps
                    .update(&key, &abi::tap_value(vm), MapFlags::NO_EXIST)
                    .map(|()| entry.taps.push(key))
                    .map_err(|e| refusal(&e, "4096 taps")),
            };
            if let Err(cause) = inserted {
                left_out.push(fail(format!("tap {:?}", tap.ifname), cause));
            }
        }
        Ok(left_out)
    }

    /// Follows other threads and taps of a VM from now on, keeping its probes. One that is not followed is
    /// followed from now on.
    ///
    /// # Errors
    /// As [`BpfSource::follow`]; the VM is then not followed at all.
    pub fn refollow(
        &mut self,
        vm: VmId,
        threads: &[(i32, Thread)],
        taps: &[Tap],
    ) -> Result<Vec<BpfError>, BpfError> {
        if let Some(entry) = self.followed.get_mut(&vm) {
            entry.tids.drain(..).for_each(|key| drop(self.threads.delete(&key)));
            entry.taps.drain(..).for_each(|key| drop(self.taps.delete(&key)));
        }
        let result = self.insert(vm, threads, taps);
        if result.is_err() {
            self.unfollow(vm);
        }
        result
    }

    /// Counts what the process of a VM's QEMU runs in threads that are not followed one by one: those that
    /// there are and those that it starts, as many as there may be.
    ///
    /// # Errors
    /// If the process is another VM's, or there are too many.
    pub fn count_others(&mut self, vm: VmId, pid: i32) -> Result<(), BpfError> {
        self.others.open(vm, pid)
    }

    /// Appends what they ran since the last call, as [`EventKind::OthersRan`]: for each VM one for each CPU,
    /// at most. A system call for each VM.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn take_others(&mut self, out: &mut Vec<EventKind>) -> Result<(), BpfError> {
        self.others.take(out)
    }

    /// What sets the probes that disk reads and displays need.
    #[must_use]
    pub fn qemu_probes(&self) -> QemuProbes {
        QemuProbes(Arc::clone(&self.programs))
    }

    /// Follows what the probes in its QEMU `pid` hear of a VM, too, that is followed already.
    ///
    /// # Errors
    /// If the VM is not followed, or there are too many. It goes on without that.
    pub fn follow_process(&mut self, vm: VmId, pid: i32, probes: Probes) -> Result<(), BpfError> {
        let fail = |what: &str, cause: String| BpfError::Follow { vm, what: what.to_owned(), cause };
        let Some(entry) = self.followed.get_mut(&vm) else {
            probes.drop_elsewhere();
            return Err(fail("the process", "the VM is not followed".to_owned()));
        };
        if entry.probes.is_some() {
            probes.drop_elsewhere();
            return Ok(());
        }
        let key = pid.to_ne_bytes();
        self.processes
            .update(&key, &abi::process_value(vm), MapFlags::NO_EXIST)
            .map_err(|e| fail("the process", refusal(&e, "1024 VMs")))?;
        entry.process = Some(key);
        entry.probes = Some(probes);
        Ok(())
    }

    /// Stops following a VM. One that is not followed is no error. Events heard before are still drained.
    pub fn unfollow(&mut self, vm: VmId) {
        self.others.close(vm);
        let Some(gone) = self.followed.remove(&vm) else { return };
        gone.probes.into_iter().for_each(Probes::drop_elsewhere);
        // Deleting fails only for what is not there.
        for key in gone.tids {
            let _ = self.threads.delete(&key);
        }
        for key in gone.taps {
            let _ = self.taps.delete(&key);
        }
        if let Some(key) = gone.process {
            let _ = self.processes.delete(&key);
        }
        let _ = self.budgets.delete(&vm.0.to_ne_bytes());
        self.channel.unfollow(vm);
    }

    /// Becomes readable when a packet towards a VM needs attention or the ring gets half full; scheduling
    /// events alone wake nobody.
    ///
    /// Register it edge-triggered (`EPOLLET`): in level-triggered mode every scheduling event that is still
    /// unread would count as readable and the reader would hardly sleep.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Appends all events heard so far, in the order they were pushed. Never blocks.
    ///
    /// # Errors
    /// If the ring cannot be read, which no working kernel makes happen.
    pub fn drain(&mut self, out: &mut Vec<Event>) -> Result<(), BpfError> {
        self.channel.drain(out)
    }

    /// Events lost since the last call, per followed VM, because the ring was full or the VM had too much to
    /// say of its threads. One system call if there are none.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn take_lost(&mut self) -> Result<Vec<(VmId, u64)>, BpfError> {
        self.channel.take_lost()
    }

    /// What the programs have counted.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn stats(&self) -> Result<BpfStats, BpfError> {
        let read = |which: Counter| self.channel.counter(which as u32);
        Ok(BpfStats {
            packets: read(Counter::Packets)?,
            pushed: read(Counter::Pushed)?,
            woken: read(Counter::Woken)?,
            no_payload: read(Counter::NoPayload)?,
            other: read(Counter::Other)?,
            suppressed: read(Counter::Suppressed)?,
            lost: read(Counter::Lost)?,
            reads: read(Counter::Reads)?,
            updates: read(Counter::Updates)?,
        })
    }
}
