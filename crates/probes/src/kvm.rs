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
//!
//! # Who asks for what a disk is to do
//! A guest notifies its disk by a write that KVM carries out by signalling an eventfd, in the vCPU's thread,
//! where it knows the guest's CR3: so with every method the task that notifies is exact. The programs write
//! it into [`TaskMemory`], at once, for those who serve the disk; see [`KvmSource::show_tasks`].

pub(crate) mod abi;
mod btf;
mod host;
mod layout;
mod method;
mod skeleton;
mod task_memory;
#[cfg(test)]
mod tests;

pub use method::{Interrupts, KvmError, Method};
pub use task_memory::TaskMemory;

use crate::BpfError;
use crate::channel::{Channel, Maps};
use crate::error::{advice, chain, refusal};
use crate::libbpf::{keep, setup, silence_libbpf};
use abi::Counter;
use frontdesk_engine::{Event, VmId};
use frontdesk_ring::Interest;
use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, OpenObject, libbpf_sys,
    skel::{OpenSkel as _, Skel as _, SkelBuilder as _},
};
use skeleton::{KvmSkel, KvmSkelBuilder, types};
use std::{
    collections::{BTreeSet, HashMap},
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    ptr,
};

/// The BPF programs that tell interrupts, with any method.
const INTERRUPTS: [&str; 5] = ["on_accept", "on_entry", "on_hypercall", "on_interrupt", "on_ipi"];

/// The BPF programs that hear which vCPU notifies a device: one of them, as the kernel has it.
const NOTIFICATIONS: [&str; 2] = ["on_signal", "on_signal_mask"];

/// Eventfds of a VM by which it notifies disks: so that those of one leave room for those of others.
const MAX_EVENTFDS: usize = 128;

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
    askers: MapHandle,
    notifiers: MapHandle,
    followed: HashMap<VmId, VcpuKeys>,
    shown: HashMap<VmId, Shown>,
    /// The program that hears notifications of devices, if the kernel takes it.
    hears_notifications: Option<OwnedFd>,
    /// Its link, while tasks of a VM are shown: each eventfd that is signalled on the host costs a look.
    notifications: Option<OwnedFd>,
    _links: Vec<Link>,
}

/// What others are shown of a VM.
struct Shown {
    memory: TaskMemory,
    /// The eventfds by which it notifies disks.
    eventfds: BTreeSet<u32>,
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
    /// not, and those that tell interrupts and notifications of disks, if the kernel takes them.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses the method's.
    pub fn with(method: Method) -> Result<KvmSource, BpfError> {
        let refused = match KvmSource::load(method, Extras::ALL) {
            Ok(source) => return Ok(source),
            Err(refused) => refused,
        };
        let fewer = [
            (Extras { notifications: false, ..Extras::ALL }, "which guest task asks for what a disk does"),
            (Extras { interrupts: false, ..Extras::ALL }, "which vCPUs take interrupts"),
            (Extras::NONE, "which vCPUs take interrupts, and which guest task asks for what a disk does,"),
        ];
        for (extras, lost) in fewer {
            if let Ok(source) = KvmSource::load(method, extras) {
                tracing::warn!("{lost} is not told under KVM: {refused}");
                return Ok(source);
            }
        }
        Err(refused)
    }

