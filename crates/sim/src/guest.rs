//! A guest: its kernel's scheduler, its tasks, and the interrupts that are pending for it.
//!
//! Interrupts are delivered only while the vCPU runs. The kernel's work on one happens in the address space
//! of the task that was interrupted: seen from outside it is that task's. What reaches beyond the guest comes
//! out as [`Effect`]s.

mod deadlock;
mod isolation;
mod kernel;
mod schedule;
mod syscall;
mod window;

pub(crate) use deadlock::Stuck;
pub(crate) use kernel::{Cpu, Effect, GuestKernel, Interrupt, vectors};
pub(crate) use window::{AHEAD, WindowSpec};
