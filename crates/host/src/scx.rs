//! The sched_ext mechanism: a BPF scheduler of frontdesk's own runs the threads of VMs, and charges boosts like all other run time.
//!
//! `bpf/scx.bpf.c` says how it schedules, and `docs/sched-ext.md` what that means for a host.

mod abi;
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/scx.skel.rs"));
}

pub use abi::Usage;

use crate::{
    bpf::silence_libbpf,
    guardian::{Guardian, GuardianError, Undo, UndoId},
    sched::{self, Attributes, Policy, SchedError, ThreadId},
};
use abi::{EMULATOR, MAX_VMS};
use frontdesk_engine::{Boost, BoostTarget, VmId};
use libbpf_rs::{
    Link, MapCore, MapFlags, OpenObject, ProgramInput,
    skel::{OpenSkel as _, SkelBuilder as _},
};
use skeleton::{ScxSkel, ScxSkelBuilder};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    mem::MaybeUninit,
    path::Path,
};

/// Where the kernel tells about sched_ext.
const SYSFS: &str = "/sys/kernel/sched_ext";

/// What the kernel calls the scheduler, at least in front.
pub(crate) const NAME: &str = "frontdesk";

/// Why the scheduler can not be had, or not run a VM.
#[derive(Debug, thiserror::Error)]
pub enum ScxError {
    /// The kernel has no sched_ext.
    #[error(
        "this kernel has no sched_ext ({SYSFS}): Linux 6.12 or newer built with CONFIG_SCHED_CLASS_EXT has it"
    )]
    Absent,
    /// There can be only one such scheduler.
    #[error("the sched_ext scheduler {name:?} is {state}, and the kernel runs only one: stop it first")]
    Busy {
        /// The other scheduler.
        name: String,
        /// What the kernel says of it, such as "enabled".
        state: String,
    },
    /// libbpf or the kernel refused.
    #[error(
        "cannot {step} the sched_ext scheduler: {cause}; the log of target \"libbpf\" has what the verifier says"
    )]
    Setup {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        cause: String,
    },
    /// A map or program of the scheduler failed.
    #[error("cannot {step} of VM {vm}: {cause}", vm = .vm.0)]
    Vm {
        /// The VM.
        vm: VmId,
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        cause: String,
    },
    /// A scheduling call failed.
    #[error("cannot change how VM {vm} is scheduled: {source}", vm = .vm.0)]
    Sched {
        /// The VM.
        vm: VmId,
        /// What failed.
        source: SchedError,
    },
    /// The change could not be made undoable, and was not made.
    #[error(transparent)]
    Guardian(#[from] GuardianError),
}

/// Whether the kernel has sched_ext and nobody else uses it.
///
/// # Errors
/// [`ScxError::Absent`] or [`ScxError::Busy`].
pub fn probe() -> Result<(), ScxError> {
    let read =
        |file: &str| fs::read_to_string(Path::new(SYSFS).join(file)).map(|text| text.trim().to_owned());
    let state = read("state").map_err(|_| ScxError::Absent)?;
    if state == "disabled" {
        return Ok(());
    }
    Err(ScxError::Busy { name: read("root/ops").unwrap_or_default(), state })
}

/// The loaded scheduler. Dropping it, or the end of its process, gives its threads back to the kernel's scheduler, though their policy
/// stays `SCHED_EXT` until they are released or the guardian restores them.
pub struct Scx {
    skel: ScxSkel<'static>,
    vms: HashMap<VmId, Adopted>,
    _link: Link,
}

impl std::fmt::Debug for Scx {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Scx").field("vms", &self.vms).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Adopted {
    /// Number of its account.
    account: u32,
    weight: u32,
    threads: Vec<Held>,
    vcpus: BTreeMap<u16, ThreadId>,
    boosted: BTreeSet<u16>,
}

#[derive(Debug)]
struct Held {
    thread: ThreadId,
    original: Attributes,
    undo: UndoId,
}

impl Scx {
    /// Loads the scheduler and makes it the kernel's. It has no threads yet.
    ///
    /// # Errors
    /// What [`probe`] says, or [`ScxError::Setup`].
    pub fn load() -> Result<Scx, ScxError> {
        probe()?;
        silence_libbpf();
        let setup = |step| move |e: libbpf_rs::Error| ScxError::Setup { step, cause: format!("{e:#}") };
        // Once per run of the daemon, some bytes that are not worth a self-referential struct.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let open = ScxSkelBuilder::default().open(storage).map_err(setup("open"))?;
        let mut skel = open.load().map_err(setup("load"))?;
        let link = skel.maps.frontdesk.attach_struct_ops().map_err(setup("start"))?;
        Ok(Scx { skel, vms: HashMap::new(), _link: link })
    }

