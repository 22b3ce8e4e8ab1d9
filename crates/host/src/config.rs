//! The daemon's configuration: one TOML file, every parameter with its default, checked as a whole.
//!
//! `[tavs]`, `[multimedia]`, `[asymmetric]` and `[ledger]` are the engine's parameters, `[vms]` says which
//! VMs are followed, `[vm.NAME]` what holds for some of them only, `[daemon]` is about the daemon itself,
//! `[reserve]` about reservations, and `[control]` about those who look in.

use crate::control::ControlConfig;
use crate::identity::IdentityChoice;
use crate::reserve::ReserveSettings;
use crate::threads::MechanismChoice;
use frontdesk_engine::{Asymmetric, Config, Ledger, Multimedia, Tavs, VmPolicy};
use glob::Pattern;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Where the configuration is looked for unless told otherwise.
pub const DEFAULT_PATH: &str = "/etc/frontdesk/frontdesk.toml";

/// The units of `cpu.shares` in one of `cpu.weight`, times 100.
const SHARES_PER_100: u32 = 1024;

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The daemon itself.
    pub daemon: DaemonSettings,
    /// Who may look in, and where.
    pub control: ControlConfig,
    /// Reservations.
    pub reserve: ReserveSettings,
    /// Which VMs are followed.
    pub vms: VmsSettings,
    /// Task-aware boosting.
    pub tavs: Tavs,
    /// Multimedia.
    pub multimedia: Multimedia,
    /// Asymmetric vCPUs.
    pub asymmetric: Asymmetric,
    /// The fairness ledger.
    pub ledger: Ledger,
    /// What holds for some VMs only, by name; `*`, `?` and `[...]` stand for others. For a VM the table with
    /// exactly its name holds, or else the longest pattern that matches, or else none: tables are not mixed.
    pub vm: IndexMap<String, VmSettings>,
}

/// The daemon itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonSettings {
    /// Physical CPUs it runs on; any if empty. 0 to 1023.
    pub cpus: Vec<u16>,
    /// How boosts are carried out; read when it starts. "auto", "real-time" or "sched-ext".
    pub mechanism: MechanismChoice,
    /// Where sched_ext is the mechanism: whether the kernel boosts by itself, before the daemon hears of it,
    /// for packets to ports that the engine has learnt; read when it starts.
    pub fast_path: bool,
    /// How the tasks of guests under KVM are known; read when it starts. "auto" or "thread-switches".
    pub identity: IdentityChoice,
}

/// Which VMs are followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmsSettings {
    /// QMP sockets, one for each VM, by absolute path or pattern.
    pub qmp: Vec<String>,
    /// Whether libvirt's VMs are followed.
    pub libvirt: bool,
}

impl Default for VmsSettings {
    fn default() -> Self {
        VmsSettings { qmp: Vec::new(), libvirt: true }
    }
}

/// What holds for some VMs only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmSettings {
    /// Never boost it. It is followed, and the ledger counts it all the same.
    pub off: bool,
    /// Its weight among the others, in the units of `cpu.weight` (1 to 10000; 100 is what a VM has unless
    /// told otherwise), in place of that of its control group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// In place of `tavs.pb_ratio`. 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pb_ratio: Option<f64>,
}

impl VmSettings {
    /// The weight in the units of `cpu.shares`.
    #[must_use]
    pub fn shares(&self) -> Option<u32> {
        self.weight.map(|weight| weight.saturating_mul(SHARES_PER_100) / 100)
    }

    /// What of this the engine is told.
    #[must_use]
    pub fn policy(&self) -> VmPolicy {
        VmPolicy { off: self.off, pb_ratio: self.pb_ratio }
    }
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What failed.
        source: std::io::Error,
    },
    /// It is not TOML, or has a key that there is not.
    #[error("{path}: {cause}")]
    Syntax {
        /// The file.
        path: String,
        /// Where and what.
        cause: String,
    },
    /// Values are out of their ranges.
    #[error("{path}: {}", .problems.join("; "))]
    Values {
        /// The file.
        path: String,
        /// Each with key, value and what is allowed.
        problems: Vec<String>,
    },
}

