//! KVM as a source of events: which guest task a vCPU runs, told by the address space (CR3) that the guest
//! has loaded, when the vCPU halts, and which interrupts the vCPUs of a VM take and send each other. Heard by
//! eBPF programs; nothing in the guest or its QEMU changes.
//!
//! # When can CR3 be seen?
//! It depends on the processor, and on how KVM virtualises the guest's memory; see `docs/identity.md`. Where
//! the guest's load of CR3 is KVM's to do ([`Method::Trap`]), every switch is seen. Elsewhere the guest loads
//! it by itself, and what it has loaded is seen at moments only: whenever it leaves for KVM
//! ([`Method::Exit`]), or whenever its thread loses the CPU ([`Method::Switch`]). Such events are
//! [`TaskSeen`](frontdesk_engine::EventKind::TaskSeen): switches between two moments are missed. They come
//! again while the same task is seen, though not more often than every 0.1 ms.
//!
//! # Interrupts
//! KVM's tracepoints tell which vCPU's controller accepts an interrupt, by the vCPU's number, and when it is
//! injected into the guest. One that is accepted in the thread of a vCPU, while KVM carries out that vCPU's
//! command to send its vector, was sent by it: whom it goes to need not be decoded. The numbers are KVM's,
//! given by QEMU: those of the interrupt controllers, which are the indices of the vCPUs in simple topologies
//! only. Each vCPU's is read from KVM's own state when its thread enters the guest. Of VMs with one vCPU
//! interrupts are not told. Nor are those that the processor delivers by itself (AVIC, APICv).

pub(crate) mod abi;
mod btf;
mod host;
mod layout;
mod method;
mod skeleton;

pub use method::{Interrupts, KvmError, Method};

use crate::BpfError;
use crate::channel::{Channel, Maps};
use crate::error::{advice, chain, refusal};
use crate::libbpf::{keep, setup, silence_libbpf};
use abi::Counter;
use frontdesk_engine::{Event, VmId};
use frontdesk_ring::Interest;
use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, OpenObject,
    skel::{OpenSkel as _, Skel as _, SkelBuilder as _},
};
use skeleton::{KvmSkel, KvmSkelBuilder};
use std::{collections::HashMap, mem::MaybeUninit, os::fd::BorrowedFd};

/// The BPF programs that tell interrupts, with any method.
const INTERRUPTS: [&str; 5] = ["on_accept", "on_entry", "on_hypercall", "on_interrupt", "on_ipi"];

/// What the programs have counted since they were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvmStats {
    /// Events pushed.
    pub pushed: u64,
    /// Held back by the flood guard: beyond 16 of a vCPU's tasks, or of its interrupts, within a millisecond.
    pub suppressed: u64,
    /// Lost because the ring was full.
    pub lost: u64,
}

/// Loaded and attached BPF programs.
///
/// The task of a vCPU becomes known at the first moment at which its CR3 is seen. Thread ids are those of the
/// initial pid namespace. The programs detach when this value is dropped or its process dies; until then the
/// kernel keeps KVM's modules loaded.
pub struct KvmSource {
    method: Method,
    tells_interrupts: bool,
    channel: Channel,
    vcpus: MapHandle,
    by_id: MapHandle,
    armed: MapHandle,
    followed: HashMap<VmId, VcpuKeys>,
    _links: Vec<Link>,
}

/// What is in the maps for one VM.
#[derive(Default)]
struct VcpuKeys {
    /// Thread ids, by index of the vCPU.
    vcpus: Vec<(u16, [u8; 4])>,
}

impl KvmSource {
    /// Loads and attaches the programs of the best method that this host allows, but for
    /// [`Method::Exit`] unless guests are to be looked at at their `exits`.
    ///
    /// # Errors
    /// [`KvmError`] says what the host lacks.
    pub fn open(exits: bool) -> Result<KvmSource, KvmError> {
        best(exits, KvmSource::with)
    }

