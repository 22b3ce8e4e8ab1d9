//! The disk that all VMs of a run share, and who decides whose request comes first on it.

use super::VmSpec;
use crate::allowed::{Violation, is_default, one_of, period, quoted, range, require, seconds};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A slow disk that the lab serves the VMs instead of the machine's own. The images of all VMs that have a
/// `disk` or a Debian system are on it, one after the other in the order of the file. A VM has only one of
/// both, and what it writes to its system is gone with the arm. The disk serves requests one at a time, in
/// the order in which the kernel gives them to it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskModel {
    /// Seek from one end of the disk to the other. A shorter one takes a twentieth of it, and the rest in
    /// proportion to the square root of the distance. 0 s: no arm, as in flash. 0 s to 1 s.
    #[serde(default, with = "humantime_serde")]
    pub seek: Duration,
    /// Time of a rotation; after a seek, a random part of it is waited for. 0 s to 1 s.
    #[serde(default, with = "humantime_serde")]
    pub rotation: Duration,
    /// Fixed time of a request. 0 s to 1 s.
    #[serde(default, with = "humantime_serde")]
    pub access: Duration,
    /// Transfer rate in MB/s. 0.1 to 100000.
    pub mb_per_s: f64,
}

impl DiskModel {
    /// Whether it has an arm.
    #[must_use]
    pub fn has_arm(&self) -> bool {
        !self.seek.is_zero() || !self.rotation.is_zero()
    }

    pub(crate) fn validate(&self) -> Result<(), Violation> {
        for (field, time) in [("seek", self.seek), ("rotation", self.rotation), ("access", self.access)] {
            period(format!("disk_model.{field}"), time, Duration::ZERO..=seconds(1))?;
        }
        range("disk_model.mb_per_s", self.mb_per_s, 0.1..=100_000.0)
    }
}

/// How the disk of `disk_model` is shared in an arm. Absent: the kernel's scheduler `none`, by QEMU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ArmDisk {
    /// The kernel's scheduler.
    pub scheduler: IoScheduler,
    /// Whether `bfq` prefers what is new or asks for little. The kernel's default is true.
    pub low_latency: bool,
    /// VM entries whose requests are of the kernel's real-time class, as an operator may give it to a whole
    /// VM with ionice. Only with `bfq` or `mq-deadline`, and not with `back_end`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<String>,
    /// Weights of VM entries' control groups, 1 to 1000; 100 for those that are not named. Only with `bfq`,
    /// and not with `back_end`.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub weights: IndexMap<String, u16>,
    /// Whether `frontdesk disk` serves the disk, and not QEMU.
    #[serde(skip_serializing_if = "is_default")]
    pub back_end: bool,
    /// Whether it is told that the disk has an arm, if it has one. Only with `back_end`.
    pub arm: bool,
}

/// A scheduler of the kernel for block devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoScheduler {
    /// As they come.
    #[default]
    None,
    /// By place on the disk, reads before writes, none too late.
    MqDeadline,
    /// Processes in turn, each for as long as its budget lasts.
    Bfq,
}

impl IoScheduler {
    /// What the kernel calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IoScheduler::None => "none",
            IoScheduler::MqDeadline => "mq-deadline",
            IoScheduler::Bfq => "bfq",
        }
    }
}

impl Default for ArmDisk {
    fn default() -> Self {
        ArmDisk {
            scheduler: IoScheduler::None,
            low_latency: true,
            first: Vec::new(),
            weights: IndexMap::new(),
            back_end: false,
            arm: true,
        }
    }
}

impl ArmDisk {
    /// Checks it; `own` is its dotted key in the scenario, `vms` are the scenario's.
    pub(crate) fn validate(&self, own: &str, vms: &[VmSpec]) -> Result<(), Violation> {
        let bfq = self.scheduler == IoScheduler::Bfq;
        let key = |field: &str| format!("{own}.{field}");
        require(bfq || self.low_latency, key("low_latency"), "false", "only with `scheduler = \"bfq\"`")?;
        require(self.back_end || self.arm, key("arm"), "false", "only with `back_end = true`")?;
        let by_class = self.scheduler != IoScheduler::None && !self.back_end;
        let allowed = "only with another `scheduler` than \"none\", and not with `back_end`";
        require(by_class || self.first.is_empty(), key("first"), format!("{:?}", self.first), allowed)?;
        let allowed = "only with `scheduler = \"bfq\"`, and not with `back_end`";
        let by_weight = bfq && !self.back_end;
        require(by_weight || self.weights.is_empty(), key("weights"), "given", allowed)?;
        let names: Vec<&str> = vms.iter().filter(|vm| vm.has_image()).map(|vm| vm.name.as_str()).collect();
        for vm in self.first.iter().chain(self.weights.keys()) {
            let field = if self.first.contains(vm) { "first" } else { "weights" };
            require(names.contains(&vm.as_str()), key(field), quoted(vm), one_of(&names))?;
        }
        self.weights
            .iter()
            .try_for_each(|(vm, weight)| range(format!("{own}.weights.{vm}"), *weight, 1..=1000))
    }
}
