//! The reporter in a guest as a source of events: which task runs on which vCPU, where that cannot be seen
//! from outside.
//!
//! The reporter (`frontdesk-guest`) is optional and not trusted. It reaches the host by a virtio-serial port,
//! whose other end is a Unix socket of QEMU's. Whatever the guest does with it, its own VM alone is affected:
//! when the reporter is silent, floods or makes no sense, [`is_live`](ReporterSource::is_live) says so, and
//! the VM is followed as if it had none.

mod all;
mod clock;
mod port;
mod session;
mod source;

pub use all::Reporters;
pub use clock::HostTime;
pub use frontdesk_guest_protocol::{Isolation, Refusal};
pub use port::find_port;
pub use session::{ReporterStats, Told};
pub use source::{EpisodeOrder, ReporterError, ReporterSource, ReporterState};