    /// Loads and attaches the programs of a method, whether this host's guests show their CR3 that way or
    /// not, and those that tell interrupts, if the kernel takes them.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses the method's.
    pub fn with(method: Method) -> Result<KvmSource, BpfError> {
        KvmSource::load(method, true).or_else(|refusal| {
            let source = KvmSource::load(method, false)?;
            tracing::warn!("which vCPUs take interrupts under KVM is not told: {refusal}");
            Ok(source)
        })
    }

    fn load(method: Method, interrupts: bool) -> Result<KvmSource, BpfError> {
        let mut storage = MaybeUninit::uninit();
        let skel = load(method, interrupts, &mut storage)?;
        let loaded = skel.object().progs_mut().filter(|program| program.autoload());
        let links = loaded.map(|program| program.attach()).collect::<Result<_, _>>();
        let links = links.map_err(setup("attach the BPF programs of KVM"))?;
        let maps = &skel.maps;
        let channel = Maps { ring: &maps.ring, lost: &maps.lost, counters: &maps.counters };
        Ok(KvmSource {
            method,
            tells_interrupts: interrupts,
            channel: Channel::open(&channel, abi::decode, Counter::Lost as u32)?,
            vcpus: keep(&maps.vcpus)?,
            by_id: keep(&maps.by_id)?,
            armed: keep(&maps.armed)?,
            followed: HashMap::new(),
            _links: links,
        })
    }

    /// Where CR3 is read.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }

    /// Whether interrupts of VMs with several vCPUs are told.
    #[must_use]
    pub const fn tells_interrupts(&self) -> bool {
        self.tells_interrupts
    }

    /// Follows a VM, afresh if it is followed already: the threads of its vCPUs, with their index.
    ///
    /// # Errors
    /// [`BpfError::Follow`] if a thread is followed for another VM, or there are too many. What was followed
    /// of this VM until then still is.
    pub fn follow(&mut self, vm: VmId, vcpus: &[(u16, i32)]) -> Result<(), BpfError> {
        self.unfollow(vm);
        let fail = |what: String, cause: String| BpfError::Follow { vm, what, cause };
        let entry = self.followed.entry(vm).or_default();
        self.channel.follow(vm)?;
        // With one vCPU there is no question which takes an interrupt.
        let interrupts = self.tells_interrupts && vcpus.len() > 1;
        for &(index, tid) in vcpus {
            let what = || format!("vCPU {index} (thread {tid})");
            let key = u32::try_from(tid).ok().filter(|&tid| tid > 0);
            let key = key.ok_or_else(|| fail(what(), "no such thread id".into()))?.to_ne_bytes();
            self.vcpus
                .update(&key, &abi::vcpu_value(vm, index, interrupts), MapFlags::NO_EXIST)
                .map_err(|e| fail(what(), refusal(&e, "16384 threads")))?;
            entry.vcpus.push((index, key));
        }
        Ok(())
    }

    /// Stops following a VM. One that is not followed is no error. Events heard before are still drained.
    pub fn unfollow(&mut self, vm: VmId) {
        let Some(gone) = self.followed.remove(&vm) else { return };
        // Deleting fails only for what is not there.
        for (_, key) in gone.vcpus {
            let _ = self.vcpus.delete(&key);
            let _ = self.armed.delete(&key);
        }
        for key in self.by_id.keys().filter(|key| abi::is_id_of(vm, key)).collect::<Vec<_>>() {
            let _ = self.by_id.delete(&key);
        }
        self.channel.unfollow(vm);
    }

    /// Whether it follows a VM.
    #[must_use]
    pub fn follows(&self, vm: VmId) -> bool {
        self.followed.contains_key(&vm)
    }

