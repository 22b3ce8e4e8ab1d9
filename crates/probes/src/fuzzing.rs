//! What a record of a BPF program's ring may hold: the body of a property test, and of fuzzing with coverage
//! (`fuzz/`).

use crate::bpf::abi as bpf;
use crate::kvm::abi as kvm;
use crate::meter::Birth;
use crate::scx::{Gift, Usage};

/// A record is an event, a birth, a gift or an account if it has all bytes of one.
pub fn record(bytes: &[u8]) {
    assert!(bytes.len() >= 24 || (bpf::decode(bytes).is_none() && kvm::decode(bytes).is_none()));
    assert!(bytes.len() >= 12 || Birth::decode(bytes).is_none());
    let _ = (bpf::decode(bytes), kvm::decode(bytes), Birth::decode(bytes));
    let _ = (Gift::decode(bytes), Usage::decode(bytes));
}
