//! The machine on which a scenario is simulated: its types, and their ranges.

mod disk;

use crate::allowed::{Violation, one_of, period, quoted, range, require, seconds};
use crate::scenario::{Guest, Host, VmSpec};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub use disk::{DiskScheduler, SimDisk};

/// The modelled machine: what the `[sim]` table of a scenario says. The lab ignores it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sim {
    /// The hypervisor's scheduler.
    pub scheduler: Scheduler,
    /// Physical CPUs, 1 to 128; as many as `host.vm_cpus` if left out.
    pub pcpus: Option<u16>,
    /// CPUs of the host, `pcpus` among them: the slices of Linux's schedulers grow with their number. 1 to
    /// 1024; with `pcpus` as many, else those that `host` names, if left out.
    pub host_cpus: Option<u16>,
    /// Parameters of `scheduler = "credit"`.
    pub credit: Credit,
    /// The CPU time that each VM of an entry gets at most, in percent of one physical CPU, with `scheduler =
    /// "credit"`. 1 to 1600.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub cap: IndexMap<String, u32>,
    /// The physical CPUs on which the vCPUs of each VM of an entry may run: a list for each vCPU, of numbers
    /// from 0 and below `pcpus`. An emulator's thread may run on all.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub pin: IndexMap<String, Vec<Vec<u16>>>,
    /// Reservations of the VMs of an entry, with `scheduler = "edf"`. Those without share what is left.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub reservations: IndexMap<String, SimReservation>,
    /// Who does the I/O of the VMs.
    pub io_path: IoPath,
    /// The VM entry that is the driver domain, with `io_path = "driver-domain"`: its first vCPU does the
    /// others' I/O in its kernel, and its own devices are its alone (MM §4.2.1: direct I/O). If absent, the
    /// driver domain is no VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_vm: Option<String>,
    /// Weight of a driver domain that is no VM, with `io_path = "driver-domain"`. 1 to 262144.
    pub driver_weight: u32,
    /// From an event to the engine's decision applied. 0 s to 1 s.
    #[serde(with = "humantime_serde")]
    pub decision_latency: Duration,
    /// CPU time of the host's work.
    pub costs: HostCosts,
    /// The guests' kernel.
    pub guest: GuestCosts,
    /// The network between VMs and clients.
    pub network: Network,
    /// The host's disk, which all VMs share.
    pub disk: SimDisk,
    /// Which vCPU each device of a VM interrupts.
    pub interrupts: Interrupts,
    /// The guests' part in vAMP, if they have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension: Option<Extension>,
    /// Nice values of the tasks of workloads inside the guests, as a user would set them by hand, by
    /// VM/WORKLOAD with the name of a VM entry. 0 to 19.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub nice: IndexMap<String, i8>,
}

impl Default for Sim {
    fn default() -> Self {
        Sim {
            scheduler: Scheduler::default(),
            pcpus: None,
            host_cpus: None,
            credit: Credit::default(),
            cap: IndexMap::new(),
            pin: IndexMap::new(),
            reservations: IndexMap::new(),
            io_path: IoPath::default(),
            driver_vm: None,
            driver_weight: 1024,
            decision_latency: Duration::ZERO,
            costs: HostCosts::default(),
            guest: GuestCosts::default(),
            network: Network::default(),
            disk: SimDisk::default(),
            interrupts: Interrupts::default(),
            extension: None,
            nice: IndexMap::new(),
        }
    }
}

/// Which vCPU each device of a VM interrupts; the last one if there are not so many. 0 to 15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Interrupts {
    /// The network card.
    pub network: u16,
    /// The disk.
    pub disk: u16,
    /// The sound card.
    pub sound: u16,
    /// The graphics processor.
    pub gpu: u16,
    /// The keyboard.
    pub input: u16,
}

/// The guests' part in vAMP (§3.3): in an episode what is background work and everything else run on
/// disjoint vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Extension {
    /// Whether devices interrupt only vCPUs without background work meanwhile.
    pub pin_interrupts: bool,
}

impl Default for Extension {
    fn default() -> Self {
        Extension { pin_interrupts: true }
    }
}

