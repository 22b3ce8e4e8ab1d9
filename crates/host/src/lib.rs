//! The real Linux host: sources that turn what the kernel and QEMU know into engine events, actuators that carry
//! decisions out, and a guardian that undoes every change when frontdesk ends, however it ends.
//!
//! Everything here needs Linux, and nearly everything root; [`doctor`] says what a host lacks.

pub mod bpf;
pub mod cgroup;
pub mod config;
pub mod control;
mod daemon;
pub mod doctor;
pub mod guardian;
mod identity;
pub mod kvm;
pub mod qemu;
mod realtime;
pub mod reporter;
mod reserve;
pub mod sched;
pub mod scx;
mod status;
mod tcg;
pub mod threads;
mod watch;

pub use daemon::{Daemon, DaemonConfig, DaemonError, LOCK, LockError, Reloader, monotonic, stop_signal};
pub use identity::{Identities, Identity, IdentityError};
pub use realtime::{RealtimeError, run_ahead};
pub use reserve::{ReserveMechanism, ReserveSettings};
pub use tcg::{TcgError, TcgSource};

/// The argument with which a program that links this crate becomes the guardian: it is to call [`guardian::run`].
pub const GUARDIAN_ARGUMENT: &str = "guardian";
