//! A process that undoes every change when frontdesk ends, however it ends.
//!
//! It is started before the first change. Each change is recorded with it, as what undoes it, before the
//! change is made. When the connection to its owner closes, because the owner finished or died, it runs all
//! undos, the latest first, and exits. If it is the guardian that dies, its owner runs them. If both die, the
//! next guardian with the same journal does, before anything else.
//!
//! An owner that boosts or dispatches others may promise to come back in time ([`Promise`]). If it does not,
//! because it hangs or is stopped, the guardian gives the threads on record their scheduling back, and lets
//! stopped processes go on, without waiting for its end.
//!
//! A supervisor that kills the whole process group or control group of its owner kills the guardian too
//! unless told otherwise (systemd: `KillMode=process` or `mixed`).

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod group;
mod guardian;
mod journal;
mod process;
mod promise;
mod undo;
mod wire;

pub use group::GroupError;
pub use guardian::{Guardian, GuardianError, UndoId};
pub use process::{UndoReport, run};
pub use promise::{Promise, Promiser};
pub use undo::{NotOurs, TREE_PREFIX, Tree, Undo};

/// The argument with which a program that links this crate becomes the guardian: it is to call [`run`].
pub const GUARDIAN_ARGUMENT: &str = "guardian";