/// Who does the I/O of the VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoPath {
    /// A thread of each VM's emulator, as in QEMU, in the VM's own group.
    #[default]
    Emulator,
    /// A domain of its own for all VMs, as in Xen (TAVS §2.1).
    DriverDomain,
    /// Nobody: each VM has devices of its own, whose interrupts come to it at once and whose work takes no
    /// CPU time of the host.
    Direct,
}

/// CPU time of the host's work. Each 0 s to 1 s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostCosts {
    /// Until another vCPU or thread does something on a physical CPU.
    #[serde(with = "humantime_serde")]
    pub switch: Duration,
    /// A packet towards a VM, in the I/O path.
    #[serde(with = "humantime_serde")]
    pub packet_in: Duration,
    /// A packet from a VM.
    #[serde(with = "humantime_serde")]
    pub packet_out: Duration,
    /// A request to the disk.
    #[serde(with = "humantime_serde")]
    pub block_request: Duration,
    /// Its completion.
    #[serde(with = "humantime_serde")]
    pub block_done: Duration,
    /// A frame, copied to where it is seen.
    #[serde(with = "humantime_serde")]
    pub frame: Duration,
    /// A period of sound.
    #[serde(with = "humantime_serde")]
    pub sound: Duration,
    /// From the last notification that the I/O path sends until it sleeps. With 0 s, "send event" and "block"
    /// are one step: the I/O path is not preempted by the vCPU that it wakes, nor a guest that notifies its
    /// I/O path before it sleeps or uses CPU time again. Otherwise they are two.
    #[serde(with = "humantime_serde")]
    pub block: Duration,
    /// A clock tick of a guest, with `io_path = "emulator"`.
    #[serde(with = "humantime_serde")]
    pub timer: Duration,
    /// How much requests differ in what they cost, on the host and in the guest: the standard deviation of
    /// the logarithm. 0 to 2.
    pub spread: f64,
}

impl Default for HostCosts {
    fn default() -> Self {
        HostCosts {
            switch: Duration::from_micros(2),
            packet_in: Duration::from_micros(20),
            packet_out: Duration::from_micros(20),
            block_request: Duration::from_micros(20),
            block_done: Duration::from_micros(20),
            frame: Duration::from_micros(100),
            sound: Duration::from_micros(100),
            block: Duration::from_micros(5),
            timer: Duration::from_micros(20),
            spread: 0.0,
        }
    }
}

/// CPU time of the guests' kernel and of what programs do that is not in the scenario. Each 0 s to 1 s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuestCosts {
    /// An interrupt that is no packet.
    #[serde(with = "humantime_serde")]
    pub interrupt: Duration,
    /// A packet, up to the socket.
    #[serde(with = "humantime_serde")]
    pub receive: Duration,
    /// A packet sent.
    #[serde(with = "humantime_serde")]
    pub send: Duration,
    /// What a program does for a request beside its `cost`.
    #[serde(with = "humantime_serde")]
    pub request: Duration,
    /// A system call that reads or writes blocks.
    #[serde(with = "humantime_serde")]
    pub block: Duration,
    /// Copying a KiB.
    #[serde(with = "humantime_serde")]
    pub copy_kib: Duration,
    /// A change of tasks.
    #[serde(with = "humantime_serde")]
    pub switch: Duration,
    /// A message between tasks, on each side.
    #[serde(with = "humantime_serde")]
    pub message: Duration,
    /// A frame drawn.
    #[serde(with = "humantime_serde")]
    pub frame: Duration,
    /// A run of a program of the Debian system, of which nothing else is known.
    #[serde(with = "humantime_serde")]
    pub program: Duration,
    /// Period of the clock tick, without a driver domain. With `io_path = "emulator"` a thread of the
    /// emulator keeps that time, and each tick makes it run, also while the guest idles. It interrupts vCPUs
    /// that do not idle, and they set their clock anew, which makes the thread run again; so does a vCPU that
    /// stops idling. 0 s: none. 0 s to 1 s.
    #[serde(with = "humantime_serde")]
    pub tick: Duration,
    /// The scheduler. If left out that of `guest.kernel`, as far as its version is known and there is a
    /// `tick`; else `preempt`.
    pub scheduler: Option<GuestScheduler>,
    /// The longest time slice, with `scheduler = "preempt"`; `guest.time_slice` of the scenario if that is
    /// given. 100 us to 1 s.
    #[serde(with = "humantime_serde")]
    pub slice: Duration,
    /// Who wakes preempts who has run so much more, with `scheduler = "preempt"`.
    #[serde(with = "humantime_serde")]
    pub granularity: Duration,
    /// Whether the guests hear of the time in which they do not run. Emulated ones do not, and take it for
    /// their tasks'.
    pub sees_stolen_time: bool,
}

