//! The boost actuator: a boosted vCPU and the emulator threads of its VM run ahead of everything ordinary.

use crate::{
    guardian::{Guardian, GuardianError, Undo, UndoId},
    sched::{self, Attributes, Policy, SchedError, ThreadId},
};
use frontdesk_engine::{Boost, VmId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Real-time priority of a boosted vCPU: the lowest there is. Any real-time priority comes before all ordinary threads,
/// and the host's own real-time threads (interrupt threads at 50, the daemon) must come before a guest.
pub const VCPU_PRIORITY: u32 = 1;

/// Real-time priority of the emulator threads of a VM with a boosted vCPU. They deliver the input the vCPU waits for,
/// while the vCPU may be spinning: they must come before it. At the same priority, or left ordinary, a boosted
/// vCPU would starve them, which is worse than no boost at all.
pub const EMULATOR_PRIORITY: u32 = 2;

/// Why a VM can not be boosted.
#[derive(Debug, thiserror::Error)]
pub enum BoostError {
    /// A scheduling call failed.
    #[error("cannot change the boost of VM {vm}: {source}", vm = .vm.0)]
    Sched {
        /// The VM.
        vm: VmId,
        /// What failed.
        source: SchedError,
    },
    /// The kernel accepted a setting, but the thread does not have it.
    #[error(
        "thread {tid} of VM {vm} was set to {wanted:?} but has {found:?}; another program seems to manage it, and only \
         one may",
        vm = .vm.0
    )]
    NotKept {
        /// The VM.
        vm: VmId,
        /// The thread.
        tid: i32,
        /// What was set.
        wanted: Attributes,
        /// What was read back.
        found: Attributes,
    },
    /// The change could not be made undoable, and was not made.
    #[error(transparent)]
    Guardian(#[from] GuardianError),
}

/// Boosts the vCPUs of the VMs it has adopted.
#[derive(Debug, Default)]
pub struct Booster {
    vms: HashMap<VmId, Adopted>,
}

#[derive(Debug)]
struct Adopted {
    vcpus: BTreeMap<u16, Held>,
    emulators: Vec<Held>,
    /// Boosted vCPUs.
    boosted: BTreeSet<u16>,
}

#[derive(Debug)]
struct Held {
    thread: ThreadId,
    /// What it had when it was adopted.
    original: Attributes,
    undo: UndoId,
}

impl Booster {
    /// A booster with no VMs.
    #[must_use]
    pub fn new() -> Booster {
        Booster::default()
    }

    /// Adopts a VM: reads what its threads have and records that with the guardian. Nothing is changed yet. A VM
    /// adopted before is released first. Threads that have vanished are left out.
    ///
    /// # Errors
    /// If attributes can not be read or recorded; the VM is then not adopted.
    pub fn adopt(
        &mut self,
        vm: VmId,
        vcpus: &[(u16, ThreadId)],
        emulators: &[ThreadId],
        guardian: &Guardian,
    ) -> Result<(), BoostError> {
        self.release(vm, guardian)?;
        let hold = |&thread: &ThreadId| hold(vm, thread, guardian).transpose();
        let adopted = Adopted {
            vcpus: vcpus
                .iter()
                .filter_map(|(index, thread)| hold(thread).map(|held| Ok((*index, held?))))
                .collect::<Result<_, BoostError>>()?,
            emulators: emulators.iter().filter_map(hold).collect::<Result<_, BoostError>>()?,
            boosted: BTreeSet::new(),
        };
        self.vms.insert(vm, adopted);
        Ok(())
    }

    /// Adopts what is new among the threads of an adopted VM, and lets go of those that are gone. Its boosts go on for the threads that
    /// stay. A VM that is not adopted is adopted.
    ///
    /// # Errors
    /// As [`Booster::adopt`]; the VM then keeps the threads that it had.
    pub fn renew(
        &mut self,
        vm: VmId,
        vcpus: &[(u16, ThreadId)],
        emulators: &[ThreadId],
        guardian: &Guardian,
    ) -> Result<(), BoostError> {
        let Some(adopted) = self.vms.get_mut(&vm) else { return self.adopt(vm, vcpus, emulators, guardian) };
        let gone = |held: &Held| {
            !vcpus.iter().any(|(_, thread)| *thread == held.thread) && !emulators.contains(&held.thread)
        };
        for (index, thread) in vcpus {
            if adopted.vcpus.get(index).is_none_or(|held| held.thread != *thread)
                && let Some(held) = hold(vm, *thread, guardian)?
                && let Some(former) = adopted.vcpus.insert(*index, held)
            {
                guardian.forget(former.undo)?;
            }
        }
        for thread in emulators {
            if !adopted.emulators.iter().any(|held| held.thread == *thread)
                && let Some(held) = hold(vm, *thread, guardian)?
            {
                adopted.emulators.push(held);
            }
        }
        let vcpus_gone = adopted.vcpus.extract_if(.., |_, held| gone(held)).map(|(_, held)| held);
        let threads_gone: Vec<Held> =
            vcpus_gone.chain(adopted.emulators.extract_if(.., |held| gone(held))).collect();
        for held in threads_gone {
            guardian.forget(held.undo)?;
        }
        let Adopted { vcpus, boosted, .. } = adopted;
        boosted.retain(|index| vcpus.contains_key(index));
        Ok(())
    }