    /// Whether it follows no VM.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.followed.is_empty()
    }

    /// Becomes readable when an [armed](Self::arm) vCPU has news or the ring gets half full; other events
    /// wake nobody. Register it edge-triggered, like [`BpfSource::fd`](crate::bpf::BpfSource::fd).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Asks for one wake-up when something of interest happens on `vcpu` next. Drain afterwards: what
    /// happened just before does not wake. Where the tasks are sampled, the event comes when the switch is
    /// seen, which may be long after it.
    pub fn arm(&self, vm: VmId, vcpu: u16, interest: Interest) {
        if let Some(key) = self.key(vm, vcpu) {
            // It fails only for want of memory, and then the boost ends by time.
            let _ = self.armed.update(&key, &abi::armed_value(interest), MapFlags::ANY);
        }
    }

    /// Withdraws [`arm`](Self::arm). A wake-up may already be under way.
    pub fn disarm(&self, vm: VmId, vcpu: u16) {
        if let Some(key) = self.key(vm, vcpu) {
            let _ = self.armed.delete(&key);
        }
    }

    fn key(&self, vm: VmId, vcpu: u16) -> Option<[u8; 4]> {
        let vcpus = &self.followed.get(&vm)?.vcpus;
        vcpus.iter().find(|(index, _)| *index == vcpu).map(|(_, key)| *key)
    }

    /// Appends all events heard so far, in the order they were pushed. Never blocks.
    ///
    /// # Errors
    /// If the ring cannot be read, which no working kernel makes happen.
    pub fn drain(&mut self, out: &mut Vec<Event>) -> Result<(), BpfError> {
        self.channel.drain(out)
    }

    /// Events lost since the last call, per followed VM, because the ring was full. One system call if there
    /// are none.
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
    pub fn stats(&self) -> Result<KvmStats, BpfError> {
        Ok(KvmStats {
            pushed: self.read(Counter::Pushed)?,
            suppressed: self.read(Counter::Suppressed)?,
            lost: self.read(Counter::Lost)?,
        })
    }

    fn read(&self, which: Counter) -> Result<u64, BpfError> {
        self.channel.counter(which as u32)
    }
}

/// The best method that this host allows: loads its programs, and attaches none.
///
/// # Errors
/// [`KvmError`] says what the host lacks.
pub fn probe() -> Result<Method, KvmError> {
    best(true, |method| load(method, false, &mut MaybeUninit::uninit()).map(|_| method))
}

/// Which interrupts of VMs with several vCPUs can be told beside their tasks: loads the programs of both, and
/// attaches none.
///
/// # Errors
/// [`KvmError`] says what the host lacks.
pub fn probe_interrupts() -> Result<Interrupts, KvmError> {
    best(true, |method| load(method, true, &mut MaybeUninit::uninit()).map(drop))?;
    Ok(host::interrupts())
}

/// The first method that `attempt` succeeds with; otherwise why the best one does not.
fn best<T>(exits: bool, attempt: impl Fn(Method) -> Result<T, BpfError>) -> Result<T, KvmError> {
    let mut refused = None;
    for &method in host::methods()?.iter().filter(|method| exits || **method != Method::Exit) {
        match attempt(method) {
            Ok(done) => return Ok(done),
            Err(e) => {
                tracing::debug!("not by {}: {e}", method.name());
                refused.get_or_insert(e);
            }
        }
    }
    Err(refused.map_or(KvmError::NoKvm, KvmError::Bpf))
}

/// Loads the programs of a method, and those that tell interrupts if these are wanted.
fn load(
    method: Method,
    interrupts: bool,
    storage: &mut MaybeUninit<OpenObject>,
) -> Result<KvmSkel<'_>, BpfError> {
    silence_libbpf();
    let program = method.programs()[0];
    let more: &[&str] = if interrupts { &INTERRUPTS } else { &[] };
    let refused = |e: libbpf_rs::Error| BpfError::Program { program, cause: chain(&e), advice: advice() };
    let mut open = KvmSkelBuilder::default().open(storage).map_err(refused)?;
    for mut candidate in open.open_object_mut().progs_mut() {
        let wanted = method.programs().iter().chain(more).any(|name| candidate.name() == *name);
        candidate.set_autoload(wanted);
    }
    // There is always one: the programs name it.
    if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
        constants.layout = layout::layout(method)?;
    }
    open.load().map_err(refused)
}
