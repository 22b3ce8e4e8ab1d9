//! From where the tasks of guests can be known: without that, nothing in a VM is boosted.

use super::Finding;
use super::machine;
use crate::Identity;
use frontdesk_probes::kvm::{self, Interrupts, KvmError, Method};

pub(super) fn under_tcg() -> Finding {
    const AREA: &str = "tasks under TCG";
    match machine::qemu_version() {
        Ok((_, true)) => Finding::ok(AREA, Identity::Plugin.to_string()),
        _ => Finding::limited(AREA, "this QEMU cannot load frontdesk's plugin", "see QEMU"),
    }
}

pub(super) fn under_kvm() -> Finding {
    const AREA: &str = "tasks under KVM";
    match kvm::probe() {
        Ok(method) => {
            let found = Identity::Kvm(method).to_string();
            match method {
                Method::Trap => Finding::ok(AREA, found),
                Method::Exit | Method::Switch => Finding::limited(
                    AREA,
                    found,
                    "works, but some boosts end by time instead of with the task switch; frontdesk's reporter in the guest is exact",
                ),
            }
        }
        Err(e @ KvmError::NoKvm) => Finding::limited(AREA, "KVM is not loaded", e.to_string()),
        Err(e @ KvmError::Hidden) => Finding::limited(AREA, "not visible from outside", e.to_string()),
        Err(KvmError::Bpf(e)) => Finding::limited(
            AREA,
            "the kernel refuses the BPF programs",
            format!("{e}; or install frontdesk's reporter in the guest"),
        ),
    }
}

/// Who plays sound.
pub(super) fn sounds() -> Finding {
    const AREA: &str = "sounds of VMs";
    const UNDER_KVM: &str =
        "under KVM accesses of guests to sound cards are not told, and no film is known there";
    match machine::qemu_version() {
        Ok((_, true)) => Finding::limited(AREA, "heard of VMs under TCG, by frontdesk's plugin", UNDER_KVM),
        _ => Finding::limited(AREA, "this QEMU cannot load frontdesk's plugin", UNDER_KVM),
    }
}

pub(super) fn interrupts() -> Finding {
    const AREA: &str = "interrupts under KVM";
    const WITHOUT: &str = "in VMs with several vCPUs, more of them are boosted than take part in an answer";
    match kvm::probe_interrupts() {
        Ok(Interrupts::All) => Finding::ok(AREA, "which vCPU takes which, and whom vCPUs interrupt"),
        Ok(Interrupts::DeliveredByKvm) => Finding::limited(
            AREA,
            "those that the processor delivers by itself (AVIC, APICv) are not seen",
            format!("{WITHOUT}; kvm_amd.avic=0 or kvm_intel.enable_apicv=0 lets KVM deliver all"),
        ),
        Ok(Interrupts::None) => Finding::limited(AREA, "KVM in software (PVM) does not tell them", WITHOUT),
        Err(e @ KvmError::NoKvm) => Finding::limited(AREA, "KVM is not loaded", e.to_string()),
        Err(KvmError::Hidden) => Finding::limited(AREA, "not told", "see tasks under KVM"),
        Err(KvmError::Bpf(e)) => {
            Finding::limited(AREA, "the kernel refuses the BPF programs", format!("{e}; {WITHOUT}"))
        }
    }
}
