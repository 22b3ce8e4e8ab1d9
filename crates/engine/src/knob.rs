//! Knobs: who wins where policies disagree, and what each VM is entitled to and got.

mod account;
mod book;
mod claims;
mod compensation;
mod fair_share;
mod ledger;

pub(crate) use account::{PcpuSet, VmAccount};
pub(crate) use claims::Claims;
pub(crate) use compensation::{compensation, is_worth};
pub(crate) use ledger::Ledger;
