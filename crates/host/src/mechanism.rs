//! How boosts are carried out: by real-time priority, or by a scheduler of frontdesk's own. The same actions drive both.

use crate::{
    boost::{BoostError, Booster},
    cgroup::RealTimeRule,
    guardian::{Guardian, GuardianError},
    sched::ThreadId,
    scx::{Scx, ScxError, Usage},
};
use frontdesk_engine::{Boost, BoostTarget, VmId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Which mechanism is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MechanismChoice {
    /// Real time, where the kernel lets VMs in control groups be real-time at all; otherwise sched_ext.
    ///
    /// Real time comes first because the kernel runs every ordinary thread before those of sched_ext: a process beside the VMs that
    /// computes would take nearly the whole CPU from them. `docs/sched-ext.md` has the measurements.
    #[default]
    Auto,
    /// Real-time priority while boosted; the VMs stay with the kernel's scheduler.
    RealTime,
    /// sched_ext, and real time where that is absent, taken or ejected.
    SchedExt,
}

/// Why a boost can't be carried out.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant passes on an error that describes itself.
pub enum MechanismError {
    #[error(transparent)]
    Boost(#[from] BoostError),
    #[error(transparent)]
    Scx(#[from] ScxError),
}

/// What carries out boosts.
#[derive(Debug)]
pub enum Mechanism {
    /// Real-time priority. What a VM runs boosted comes on top of its fair share, and the engine's ledger takes it back.
    RealTime(Booster),
    /// The scheduler of frontdesk's own. Boosted time is charged in the kernel: there is nothing to take back.
    SchedExt(SchedExt),
}

impl Default for Mechanism {
    fn default() -> Self {
        Mechanism::RealTime(Booster::new())
    }
}

/// sched_ext, and what it takes to go on without.
#[derive(Debug)]
pub struct SchedExt {
    scx: Box<Scx>,
    vms: HashMap<VmId, Threads>,
}

#[derive(Debug)]
struct Threads {
    vcpus: Vec<(u16, ThreadId)>,
    emulators: Vec<ThreadId>,
}

impl Mechanism {
    /// Starts the mechanism that is wanted and can be had. Where sched_ext is wanted but can't be had, the log says why. `real_time` is
    /// what the kernel thinks of real-time threads in the VMs' control groups.
    #[must_use]
    pub fn start(choice: MechanismChoice, real_time: RealTimeRule) -> Mechanism {
        let wanted = match choice {
            MechanismChoice::RealTime => false,
            MechanismChoice::SchedExt => true,
            MechanismChoice::Auto => real_time == RealTimeRule::Refused,
        };
        match wanted.then(Scx::load) {
            Some(Ok(scx)) => Mechanism::SchedExt(SchedExt { scx: Box::new(scx), vms: HashMap::new() }),
            Some(Err(error)) => {
                tracing::warn!("boosts by real-time priority instead of sched_ext: {error}");
                Mechanism::default()
            }
            None => Mechanism::default(),
        }
    }

    /// Whether it is real time. Only then do the VMs need real-time budgets, and the engine's changes of share be carried out: under
    /// sched_ext what they would take back has not been given.
    #[must_use]
    pub fn is_real_time(&self) -> bool {
        matches!(self, Mechanism::RealTime(_))
    }

    /// Adopts a VM, or adopts it afresh, for example after its threads have changed. The guardian is told what they have. `weight` is
    /// that of the VM in the units of `cpu.shares`; real time leaves that to the VM's control group.
    ///
    /// # Errors
    /// If a thread's settings can't be read, recorded or changed; the VM is then not adopted.
    pub fn adopt(
        &mut self,
        vm: VmId,
        weight: u32,
        vcpus: &[(u16, ThreadId)],
        emulators: &[ThreadId],
        guardian: &Guardian,
    ) -> Result<(), MechanismError> {
        match self {
            Mechanism::RealTime(booster) => booster.adopt(vm, vcpus, emulators, guardian)?,
            Mechanism::SchedExt(SchedExt { scx, vms }) => {
                vms.remove(&vm);
                scx.adopt(vm, weight, vcpus, emulators, guardian)?;
                vms.insert(vm, Threads { vcpus: vcpus.into(), emulators: emulators.into() });
            }
        }
        Ok(())
    }

    /// Adopts what is new among the threads of an adopted VM, and lets go of those that are gone. Its boosts go on for the threads that
    /// stay. A VM that is not adopted is no error.
    ///
    /// # Errors
    /// As [`Mechanism::adopt`]; the VM then keeps the threads that it had.
    pub fn renew(
        &mut self,
        vm: VmId,
        vcpus: &[(u16, ThreadId)],
        emulators: &[ThreadId],
        guardian: &Guardian,
    ) -> Result<(), MechanismError> {
        match self {
            Mechanism::RealTime(booster) => booster.renew(vm, vcpus, emulators, guardian)?,
            Mechanism::SchedExt(SchedExt { scx, vms }) => {
                scx.renew(vm, vcpus, emulators, guardian)?;
                vms.insert(vm, Threads { vcpus: vcpus.into(), emulators: emulators.into() });
            }
        }
        Ok(())
    }

    /// Sets the dispatch preference of a vCPU, or of the emulator threads of a VM. A VM or vCPU that is not there (any more) is no error.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn apply(&mut self, vm: VmId, target: BoostTarget, level: Boost) -> Result<(), MechanismError> {
        match self {
            Mechanism::RealTime(booster) => booster.apply(vm, target, level)?,
            Mechanism::SchedExt(SchedExt { scx, .. }) => scx.apply(vm, target, level)?,
        }
        Ok(())
    }

    /// Changes the weight of a VM. Real time leaves that to the VM's control group.
    ///
    /// # Errors
    /// If the scheduler can't be told.
    pub fn set_weight(&mut self, vm: VmId, weight: u32) -> Result<(), MechanismError> {
        match self {
            Mechanism::RealTime(_) => {}
            Mechanism::SchedExt(SchedExt { scx, .. }) => scx.set_weight(vm, weight)?,
        }
        Ok(())
    }

    /// Whether any vCPU of the VM is boosted.
    #[must_use]
    pub fn is_boosted(&self, vm: VmId) -> bool {
        match self {
            Mechanism::RealTime(booster) => booster.is_boosted(vm),
            Mechanism::SchedExt(SchedExt { scx, .. }) => scx.is_boosted(vm),
        }
    }

    /// What sched_ext has charged an adopted VM with; `None` by real time, where the kernel keeps no such account.
    ///
    /// # Errors
    /// If the account can't be read.
    pub fn usage(&self, vm: VmId) -> Result<Option<Usage>, MechanismError> {
        match self {
            Mechanism::RealTime(_) => Ok(None),
            Mechanism::SchedExt(SchedExt { scx, .. }) => Ok(scx.usage(vm)?),
        }
    }

    /// Ends all boosts of a VM, gives its threads what they had when adopted, and forgets it. A VM that is not adopted is no error.
    ///
    /// # Errors
    /// If a thread can't be restored: the guardian still has it on record.
    pub fn release(&mut self, vm: VmId, guardian: &Guardian) -> Result<(), MechanismError> {
        match self {
            Mechanism::RealTime(booster) => booster.release(vm, guardian)?,
            Mechanism::SchedExt(SchedExt { scx, vms }) => {
                vms.remove(&vm);
                scx.release(vm, guardian)?;
            }
        }
        Ok(())
    }

    /// Goes on by real time if the kernel has ejected the scheduler, and tells why it has. To be called now and then: until the scheduler is
    /// ejected, it costs a look at memory. The VMs stay adopted, unboosted, and need real-time budgets from now on.
    ///
    /// What fails about one VM is told in the log, and that VM is not adopted any more.
    ///
    /// # Errors
    /// If the guardian does not answer.
    pub fn fall_back(&mut self, guardian: &Guardian) -> Result<Option<String>, GuardianError> {
        let Mechanism::SchedExt(SchedExt { scx, vms }) = self else { return Ok(None) };
        let Some(reason) = scx.ejected() else { return Ok(None) };
        let mut booster = Booster::new();
        for (vm, Threads { vcpus, emulators }) in vms.drain() {
            let restored = scx.release(vm, guardian).map_err(MechanismError::from);
            match restored.and_then(|()| Ok(booster.adopt(vm, &vcpus, &emulators, guardian)?)) {
                Ok(()) => {}
                Err(
                    MechanismError::Scx(ScxError::Guardian(error))
                    | MechanismError::Boost(BoostError::Guardian(error)),
                ) => return Err(error),
                Err(error) => tracing::warn!("the VM is no longer boosted: {error}"),
            }
        }
        *self = Mechanism::RealTime(booster);
        Ok(Some(reason))
    }
}
