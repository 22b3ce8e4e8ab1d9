//! The probes on QEMU's accounting of reads, set off the loop: the kernel takes some ten milliseconds for
//! each VM.

use super::skeleton::FrontdeskSkel;
use crate::BpfError;
use crate::error::probe_cause;
use libbpf_rs::{Link, ProgramMut, UprobeOpts};
use std::sync::Arc;

/// The loaded programs.
pub(super) struct Programs(pub(super) FrontdeskSkel<'static>);

// SAFETY: once loaded, the object is not changed any more. What is called on it from several threads,
// attaching, reads a program's descriptor, name and type, and keeps what it makes in the link that it
// returns.
unsafe impl Send for Programs {}
// SAFETY: as above.
unsafe impl Sync for Programs {}

/// Sets probes in QEMU processes, on any thread.
#[derive(Clone)]
pub struct ReadProbes(pub(super) Arc<Programs>);

/// The probes in one QEMU process. They are taken out when this is dropped, which takes as long as setting
/// them.
pub struct Probes(#[expect(dead_code, reason = "held until they are dropped")] Vec<Link>);

impl Probes {
    /// Takes them out without waiting for it.
    pub fn drop_elsewhere(self) {
        // If there can be no thread, this one has to wait.
        let _ = std::thread::Builder::new().name("probes".into()).spawn(move || drop(self));
    }
}

impl std::fmt::Debug for Probes {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Probes")
    }
}

impl ReadProbes {
    /// Sets the probes in the QEMU process `pid`. Nothing is heard of them before
    /// [`follow_reads`](super::BpfSource::follow_reads).
    ///
    /// # Errors
    /// If QEMU's accounting functions cannot be probed: it is built in another way, or the kernel has no
    /// uprobes.
    pub fn attach(&self, pid: i32) -> Result<Probes, BpfError> {
        // Whatever QEMU sees as its own program, also where it is in a container or was replaced by an
        // upgrade since.
        let program = format!("/proc/{pid}/exe");
        let probe = |code: &ProgramMut<'_>, function: &'static str| {
            let options = UprobeOpts { func_name: Some(function.to_owned()), ..UprobeOpts::default() };
            let link = code.attach_uprobe_with_opts(pid, &program, 0, options);
            link.map_err(|e| BpfError::Probe { pid, function, cause: probe_cause(&e) })
        };
        let programs = &self.0.0.progs;
        Ok(Probes(vec![
            probe(&programs.on_read, "block_acct_start")?,
            probe(&programs.on_read_done, "block_acct_done")?,
            probe(&programs.on_read_done, "block_acct_failed")?,
        ]))
    }
}
