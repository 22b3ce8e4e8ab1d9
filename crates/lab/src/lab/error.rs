//! Why a run could not be made.

use crate::cache::CacheError;
use crate::command::CommandError;
use crate::daemon::DaemonProcessError;
use crate::data_disk::DiskError;
use crate::debian::DebianError;
use crate::load::LoadError;
use crate::net::NetError;
use crate::{BackEndError, InitramfsError, KernelError, SlowDiskError, VmError};
use frontdesk_guardian::{GroupError, GuardianError};
use frontdesk_linux::cgroup::CgroupError;
use frontdesk_record::RecordError;
use frontdesk_scenario::Violation;

/// A run could not be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant passes on an error that describes itself.
pub enum LabError {
    #[error(transparent)]
    Scenario(#[from] Violation),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Initramfs(#[from] InitramfsError),
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Guardian(#[from] GuardianError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    SlowDisk(#[from] SlowDiskError),
    #[error(transparent)]
    BackEnd(#[from] BackEndError),
    #[error(
        "the modelled disk answered {late_ms:.1} ms later than its model says (99th percentile): this machine \
         had something else to do. Run the scenario while nothing else runs"
    )]
    LateDisk { late_ms: f64 },
    #[error(transparent)]
    Debian(#[from] DebianError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Daemon(#[from] DaemonProcessError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the recording's parameters are not valid: {0}")]
    Config(#[from] frontdesk_engine::ConfigError),
    #[error(transparent)]
    Replay(#[from] frontdesk_replay::ReplayError),
    #[error(transparent)]
    Control(#[from] frontdesk_control_protocol::ClientError),
    #[error(transparent)]
    Sched(#[from] frontdesk_linux::sched::SchedError),
    #[error("the reservation for {of} is not kept: {trouble}")]
    Reservation { of: String, trouble: String },
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("in the emulated host: {said}")]
    Inside { said: String, lost: bool },
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("something could not be removed: {0}")]
    Left(String),
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    /// Whether a VM, the emulated host or one in it, died or did not answer: made once more, it may go well.
    pub(crate) fn is_of_lost_vm(&self) -> bool {
        match self {
            Self::Vm(VmError::Ended { .. } | VmError::Timeout { .. }) => true,
            Self::Inside { lost, .. } => *lost,
            _ => false,
        }
    }
}
