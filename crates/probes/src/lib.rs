//! What eBPF programs of frontdesk's hear, meter and schedule, and which of them this kernel takes.

pub mod bpf;
mod channel;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod kvm;
mod libbpf;
pub mod meter;
mod packet;
pub mod scx;

pub use error::BpfError;
pub use packet::MAX_TAPS;
