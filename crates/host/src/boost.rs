//! The boost actuator: a boosted vCPU and the emulator threads of its VM run ahead of everything ordinary.

use crate::{
    guardian::{Guardian, GuardianError, Undo, UndoId},
    sched::{self, Attributes, Policy, SchedError, ThreadId},
};
use frontdesk_engine::{Boost, BoostTarget, VmId};
use std::collections::{BTreeMap, HashMap};

/// Real-time priority of a boosted vCPU: the lowest there is. Any real-time priority comes before all ordinary threads,
/// and the host's own real-time threads (interrupt threads at 50, the daemon) must come before a guest.
pub const VCPU_PRIORITY: u32 = 1;

/// What a multimedia boost adds to a priority: it comes before all I/O boosts, those of emulator threads too (MM §5.3).
pub const MULTIMEDIA: u32 = 2;

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
    /// What is boosted.
    boosted: BTreeMap<BoostTarget, Boost>,
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
            boosted: BTreeMap::new(),
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
        boosted.retain(|target, _| match target {
            BoostTarget::Vcpu(index) => vcpus.contains_key(index),
            BoostTarget::Emulators => true,
        });
        Ok(())
    }

    /// Sets the dispatch preference of a vCPU, or of the emulator threads of a VM. Repeating a preference costs nothing; a VM, vCPU or
    /// thread that is not there (any more) needs none.
    ///
    /// # Errors
    /// If the kernel refuses. A boost that fails is taken back.
    pub fn apply(&mut self, vm: VmId, target: BoostTarget, level: Boost) -> Result<(), BoostError> {
        let Some(adopted) = self.vms.get_mut(&vm) else { return Ok(()) };
        let result = adopted.set(vm, target, level);
        if result.is_err() && level > Boost::None {
            // What failed is told; that taking it back fails as well adds nothing.
            let _ = adopted.set(vm, target, Boost::None);
        }
        result
    }

    /// Whether any vCPU of the VM is boosted.
    #[must_use]
    pub fn is_boosted(&self, vm: VmId) -> bool {
        let vcpu = |target: &BoostTarget| matches!(target, BoostTarget::Vcpu(_));
        self.vms.get(&vm).is_some_and(|adopted| adopted.boosted.keys().any(vcpu))
    }

    /// Ends all boosts of a VM, gives its threads what they had when adopted, and forgets it. A VM that is not adopted
    /// is no error.
    ///
    /// # Errors
    /// If a thread can not be restored: the guardian still has it on record.
    pub fn release(&mut self, vm: VmId, guardian: &Guardian) -> Result<(), BoostError> {
        let Some(mut adopted) = self.vms.remove(&vm) else { return Ok(()) };
        let mut result = Ok(());
        // The vCPUs first: a boosted one must never meet ordinary emulator threads.
        while let Some((&target, _)) = adopted.boosted.first_key_value() {
            result = result.and(adopted.set(vm, target, Boost::None));
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
    /// Goes on where it can, and tells the first failure.
    fn set(&mut self, vm: VmId, target: BoostTarget, level: Boost) -> Result<(), BoostError> {
        let before = if level == Boost::None {
            self.boosted.remove(&target)
        } else {
            self.boosted.insert(target, level)
        };
        if before.unwrap_or(Boost::None) == level {
            return Ok(());
        }
        let (threads, priority) = match target {
            BoostTarget::Vcpu(index) => (self.vcpus.get(&index).into_iter().collect(), VCPU_PRIORITY),
            BoostTarget::Emulators => (self.emulators.iter().collect::<Vec<_>>(), EMULATOR_PRIORITY),
        };
        let mut result = Ok(());
        for thread in threads {
            result = result.and(match level {
                Boost::None => thread.restore(vm),
                Boost::Io => thread.boost(vm, priority),
                Boost::Multimedia => thread.boost(vm, priority + MULTIMEDIA),
            });
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
