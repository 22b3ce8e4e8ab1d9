//! The real Linux host: sources that turn what the kernel and QEMU know into engine events, actuators that
//! carry decisions out, and a guardian that undoes every change when frontdesk ends, however it ends.
//!
//! Everything here needs Linux, and nearly everything root; [`doctor`] says what a host lacks.

mod accept_rate;
pub mod budget;
mod clock;
pub mod config;
pub mod control;
mod daemon;
mod disks;
pub mod doctor;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod identity;
mod notification;
mod reserve;
pub mod share;
mod status;
pub mod threads;
mod wake;
mod watch;

pub use daemon::{Daemon, DaemonConfig, DaemonError, LOCK, LockError, Reloader, stop_signal};
pub use identity::{Identities, Identity, IdentityChoice, IdentityError};
pub use reserve::{ReserveMechanism, ReserveSettings};
