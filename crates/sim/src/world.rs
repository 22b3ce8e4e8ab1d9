//! The world on a machine: VMs with their guests, the I/O path, devices, clients outside, and the engine that
//! watches.
//!
//! | file | what |
//! |---|---|
//! | `world/state.rs` | what entities do on physical CPUs, and which timer is whose |
//! | `world/io.rs` | the I/O path: a driver domain, emulator threads, or nobody |
//! | `world/devices.rs` | the devices behind it |
//! | `world/isolation.rs` | the daemon in a guest that keeps background work apart |
//! | `world/build.rs` | from a scenario to a world |
//! | `world/measure.rs` | what is counted |

mod build;
mod devices;
mod io;
mod isolation;
mod measure;
mod state;

pub use build::SimError;
pub(crate) use build::{BuildError, build, entity_names, tracer};
pub(crate) use measure::{Measure, Measured, SecondSample, TaskTimes, ThreadTime, WindowFrames};
pub(crate) use state::World;
use state::{EntityRole, SimVm, TimerOwner, WATCH, number};
