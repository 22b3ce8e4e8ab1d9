//! Real VMs on this host, and scenarios run against them.
//!
//! [`run`] boots the VMs of a scenario, runs its arms interleaved and repeated, and gives the result that
//! `frontdesk-report` shows. [`RunningVm`] is the single VM underneath.

mod back_end;
mod cache;
mod client;
mod clock;
mod command;
mod cpu;
mod daemon;
mod data_disk;
mod debian;
mod desktop;
mod edit;
mod emulated;
mod initramfs;
mod kernel;
mod keyboard;
mod lab;
mod load;
mod lost;
mod machine;
mod net;
mod plugin_cost;
mod replay;
mod reserve;
mod slow_disk;
mod vm;
mod web;

pub use back_end::BackEndError;
pub use cache::CacheError;
pub use command::CommandError;
pub use daemon::DaemonProcessError;
pub use data_disk::{DiskError, data_disk};
pub use debian::{Debian, DebianError, Release, debian, desktop};
pub use emulated::{INSIDE_ARGUMENT, inside, run};
pub use initramfs::{
    InitramfsError, add_to_initramfs, write_desktop_initramfs, write_initramfs, write_initramfs_with,
};
pub use kernel::{Kernel, KernelError};
pub use lab::{LabConfig, LabError, Progress};
pub use load::LoadError;
pub use net::NetError;
pub use reserve::{WORKER_ARGUMENT, study, work};
pub use slow_disk::{SLOW_DISK_ARGUMENT, SlowDisk, SlowDiskError, serve as serve_slow_disk};
pub use vm::{DiskConfig, DiskKind, RunningVm, TapConfig, VmConfig, VmError};
