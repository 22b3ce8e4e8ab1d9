//! What a scenario must be beyond its types: ranges, names, references.

use crate::scenario::{LoadProfile, Scenario, Vm, WorkloadKind, protocol};
use frontdesk_engine::Protocol;
use std::collections::HashSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A value that a scenario can not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: allowed is {allowed}")]
pub struct Violation {
    /// The dotted key, in the form that [`Overrides::set`](crate::Overrides::set) takes.
    pub key: String,
    /// The value found.
    pub value: String,
    /// What would be accepted.
    pub allowed: String,
}

/// Memory that QEMU itself takes for each VM beside the guest's, in MiB (measured: 75 to 110 under TCG).
const QEMU_MIB: u64 = 110;

impl Scenario {
    /// Checks every value against its documented range and against the others. [`Scenario::load`] has done so;
    /// a scenario that was changed afterwards is checked here.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn validate(&self) -> Result<(), Violation> {
        name("name", &self.name)?;
        range("repeats", self.repeats, 1..=100)?;
        period("duration", self.duration, seconds(1)..=seconds(3600))?;
        period("warmup", self.warmup, Duration::ZERO..=seconds(600))?;
        range("think_scale", self.think_scale, 0.001..=100.0)?;
        self.validate_guest()?;
        for (key, cpus, may_be_empty) in [
            ("host.vm_cpus", &self.host.vm_cpus, false),
            ("host.client_cpus", &self.host.client_cpus, false),
            ("host.busy_cpus", &self.host.busy_cpus, true),
        ] {
            require(may_be_empty || !cpus.is_empty(), key, "[]", "at least one CPU")?;
            let mut seen = HashSet::new();
            let unique = cpus.iter().all(|cpu| seen.insert(cpu));
            require(unique, key, format!("{cpus:?}"), "each CPU once")?;
        }
        self.validate_vms()?;
        for (index, load) in self.loads.iter().enumerate() {
            self.validate_load(&format!("load.{index}"), load)?;
        }
        self.validate_arms()?;
        self.policy.validate().map_err(|error| Violation {
            key: format!("policy.{}", error.key),
            value: error.value,
            allowed: error.allowed.to_owned(),
        })?;
        self.validate_checks()
    }

    /// Whether a machine can hold the VMs: `cpus_online` are the numbers of its CPUs that are online,
    /// `mem_available_mib` what it could give to new processes without swapping (`MemAvailable`), in MiB.
    ///
    /// # Errors
    /// The CPU that is missing, or the entry whose VMs no longer fit in memory.
    pub fn fits(&self, cpus_online: &[u16], mem_available_mib: u64) -> Result<(), Violation> {
        let host = &self.host;
        for (key, cpus) in [
            ("host.vm_cpus", &host.vm_cpus),
            ("host.client_cpus", &host.client_cpus),
            ("host.busy_cpus", &host.busy_cpus),
        ] {
            let here = cpus.iter().all(|cpu| cpus_online.contains(cpu));
            require(here, key, format!("{cpus:?}"), format!("the CPUs of this machine, {cpus_online:?}"))?;
        }
        let mut left = mem_available_mib;
        for vm in &self.vms {
            let each = u64::from(vm.memory_mib) + QEMU_MIB;
            let needed = each * u64::from(vm.count);
            let allowed = format!(
                "what fits in {left} MiB (of {mem_available_mib} MiB available): {} x ({} MiB + {QEMU_MIB} MiB for \
                 QEMU) = {needed} MiB does not",
                vm.count, vm.memory_mib
            );
            require(needed <= left, format!("vm.{}.memory_mib", vm.name), vm.memory_mib, allowed)?;
            left -= needed;
        }
        Ok(())
    }

    fn validate_guest(&self) -> Result<(), Violation> {
        let kernel = &self.guest.kernel;
        let by_path = kernel.contains('/');
        let allowed = "a package series such as \"6.1-cloud\", or the path of a kernel image (with a `/`)";
        require(by_path || is_series(kernel), "guest.kernel", quoted(kernel), allowed)?;
        let modules = self.guest.modules.as_ref().map(|folder| quoted(&folder.display().to_string()));
        let allowed = "the folder with the modules of a kernel given by path, and only beside one";
        require(
            modules.is_some() == by_path,
            "guest.modules",
            modules.as_deref().unwrap_or("nothing"),
            allowed,
        )
    }

    fn validate_vms(&self) -> Result<(), Violation> {
        require(!self.vms.is_empty(), "vm", "[]", "at least one VM")?;
        let mut entries = HashSet::new();
        let mut vms = HashSet::new();
        for (index, vm) in self.vms.iter().enumerate() {
            let own = format!("vm.{index}.name");
            name(&own, &vm.name)?;
            require(entries.insert(&vm.name), own.as_str(), quoted(&vm.name), "a name no other entry has")?;
            let key = |field: &str| format!("vm.{}.{field}", vm.name);
            range(key("count"), vm.count, 1..=64)?;
            for name in vm.names() {
                let allowed = format!("a name from which no VM gets the name {name:?} of another");
                require(vms.insert(name), own.as_str(), quoted(&vm.name), allowed)?;
            }
            range(key("vcpus"), vm.vcpus, 1..=16)?;
            range(key("memory_mib"), vm.memory_mib, 96..=65_536)?;
            range(key("weight"), vm.weight, 2..=262_144)?;
            validate_workloads(vm)?;
        }
        Ok(())
    }

    fn validate_load(&self, key: &str, load: &LoadProfile) -> Result<(), Violation> {
        let Some(vm) = self.vms.iter().find(|vm| vm.name == load.vm) else {
            let entries = self.vms.iter().map(|vm| vm.name.as_str());
            return require(false, format!("{key}.vm"), quoted(&load.vm), one_of(entries));
        };
        let echoes: Vec<_> = vm.workloads.iter().filter_map(|workload| listens(&workload.kind)).collect();
        let allowed = match echoes.as_slice() {
            [] => format!("none: no echo runs in {}", vm.name),
            [(protocol, port)] => format!("{port} ({})", protocol::name(*protocol)),
            _ => one_of(
                echoes.iter().map(|(protocol, port)| format!("{port} ({})", protocol::name(*protocol))),
            ),
        };
        let answered = echoes.contains(&(load.protocol, load.port));
        let asked = format!("{} ({})", load.port, protocol::name(load.protocol));
        require(answered, format!("{key}.port"), asked, allowed)?;
        range(format!("{key}.bytes"), load.bytes, 1..=1400)?;
        let [shortest, longest] = load.think;
        period(format!("{key}.think.1"), longest, Duration::ZERO..=seconds(3600))?;
        period(format!("{key}.think.0"), shortest, Duration::ZERO..=longest)
    }

    fn validate_arms(&self) -> Result<(), Violation> {
        require(!self.arms.is_empty(), "arms", "{}", "at least one arm")?;
        for (arm_name, arm) in &self.arms {
            name(&format!("arms.{arm_name}"), arm_name)?;
            for (index, stop) in arm.stop.iter().enumerate() {
                let known = self.vms.iter().flat_map(|vm| {
                    vm.workloads.iter().map(move |workload| format!("{}/{}", vm.name, workload.name))
                });
                let known: Vec<_> = known.collect();
                let key = format!("arms.{arm_name}.stop.{index}");
                require(known.contains(stop), key, quoted(stop), one_of(&known))?;
            }
        }
        Ok(())
    }

    fn validate_checks(&self) -> Result<(), Violation> {
        for check in self.checks.clone().keys() {
            let Some(bar) = *check.bar else { continue };
            let key = format!("checks.{}", check.key);
            require(bar.is_finite() && bar >= 0.0, key.as_str(), bar, "a number, not below 0")?;
            if let Some(arm) = check.arms.iter().find(|arm| !self.arms.contains_key(**arm)) {
                require(false, key.as_str(), bar, format!("only beside an arm called {arm:?}"))?;
            }
        }
        for (index, check) in self.checks.response.iter().enumerate() {
            let key = format!("checks.response.{index}");
            let bar = check.at_most.or(check.at_least);
            let found = if bar.is_none() { "nothing" } else { "set beside at_least" };
            require(
                check.bar().is_some(),
                format!("{key}.at_most"),
                found,
                "a bar here or in at_least, not both",
            )?;
            let bar = bar.unwrap_or(f64::NAN);
            require(bar.is_finite() && bar >= 0.0, format!("{key}.at_most"), bar, "a number, not below 0")?;
            for (side, responses) in [("of", &check.of), ("over", &check.over)] {
                let arm = quoted(&responses.arm);
                let known = self.arms.contains_key(&responses.arm);
                require(known, format!("{key}.{side}.arm"), arm, one_of(self.arms.keys()))?;
                let loaded: Vec<&str> = self.loads.iter().map(|load| load.vm.as_str()).collect();
                let vm = responses.vm.as_deref();
                let under_load = vm.map_or(!loaded.is_empty(), |vm| loaded.contains(&vm));
                let vm = vm.map_or_else(|| "all under load".to_owned(), quoted);
                require(under_load, format!("{key}.{side}.vm"), vm, one_of(&loaded))?;
            }
        }
        Ok(())
    }
}