    /// Adopts a VM: records with the guardian what its threads have, and gives them to the scheduler. `weight` is in the units of
    /// `cpu.shares` (1024 is the default). A VM adopted before is released first. Threads that have vanished are left out, and so are
    /// those that somebody made real-time: they go first as it is.
    ///
    /// # Errors
    /// If there is no room (1023 VMs, 8192 threads) or a thread can not be changed; the VM is then not adopted.
    pub fn adopt(
        &mut self,
        vm: VmId,
        weight: u32,
        vcpus: &[(u16, ThreadId)],
        emulators: &[ThreadId],
        guardian: &Guardian,
    ) -> Result<(), ScxError> {
        self.release(vm, guardian)?;
        let taken: BTreeSet<u32> = self.vms.values().map(|adopted| adopted.account).collect();
        // Account 0 is that of threads that are no VM's.
        let account = (1..MAX_VMS).find(|account| !taken.contains(account)).ok_or_else(|| ScxError::Vm {
            vm,
            step: "open the account",
            cause: format!("there are {} already", MAX_VMS - 1),
        })?;
        let maps = &self.skel.maps;
        update(&maps.accounts, vm, account, &Usage::default().encode())?;
        let adopted = Adopted {
            account,
            weight: 0,
            threads: Vec::new(),
            vcpus: vcpus.iter().copied().collect(),
            boosted: BTreeSet::new(),
        };
        self.vms.insert(vm, adopted);
        self.set_weight(vm, weight)?;
        let vcpus = vcpus.iter().map(|&(index, thread)| (u32::from(index), thread));
        for (index, thread) in vcpus.chain(emulators.iter().map(|&thread| (EMULATOR, thread))) {
            if let Err(error) = self.take(vm, account, index, thread, guardian) {
                // What failed is told; that taking the rest back fails as well adds nothing.
                let _ = self.release(vm, guardian);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Adopts what is new among the threads of an adopted VM, and lets go of those that are gone. A VM that is not adopted is no error.
    ///
    /// # Errors
    /// As [`Scx::adopt`]; the VM then keeps the threads that it had.
    pub fn renew(
        &mut self,
        vm: VmId,
        vcpus: &[(u16, ThreadId)],
        emulators: &[ThreadId],
        guardian: &Guardian,
    ) -> Result<(), ScxError> {
        let Some(adopted) = self.vms.get_mut(&vm) else { return Ok(()) };
        let indexed = vcpus.iter().map(|&(index, thread)| (u32::from(index), thread));
        let wanted: Vec<_> = indexed.chain(emulators.iter().map(|&thread| (EMULATOR, thread))).collect();
        let gone = |held: &mut Held| !wanted.iter().any(|(_, thread)| *thread == held.thread);
        let gone: Vec<Held> = adopted.threads.extract_if(.., gone).collect();
        // The boost of a thread that goes ends with it, and no other has it by its number.
        let stays =
            |index: &u16| adopted.vcpus.get(index).is_some_and(|thread| vcpus.contains(&(*index, *thread)));
        let ended: Vec<u16> = adopted.boosted.iter().copied().filter(|index| !stays(index)).collect();
        for index in ended {
            self.apply(vm, BoostTarget::Vcpu(index), Boost::None)?;
        }
        self.give_back(vm, gone, guardian)?;
        let Some(adopted) = self.vms.get_mut(&vm) else { return Ok(()) };
        adopted.vcpus = vcpus.iter().copied().collect();
        let (account, held) = (adopted.account, adopted.threads.iter().map(|held| held.thread));
        let held: BTreeSet<i32> = held.map(|thread| thread.tid).collect();
        for (index, thread) in wanted.into_iter().filter(|(_, thread)| !held.contains(&thread.tid)) {
            self.take(vm, account, index, thread, guardian)?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        vm: VmId,
        account: u32,
        vcpu: u32,
        thread: ThreadId,
        guardian: &Guardian,
    ) -> Result<(), ScxError> {
        let original = match sched::get(thread.tid) {
            Ok(original) if thread.is_alive() => original,
            Ok(_) | Err(SchedError::Vanished { .. }) => return Ok(()),
            Err(source) => return Err(ScxError::Sched { vm, source }),
        };
        let (Policy::Other { nice, .. }
        | Policy::Batch { nice, .. }
        | Policy::Idle { nice, .. }
        | Policy::Ext { nice, .. }) = original.policy
        else {
            return Ok(());
        };
        let undo = guardian.record(Undo::Thread { thread, attributes: original })?;
        let Some(adopted) = self.vms.get_mut(&vm) else { return Ok(()) };
        adopted.threads.push(Held { thread, original, undo });
        // Its account must be known before it runs.
        update(&self.skel.maps.threads, vm, thread.tid.cast_unsigned(), &abi::thread(account, vcpu))?;
        let ours = Attributes { policy: Policy::Ext { nice, slice_ns: 0 }, reset_on_fork: true };
        match sched::set(thread.tid, ours) {
            Ok(()) | Err(SchedError::Vanished { .. }) => Ok(()),
            Err(source) => Err(ScxError::Sched { vm, source }),
        }
    }

    /// Sets the dispatch preference of a vCPU: one system call. The scheduler puts the emulator threads of a VM first while any of its vCPUs
    /// is boosted. Repeating a preference costs nothing; a VM or vCPU that is not there (any more) needs none.
    ///
    /// # Errors
    /// If the scheduler's program can not be called.
    pub fn apply(&mut self, vm: VmId, target: BoostTarget, level: Boost) -> Result<(), ScxError> {
        let BoostTarget::Vcpu(vcpu) = target else { return Ok(()) };
        let Some(adopted) = self.vms.get_mut(&vm) else { return Ok(()) };
        let Some(thread) = adopted.vcpus.get(&vcpu) else { return Ok(()) };
        let on = level != Boost::None;
        if adopted.boosted.contains(&vcpu) == on {
            return Ok(());
        }
        let failed = |cause| ScxError::Vm { vm, step: "change the boost", cause };
        let mut context = abi::boost(thread.tid, on);
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        self.skel.progs.set_boost.test_run(input).map_err(|e| failed(format!("{e:#}")))?;
        if on {
            adopted.boosted.insert(vcpu);
        } else {
            adopted.boosted.remove(&vcpu);
        }
        Ok(())
    }

    /// Changes the weight of a VM, from the next run of its threads on. One that is not adopted is no error.
    ///
    /// # Errors
    /// If the map can not be written.
    pub fn set_weight(&mut self, vm: VmId, weight: u32) -> Result<(), ScxError> {
        let Some(adopted) = self.vms.get_mut(&vm) else { return Ok(()) };
        adopted.weight = weight.clamp(1, abi::MAX_WEIGHT);
        update(&self.skel.maps.weights, vm, adopted.account, &adopted.weight.to_ne_bytes())?;
        self.tell_total_weight();
        Ok(())
    }

    /// The more weight there is in all, the less a VM may be ahead of the others.
    fn tell_total_weight(&mut self) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.total_weight = self.vms.values().map(|adopted| u64::from(adopted.weight)).sum();
        }
    }

    /// Whether any vCPU of the VM is boosted.
    #[must_use]
    pub fn is_boosted(&self, vm: VmId) -> bool {
        self.vms.get(&vm).is_some_and(|adopted| !adopted.boosted.is_empty())
    }

    /// What the VM has used since it was adopted, as the scheduler charged it; `None` if it is not adopted.
    ///
    /// # Errors
    /// If the map can not be read.
    pub fn usage(&self, vm: VmId) -> Result<Option<Usage>, ScxError> {
        let Some(adopted) = self.vms.get(&vm) else { return Ok(None) };
        let failed = |cause| ScxError::Vm { vm, step: "read the account", cause };
        let value = self.skel.maps.accounts.lookup(&adopted.account.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(|e| failed(format!("{e:#}")))?;
        let usage = value.as_deref().and_then(Usage::decode);
        usage.map(Some).ok_or_else(|| failed("it has another size".to_owned()))
    }

    /// Why the kernel has ejected the scheduler, if it has: an administrator's wish, a fault, or a thread that did not get to run for
    /// seconds. Its threads are then scheduled like ordinary ones. Costs a look at memory.
    #[must_use]
    pub fn ejected(&self) -> Option<String> {
        let bss = self.skel.maps.bss_data.as_deref()?;
        // SAFETY: the reference is valid; the kernel writes there at any time.
        let ejection = unsafe { std::ptr::from_ref(&bss.ejection).read_volatile() };
        (ejection.kind != 0).then(|| abi::text(&ejection.reason, &ejection.message))
    }

    /// Ends all boosts of a VM, gives its threads what they had when adopted, and forgets it. A VM that is not adopted is no error.
    ///
    /// # Errors
    /// If a thread can not be restored: the guardian still has it on record.
    pub fn release(&mut self, vm: VmId, guardian: &Guardian) -> Result<(), ScxError> {
        let Some(adopted) = self.vms.remove(&vm) else { return Ok(()) };
        self.tell_total_weight();
        self.give_back(vm, adopted.threads, guardian)
    }

    /// Gives threads what they had. Their boosts end with what the scheduler knows of them.
    fn give_back(&self, vm: VmId, threads: Vec<Held>, guardian: &Guardian) -> Result<(), ScxError> {
        let mut result = Ok(());
        for Held { thread, original, undo } in threads {
            let restored = match thread.is_in_process() {
                true => sched::set(thread.tid, original),
                false => Ok(()),
            };
            // Deleting fails only for what is not there.
            let _ = self.skel.maps.threads.delete(&thread.tid.to_ne_bytes());
            match restored {
                Ok(()) | Err(SchedError::Vanished { .. }) => guardian.forget(undo)?,
                Err(source) => result = result.and(Err(ScxError::Sched { vm, source })),
            }
        }
        result
    }
}

fn update(map: &impl MapCore, vm: VmId, key: u32, value: &[u8]) -> Result<(), ScxError> {
    let failed = |e| ScxError::Vm { vm, step: "tell the scheduler", cause: format!("{e:#}") };
    map.update(&key.to_ne_bytes(), value, MapFlags::ANY).map_err(failed)
}
