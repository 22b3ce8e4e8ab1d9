//! What KVM does on this host.

use super::{Interrupts, KvmError, Method};
use std::{fs, path::Path};

/// The kernel's modules, with their parameters.
const MODULES: &str = "/sys/module";

/// The modules that may run guests; the last is what the others share.
pub(super) const MODULES_BY_RANK: [&str; 4] = ["kvm_amd", "kvm_intel", "kvm_pvm", "kvm"];

/// The methods that tell this host's guest tasks, best first. The next is for kernels that refuse the
/// programs of the one before.
pub(super) fn methods() -> Result<&'static [Method], KvmError> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    methods_of(flags, Path::new(MODULES))
}

/// Which interrupts are told, if the kernel takes the programs.
pub(super) fn interrupts() -> Interrupts {
    interrupts_of(Path::new(MODULES))
}

fn interrupts_of(modules: &Path) -> Interrupts {
    // Without hardware's KVM, methods_of() takes the one in software.
    let hardware = [("kvm_amd", "avic"), ("kvm_intel", "enable_apicv")].map(|(module, parameter)| {
        let parameters = modules.join(module).join("parameters");
        (parameters.exists(), fs::read_to_string(parameters.join(parameter)).is_ok_and(|value| is_on(&value)))
    });
    if hardware.iter().any(|(_, delivers)| *delivers) {
        Interrupts::DeliveredByKvm
    } else if hardware.iter().any(|(is_there, _)| *is_there) {
        Interrupts::All
    } else {
        Interrupts::None
    }
}

/// What a switch of a module's says.
fn is_on(value: &str) -> bool {
    matches!(value.trim(), "Y" | "1")
}

fn methods_of(cpu_flags: &str, modules: &Path) -> Result<&'static [Method], KvmError> {
    let has = |flag| cpu_flags.split_ascii_whitespace().any(|known| known == flag);
    // Modules built into the kernel are listed whatever the processor is.
    let nested_paging = |flag, module: &str, parameter: &str| {
        let value = fs::read_to_string(modules.join(module).join("parameters").join(parameter)).ok()?;
        has(flag).then_some(is_on(&value))
    };
    if let Some(nested_paging) = nested_paging("svm", "kvm_amd", "npt") {
        return Ok(if nested_paging {
            &[Method::Exit, Method::Switch]
        } else {
            &[Method::Trap, Method::Switch]
        });
    }
    if let Some(nested_paging) = nested_paging("vmx", "kvm_intel", "ept") {
        return if nested_paging { Err(KvmError::Hidden) } else { Ok(&[Method::Trap, Method::Switch]) };
    }
    // KVM in software (PVM): the guest asks it to load CR3, but the kernel tells nobody.
    if modules.join("kvm_pvm").exists() { Ok(&[Method::Switch]) } else { Err(KvmError::NoKvm) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(modules: &Path, module: &str, parameter: &str, value: &str) {
        let folder = modules.join(module).join("parameters");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(parameter), value).unwrap();
    }

    #[test]
    fn the_processor_and_its_paging_decide() {
        let modules = tempfile::tempdir().unwrap();
        let set = |module, parameter, value| set(modules.path(), module, parameter, value);
        let methods = |flags: &str| methods_of(flags, modules.path());
        assert!(matches!(methods("flags : fpu svm"), Err(KvmError::NoKvm)));
        set("kvm_amd", "npt", "Y\n");
        set("kvm_intel", "ept", "Y\n");
        assert_eq!(methods("flags : fpu svm").unwrap(), [Method::Exit, Method::Switch]);
        assert!(matches!(methods("flags : fpu vmx"), Err(KvmError::Hidden)));
        assert!(matches!(methods("flags : fpu"), Err(KvmError::NoKvm)), "both built in, neither works");
        set("kvm_amd", "npt", "N\n");
        set("kvm_intel", "ept", "N\n");
        assert_eq!(methods("flags : fpu svm").unwrap(), [Method::Trap, Method::Switch]);
        assert_eq!(methods("flags : fpu vmx").unwrap(), [Method::Trap, Method::Switch]);
        set("kvm_pvm", "x", "");
        assert_eq!(methods("flags : fpu").unwrap(), [Method::Switch]);
    }

    #[test]
    fn the_processor_may_deliver_interrupts_by_itself() {
        let modules = tempfile::tempdir().unwrap();
        let set = |module, parameter, value| set(modules.path(), module, parameter, value);
        let interrupts = || interrupts_of(modules.path());
        set("kvm_pvm", "x", "");
        assert_eq!(interrupts(), Interrupts::None);
        set("kvm_amd", "npt", "Y\n");
        assert_eq!(interrupts(), Interrupts::All, "a module without such a switch");
        set("kvm_amd", "avic", "N\n");
        assert_eq!(interrupts(), Interrupts::All);
        set("kvm_intel", "enable_apicv", "Y\n");
        assert_eq!(interrupts(), Interrupts::DeliveredByKvm);
        set("kvm_intel", "enable_apicv", "N\n");
        set("kvm_amd", "avic", "1\n");
        assert_eq!(interrupts(), Interrupts::DeliveredByKvm);
    }
}
