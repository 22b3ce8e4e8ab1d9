//! What this host offers frontdesk, and what would help where it falls short.

mod identity;
mod kernel;
mod machine;

use serde::Serialize;
use std::{fs, path::Path};

/// How well something serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Everything frontdesk wants.
    Ok,
    /// Works with less, or only some parts of frontdesk need it.
    Limited,
    /// Something does not work at all.
    Missing,
}

/// One thing that was examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was examined, in a word or two.
    pub area: &'static str,
    /// How well it serves.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What would help, where it is not [`Status::Ok`].
    pub advice: Option<String>,
}

/// Examines the host. Takes about a tenth of a second; loads each BPF program for a moment, changes nothing.
#[must_use]
pub fn examine() -> Vec<Finding> {
    let mut findings = vec![kernel::privilege(), kernel::release(), kernel::btf()];
    findings.extend(kernel::bpf_programs());
    findings.extend([kernel::control_groups(), kernel::real_time_groups(), kernel::real_time_throttle()]);
    findings.extend([
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
    findings.extend([machine::qemu(), identity::under_tcg(), identity::under_kvm(), identity::interrupts()]);
    findings.extend(machine::programs());
    findings
}

impl Finding {
    fn ok(area: &'static str, found: impl Into<String>) -> Finding {
        Finding { area, status: Status::Ok, found: found.into(), advice: None }
    }

    fn limited(area: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { area, status: Status::Limited, found: found.into(), advice: Some(advice.into()) }
    }

    fn missing(area: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { area, status: Status::Missing, found: found.into(), advice: Some(advice.into()) }
    }
}

/// What a file holds, trimmed; `None` if there is no such file.
fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The first two numbers in a text such as `QEMU emulator version 10.0.2` or `6.18.44-amd64`.
fn version(text: &str) -> Option<(u32, u32)> {
    let from = text.find(|c: char| c.is_ascii_digit())?;
    let mut parts = text[from..].split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions() {
        assert_eq!(version("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)"), Some((10, 0)));
        assert_eq!(version("6.18.44-amd64"), Some((6, 18)));
        assert_eq!(version("none"), None);
        assert_eq!(version("7"), None);
    }

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
            "fair server",
            "tasks under KVM",
            "interrupts under KVM",
        ] {
            assert_eq!(findings.iter().filter(|f| f.area == area).count(), 1, "{area}");
        }
    }
}
