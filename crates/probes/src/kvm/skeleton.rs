//! What the build makes of `bpf/kvm.bpf.c`.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

include!(concat!(env!("OUT_DIR"), "/kvm.skel.rs"));
