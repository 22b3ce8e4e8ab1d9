//! Why the daemon cannot begin or go on.

use super::LockError;
use crate::control::ControlError;
use frontdesk_engine::ConfigError;
use frontdesk_guardian::GuardianError;
use frontdesk_linux::cgroup::CgroupError;
use frontdesk_linux::realtime;
use frontdesk_probes::BpfError;
use frontdesk_record::RecordError;

/// The daemon cannot begin or go on. What is wrong with one VM only is told in the log, and the daemon goes
/// on without it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant passes on an error that describes itself.
pub enum DaemonError {
    #[error("the policy is not valid: {0}")]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Bpf(#[from] BpfError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Guardian(#[from] GuardianError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("{0}")]
    Realtime(#[from] realtime::RealtimeError),
    #[error("cannot start the threads that look for VMs and keep reservations: {0}")]
    Threads(std::io::Error),
    #[error("hearing of guest tasks failed: {0}")]
    Identities(#[from] std::io::Error),
    #[error("waiting for events failed: {0}")]
    Wait(#[from] rustix::io::Errno),
}
