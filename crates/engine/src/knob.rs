//! Knobs: who wins where policies disagree, and what each VM is entitled to and got.

mod claims;
mod ledger;

pub(crate) use claims::Claims;
pub(crate) use ledger::{Account, Ledger, PcpuSet};
