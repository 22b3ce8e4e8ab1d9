//! What a hypervisor's scheduler is to the model, and what it may know of the machine.

mod edf;
mod fair;
mod host;
mod reserved;

pub use edf::edf;
pub use fair::{cfs, eevdf};
pub(crate) use fair::{cfs_on, eevdf_on, nice_weight};
pub use host::{Entity, EntitySpec, Group, GroupSpec, Host, HostScheduler, Pcpu, PcpuSet, SchedulerTimer};
pub(crate) use host::{Happening, RunState};
