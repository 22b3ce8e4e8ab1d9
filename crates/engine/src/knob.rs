//! Knobs: who wins where policies disagree, and what each VM is entitled to and got.

mod account;
mod book;
mod claims;
mod fair_share;
mod ledger;

pub(crate) use account::{PcpuSet, VmAccount};
pub(crate) use claims::Claims;
pub(crate) use ledger::Ledger;
