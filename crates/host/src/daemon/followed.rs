//! What the daemon keeps of a VM that it follows.

use super::DaemonError;
use crate::config::VmSettings;
use crate::notification::VmOrigin;
use crate::share::ShareControl;
use crate::threads::ThreadsError;
use frontdesk_engine::{Standing, Thread, VmId, VmPolicy};
use frontdesk_guardian::GroupError;
use frontdesk_linux::cgroup::Group;
use frontdesk_qemu::QemuVm;
use std::collections::{BTreeMap, BTreeSet};

/// A VM that is followed.
pub(super) struct FollowedVm {
    pub(super) id: VmId,
    pub(super) name: String,
    /// Where it was found.
    pub(super) sources: BTreeSet<VmOrigin>,
    pub(super) qemu: QemuVm,
    /// Absent while the daemon does not act on the VM.
    pub(super) control: Option<VmControls>,
    /// As the engine was told.
    pub(super) weight: u32,
    /// Whether somebody limits what it may have of the CPUs, as the engine was told.
    pub(super) limited: bool,
    /// Of its vCPUs inside it, in permille, as the engine was told.
    pub(super) vcpu_weights: BTreeMap<u16, u32>,
    pub(super) paused: bool,
    /// It has a reservation, and is not boosted.
    pub(super) reserved: bool,
    pub(super) settings: VmSettings,
    /// As the engine was told.
    pub(super) policy: Option<VmPolicy>,
    /// As the engine was told.
    pub(super) standing: Standing,
    /// Why the daemon does not act on the VM although it should.
    pub(super) trouble: Option<String>,
    /// What the daemon could not set probes for, and why.
    pub(super) unprobed: Vec<String>,
    /// What of its trouble was told last.
    pub(super) told: Option<String>,
}

/// What the daemon changes of a VM.
pub(super) struct VmControls {
    pub(super) group: Group,
    pub(super) share: ShareControl,
}

/// The threads of a VM whose scheduling is watched.
pub(super) fn watched_threads(vm: &QemuVm) -> Vec<(i32, Thread)> {
    let vcpus = vm.vcpus.iter().map(|(index, thread)| (thread.tid, Thread::Vcpu(*index)));
    let emulators = (0..).zip(&vm.emulators);
    vcpus.chain(emulators.map(|(index, thread)| (thread.tid, Thread::Emulator(index)))).collect()
}

/// What went wrong is the affair of one VM, or of the whole daemon.
pub(super) enum EngageError {
    Vm(String),
    Daemon(DaemonError),
}

impl From<ThreadsError> for EngageError {
    fn from(error: ThreadsError) -> EngageError {
        match error {
            ThreadsError::Guardian(error) => EngageError::Daemon(error.into()),
            error => EngageError::Vm(error.to_string()),
        }
    }
}

impl From<GroupError> for EngageError {
    fn from(error: GroupError) -> EngageError {
        match error {
            GroupError::Guardian(error) => EngageError::Daemon(error.into()),
            error => EngageError::Vm(error.to_string()),
        }
    }
}
