//! The modelled disk, and who schedules it.

use crate::allowed::{Violation, is_default, one_of, period, quoted, range, require, seconds};
use frontdesk_engine::disk::DiskConfig;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The host's disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimDisk {
    /// Longest seek; half of it is the mean. 0 s: no arm, as in flash. 0 s to 1 s.
    #[serde(with = "humantime_serde")]
    pub seek: Duration,
    /// Time of a rotation, of which half is waited for after a seek. 0 s to 1 s.
    #[serde(with = "humantime_serde")]
    pub rotation: Duration,
    /// Fixed time of a request. 0 s to 1 s.
    #[serde(with = "humantime_serde")]
    pub access: Duration,
    /// Transfer rate in MB/s. 0.1 to 100000.
    pub mb_per_s: f64,
    /// Requests served at the same time. 1 to 64; only 1 with an arm.
    pub parallel: u32,
    /// Whose request is served next.
    #[serde(skip_serializing_if = "is_default")]
    pub scheduler: DiskScheduler,
    /// VM entries whose requests come before all others', with `scheduler = "cfq"`: I/O priority of the
    /// real-time class, by hand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<String>,
    /// Whether guests say what their tasks are called, with `scheduler = "vsip"`: by the name of the
    /// workload.
    #[serde(skip_serializing_if = "is_default")]
    pub names: bool,
    /// Parameters of `scheduler = "vsip"`.
    #[serde(skip_serializing_if = "is_default")]
    pub vsip: DiskConfig,
}

/// Whose request the modelled disk serves next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskScheduler {
    /// That of the VM that was served least.
    #[default]
    Fair,
    /// VMs in turns of 100 ms each; the arm waits 8 ms for the next request of who has the turn, as CFQ does.
    Cfq,
    /// The one that came first, reads before writes as far as those do not starve, as the deadline scheduler
    /// does.
    Deadline,
    /// That which a person waits for, within limits (vSIP).
    Vsip,
}

impl Default for SimDisk {
    fn default() -> Self {
        SimDisk {
            seek: Duration::ZERO,
            rotation: Duration::ZERO,
            access: Duration::from_micros(80),
            mb_per_s: 500.0,
            parallel: 16,
            scheduler: DiskScheduler::Fair,
            first: Vec::new(),
            names: false,
            vsip: DiskConfig::default(),
        }
    }
}

impl SimDisk {
    /// Whether it has an arm.
    #[must_use]
    pub fn has_arm(&self) -> bool {
        !self.seek.is_zero() || !self.rotation.is_zero()
    }

    /// `at` gives the dotted key of a field of the machine, `vms` are the names of VM entries.
    pub(super) fn validate(&self, at: &impl Fn(&str) -> String, vms: &[&str]) -> Result<(), Violation> {
        let times = [("seek", self.seek), ("rotation", self.rotation), ("access", self.access)];
        for (field, time) in times {
            period(at(&format!("disk.{field}")), time, Duration::ZERO..=seconds(1))?;
        }
        range(at("disk.mb_per_s"), self.mb_per_s, 0.1..=100_000.0)?;
        range(at("disk.parallel"), self.parallel, 1..=64)?;
        let allowed = "1 with a seek or a rotation: there is one arm";
        require(!self.has_arm() || self.parallel == 1, at("disk.parallel"), self.parallel, allowed)?;
        let cfq = self.scheduler == DiskScheduler::Cfq;
        let first = self.first.first().map_or_else(|| "[]".to_owned(), |name| quoted(name));
        require(cfq || self.first.is_empty(), at("disk.first"), first, "only with `scheduler = \"cfq\"`")?;
        for name in &self.first {
            require(vms.contains(&name.as_str()), at("disk.first"), quoted(name), one_of(vms))?;
        }
        let vsip = self.scheduler == DiskScheduler::Vsip;
        require(vsip || !self.names, at("disk.names"), "true", "only with `scheduler = \"vsip\"`")?;
        self.vsip.validate().map_err(|problem| {
            let key = at(&problem.key.replacen("disk.", "disk.vsip.", 1));
            Violation { key, value: problem.value, allowed: problem.allowed.to_owned() }
        })
    }
}
