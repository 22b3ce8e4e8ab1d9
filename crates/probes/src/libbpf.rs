//! What all users of libbpf need.

use crate::BpfError;
use crate::error::{advice, chain};
use libbpf_rs::{MapHandle, MapMut, PrintLevel};

/// An error maker for `map_err`.
pub(crate) fn setup(step: &'static str) -> impl Fn(libbpf_rs::Error) -> BpfError {
    move |e| BpfError::Setup { step, cause: chain(&e), advice: advice() }
}

/// A map, also when the object that it is part of is gone.
pub(crate) fn keep(map: &MapMut<'_>) -> Result<MapHandle, BpfError> {
    MapHandle::try_from(map).map_err(setup("keep a map of the BPF object open"))
}

/// Sends libbpf's messages to the log: what matters is in the errors.
pub(crate) fn silence_libbpf() {
    fn to_log(_: PrintLevel, message: String) {
        tracing::debug!(target: "libbpf", "{}", message.trim_end());
    }
    libbpf_rs::set_print(Some((PrintLevel::Info, to_log)));
}
