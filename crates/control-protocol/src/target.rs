//! What a reservation is for, as people name it: `vm:alice`, `pid:4711`, `unit:render.service`,
//! `cgroup:/render`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A name longer than this names nothing (`NAME_MAX` of Linux; systemd's units have the same bound).
const MAX_NAME: usize = 255;
/// No path of a control group is longer (`PATH_MAX`).
const MAX_PATH: usize = 4095;
/// The kernel's largest process id (`PID_MAX_LIMIT`).
const MAX_PID: i32 = 4 << 20;
/// What systemd calls the units that have processes.
const UNIT_SUFFIXES: [&str; 3] = [".service", ".scope", ".slice"];

/// What a reservation is for: a VM, a process, or all processes of a systemd unit or control group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    /// A VM that the daemon follows, by its name; one reservation for each vCPU.
    Vm(String),
    /// A process with all its threads.
    Process(i32),
    /// All processes of a systemd unit.
    Unit(String),
    /// All processes of a control group, by its path below the mount point, and of those below it.
    Cgroup(String),
}

/// A text names no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} names no target: {reason}. A target is vm:NAME, pid:NUMBER, unit:NAME.service, or cgroup:/PATH; a number alone is a \
     process, NAME.service, NAME.scope and NAME.slice are units, what begins with / is a control group, and everything else is a VM"
)]
pub struct TargetError {
    /// Its beginning.
    text: String,
    reason: &'static str,
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let wrong = |reason| TargetError { text: text.chars().take(MAX_NAME).collect(), reason };
        let target = match text.split_once(':') {
            Some(("vm", name)) => Target::Vm(name.to_owned()),
            Some(("pid", pid)) => process(pid).map_err(wrong)?,
            Some(("unit", name)) => Target::Unit(name.to_owned()),
            Some(("cgroup", path)) => Target::Cgroup(path.to_owned()),
            _ if text.starts_with('/') => Target::Cgroup(text.to_owned()),
            _ if UNIT_SUFFIXES.iter().any(|suffix| text.ends_with(suffix)) => Target::Unit(text.to_owned()),
            _ if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                process(text).map_err(wrong)?
            }
            _ => Target::Vm(text.to_owned()),
        };
        target.check().map_err(wrong)?;
        Ok(target)
    }
}

fn process(digits: &str) -> Result<Target, &'static str> {
    // `parse` would take a sign.
    let pid = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    match pid.and_then(|digits| digits.parse().ok()) {
        Some(pid) if (1..=MAX_PID).contains(&pid) => Ok(Target::Process(pid)),
        _ => Err("a process id is a number from 1 to 4194304"),
    }
}

impl Target {
    fn check(&self) -> Result<(), &'static str> {
        let (name, most) = match self {
            Target::Vm(name) | Target::Unit(name) => (name, MAX_NAME),
            Target::Cgroup(path) => (path, MAX_PATH),
            Target::Process(_) => return Ok(()),
        };
        if name.is_empty() {
            return Err("the name is empty");
        }
        if name.len() > most {
            return Err("the name is too long");
        }
        if name.chars().any(char::is_control) {
            return Err("a name has no control characters");
        }
        match self {
            Target::Unit(name) if name.contains('/') => Err("a unit's name has no slash"),
            Target::Unit(name) if !UNIT_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) => {
                Err("a unit with processes ends with .service, .scope or .slice")
            }
            Target::Cgroup(path) if !path.starts_with('/') => {
                Err("a control group's path begins with a slash")
            }
            Target::Cgroup(path) if path.split('/').any(|part| part == "..") => {
                Err("a control group's path has no \"..\"")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Vm(name) => write!(formatter, "vm:{name}"),
            Target::Process(pid) => write!(formatter, "pid:{pid}"),
            Target::Unit(name) => write!(formatter, "unit:{name}"),
            Target::Cgroup(path) => write!(formatter, "cgroup:{path}"),
        }
    }
}

impl TryFrom<String> for Target {
    type Error = TargetError;

    fn try_from(text: String) -> Result<Target, TargetError> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn targets_are_told_apart() {
        let vm = |name: &str| Target::Vm(name.to_owned());
        let unit = |name: &str| Target::Unit(name.to_owned());
        let cgroup = |path: &str| Target::Cgroup(path.to_owned());
        for (text, target) in [
            ("alice", vm("alice")),
            ("vm:42", vm("42")),
            ("vm:a:b", vm("a:b")),
            ("a:b", vm("a:b")),
            ("42", Target::Process(42)),
            ("pid:42", Target::Process(42)),
            ("render.service", unit("render.service")),
            ("unit:app@1.scope", unit("app@1.scope")),
            ("vm:render.service", vm("render.service")),
            ("/machine.slice", cgroup("/machine.slice")),
            ("cgroup:/", cgroup("/")),
        ] {
            assert_eq!(text.parse(), Ok(target), "{text}");
        }
    }

    #[test]
    fn what_names_no_target_is_told_why() {
        for (text, reason) in [
            ("", "the name is empty"),
            ("unit:", "the name is empty"),
            ("0", "from 1 to 4194304"),
            ("99999999999999999999", "from 1 to 4194304"),
            ("pid:+7", "from 1 to 4194304"),
            ("pid:-7", "from 1 to 4194304"),
            ("unit:a/b.service", "no slash"),
            ("unit:render", "ends with .service"),
            ("cgroup:machine", "begins with a slash"),
            ("/../etc", "no \"..\""),
            ("a\nb", "no control characters"),
            (&"x".repeat(256), "too long"),
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_a_target_is_what_it_says_it_is(text in "\\PC{0,40}|[a-z]{2,6}:[/.a-z0-9]{0,12}|(vm|pid|unit|cgroup):.{0,300}") {
            crate::fuzzing::target(&text);
        }
    }
}
