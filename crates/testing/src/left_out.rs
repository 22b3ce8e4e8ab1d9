//! What a test run leaves out, for want of something that the machine does not have: a failure, unless the
//! environment allows it by name.

use std::fmt::{self, Display};
use std::fs::OpenOptions;
use std::io::Write as _;

/// The environment variable with the names of what may be missing, with blanks or commas between them.
pub const ALLOWED: &str = "FRONTDESK_ALLOW_MISSING";

/// The environment variable with the file that is to list what was left out, if there is to be one.
const LIST: &str = "FRONTDESK_LEFT_OUT";

/// What tests need, and a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The rights of root.
    Root,
    /// A `/dev/kvm` that runs guests in 32-bit mode, and tells when it enters them.
    Kvm,
    /// `/dev/vhost-net`.
    VhostNet,
    /// A hierarchy of control groups with the controller of CPU time.
    Cgroups,
    /// Budgets of real time: control groups of version 1, and a kernel with `CONFIG_RT_GROUP_SCHED`.
    Budgets,
    /// `qemu-system-x86_64`.
    Qemu,
    /// Chromium's `chromedriver`.
    Browser,
    /// What makes Debian systems: `mmdebstrap`.
    Debian,
    /// The Debian package of frontdesk, which `make deb` builds.
    Package,
    /// `SimSo` in `target/simso`.
    SimSo,
    /// Prometheus' `promtool`, in `target/promtool` or in the `PATH`.
    Promtool,
}

impl Need {
    const ALL: [(Need, &str); 11] = [
        (Need::Root, "root"),
        (Need::Kvm, "kvm"),
        (Need::VhostNet, "vhost-net"),
        (Need::Cgroups, "cgroups"),
        (Need::Budgets, "rt-budgets"),
        (Need::Qemu, "qemu"),
        (Need::Browser, "browser"),
        (Need::Debian, "mmdebstrap"),
        (Need::Package, "package"),
        (Need::SimSo, "simso"),
        (Need::Promtool, "promtool"),
    ];

    /// Whether a list of names has it. A name that is none is refused: it would allow nothing.
    fn is_in(self, names: &str) -> Result<bool, String> {
        let mut found = false;
        for name in names.split([' ', ',', '\n']).filter(|name| !name.is_empty()) {
            let Some((need, _)) = Need::ALL.iter().find(|(_, known)| *known == name) else {
                let all = Need::ALL.map(|(_, known)| known).join(", ");
                return Err(format!("{ALLOWED} names {name:?}, and what may be missing is: {all}"));
            };
            found |= *need == self;
        }
        Ok(found)
    }
}

impl Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Need::ALL.iter().find(|(need, _)| need == self).map_or("", |(_, name)| name))
    }
}

/// Says that tests, or a part of one, did not run for want of something, and why that is missing.
///
/// # Panics
/// The environment does not allow it.
pub fn leave_out(tests: &str, need: Need, why: impl Display) {
    let allowed = need.is_in(&std::env::var(ALLOWED).unwrap_or_default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(allowed, "{tests}: {need} is missing: {why}. To leave this out: {ALLOWED}={need}");
    tell(tests, format_args!("{need} is missing: {why}"));
}

/// Says that tests did not run for a reason that is no lack of the machine's.
///
/// # Panics
/// The list cannot be written.
pub fn tell(tests: &str, why: impl Display) {
    eprintln!("left out: {tests}: {why}");
    if let Some(list) = std::env::var_os(LIST) {
        // One call, so that processes do not write into each other's lines.
        let line = format!("{tests}: {why}\n");
        let mut list = OpenOptions::new().append(true).create(true).open(list).unwrap();
        list.write_all(line.as_bytes()).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_may_be_missing() {
        for (need, name) in Need::ALL {
            assert_eq!(need.is_in(""), Ok(false));
            assert_eq!(need.is_in(&format!("{name},")), Ok(true));
            let others: Vec<&str> =
                Need::ALL.map(|(_, other)| other).into_iter().filter(|o| *o != name).collect();
            assert_eq!(need.is_in(&others.join(" ")), Ok(false));
            assert!(need.is_in(&format!("{name} everything")).unwrap_err().contains("\"everything\""));
        }
    }
}
