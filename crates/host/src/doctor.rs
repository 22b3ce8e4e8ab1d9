//! What this host offers frontdesk, and what would help where it falls short.

mod file;
mod finding;
mod identity;
mod kernel;
mod machine;
mod paths;

pub use finding::{Finding, Status};

/// Examines the host and the VMs that run. Takes about a tenth of a second; loads each BPF program for a
/// moment, changes nothing.
#[must_use]
pub fn examine() -> Vec<Finding> {
    let mut findings = vec![kernel::privilege(), kernel::release(), kernel::btf()];
    findings.extend(kernel::bpf_programs());
    findings.extend(kernel::probed_functions());
    findings.extend([kernel::control_groups(), kernel::real_time_groups(), kernel::real_time_throttle()]);
    findings.extend([
        kernel::weights(),
        kernel::fair_server(),
        kernel::reservations(),
        kernel::sched_ext(),
        kernel::autogroup(),
    ]);
    findings.extend([
        machine::cpus(),
        machine::memory(),
        machine::kvm(),
        machine::taps(),
        machine::namespaces(),
    ]);
    findings.extend([
        machine::qemu(),
        identity::under_tcg(),
        identity::under_kvm(),
        identity::interrupts(),
        identity::sounds(),
    ]);
    findings.extend(paths::paths());
    findings.push(paths::disks());
    findings.extend(machine::programs());
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shortcoming_comes_with_advice() {
        let findings = examine();
        for finding in &findings {
            let helpful = finding.advice.as_ref().is_some_and(|advice| !advice.is_empty());
            assert_eq!(helpful, finding.status != Status::Ok, "{finding:?}");
            assert!(!finding.found.is_empty(), "{finding:?}");
        }
        for area in [
            "privilege",
            "QEMU",
            "control groups",
            "BPF on_switch",
            "displays of VMs",
            "input of VMs",
            "fair server",
            "changes of weight",
            "tasks under KVM",
            "interrupts under KVM",
        ] {
            assert_eq!(findings.iter().filter(|f| f.area == area).count(), 1, "{area}");
        }
    }
}
