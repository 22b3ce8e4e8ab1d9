//! The daemon loop: sources -> engine -> actuators, in one thread.

mod disk_news;
mod disks;
mod engage;
mod error;
mod fast_path;
mod fleet;
mod flood;
mod followed;
mod lock;
mod look;
mod reserved;
mod state;
mod stop;
mod supervisor;
mod token;
mod turn;

pub use error::DaemonError;
pub use lock::LockError;
pub use state::{Daemon, DaemonConfig, LOCK, Reloader};
pub use stop::stop_signal;