impl Default for GuestCosts {
    fn default() -> Self {
        GuestCosts {
            interrupt: Duration::from_micros(3),
            receive: Duration::from_micros(10),
            send: Duration::from_micros(10),
            request: Duration::from_micros(20),
            block: Duration::from_micros(10),
            copy_kib: Duration::from_nanos(200),
            switch: Duration::from_micros(2),
            message: Duration::from_micros(2),
            frame: Duration::from_millis(1),
            program: Duration::from_millis(100),
            tick: Duration::ZERO,
            scheduler: None,
            slice: Duration::from_millis(3),
            granularity: Duration::from_millis(1),
            sees_stolen_time: true,
        }
    }
}

/// The network between VMs and clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// From a client to the host, and back. 0 s to 1 s.
    #[serde(with = "humantime_serde")]
    pub latency: Duration,
    /// How long a client that got an answer over TCP waits for its next request to acknowledge it with,
    /// before it sends an acknowledgement alone, which the I/O path and the guest have to handle: 0 s to 1 s.
    /// If absent, none is sent alone.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub delayed_ack: Option<Duration>,
    /// Bandwidth of a bulk stream in Mbit/s. 0.1 to 100000.
    pub mbit_per_s: f64,
    /// Packets of a bulk stream that are not acknowledged yet. 1 to 4096.
    pub window: u32,
}

impl Default for Network {
    fn default() -> Self {
        Network { latency: Duration::from_micros(100), delayed_ack: None, mbit_per_s: 100.0, window: 58 }
    }
}

/// A hypervisor's scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Xen's credit scheduler (TAVS §2.2).
    Credit,
    /// That of Linux since 6.6, with control groups.
    #[default]
    Eevdf,
    /// That of Linux before, with control groups (vAMP).
    Cfs,
    /// Reservations, earliest deadline first (VSched §3.3).
    Edf,
}

/// The scheduler of a guest's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestScheduler {
    /// Linux before 6.6: who wakes after a sleep preempts.
    Preempt,
    /// Linux since 6.6: the task that runs goes on to the end of its slice when another wakes, which is seen
    /// at the next clock tick.
    Eevdf,
}

/// A slice of CPU time in every period (VSched §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimReservation {
    /// Length of a period.
    #[serde(with = "humantime_serde")]
    pub period: Duration,
    /// CPU time in each period.
    #[serde(with = "humantime_serde")]
    pub slice: Duration,
    /// Whether it is also the most that the VM gets.
    #[serde(default)]
    pub hard: bool,
}

/// Parameters of Xen's credit scheduler. The defaults are those of Xen 3.2, unmodified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Credit {
    /// Who runs at a tick pays 100 credits. 1 ms to 100 ms.
    #[serde(with = "humantime_serde")]
    pub tick: Duration,
    /// Length of a time slice, in ticks. 1 to 100.
    pub slice_ticks: u32,
    /// Credits are handed out every so many ticks. 1 to 100.
    pub accounting_ticks: u32,
    /// Measured run time is charged instead of ticks (TAVS §4.2). A debt is kept up to ten accounting periods
    /// then, not one: it was really used.
    pub fine_accounting: bool,
    /// A vCPU preempted by a boosted driver domain goes to the head of its priority's list (TAVS §4.4).
    pub head_of_list: bool,
    /// BOOST is split: that of multimedia events lies above that of others (MM §3.3).
    pub multimedia_boost: bool,
    /// Credits are handed out by a timer of its own, as in Xen 3.4, not by the first CPU's tick.
    pub accounting_timer: bool,
    /// Whether each physical CPU's ticks have a phase of their own, drawn from the seed, as those of CPUs
    /// have that are started one after the other. Otherwise all tick at the same instant.
    pub staggered_ticks: bool,
    /// How far a timer may be off. 0 s to 1 ms.
    #[serde(with = "humantime_serde")]
    pub timer_slop: Duration,
    /// Whether timers fire late by up to that, as in Xen 3.4, rather than early.
    pub timers_late: bool,
}

