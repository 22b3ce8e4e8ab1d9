//! Knobs: who wins where policies disagree, and what each VM is entitled to and got.

mod account;
mod book;
mod claims;
mod fair_share;
mod ledger;

pub(crate) use account::{Account, PcpuSet};
pub(crate) use claims::Claims;
pub(crate) use ledger::Ledger;
