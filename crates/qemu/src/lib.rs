//! QEMU's VMs: finding out about a running one, from its QMP socket and `/proc`, and hearing what its guest
//! does, from frontdesk's QEMU plugin or from the reporter in the guest.

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod libvirt;
mod process;
mod qmp;
pub mod reporter;
mod tcg;
mod unheard;
mod visit;
mod vm;

pub use libvirt::{examine as examine_libvirt, is_libvirt, is_of_libvirt_itself};
pub use process::thread_count;
pub use qmp::{QmpError, VmEvent};
pub use tcg::{TcgError, TcgSource};
pub use unheard::{DiskServer, Unheard, disk_servers, unheard};
pub use visit::{QmpSession, Visit, discover};
pub use vm::{DiscoverError, Disk, QemuVm};
