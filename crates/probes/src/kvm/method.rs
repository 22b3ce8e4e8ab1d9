//! How guest tasks and interrupts can be told, and why they cannot.

use crate::BpfError;

/// Where the guest's CR3 is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Loads of CR3 trap, and KVM carries each out: every switch is seen. Halts are seen when the vCPU's
    /// thread sleeps.
    Trap,
    /// AMD's nested paging: CR3 is in the processor's control block (VMCB) at every exit of the guest. Every
    /// halt is an exit.
    Exit,
    /// KVM's copy of CR3, when the vCPU's thread loses its CPU. Halts are seen when it sleeps.
    Switch,
}

impl Method {
    /// Whether every task switch is seen, rather than samples of what runs.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        matches!(self, Method::Trap)
    }

    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Method::Trap => "KVM, CR3 loads",
            Method::Exit => "KVM, CR3 at exits",
            Method::Switch => "KVM, CR3 at thread switches",
        }
    }

    /// The BPF programs that it takes.
    pub(super) const fn programs(self) -> &'static [&'static str] {
        match self {
            Method::Trap => &["on_load", "on_switch"],
            Method::Exit => &["on_exit", "on_entry"],
            Method::Switch => &["on_switch_sample"],
        }
    }
}

/// Which interrupts of VMs with several vCPUs are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// All.
    All,
    /// Not those that the processor delivers by itself (AMD's AVIC, Intel's APICv).
    DeliveredByKvm,
    /// None: KVM in software (PVM) does not tell when it enters a guest.
    None,
}

/// Why the guest tasks of VMs under KVM cannot be told apart from outside.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// KVM is not in use.
    #[error("KVM is not loaded, so no VM runs under it; load kvm_amd or kvm_intel")]
    NoKvm,
    /// The processor keeps CR3 to itself.
    #[error(
        "this host's processor (Intel, with EPT) keeps the guest's CR3 where only KVM can read it; install frontdesk's reporter \
         in the guest"
    )]
    Hidden,
    /// The programs were refused, or the maps could not be used.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}
