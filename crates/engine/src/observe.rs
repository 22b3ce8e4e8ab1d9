//! Facts: what runs where and for how long. Nothing here is a guess.

mod tasks;
mod thread;
mod vcpu;

pub(crate) use tasks::{Evidence, Registry};
pub(crate) use thread::ThreadTimes;
pub(crate) use vcpu::Vcpu;
