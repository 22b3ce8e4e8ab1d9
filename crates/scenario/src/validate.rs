//! What a scenario must be beyond its types: ranges, names, references.

use crate::scenario::{Daemon, Disk, LoadKind, LoadProfile, Scenario, Vm, WorkloadKind, protocol};
use crate::study::validate_reservation;
use frontdesk_engine::{Config, Protocol};
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
        range("repeats", self.repeats, 1..=1000)?;
        period("duration", self.duration, seconds(1)..=seconds(3600))?;
        period("warmup", self.warmup, Duration::ZERO..=seconds(600))?;
        range("think_scale", self.think_scale, 0.001..=100.0)?;
        range("cost_scale", self.cost_scale, 0.001..=100.0)?;
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
        validate_policy("policy", &self.policy)?;
        let entries: Vec<&str> = self.vms.iter().map(|vm| vm.name.as_str()).collect();
        self.sim.validate("sim", &entries)?;
        self.validate_arms()?;
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
        for vm in &self.vms {
            for workload in &vm.workloads {
                let real = !matches!(workload.kind, WorkloadKind::RtApp { .. });
                let key = format!("vm.{}.workloads.{}.run", vm.name, workload.name);
                require(
                    real,
                    key,
                    quoted("rt-app"),
                    "what the lab's guests have a program for; files of rt-app only the simulator runs",
                )?;
            }
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
        let found = modules.as_deref().unwrap_or("nothing");
        require(modules.is_some() == by_path, "guest.modules", found, allowed)?;
        if let Some(slice) = self.guest.time_slice {
            period("guest.time_slice", slice, Duration::from_micros(100)..=seconds(1))?;
        }
        let Some(debian) = &self.guest.debian else { return Ok(()) };
        for (key, names) in [("packages", &debian.packages), ("sources", &debian.sources)] {
            let allowed = "the name of a Debian package: lower case letters, digits, `+`, `-` and `.`, at least two, the first a \
                           letter or digit";
            for (index, name) in names.iter().enumerate() {
                let key = format!("guest.debian.{key}.{index}");
                require(is_package(name), key, quoted(name), allowed)?;
            }
        }
        Ok(())
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
            if let Some(disk) = vm.disk {
                validate_disk(&key("disk"), disk)?;
            }
            let system = self.guest.debian.is_some() || !vm.debian;
            require(system, key("debian"), "true", "only beside `guest.debian`")?;
            validate_workloads(vm)?;
        }
        Ok(())
    }

    fn validate_load(&self, key: &str, load: &LoadProfile) -> Result<(), Violation> {
        let Some(vm) = self.entry(&load.vm) else {
            let entries = self.vms.iter().map(|vm| vm.name.as_str());
            return require(false, format!("{key}.vm"), quoted(&load.vm), one_of(entries));
        };
        let found = vm.target(load).is_some();
        let is_sink = |kind: &WorkloadKind| matches!(kind, WorkloadKind::Sink { .. });
        match load.kind {
            LoadKind::Ask { protocol, port, bytes, think } => {
                let allowed = ports(vm, "echo or shift", |kind| !is_sink(kind));
                require(found, format!("{key}.port"), show_port((protocol, port)), allowed)?;
                range(format!("{key}.bytes"), bytes, 1..=1400)?;
                validate_think(key, think)
            }
            LoadKind::Bulk { port } => {
                let allowed = ports(vm, "sink", is_sink);
                require(found, format!("{key}.port"), show_port((Protocol::Tcp, port)), allowed)
            }
            LoadKind::Edit { think } => {
                let allowed = "a VM in which a workload runs the program sshd";
                require(found, format!("{key}.vm"), quoted(&load.vm), allowed)?;
                validate_think(key, think)
            }
        }
    }

    fn validate_arms(&self) -> Result<(), Violation> {
        require(!self.arms.is_empty(), "arms", "{}", "at least one arm")?;
        for (arm_name, arm) in &self.arms {
            name(&format!("arms.{arm_name}"), arm_name)?;
            if let Some(policy) = &arm.policy {
                let key = format!("arms.{arm_name}.policy");
                let allowed = "only in an arm with daemon = \"observe\" or \"act\"";
                require(arm.daemon != Daemon::Off, key.as_str(), "given", allowed)?;
                validate_policy(&key, policy)?;
            }
            for (vm, values) in &arm.nice {
                let key = format!("arms.{arm_name}.nice.{vm}");
                let entries = self.vms.iter().map(|vm| vm.name.as_str());
                let Some(entry) = self.entry(vm) else {
                    return require(false, key, quoted(vm), one_of(entries));
                };
                let one_each = values.len() == usize::from(entry.vcpus);
                let allowed = format!("one value for each vCPU, of which {vm} has {}", entry.vcpus);
                require(one_each, key.as_str(), format!("{values:?}"), allowed)?;
                for (vcpu, nice) in values.iter().enumerate() {
                    range(format!("{key}.{vcpu}"), *nice, -20..=19)?;
                }
            }
            for (vm, of) in &arm.reserve {
                let key = format!("arms.{arm_name}.reserve.{vm}");
                let entries = self.vms.iter().map(|vm| vm.name.as_str());
                require(self.entry(vm).is_some(), key.as_str(), quoted(vm), one_of(entries))?;
                let allowed = "only in an arm with daemon = \"act\"";
                require(arm.daemon == Daemon::Act, key.as_str(), of, allowed)?;
                validate_reservation(&key, *of)?;
            }
            if let Some(sim) = &arm.sim {
                let entries: Vec<&str> = self.vms.iter().map(|vm| vm.name.as_str()).collect();
                sim.validate(&format!("arms.{arm_name}.sim"), &entries)?;
            }
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
}

/// The parameters of the engine behind a key.
fn validate_policy(key: &str, policy: &Config) -> Result<(), Violation> {
    policy.validate().map_err(|error| Violation {
        key: format!("{key}.{}", error.key),
        value: error.value,
        allowed: error.allowed.to_owned(),
    })
}

fn validate_disk(key: &str, disk: Disk) -> Result<(), Violation> {
    const MOST_KIB: u64 = 16 << 20;
    let Disk { files, file_kib } = disk;
    range(format!("{key}.files"), files, 1..=65_536)?;
    range(format!("{key}.file_kib"), file_kib, 4..=65_536)?;
    let allowed = format!("at most {} for {files} files, which is 16 GiB", MOST_KIB / u64::from(files));
    let fits = u64::from(files) * u64::from(file_kib) <= MOST_KIB;
    require(fits, format!("{key}.file_kib"), file_kib, allowed)
}

fn show_port((transport, port): (Protocol, u16)) -> String {
    format!("{port} ({})", protocol::name(transport))
}

/// The ports on which some of a VM's workloads listen, for a message.
fn ports(vm: &Vm, what: &str, are: impl Fn(&WorkloadKind) -> bool) -> String {
    let kinds = vm.workloads.iter().map(|workload| &workload.kind).filter(|kind| are(kind));
    let ports: Vec<_> = kinds.filter_map(WorkloadKind::listens).map(show_port).collect();
    match ports.as_slice() {
        [] => format!("none: no {what} runs in {}", vm.name),
        [only] => only.clone(),
        _ => one_of(&ports),
    }
}

fn validate_think(key: &str, [shortest, longest]: [Duration; 2]) -> Result<(), Violation> {
    period(format!("{key}.think.1"), longest, Duration::ZERO..=seconds(3600))?;
    period(format!("{key}.think.0"), shortest, Duration::ZERO..=longest)
}

fn validate_workloads(vm: &Vm) -> Result<(), Violation> {
    let mut names = HashSet::new();
    let mut listening = HashSet::new();
    for (index, workload) in vm.workloads.iter().enumerate() {
        let own = format!("vm.{}.workloads.{index}.name", vm.name);
        name(&own, &workload.name)?;
        require(names.insert(&workload.name), own, quoted(&workload.name), "a name no other workload has")?;
        let key = |field: &str| format!("vm.{}.workloads.{}.{field}", vm.name, workload.name);
        if let Some((transport, port)) = workload.kind.listens() {
            range(key("port"), port, 1..=65_535)?;
            let free = listening.insert((transport, port));
            let allowed = format!("a {} port on which no other workload listens", protocol::name(transport));
            require(free, key("port"), port, allowed)?;
        }
        let only_with =
            |run, given, what| require(given, key("run"), quoted(run), format!("only in a VM with `{what}`"));
        match &workload.kind {
            WorkloadKind::Echo { cost, .. } => validate_cost(key("cost"), *cost)?,
            WorkloadKind::Shift { period: length, .. } => {
                period(key("period"), *length, Duration::from_millis(100)..=seconds(600))?;
            }
            WorkloadKind::ReadFiles => only_with("read-files", vm.disk.is_some(), "disk")?,
            WorkloadKind::ReadBurn { cost } => {
                only_with("read-burn", vm.disk.is_some(), "disk")?;
                validate_cost(key("cost"), *cost)?;
            }
            WorkloadKind::Messages { tasks, rounds } => {
                range(key("tasks"), *tasks, 40..=2000)?;
                require(tasks.is_multiple_of(40), key("tasks"), tasks, "a multiple of 40")?;
                range(key("rounds"), *rounds, 1..=10_000)?;
            }
            WorkloadKind::Program { command, repeat, cold } => {
                only_with("program", vm.debian, "debian = true")?;
                require(!command.is_empty(), key("command"), "[]", "a program and its arguments")?;
                for (index, word) in command.iter().enumerate() {
                    let usable = !word.is_empty() && !word.contains('\0');
                    let key = key(&format!("command.{index}"));
                    require(usable, key, quoted(word), "a word, not empty and without a zero byte")?;
                }
                require(*repeat || !cold, key("cold"), "true", "only beside `repeat = true`")?;
            }
            WorkloadKind::Hog
            | WorkloadKind::Sink { .. }
            | WorkloadKind::Churn
            | WorkloadKind::RtApp { .. }
            | WorkloadKind::Storm { .. } => {}
        }
    }
    Ok(())
}

fn validate_cost(key: String, cost: Duration) -> Result<(), Violation> {
    period(key, cost, Duration::ZERO..=seconds(10))
}

/// MAJOR.MINOR-FLAVOUR.
fn is_series(kernel: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let Some((version, flavour)) = kernel.split_once('-') else { return false };
    let Some((major, minor)) = version.split_once('.') else { return false };
    number(major) && number(minor) && is_name(flavour)
}

fn is_package(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let usual = text.bytes().all(|byte| alphanumeric(byte) || b"+-.".contains(&byte));
    text.len() >= 2 && usual && text.bytes().next().is_some_and(alphanumeric)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

pub(crate) fn name(key: &str, name: &str) -> Result<(), Violation> {
    require(is_name(name), key, quoted(name), "letters, digits and `-`")
}

pub(crate) fn range<N: PartialOrd + Display>(
    key: impl Into<String>,
    value: N,
    allowed: RangeInclusive<N>,
) -> Result<(), Violation> {
    let text = format!("{} to {}", allowed.start(), allowed.end());
    require(allowed.contains(&value), key, value, text)
}

pub(crate) fn period(
    key: impl Into<String>,
    value: Duration,
    allowed: RangeInclusive<Duration>,
) -> Result<(), Violation> {
    let show = humantime::format_duration;
    let text = format!("{} to {}", show(*allowed.start()), show(*allowed.end()));
    require(allowed.contains(&value), key, show(value), text)
}

pub(crate) fn require(
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

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// "one of A, B, C" for a message.
pub(crate) fn one_of<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    let names: Vec<_> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { "none: there is none".to_owned() } else { format!("one of {}", names.join(", ")) }
}