impl Default for Credit {
    fn default() -> Self {
        Credit {
            tick: Duration::from_millis(10),
            slice_ticks: 3,
            accounting_ticks: 3,
            fine_accounting: false,
            head_of_list: false,
            multimedia_boost: false,
            accounting_timer: false,
            staggered_ticks: false,
            timer_slop: Duration::from_micros(50),
            timers_late: false,
        }
    }
}

impl Sim {
    /// Number of physical CPUs, on a host of which `host` says what it is used for.
    #[must_use]
    pub fn pcpus(&self, host: &Host) -> u16 {
        self.pcpus.unwrap_or_else(|| u16::try_from(host.vm_cpus.len()).unwrap_or(u16::MAX))
    }

    /// The scheduler of the guests' kernel: the one that is said, or else the kernel's own.
    #[must_use]
    pub fn guest_scheduler(&self, guest: &Guest) -> GuestScheduler {
        let ticks = self.io_path != IoPath::DriverDomain && !self.guest.tick.is_zero();
        let own = || match guest.version() {
            Some(version) if version >= (6, 6) && ticks => GuestScheduler::Eevdf,
            _ => GuestScheduler::Preempt,
        };
        self.guest.scheduler.unwrap_or_else(own)
    }

    /// Checks every value against its documented range. `key`: where it is in the scenario; `entries` and
    /// `host` are the scenario's.
    pub(crate) fn validate(&self, key: &str, entries: &[VmSpec], host: &Host) -> Result<(), Violation> {
        let vms: &[&str] = &entries.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>();
        let at = |field: &str| format!("{key}.{field}");
        let second = Duration::ZERO..=seconds(1);
        range(at("pcpus"), self.pcpus.unwrap_or(1), 1..=128)?;
        range(at("host_cpus"), self.host_cpus.unwrap_or(1), 1..=1024)?;
        range(at("costs.spread"), self.costs.spread, 0.0..=2.0)?;
        range(at("driver_weight"), self.driver_weight, 1..=262_144)?;
        period(at("decision_latency"), self.decision_latency, second.clone())?;
        let Credit { tick, slice_ticks, accounting_ticks, timer_slop, .. } = self.credit;
        period(at("credit.tick"), tick, Duration::from_millis(1)..=Duration::from_millis(100))?;
        range(at("credit.slice_ticks"), slice_ticks, 1..=100)?;
        range(at("credit.accounting_ticks"), accounting_ticks, 1..=100)?;
        period(at("credit.timer_slop"), timer_slop, Duration::ZERO..=Duration::from_millis(1))?;
        self.validate_caps(key, vms)?;
        self.validate_pins(key, entries, host)?;
        if let Some(vm) = &self.driver_vm {
            require(vms.contains(&vm.as_str()), at("driver_vm"), quoted(vm), one_of(vms))?;
            let used = self.io_path == IoPath::DriverDomain;
            require(used, at("driver_vm"), quoted(vm), "only with `io_path = \"driver-domain\"`")?;
        }
        for (vm, reservation) in &self.reservations {
            require(vms.contains(&vm.as_str()), at("reservations"), quoted(vm), one_of(vms))?;
            let day = Duration::from_secs(24 * 3600);
            let field = |field: &str| at(&format!("reservations.{vm}.{field}"));
            period(field("period"), reservation.period, Duration::from_micros(100)..=day)?;
            period(field("slice"), reservation.slice, Duration::from_micros(1)..=reservation.period)?;
        }
        let Interrupts { network, disk, sound, gpu, input } = self.interrupts;
        for (device, vcpu) in
            [("network", network), ("disk", disk), ("sound", sound), ("gpu", gpu), ("input", input)]
        {
            range(at(&format!("interrupts.{device}")), vcpu, 0..=15)?;
        }
        for (workload, nice) in &self.nice {
            let known = workload.split_once('/').is_some_and(|(vm, _)| vms.contains(&vm));
            let allowed = "VM/WORKLOAD with the name of a VM entry";
            require(known, at("nice"), quoted(workload), allowed)?;
            range(at(&format!("nice.{workload}")), *nice, 0..=19)?;
        }
        let costs = &self.costs;
        let guest = &self.guest;
        for (field, cost) in [
            ("costs.switch", costs.switch),
            ("costs.packet_in", costs.packet_in),
            ("costs.packet_out", costs.packet_out),
            ("costs.block_request", costs.block_request),
            ("costs.block_done", costs.block_done),
            ("costs.frame", costs.frame),
            ("costs.sound", costs.sound),
            ("costs.block", costs.block),
            ("costs.timer", costs.timer),
            ("guest.interrupt", guest.interrupt),
            ("guest.receive", guest.receive),
            ("guest.send", guest.send),
            ("guest.request", guest.request),
            ("guest.block", guest.block),
            ("guest.copy_kib", guest.copy_kib),
            ("guest.switch", guest.switch),
            ("guest.message", guest.message),
            ("guest.frame", guest.frame),
            ("guest.program", guest.program),
            ("guest.tick", guest.tick),
            ("guest.granularity", guest.granularity),
            ("network.latency", self.network.latency),
            ("network.delayed_ack", self.network.delayed_ack.unwrap_or_default()),
        ] {
            period(at(field), cost, second.clone())?;
        }
        period(at("guest.slice"), guest.slice, Duration::from_micros(100)..=seconds(1))?;
        let ticks = self.io_path != IoPath::DriverDomain && !guest.tick.is_zero();
        let works = ticks || guest.scheduler != Some(GuestScheduler::Eevdf);
        let allowed =
            "\"eevdf\" only with a `guest.tick`, and without a driver domain: it goes by clock ticks";
        require(works, at("guest.scheduler"), "\"eevdf\"", allowed)?;
        range(at("network.mbit_per_s"), self.network.mbit_per_s, 0.1..=100_000.0)?;
        range(at("network.window"), self.network.window, 1..=4096)?;
        self.disk.validate(&at, vms)
    }