impl Settings {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, has unknown keys, or values out of range, all of which are told.
    pub fn load(path: &Path) -> Result<Settings, SettingsError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| SettingsError::Read { path: name.clone(), source })?;
        Settings::parse(&text, name)
    }

    /// Checks the text of a file of this name.
    pub(crate) fn parse(text: &str, name: String) -> Result<Settings, SettingsError> {
        let settings: Settings = toml::from_str(text).map_err(|error| {
            let cause = error.to_string().trim_end().to_owned();
            SettingsError::Syntax { path: name.clone(), cause }
        })?;
        match settings.problems() {
            problems if problems.is_empty() => Ok(settings),
            problems => Err(SettingsError::Values { path: name, problems }),
        }
    }

    /// Every value out of its range, each with key, value and what is allowed.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.engine().problems().iter().map(ToString::to_string).collect();
        let mut wrong = |key: &str, value: &dyn std::fmt::Debug, allowed: &str| {
            problems.push(format!("{key} = {value:?} is out of range: allowed is {allowed}"));
        };
        if self.daemon.cpus.iter().any(|cpu| *cpu > 1023) {
            wrong("daemon.cpus", &self.daemon.cpus, "numbers of CPUs from 0 to 1023");
        }
        if !(0.01..=0.95).contains(&self.reserve.spare) {
            wrong("reserve.spare", &self.reserve.spare, "0.01 to 0.95");
        }
        if self.reserve.cpus.iter().any(|cpu| *cpu > 1023) {
            wrong("reserve.cpus", &self.reserve.cpus, "numbers of CPUs from 0 to 1023");
        }
        for pattern in &self.control.operator_targets {
            if glob::Pattern::new(pattern).is_err() {
                wrong("control.operator_targets", pattern, "a pattern of targets, such as vm:*");
            }
        }
        if !self.control.socket.is_absolute() {
            wrong("control.socket", &self.control.socket, "an absolute path");
        }
        for pattern in &self.vms.qmp {
            if !pattern.starts_with('/') || Pattern::new(pattern).is_err() {
                wrong(
                    "vms.qmp",
                    pattern,
                    "an absolute path, in which *, ?, [...] and ** may stand for others",
                );
            }
        }
        for (name, vm) in &self.vm {
            if name.is_empty() || Pattern::new(name).is_err() {
                wrong(&format!("vm.{name:?}"), name, "a name, in which *, ? and [...] may stand for others");
            }
            if vm.weight.is_some_and(|weight| !(1..=10_000).contains(&weight)) {
                wrong(&format!("vm.{name:?}.weight"), &vm.weight.unwrap_or_default(), "1 to 10000");
            }
            if vm.policy().validate().is_err() {
                wrong(&format!("vm.{name:?}.pb_ratio"), &vm.pb_ratio.unwrap_or_default(), "0 to 1");
            }
        }
        problems
    }

    /// The engine's part.
    #[must_use]
    pub fn engine(&self) -> Config {
        let (tavs, ledger) = (self.tavs.clone(), self.ledger.clone());
        let (multimedia, asymmetric) = (self.multimedia.clone(), self.asymmetric.clone());
        Config { tavs, ledger, multimedia, asymmetric }
    }

    /// What holds for the VM with this name.
    #[must_use]
    pub fn of_vm(&self, name: &str) -> VmSettings {
        let matching =
            || self.vm.iter().filter(|(key, _)| Pattern::new(key).is_ok_and(|key| key.matches(name)));
        let longest = || matching().rev().max_by_key(|(key, _)| key.len()).map(|(_, settings)| settings);
        self.vm.get(name).or_else(longest).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_shipped_file_is_the_defaults() {
        let text = include_str!("../../../packaging/frontdesk.toml");
        assert_eq!(parse(text), Settings::default(), "all in it is commented out");
        // "#key" is a parameter at its default, "# text" explains.
        let all: String = text
            .lines()
            .filter_map(|line| line.strip_prefix('#').or(Some(line)).filter(|line| !line.starts_with(' ')))
            .fold(String::new(), |all, line| all + line + "\n");
        let example: toml::Table = toml::from_str(&all).unwrap();
        let mut defaults = toml::Table::try_from(Settings::default()).unwrap();
        for (table, keys) in &example {
            if table != "vm" {
                assert_eq!(Some(keys), defaults.remove(table).as_ref(), "[{table}]");
            }
        }
        assert_eq!(defaults.remove("vm"), Some(toml::Value::Table(toml::Table::new())));
        assert!(defaults.is_empty(), "not in the shipped file: {defaults:?}");
        let with_vms = parse(&all);
        assert!(!with_vms.vm.is_empty() && with_vms.problems().is_empty(), "{:?}", with_vms.problems());
    }

    #[test]
    fn every_wrong_value_is_told_with_key_value_and_range() {
        let settings = parse(
            "vms.qmp = ['relative']\ndaemon.cpus = [2000]\nreserve.spare = 0.0\ntavs.pb_ratio = 2.0\nledger.min_share = 0.0\nmultimedia.max_share = 0.5\n\
             [vm.alice]\nweight = 0\n[vm.'build-*']\npb_ratio = -0.5\n[vm.'[']\n",
        );
        let expected = [
            "tavs.pb_ratio = 2 is out of range: allowed is 0 to 1",
            "ledger.min_share = 0 is out of range: allowed is 0.01 to 1",
            "multimedia.max_share = 0.5 is out of range: allowed is 1 to 16",
            "daemon.cpus = [2000] is out of range: allowed is numbers of CPUs from 0 to 1023",
            "reserve.spare = 0.0 is out of range: allowed is 0.01 to 0.95",
            "vms.qmp = \"relative\" is out of range: allowed is an absolute path, in which *, ?, [...] and ** may stand for others",
            "vm.\"alice\".weight = 0 is out of range: allowed is 1 to 10000",
            "vm.\"build-*\".pb_ratio = -0.5 is out of range: allowed is 0 to 1",
            "vm.\"[\" = \"[\" is out of range: allowed is a name, in which *, ? and [...] may stand for others",
        ];
        assert_eq!(settings.problems(), expected);
    }

    #[test]
    fn unknown_keys_are_refused_with_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frontdesk.toml");
        for (text, told) in [
            ("[tavs]\npb_ration = 0.1\n", "pb_ration"),
            ("[controls]\n", "controls"),
            ("[vm.alice]\nwieght = 1\n", "wieght"),
            ("[vms]\nqmp = '/one'\n", "line 2"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Settings::load(&path).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains("frontdesk.toml"), "{error}");
        }
        let missing = Settings::load(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read "), "{missing}");
    }

    #[test]
    fn the_most_specific_table_holds_for_a_vm() {
        let settings = parse(
            "[vm.'*']\noff = true\n[vm.'build-*']\nweight = 50\n[vm.build-1]\npb_ratio = 0.5\n[vm.'build-?']\nweight = 60\n",
        );
        assert!(settings.of_vm("alice").off);
        assert_eq!(settings.of_vm("build-22"), VmSettings { weight: Some(50), ..VmSettings::default() });
        assert_eq!(settings.of_vm("build-22").shares(), Some(512));
        assert_eq!(settings.of_vm("build-2").weight, Some(50), "of two as long, the first");
        assert_eq!(settings.of_vm("build-1"), VmSettings { pb_ratio: Some(0.5), ..VmSettings::default() });
        assert_eq!(parse("").of_vm("alice"), VmSettings::default());
    }
}
