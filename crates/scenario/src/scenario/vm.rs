//! The VMs and what runs inside them.

use crate::allowed::{Violation, name, quoted, range, require};
use frontdesk_workload::{Surroundings, WorkloadKind};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Memory that a desktop needs at least, in MiB.
const DESKTOP_MIB: u32 = 512;

/// A VM, or several alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    /// Name: letters, digits and `-`. With `count` above 1 the VMs are called NAME-1, NAME-2, ...
    pub name: String,
    /// How many. 1 to 64.
    #[serde(default = "one")]
    pub count: u16,
    /// vCPUs of each. 1 to 16.
    #[serde(default = "one")]
    pub vcpus: u16,
    /// Memory of each in MiB. 96 to 65536.
    #[serde(default = "default_memory")]
    pub memory_mib: u32,
    /// Weight of each among the VMs, as in cgroup v1 `cpu.shares`. 2 to 262144.
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// Its data disk, if any, which its workloads read. Each VM reads its own; it is on the host's disk, past
    /// the host's page cache.
    pub disk: Option<Disk>,
    /// Whether it has the Debian system of `guest.debian`, for workloads with `run = "program"`.
    #[serde(default)]
    pub debian: bool,
    /// Whether it is a desktop: a Debian system with a screen, a keyboard, a pointer and sound, and with
    /// programs to use them, beside those of `guest.debian`. Needs a plain kernel and 512 MiB of memory.
    #[serde(default)]
    pub desktop: bool,
    /// Whether frontdesk sees into it: the QEMU plugin is loaded and the daemon follows it.
    #[serde(default = "yes")]
    pub tracked: bool,
    /// Programs that run in it.
    #[serde(default)]
    pub workloads: Vec<Workload>,
}

impl VmSpec {
    /// The names of the VMs of this entry: its own, or NAME-1, NAME-2, ... if there are several.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match self.count {
            1 => vec![self.name.clone()],
            count => (1..=count).map(|number| format!("{}-{number}", self.name)).collect(),
        }
    }

    /// Whether it has a disk: with data, or with a Debian system.
    #[must_use]
    pub fn has_image(&self) -> bool {
        self.disk.is_some() || self.debian || self.desktop
    }

    /// Checks everything but the name, which is to be like no other. `system`: whether there is a Debian
    /// system.
    pub(crate) fn validate(&self, system: bool) -> Result<(), Violation> {
        let key = |field: &str| format!("vm.{}.{field}", self.name);
        range(key("vcpus"), self.vcpus, 1..=16)?;
        range(key("memory_mib"), self.memory_mib, 96..=65_536)?;
        range(key("weight"), self.weight, 2..=262_144)?;
        if let Some(disk) = self.disk {
            disk.validate(&key("disk"))?;
        }
        require(system || !self.debian, key("debian"), "true", "only beside `guest.debian`")?;
        let enough = !self.desktop || self.memory_mib >= DESKTOP_MIB;
        let allowed = format!("at least {DESKTOP_MIB} for a desktop");
        require(enough, key("memory_mib"), self.memory_mib, allowed)?;
        let surroundings = Surroundings {
            disk: self.disk.is_some(),
            debian: self.debian || self.desktop,
            desktop: self.desktop,
        };
        let mut names = HashSet::new();
        let mut listening = HashSet::new();
        for (index, workload) in self.workloads.iter().enumerate() {
            let own = format!("vm.{}.workloads.{index}.name", self.name);
            name(&own, &workload.name)?;
            require(
                names.insert(&workload.name),
                own,
                quoted(&workload.name),
                "a name no other workload has",
            )?;
            let key = |field: &str| key(&format!("workloads.{}.{field}", workload.name));
            workload.kind.validate(key, surroundings)?;
            if let Some((protocol, port)) = workload.kind.listens() {
                let free = listening.insert((protocol, port));
                let allowed = format!("a {} port on which no other workload listens", protocol.name());
                require(free, key("port"), port, allowed)?;
            }
        }
        Ok(())
    }
}

/// A program inside a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name inside its VM: letters, digits and `-`.
    pub name: String,
    /// What it does.
    #[serde(rename = "run")]
    pub kind: WorkloadKind,
}

/// A disk with files of random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Number of files. 1 to 65536.
    pub files: u32,
    /// Size of each in KiB. 4 to 65536, and 16 GiB for all together.
    pub file_kib: u32,
}

impl Disk {
    fn validate(self, key: &str) -> Result<(), Violation> {
        const MOST_KIB: u64 = 16 << 20;
        let Disk { files, file_kib } = self;
        range(format!("{key}.files"), files, 1..=65_536)?;
        range(format!("{key}.file_kib"), file_kib, 4..=65_536)?;
        let allowed = format!("at most {} for {files} files, which is 16 GiB", MOST_KIB / u64::from(files));
        let fits = u64::from(files) * u64::from(file_kib) <= MOST_KIB;
        require(fits, format!("{key}.file_kib"), file_kib, allowed)
    }
}

fn one() -> u16 {
    1
}

fn yes() -> bool {
    true
}

fn default_memory() -> u32 {
    128
}

fn default_weight() -> u32 {
    1024
}