fn validate_workloads(vm: &Vm) -> Result<(), Violation> {
    let mut names = HashSet::new();
    let mut listening = HashSet::new();
    for (index, workload) in vm.workloads.iter().enumerate() {
        let own = format!("vm.{}.workloads.{index}.name", vm.name);
        name(&own, &workload.name)?;
        require(names.insert(&workload.name), own, quoted(&workload.name), "a name no other workload has")?;
        let key = |field: &str| format!("vm.{}.workloads.{}.{field}", vm.name, workload.name);
        if let WorkloadKind::Echo { protocol, port, cost } = workload.kind {
            range(key("port"), port, 1..=65_535)?;
            let free = listening.insert((protocol, port));
            let allowed = format!("a {} port on which no other echo listens", protocol::name(protocol));
            require(free, key("port"), port, allowed)?;
            period(key("cost"), cost, Duration::ZERO..=seconds(10))?;
        }
    }
    Ok(())
}

fn listens(kind: &WorkloadKind) -> Option<(Protocol, u16)> {
    match *kind {
        WorkloadKind::Echo { protocol, port, .. } => Some((protocol, port)),
        WorkloadKind::Hog => None,
    }
}

/// MAJOR.MINOR-FLAVOUR.
fn is_series(kernel: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let Some((version, flavour)) = kernel.split_once('-') else { return false };
    let Some((major, minor)) = version.split_once('.') else { return false };
    number(major) && number(minor) && is_name(flavour)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn name(key: &str, name: &str) -> Result<(), Violation> {
    require(is_name(name), key, quoted(name), "letters, digits and `-`")
}

fn range<N: PartialOrd + Display>(
    key: impl Into<String>,
    value: N,
    allowed: RangeInclusive<N>,
) -> Result<(), Violation> {
    let text = format!("{} to {}", allowed.start(), allowed.end());
    require(allowed.contains(&value), key, value, text)
}

fn period(
    key: impl Into<String>,
    value: Duration,
    allowed: RangeInclusive<Duration>,
) -> Result<(), Violation> {
    let show = humantime::format_duration;
    let text = format!("{} to {}", show(*allowed.start()), show(*allowed.end()));
    require(allowed.contains(&value), key, show(value), text)
}

fn require(
    allowed: bool,
    key: impl Into<String>,
    value: impl Display,
    text: impl Into<String>,
) -> Result<(), Violation> {
    if allowed {
        Ok(())
    } else {
        Err(Violation { key: key.into(), value: value.to_string(), allowed: text.into() })
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// "one of A, B, C" for a message.
pub(crate) fn one_of<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    let names: Vec<_> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { "none: there is none".to_owned() } else { format!("one of {}", names.join(", ")) }
}
