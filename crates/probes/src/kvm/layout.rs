//! Where KVM's modules keep what the programs read.

use super::Method;
use super::btf::Btf;
use super::host::MODULES_BY_RANK;
use super::skeleton::types;
use crate::BpfError;
use crate::error::advice;
use std::path::Path;

/// The kernel's descriptions of its types, a file for itself and for each module.
const BTF: &str = "/sys/kernel/btf";

/// What the method's programs are told, and which program hears that a vCPU notifies a device, if there is
/// one for this kernel.
///
/// # Errors
/// [`BpfError::Setup`] if this kernel does not describe its types, or has other ones.
pub(super) fn layout(method: Method) -> Result<(types::layout, Option<&'static str>), BpfError> {
    let fail = |cause: String| BpfError::Setup { step: "find KVM's state", cause, advice: advice() };
    let read = |name: &str, kernel| {
        let path = Path::new(BTF).join(name);
        Btf::read(&path, kernel).map_err(|error| fail(format!("{}: {error}", path.display())))
    };
    let kernel = read("vmlinux", None)?;
    // KVM may be a part of the kernel itself.
    let module = MODULES_BY_RANK.into_iter().find(|name| Path::new(BTF).join(name).exists());
    let module = module.map(|name| read(name, Some(&kernel))).transpose()?;
    let types = module.as_ref().unwrap_or(&kernel);
    let offset = |structure: &str, path: &[&str]| {
        let what = || fail(format!("this kernel has no {} in its struct {structure}", path.join(".")));
        types.offset(structure, path).ok_or_else(what)
    };
    let vmcb = if method == Method::Exit { offset("vcpu_svm", &["vmcb01", "ptr"])? } else { 0 };
    // The function that KVM calls; Linux 6.8 has a new one, which has an old one's name.
    let program = match kernel.parameters("eventfd_signal_mask") {
        Some(2) => Some("on_signal_mask"),
        _ => kernel.parameters("eventfd_signal").map(|_| "on_signal"),
    };
    let layout = types::layout {
        vmcb,
        id: offset("kvm_vcpu", &["vcpu_id"])?,
        cr3: offset("kvm_vcpu", &["arch", "cr3"])?,
        mp_state: offset("kvm_vcpu", &["arch", "mp_state"])?,
        notifier: offset("kvm_vcpu", &["preempt_notifier", "link"])?,
    };
    Ok((layout, program))
}