    fn load(method: Method, extras: Extras) -> Result<KvmSource, BpfError> {
        let mut storage = MaybeUninit::uninit();
        let skel = load(method, extras, &mut storage)?;
        let attaching = setup("attach the BPF programs of KVM");
        let (mut links, mut hears_notifications) = (Vec::new(), None);
        for program in skel.object().progs_mut().filter(|program| program.autoload()) {
            if NOTIFICATIONS.iter().any(|name| program.name() == *name) {
                let kept = program.as_fd().try_clone_to_owned();
                hears_notifications = Some(kept.map_err(|e| attaching(e.into()))?);
            } else {
                links.push(program.attach().map_err(&attaching)?);
            }
        }
        let maps = &skel.maps;
        let channel = Maps { ring: &maps.ring, lost: &maps.lost, counters: &maps.counters };
        Ok(KvmSource {
            method,
            tells_interrupts: extras.interrupts,
            channel: Channel::open(&channel, abi::decode, Counter::Lost as u32)?,
            vcpus: keep(&maps.vcpus)?,
            by_id: keep(&maps.by_id)?,
            armed: keep(&maps.armed)?,
            askers: keep(&maps.askers)?,
            notifiers: keep(&maps.notifiers)?,
            followed: HashMap::new(),
            shown: HashMap::new(),
            hears_notifications,
            notifications: None,
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
        // One that is halted is not told to resume by a program that does not know.
        let halted = |&(_, tid): &(u16, i32)| {
            let of = self.followed.get(&vm)?.vcpus.iter().find(|(_, key)| *key == tid.to_ne_bytes())?;
            Some(abi::is_halted(&self.vcpus.lookup(&of.1, MapFlags::ANY).ok()??))
        };
        let halted: Vec<bool> = vcpus.iter().map(|vcpu| halted(vcpu).unwrap_or(false)).collect();
        self.leave(vm);
        let fail = |what: String, cause: String| BpfError::Follow { vm, what, cause };
        let entry = self.followed.entry(vm).or_default();
        self.channel.follow(vm)?;
        // With one vCPU there is no question which takes an interrupt.
        let interrupts = self.tells_interrupts && vcpus.len() > 1;
        let shows = self.shown.contains_key(&vm);
        for (&(index, tid), halted) in vcpus.iter().zip(halted) {
            let what = || format!("vCPU {index} (thread {tid})");
            let key = u32::try_from(tid).ok().filter(|&tid| tid > 0);
            let key = key.ok_or_else(|| fail(what(), "no such thread id".into()))?.to_ne_bytes();
            self.vcpus
                .update(&key, &abi::vcpu_value(vm, index, interrupts, halted, shows), MapFlags::NO_EXIST)
                .map_err(|e| fail(what(), refusal(&e, "16384 threads")))?;
            entry.vcpus.push((index, key));
        }
        Ok(())
    }

    /// Stops following a VM. One that is not followed is no error. Events heard before are still drained.
    pub fn unfollow(&mut self, vm: VmId) {
        self.leave(vm);
        let Some(Shown { eventfds, .. }) = self.shown.remove(&vm) else { return };
        // Whoever has the memory mapped keeps it as it is.
        let _ = self.askers.delete(&vm.0.to_ne_bytes());
        for eventfd in eventfds {
            let _ = self.notifiers.delete(&abi::notifier_key(vm, eventfd));
        }
        if self.shown.is_empty() {
            self.notifications = None;
        }
    }

    /// Has the tasks of a followed VM's vCPUs shown in memory from now on, until it is followed no longer:
    /// the one that each was last seen to run, and the one that it ran when it last notified a disk, which it
    /// does by these `eventfds`, given by the kernel's numbers, and no longer by those given before. Of more
    /// than 128 the others do not count. That memory has [`words`](TaskMemory::words) for the vCPUs of
    /// indices below 512.
    ///
    /// The first time, the kernel may take some 10 ms for it.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses the program or the memory, or there are too many VMs or eventfds.
    /// What was shown until then still is.
    pub fn show_tasks(&mut self, vm: VmId, eventfds: &[u32]) -> Result<&TaskMemory, BpfError> {
        let fail = |what: &str, cause: String| BpfError::Follow { vm, what: what.to_owned(), cause };
        if !self.shown.contains_key(&vm) {
            let Some(followed) = self.followed.get(&vm) else {
                return Err(fail("who asks", "the VM is not followed".to_owned()));
            };
            let vcpus = followed.vcpus.iter().map(|&(index, key)| (index, i32::from_ne_bytes(key))).collect();
            let vcpus: Vec<(u16, i32)> = vcpus;
            self.hear_notifications()?;
            let memory = TaskMemory::new()?;
            let descriptor = memory.as_fd().as_raw_fd().to_ne_bytes();
            let inserted = self.askers.update(&vm.0.to_ne_bytes(), &descriptor, MapFlags::ANY);
            inserted.map_err(|e| fail("who asks", refusal(&e, "1024 VMs")))?;
            self.shown.insert(vm, Shown { memory, eventfds: BTreeSet::new() });
            self.follow(vm, &vcpus)?;
        }
        let Some(shown) = self.shown.get_mut(&vm) else {
            return Err(fail("who asks", "the VM is not followed".to_owned()));
        };
        let wanted: BTreeSet<u32> = eventfds.iter().copied().take(MAX_EVENTFDS).collect();
        for &gone in shown.eventfds.difference(&wanted) {
            let _ = self.notifiers.delete(&abi::notifier_key(vm, gone));
        }
        shown.eventfds.retain(|eventfd| wanted.contains(eventfd));
        for eventfd in wanted {
            if !shown.eventfds.contains(&eventfd) {
                let inserted = self.notifiers.update(&abi::notifier_key(vm, eventfd), &[1], MapFlags::ANY);
                inserted.map_err(|e| fail("a queue of a disk", refusal(&e, "65536 queues")))?;
                shown.eventfds.insert(eventfd);
            }
        }
        Ok(&shown.memory)
    }

    /// Attaches the program that hears notifications of devices, if it is not.
    fn hear_notifications(&mut self) -> Result<(), BpfError> {
        let step = "hear which vCPU notifies a disk";
        let fail = |cause: String| BpfError::Setup { step, cause, advice: advice() };
        if self.notifications.is_some() {
            return Ok(());
        }
        let program = self.hears_notifications.as_ref();
        let program = program.ok_or_else(|| fail("the kernel did not take the program".to_owned()))?;
        // SAFETY: without a name, the kernel reads nothing of ours. The program says what it is attached to.
        let link = unsafe { libbpf_sys::bpf_raw_tracepoint_open(ptr::null(), program.as_raw_fd()) };
        if link < 0 {
            return Err(fail(std::io::Error::from_raw_os_error(-link).to_string()));
        }
        // SAFETY: the descriptor is new, and nobody else's.
        self.notifications = Some(unsafe { OwnedFd::from_raw_fd(link) });
        Ok(())
    }

    /// Forgets the vCPUs of a VM.
    fn leave(&mut self, vm: VmId) {
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
    best(true, |method| load(method, Extras::NONE, &mut MaybeUninit::uninit()).map(|_| method))
}

/// Which interrupts of VMs with several vCPUs can be told beside their tasks: loads the programs of both, and
/// attaches none.
///
/// # Errors
/// [`KvmError`] says what the host lacks.
pub fn probe_interrupts() -> Result<Interrupts, KvmError> {
    best(true, |method| load(method, Extras::INTERRUPTS, &mut MaybeUninit::uninit()).map(drop))?;
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

/// What is loaded beside a method's programs.
#[derive(Clone, Copy)]
struct Extras {
    /// What tells interrupts.
    interrupts: bool,
    /// What hears which vCPU notifies a disk.
    notifications: bool,
}

impl Extras {
    const ALL: Extras = Extras { interrupts: true, notifications: true };
    const INTERRUPTS: Extras = Extras { interrupts: true, notifications: false };
    const NONE: Extras = Extras { interrupts: false, notifications: false };
}

/// Loads the programs of a method, and those beside them that are wanted.
fn load(
    method: Method,
    extras: Extras,
    storage: &mut MaybeUninit<OpenObject>,
) -> Result<KvmSkel<'_>, BpfError> {
    let (layout, notifications) = layout::layout(method)?;
    load_with(layout, method, extras, notifications.filter(|_| extras.notifications), storage)
}

/// The same for KVM's state as it is laid out.
fn load_with<'a>(
    layout: types::layout,
    method: Method,
    extras: Extras,
    notifications: Option<&'static str>,
    storage: &'a mut MaybeUninit<OpenObject>,
) -> Result<KvmSkel<'a>, BpfError> {
    silence_libbpf();
    let program = method.programs()[0];
    let more: &[&str] = if extras.interrupts { &INTERRUPTS } else { &[] };
    let refused = |e: libbpf_rs::Error| BpfError::Program { program, cause: chain(&e), advice: advice() };
    let mut open = KvmSkelBuilder::default().open(storage).map_err(refused)?;
    for mut candidate in open.open_object_mut().progs_mut() {
        let wanted =
            method.programs().iter().chain(more).chain(&notifications).any(|name| candidate.name() == *name);
        candidate.set_autoload(wanted);
    }
    // There is always one: the programs name it.
    if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
        constants.layout = layout;
    }
    open.load().map_err(refused)
}
