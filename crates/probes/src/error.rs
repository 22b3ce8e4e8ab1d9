//! Why the BPF source cannot be had, or not follow a VM.

use frontdesk_engine::VmId;
use std::fs;
use std::path::Path;

/// Why the BPF source cannot be had, or not follow a VM.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// A program was refused.
    #[error("the kernel refuses the BPF program {program}: {cause}; {advice}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What libbpf says.
        cause: String,
        /// What the host seems to lack.
        advice: String,
    },
    /// The programs as a whole could not be set up.
    #[error("cannot {step}: {cause}; {advice}")]
    Setup {
        /// What was tried.
        step: &'static str,
        /// What libbpf says.
        cause: String,
        /// What the host seems to lack.
        advice: String,
    },
    /// A thread or tap of a VM could not be followed.
    #[error("cannot follow {what} of VM {vm}: {cause}", vm = .vm.0)]
    Follow {
        /// The VM.
        vm: VmId,
        /// The thread or tap.
        what: String,
        /// Why.
        cause: String,
    },
    /// A function of QEMU's could not be probed.
    #[error("cannot probe QEMU's function {function} in process {pid}: {cause}")]
    Probe {
        /// The process.
        pid: i32,
        /// The function.
        function: &'static str,
        /// Why.
        cause: String,
    },
    /// The ring or a map could not be read.
    #[error("cannot read {what} of the BPF programs: {cause}")]
    Read {
        /// What was read.
        what: &'static str,
        /// What libbpf says.
        cause: String,
    },
}

pub(crate) fn refusal(e: &libbpf_rs::Error, limit: &str) -> String {
    match e.kind() {
        libbpf_rs::ErrorKind::AlreadyExists => "it is followed for another VM".into(),
        _ => format!("{} (at most {limit} are followed)", chain(e)),
    }
}

pub(crate) fn chain(e: &libbpf_rs::Error) -> String {
    format!("{e:#}")
}

/// Why a function of a process could not be probed, and what helps where that is known.
pub(crate) fn probe_cause(e: &libbpf_rs::Error) -> String {
    match e.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => format!(
            "{}; Linux before 6.10 may want CAP_SYS_ADMIN for that, which the unit does not have: docs/install.md tells \
             how to grant it",
            chain(e)
        ),
        _ => chain(e),
    }
}

/// What the host most likely lacks when the kernel refuses a program.
pub(crate) fn advice() -> String {
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        "this kernel has no BTF type information (/sys/kernel/btf/vmlinux); use one built with \
         CONFIG_DEBUG_INFO_BTF, as distribution kernels are"
            .into()
    } else if lockdown.contains("[confidentiality]") {
        "the kernel is locked down (confidentiality mode), which bars BPF from kernel memory; boot with \
         lockdown=integrity"
            .into()
    } else if !rustix::process::geteuid().is_root() {
        "run as root, or grant CAP_BPF, CAP_PERFMON and CAP_SYS_RESOURCE".into()
    } else {
        "the kernel may be older than 5.18 or lack the tracepoint, or the process its capabilities (CAP_BPF and \
         CAP_PERFMON); the verifier's log is in the debug log of target \"libbpf\""
            .into()
    }
}