    /// Sets the dispatch preference of a vCPU. The emulator threads are boosted before the first vCPU of their VM and
    /// until after the last. Repeating a preference costs nothing; a VM, vCPU or thread that is not there (any
    /// more) needs none.
    ///
    /// # Errors
    /// If the kernel refuses. A boost that fails is taken back as a whole: a half-boosted VM is worse off than before.
    pub fn apply(&mut self, vm: VmId, vcpu: u16, level: Boost) -> Result<(), BoostError> {
        let Some(adopted) = self.vms.get_mut(&vm) else { return Ok(()) };
        match level {
            Boost::None => adopted.end(vm, vcpu),
            Boost::Io => {
                let result = adopted.begin(vm, vcpu);
                if result.is_err() {
                    // What failed is told; that taking it back fails as well adds nothing.
                    let _ = adopted.end(vm, vcpu);
                }
                result
            }
        }
    }

    /// Whether any vCPU of the VM is boosted.
    #[must_use]
    pub fn is_boosted(&self, vm: VmId) -> bool {
        self.vms.get(&vm).is_some_and(|adopted| !adopted.boosted.is_empty())
    }

    /// Ends all boosts of a VM, gives its threads what they had when adopted, and forgets it. A VM that is not adopted
    /// is no error.
    ///
    /// # Errors
    /// If a thread can not be restored: the guardian still has it on record.
    pub fn release(&mut self, vm: VmId, guardian: &Guardian) -> Result<(), BoostError> {
        let Some(mut adopted) = self.vms.remove(&vm) else { return Ok(()) };
        let mut result = Ok(());
        while let Some(&vcpu) = adopted.boosted.first() {
            result = result.and(adopted.end(vm, vcpu));
        }
        result?;
        for held in adopted.vcpus.values().chain(&adopted.emulators) {
            guardian.forget(held.undo)?;
        }
        Ok(())
    }
}

fn hold(vm: VmId, thread: ThreadId, guardian: &Guardian) -> Result<Option<Held>, BoostError> {
    let original = match sched::get(thread.tid) {
        Ok(original) if thread.is_alive() => original,
        Ok(_) | Err(SchedError::Vanished { .. }) => return Ok(None),
        Err(source) => return Err(BoostError::Sched { vm, source }),
    };
    let undo = guardian.record(Undo::Thread { thread, attributes: original })?;
    Ok(Some(Held { thread, original, undo }))
}

impl Adopted {
    /// Emulator threads first: a boosted vCPU must never meet ordinary ones.
    fn begin(&mut self, vm: VmId, vcpu: u16) -> Result<(), BoostError> {
        let Some(thread) = self.vcpus.get(&vcpu) else { return Ok(()) };
        if self.boosted.contains(&vcpu) {
            return Ok(());
        }
        let first = self.boosted.is_empty();
        self.boosted.insert(vcpu);
        if first {
            for emulator in &self.emulators {
                emulator.boost(vm, EMULATOR_PRIORITY)?;
            }
        }
        thread.boost(vm, VCPU_PRIORITY)
    }

    /// The vCPU first, for the same reason. Goes on where it can, and tells the first failure.
    fn end(&mut self, vm: VmId, vcpu: u16) -> Result<(), BoostError> {
        if !self.boosted.remove(&vcpu) {
            return Ok(());
        }
        let mut result = self.vcpus.get(&vcpu).map_or(Ok(()), |thread| thread.restore(vm));
        if self.boosted.is_empty() {
            for emulator in &self.emulators {
                result = result.and(emulator.restore(vm));
            }
        }
        result
    }
}

impl Held {
    fn boost(&self, vm: VmId, priority: u32) -> Result<(), BoostError> {
        self.set(vm, Attributes::fifo(priority))
    }

    fn restore(&self, vm: VmId) -> Result<(), BoostError> {
        self.set(vm, self.original)
    }

    fn set(&self, vm: VmId, wanted: Attributes) -> Result<(), BoostError> {
        // What somebody made real-time is ahead of ordinary threads as it is.
        let ahead = matches!(
            self.original.policy,
            Policy::Fifo { .. } | Policy::RoundRobin { .. } | Policy::Deadline { .. }
        );
        if ahead || !self.thread.is_in_process() {
            return Ok(());
        }
        let tid = self.thread.tid;
        let found = match sched::set(tid, wanted).and_then(|()| sched::get(tid)) {
            Err(SchedError::Vanished { .. }) => return Ok(()),
            result => result.map_err(|source| BoostError::Sched { vm, source })?,
        };
        if found == wanted { Ok(()) } else { Err(BoostError::NotKept { vm, tid, wanted, found }) }
    }
}
