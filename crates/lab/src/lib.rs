//! Real VMs on this host, and scenarios run against them.
//!
//! [`run`] boots the VMs of a scenario, runs its arms interleaved and repeated, and gives the result that
//! `frontdesk-report` shows. [`Vm`] is the single VM underneath.

mod cpu;
mod daemon;
mod initramfs;
mod kernel;
mod lab;
mod load;
mod machine;
mod net;
mod plugin_cost;
mod replay;
mod summary;
mod vm;

pub use daemon::DaemonProcessError;
pub use initramfs::{InitramfsError, add_to_initramfs, write_initramfs};
pub use kernel::{Kernel, KernelError};
pub use lab::{LabConfig, LabError, Progress, run};
pub use load::LoadError;
pub use net::{NetError, enter_namespace};
pub use vm::{TapConfig, Vm, VmConfig, VmError};