    fn validate_caps(&self, key: &str, vms: &[&str]) -> Result<(), Violation> {
        for (vm, percent) in &self.cap {
            let own = format!("{key}.cap.{vm}");
            require(vms.contains(&vm.as_str()), format!("{key}.cap"), quoted(vm), one_of(vms))?;
            let capped = self.scheduler == Scheduler::Credit;
            require(capped, own.as_str(), percent, "only with `scheduler = \"credit\"`")?;
            range(own, *percent, 1..=1600)?;
        }
        Ok(())
    }

    fn validate_pins(&self, key: &str, vms: &[VmSpec], host: &Host) -> Result<(), Violation> {
        let last = self.pcpus(host).saturating_sub(1);
        for (vm, vcpus) in &self.pin {
            let Some(entry) = vms.iter().find(|entry| entry.name == *vm) else {
                let names = vms.iter().map(|entry| entry.name.as_str());
                return require(false, format!("{key}.pin"), quoted(vm), one_of(names));
            };
            let own = format!("{key}.pin.{vm}");
            let one_each = vcpus.len() == usize::from(entry.vcpus);
            let allowed = format!("a list for each vCPU, of which {vm} has {}", entry.vcpus);
            require(one_each, own.as_str(), format!("{vcpus:?}"), allowed)?;
            for (vcpu, pcpus) in vcpus.iter().enumerate() {
                let own = format!("{own}.{vcpu}");
                require(!pcpus.is_empty(), own.as_str(), "[]", "at least one physical CPU")?;
                for (place, pcpu) in pcpus.iter().enumerate() {
                    range(format!("{own}.{place}"), *pcpu, 0..=last)?;
                }
            }
        }
        Ok(())
    }
}
