//! A scenario on real VMs: boots them, runs the arms interleaved, measures.

use crate::client::AnyClient;
use crate::clock::HostClock;
use crate::daemon::{DaemonProcess, DaemonProcessError};
use crate::data_disk::{DiskError, data_disk};
use crate::debian::{Debian, DebianError, debian};
use crate::edit::{EditClient, EditConfig};
use crate::load::{Client, ClientConfig, ClientWork, LoadError, Sample};
use crate::machine::{self, Busy};
use crate::net::{self, Link, NetError};
use crate::replay::{self, Findings, Shift, Truth};

use crate::web::WebServer;
use crate::workload::{guest_workload, is_io_bound, knows_its_wakes, steps};
use crate::{
    DiskConfig, DiskKind, InitramfsError, Kernel, KernelError, TapConfig, Vm, VmConfig, VmError, cpu,
    plugin_cost,
};
use frontdesk_engine::Time;
use frontdesk_host::RecordError;
use frontdesk_host::cgroup::{CgroupError, Hierarchy};
use frontdesk_host::guardian::{Guardian, GuardianError, Undo};
use frontdesk_host::sched::process_start_time;
use frontdesk_lab_guest as guest;
use frontdesk_scenario::{
    self as scenario, Daemon, Extra, HostInfo, LoadKind, LoadProfile, Outcome, Rate, Repeat, Scenario,
    Summary, Timeline, Unit, Violation,
};
use indexmap::IndexMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A guest that is not up by then will not come up.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// Where sshd listens.
const SSH_PORT: u16 = 22;
/// How often a running arm looks whether all is well.
const WATCH: Duration = Duration::from_millis(50);
/// Exchanges with each guest before anything runs, to find out where its clock is.
const CLOCK_EXCHANGES: u32 = 20;
/// Steps of the computing loop that its speed is measured with; some tens of milliseconds.
const CALIBRATION_STEPS: u64 = 5_000_000;

/// What the lab needs beside the scenario.
#[derive(Debug)]
pub struct LabConfig {
    /// The lab-guest program, statically linked.
    pub guest: PathBuf,
    /// The TCG plugin.
    pub plugin: PathBuf,
    /// The frontdesk program: the daemon and the guardian.
    pub frontdesk: PathBuf,
    /// Set to end the run early.
    pub stop: Arc<AtomicBool>,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Steps that are done.
    pub done: u32,
    /// All steps; each takes about as long.
    pub total: u32,
    /// What is being done.
    pub doing: String,
}

/// A run could not be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant passes on an error that describes itself.
pub enum LabError {
    #[error(transparent)]
    Scenario(#[from] Violation),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Initramfs(#[from] InitramfsError),
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Guardian(#[from] GuardianError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Debian(#[from] DebianError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Daemon(#[from] DaemonProcessError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the recording's parameters are not valid: {0}")]
    Config(#[from] frontdesk_engine::ConfigError),
    #[error(transparent)]
    Replay(#[from] frontdesk_replay::ReplayError),
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("something could not be removed: {0}")]
    Left(String),
    #[error("interrupted")]
    Interrupted,
}

/// Everything that a run makes, in the order in which it must go.
struct Lab<'a> {
    scenario: &'a Scenario,
    config: &'a LabConfig,
    vms: IndexMap<String, LabVm>,
    run_dir: PathBuf,
    qemu: String,
    guest_kernel: String,
    debian: Option<Debian>,
    /// Steps of a guest's computing loop in a second of CPU time.
    steps_per_s: f64,
    /// A reading of the host's clocks when the run began.
    began: (u64, Time),
    _busy: Busy,
    guardian: Guardian,
}

struct LabVm {
    vm: Vm,
    link: Link,
    weight: u32,
    /// What its programs download from, if it has a Debian system.
    _web: Option<WebServer>,
    /// Whether the daemon follows it.
    tracked: bool,
    /// Names of the workloads that run.
    running: Vec<String>,
}

/// By VM and workload.
type Readings = IndexMap<(String, String), Reading>;

/// What a workload had done at a point in time.
struct Reading {
    at: Instant,
    report: guest::Report,
}

/// Runs a scenario. The calling thread is in a network namespace of the run's own afterwards, and must live as long as the run.
///
/// # Errors
/// The run could not be made; nothing that it started is left.
pub fn run(
    scenario: &Scenario,
    config: &LabConfig,
    progress: &dyn Fn(&Progress),
) -> Result<(Outcome, Vec<Timeline>), LabError> {
    let unknown = |source| LabError::Io { what: "examining the machine".to_owned(), source };
    let cpus = machine::online_cpus().map_err(unknown)?;
    scenario.fits(&cpus, machine::mem_available_mib().map_err(unknown)?)?;
    let guardian = Guardian::start(&config.frontdesk, frontdesk_host::GUARDIAN_ARGUMENT)?;
    let run_dir = make_run_dir(&guardian)?;
    let measures_plugin =
        scenario.checks.plugin_cpu_slowdown.or(scenario.checks.plugin_fork_slowdown).is_some();
    let runs = u32::try_from(scenario.arms.len()).unwrap_or(u32::MAX).saturating_mul(scenario.repeats);
    let total = runs.saturating_add(u32::from(measures_plugin));
    let report = |done: u32, doing: String| progress(&Progress { done, total, doing });
    report(0, "fetching the guests' kernel".to_owned());
    let kernel = Kernel::resolve(&scenario.guest.kernel, scenario.guest.modules.as_deref())?;
    let has_disks = scenario.vms.iter().any(|vm| vm.disk.is_some() || vm.debian);
    let initrd = run_dir.join("initrd");
    crate::write_initramfs(&kernel, &config.guest, &initrd, has_disks)?;
    let system = scenario.guest.debian.as_ref().filter(|_| scenario.vms.iter().any(|vm| vm.debian));
    let system = system.map(|of| debian(&of.packages, &of.sources, &|doing| report(0, doing))).transpose()?;
    let mut images = IndexMap::new();
    for vm in &scenario.vms {
        if let Some(disk) = vm.disk {
            report(0, format!("making a disk with {} files of {} KiB", disk.files, disk.file_kib));
            images.insert(vm.name.clone(), data_disk(disk.files, disk.file_kib)?);
        }
    }
    // What had to be fetched is there.
    net::enter_namespace()?;
    report(0, format!("booting {} VMs", scenario.vm_names().len()));
    let boot = Boot { kernel: &kernel, initrd: &initrd, debian: system, images };
    let mut lab = Lab::boot(scenario, config, guardian, run_dir, boot)?;
    let result = lab.run_arms(&report).and_then(|(arms, timelines, mut extra)| {
        lab.vms.clear();
        if measures_plugin {
            report(runs, "measuring the plugin's cost".to_owned());
            plugin_cost::measure(scenario, config, &kernel, &initrd, &lab.run_dir, &mut extra)?;
        }
        let checks = frontdesk_scenario::checks(scenario, &arms, &extra);
        let host = lab.host_info();
        Ok((Outcome { scenario: scenario.name.clone(), host, arms, checks }, timelines))
    });
    lab.tear_down()?;
    result
}

/// What VMs boot from.
struct Boot<'a> {
    kernel: &'a Kernel,
    initrd: &'a Path,
    debian: Option<Debian>,
    /// Images of data disks, by VM entry.
    images: IndexMap<String, PathBuf>,
}

impl Boot<'_> {
    fn disks(&self, entry: &scenario::Vm) -> Vec<DiskConfig> {
        let data = self.images.get(&entry.name).map(|image| (image, DiskKind::Data));
        let system = self.debian.as_ref().filter(|_| entry.debian).map(|of| (&of.image, DiskKind::Debian));
        let disks = data.into_iter().chain(system);
        disks.map(|(image, kind)| DiskConfig { image: image.clone(), kind }).collect()
    }
}

impl<'a> Lab<'a> {
    fn boot(
        scenario: &'a Scenario,
        config: &'a LabConfig,
        guardian: Guardian,
        run_dir: PathBuf,
        boot: Boot<'_>,
    ) -> Result<Lab<'a>, LabError> {
        let mut lab = Lab {
            scenario,
            config,
            vms: IndexMap::new(),
            run_dir,
            qemu: machine::qemu_version(),
            guest_kernel: String::new(),
            debian: None,
            steps_per_s: 0.0,
            began: HostClock::read(),
            _busy: Busy::start(&scenario.host.busy_cpus),
            guardian,
        };
        let parent = Hierarchy::detect()?
            .root_group()
            .create(&format!("frontdesk-lab-{}", std::process::id()), &lab.guardian)?;
        let entries = scenario.vms.iter().flat_map(|vm| vm.names().into_iter().map(move |name| (name, vm)));
        for (index, (name, entry)) in entries.enumerate() {
            let group = parent.create(&name, &lab.guardian)?;
            group.set_weight(entry.weight)?;
            let link = net::add_link(index)?;
            let vm = Vm::boot(&VmConfig {
                name: name.clone(),
                vcpus: entry.vcpus,
                memory_mib: entry.memory_mib,
                kernel: boot.kernel.image.clone(),
                initrd: boot.initrd.to_owned(),
                disks: boot.disks(entry),
                time_slice: scenario.guest.time_slice,
                tap: Some(TapConfig {
                    ifname: link.ifname.clone(),
                    mac: link.mac.clone(),
                    guest_ip: link.guest,
                    prefix: link.prefix,
                }),
                reporter: false,
                plugin: entry.tracked.then(|| config.plugin.clone()),
                cpus: scenario.host.vm_cpus.clone(),
                run_dir: lab.run_dir.clone(),
                cgroup_procs: vec![group.procs_file()],
            })?;
            if let Some(started) = process_start_time(vm.pid()) {
                lab.guardian.record(Undo::Process { pid: vm.pid(), started })?;
            }
            let web = entry.debian.then(|| WebServer::start(link.host)).transpose();
            let web =
                web.map_err(|source| LabError::Io { what: format!("serving {}", link.host), source })?;
            let (weight, tracked) = (entry.weight, entry.tracked);
            lab.vms.insert(name, LabVm { vm, link, weight, _web: web, tracked, running: Vec::new() });
        }
        for vm in lab.vms.values_mut() {
            interrupted(&config.stop)?;
            lab.guest_kernel = vm.vm.wait_ready(BOOT_TIMEOUT)?;
        }
        lab.debian = boot.debian;
        lab.calibrate()?;
        Ok(lab)
    }

    /// Finds out, while nothing runs, how fast guests compute and where their clocks are.
    fn calibrate(&mut self) -> Result<(), LabError> {
        for _ in 0..CLOCK_EXCHANGES {
            for vm in self.vms.values_mut() {
                vm.vm.check()?;
            }
        }
        if let Some(vm) = self.vms.values_mut().next() {
            // The fastest of some: whatever else the machine does only makes it slower.
            for _ in 0..3 {
                let took = vm.vm.run(guest::Work::Spin { steps: CALIBRATION_STEPS }, BOOT_TIMEOUT)?.elapsed;
                #[allow(clippy::cast_precision_loss)]
                let speed = CALIBRATION_STEPS as f64 / took.as_secs_f64().max(f64::EPSILON);
                self.steps_per_s = self.steps_per_s.max(speed);
            }
        }
        Ok(())
    }

    #[allow(clippy::type_complexity)] // Named once, taken apart once.
    fn run_arms(
        &mut self,
        report: &dyn Fn(u32, String),
    ) -> Result<(IndexMap<String, frontdesk_scenario::ArmResult>, Vec<Timeline>, Extra), LabError> {
        let mut repeats: IndexMap<String, Vec<Repeat>> = IndexMap::new();
        let mut timelines = Vec::new();
        let mut extra = Extra::default();
        let mut done = 0;
        for number in 1..=self.scenario.repeats {
            for name in self.scenario.arms.keys() {
                report(done, format!("repeat {number}/{}: {name}", self.scenario.repeats));
                let (repeat, timeline, speed) =
                    self.run_arm(name, number).map_err(|error| self.blame_dead_vm(error))?;
                repeats.entry(name.clone()).or_default().push(repeat);
                // One repeat of each arm is enough to look at.
                timelines.extend(timeline.filter(|_| number == 1));
                extra.engine_speed.extend(speed.filter(|_| name == "frontdesk"));
                done += 1;
            }
        }
        let arms = repeats.into_iter().map(|(name, repeats)| (name, frontdesk_scenario::summarise(repeats)));
        Ok((arms.collect(), timelines, extra))
    }

    fn run_arm(
        &mut self,
        name: &str,
        number: u32,
    ) -> Result<(Repeat, Option<Timeline>, Option<f64>), LabError> {
        self.set_workloads(name)?;
        let mut daemon = self.start_daemon(name)?;
        let clients = self.start_clients(name, number)?;
        while !clients.iter().all(|(_, client)| client.is_ready() || client.has_ended()) {
            self.pass(WATCH, &clients, daemon.as_mut())?;
        }
        self.pass(self.scenario.warmup, &clients, daemon.as_mut())?;

        let first = self.readings()?;
        let from = (Instant::now(), frontdesk_host::monotonic());
        let before = self.cpu_times(daemon.as_ref())?;
        self.pass(self.scenario.duration, &clients, daemon.as_mut())?;
        let after = self.cpu_times(daemon.as_ref())?;
        let to = (Instant::now(), frontdesk_host::monotonic());
        let last = self.readings()?;

        let mut samples: IndexMap<String, Vec<f64>> = IndexMap::new();
        for (key, client) in clients {
            let all = client.finish()?;
            samples.entry(key).or_default().extend(measured(&all, from.0, to.0));
        }
        samples.retain(|_, samples| !samples.is_empty());
        for vm in self.vms.values_mut() {
            vm.vm.check()?;
        }
        let mut repeat = Repeat {
            response_ms: samples
                .iter()
                .filter_map(|(vm, samples)| Some((vm.clone(), Summary::of(samples)?)))
                .collect(),
            samples_ms: samples,
            seconds: (to.0 - from.0).as_secs_f64(),
            ..Repeat::default()
        };
        self.book_cpu(name, &before, &after, &mut repeat);
        let clock = HostClock::through(self.began, HostClock::read());
        repeat.rates = self.rates(&first, &last);
        repeat.times_ms = self.times_ms(&clock, [&first, &last], from.1, to.1);
        let Some(daemon) = daemon else { return Ok((repeat, None, None)) };
        let truth = self.truth(name, &clock, [&first, &last]);
        let (findings, speed) = examine(daemon, from.1, to.1, &truth)?;
        repeat.boosts = findings.boosts;
        repeat.boost_hits = findings.hits;
        repeat.decision_us = frontdesk_scenario::latency(&findings.decisions_us);
        repeat.lost_events = findings.lost_events;
        repeat.follow = findings.follow;
        let timeline = Timeline { arm: name.to_owned(), repeat: number, ..findings.timeline };
        Ok((repeat, Some(timeline), Some(speed)))
    }

    /// What every running workload has done, by VM and name.
    fn readings(&mut self) -> Result<Readings, LabError> {
        let mut readings = Readings::new();
        for (name, vm) in &mut self.vms {
            for workload in vm.running.clone() {
                let report = vm.vm.report(&workload)?;
                readings.insert((name.clone(), workload), Reading { at: Instant::now(), report });
            }
        }
        Ok(readings)
    }

    /// Throughput between two readings.
    fn rates(&self, first: &Readings, last: &Readings) -> IndexMap<String, Rate> {
        let mut rates = IndexMap::new();
        for ((vm, workload), end) in last {
            let Some(begin) = first.get(&(vm.clone(), workload.clone())) else { continue };
            let seconds = (end.at - begin.at).as_secs_f64();
            let (unit, count) = match end.report.bytes {
                0 => (Unit::Operations, end.report.operations.saturating_sub(begin.report.operations)),
                bytes => (Unit::Bytes, bytes.saturating_sub(begin.report.bytes)),
            };
            if end.report.operations > 0 && seconds > 0.0 {
                #[allow(clippy::cast_precision_loss)]
                let per_s = count as f64 / seconds;
                rates.insert(format!("{vm}/{workload}"), Rate { per_s, unit });
            }
        }
        rates
    }

    /// Stamps of a workload of a VM, on the host's clock.
    fn stamps(
        &self,
        clock: &HostClock,
        readings: [&Readings; 2],
        vm: &str,
        workload: &str,
    ) -> Vec<(Time, guest::StampKind)> {
        let Some(guest_clock) = self.vms.get(vm).map(|vm| vm.vm.clock()) else { return Vec::new() };
        let key = (vm.to_owned(), workload.to_owned());
        let stamps = readings.into_iter().filter_map(|of| of.get(&key)).flat_map(|of| &of.report.stamps);
        stamps.filter_map(|stamp| Some((clock.time(guest_clock.to_host(stamp.tsc)?), stamp.kind))).collect()
    }

    /// How long the operations took that ended in the measured time.
    fn times_ms(
        &self,
        clock: &HostClock,
        readings: [&Readings; 2],
        from: Time,
        to: Time,
    ) -> IndexMap<String, Vec<f64>> {
        let mut times = IndexMap::new();
        for (vm, workload) in readings[1].keys() {
            let mut begun = None;
            let mut took = Vec::new();
            for (at, kind) in self.stamps(clock, readings, vm, workload) {
                match kind {
                    guest::StampKind::Begin => begun = Some(at),
                    guest::StampKind::End => {
                        let begin = begun.take().filter(|_| at >= from && at <= to);
                        took.extend(
                            begin.map(|begin| Duration::from_nanos(at.since(begin)).as_secs_f64() * 1e3),
                        );
                    }
                    _ => {}
                }
            }
            if !took.is_empty() {
                times.insert(format!("{vm}/{workload}"), took);
            }
        }
        times
    }

    /// What the workloads know about their own I/O, by VM: of those VMs that run nothing else.
    fn truth(&self, arm: &str, clock: &HostClock, readings: [&Readings; 2]) -> IndexMap<String, Truth> {
        let arm = &self.scenario.arms[arm];
        let mut truths = IndexMap::new();
        for entry in &self.scenario.vms {
            let run: Vec<_> = entry.workloads.iter().filter(|workload| !arm.stops(entry, workload)).collect();
            let io_bound: Vec<&str> =
                run.iter().filter(|of| is_io_bound(&of.kind)).map(|of| of.name.as_str()).collect();
            if io_bound.is_empty() || !run.iter().all(|workload| knows_its_wakes(&workload.kind)) {
                continue;
            }
            for vm in entry.names() {
                let mut truth = Truth::default();
                for workload in &io_bound {
                    let mut shift = Shift::default();
                    for (at, kind) in self.stamps(clock, readings, &vm, workload) {
                        match kind {
                            guest::StampKind::Wake => shift.wakes.push(at),
                            guest::StampKind::IoBound => shift.changes.push((at, true)),
                            guest::StampKind::CpuBound => shift.changes.push((at, false)),
                            guest::StampKind::Begin | guest::StampKind::End => {}
                        }
                    }
                    truth.wakes.extend(&shift.wakes);
                    if !shift.changes.is_empty() {
                        truth.shifts.push(shift);
                    }
                }
                truth.wakes.sort_unstable();
                truths.insert(vm, truth);
            }
        }
        truths
    }

    /// A VM that died is the cause of whatever failed after it: the daemon, a client, a request.
    fn blame_dead_vm(&mut self, error: LabError) -> LabError {
        let mut vms = self.vms.values_mut();
        let cause = vms.find_map(|vm| if vm.vm.is_alive() { None } else { vm.vm.check().err() });
        match (error, cause) {
            (error @ LabError::Interrupted, _) | (error, None) => error,
            (_, Some(cause)) => cause.into(),
        }
    }

    /// Starts and stops workloads so that those of the arm run.
    fn set_workloads(&mut self, arm: &str) -> Result<(), LabError> {
        let arm = &self.scenario.arms[arm];
        for entry in &self.scenario.vms {
            for name in entry.names() {
                let Some(vm) = self.vms.get_mut(&name) else { continue };
                for workload in &entry.workloads {
                    let runs = vm.running.contains(&workload.name);
                    match (runs, arm.stops(entry, workload)) {
                        (false, false) => {
                            let steps = |cost| steps(self.scenario.scaled_cost(cost), self.steps_per_s);
                            let host = vm.link.host.to_string();
                            vm.vm.start(&workload.name, guest_workload(&workload.kind, steps, &host))?;
                            vm.running.push(workload.name.clone());
                        }
                        (true, true) => {
                            vm.vm.stop(&workload.name)?;
                            vm.running.retain(|running| *running != workload.name);
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn start_daemon(&self, arm: &str) -> Result<Option<DaemonProcess>, LabError> {
        let act = match self.scenario.arms[arm].daemon {
            Daemon::Off => return Ok(None),
            Daemon::Observe => false,
            Daemon::Act => true,
        };
        let tracked = self.vms.values().filter(|vm| vm.tracked);
        let sockets: Vec<&Path> = tracked.map(|vm| vm.vm.qmp()).collect();
        let policy = self.scenario.policy_of(&self.scenario.arms[arm]);
        let cpus = &self.scenario.host.client_cpus;
        let daemon =
            DaemonProcess::start(&self.config.frontdesk, &self.run_dir, &sockets, policy, cpus, act)?;
        // If the lab dies, its daemon must not stay.
        if let Some(started) = process_start_time(daemon.pid()) {
            self.guardian.record(Undo::Process { pid: daemon.pid(), started })?;
        }
        Ok(Some(daemon))
    }

    /// Starts the clients; each with the key of its response times.
    fn start_clients(&self, arm: &str, repeat: u32) -> Result<Vec<(String, AnyClient)>, LabError> {
        let arm = &self.scenario.arms[arm];
        // A client whose server is stopped in this arm has nothing to do.
        let asked = |load: &LoadProfile| {
            let entry = self.scenario.vms.iter().find(|entry| entry.name == load.vm);
            entry.is_some_and(|entry| entry.target(load).is_some_and(|server| !arm.stops(entry, server)))
        };
        let mut clients = Vec::new();
        for (number, (vm, load)) in (0u64..).zip(self.scenario.clients()) {
            let Some(server) = self.vms.get(&vm) else { continue };
            if !asked(load) {
                continue;
            }
            let key = self.scenario.response_key(&vm, load);
            // The same in every arm of the repeat.
            let seed = u64::from(repeat) << 32 | number;
            let cpus = self.scenario.host.client_cpus.clone();
            let start = |port, work| {
                let server = SocketAddr::from((server.link.guest, port));
                Client::start(ClientConfig { server, vm: vm.clone(), work, seed, cpus: cpus.clone() })
            };
            let client = match load.kind {
                LoadKind::Ask { protocol, port, bytes, think } => {
                    let think = self.scenario.scaled_think(think);
                    AnyClient::Plain(start(port, ClientWork::Ask { protocol, bytes, think })?)
                }
                LoadKind::Bulk { port } => AnyClient::Plain(start(port, ClientWork::Bulk)?),
                LoadKind::Edit { think } => {
                    let ssh_key = self.debian.as_ref().map(|of| of.ssh_key.clone()).unwrap_or_default();
                    AnyClient::Editor(EditClient::start(EditConfig {
                        vm: vm.clone(),
                        server: SocketAddr::from((server.link.guest, SSH_PORT)),
                        ssh_key,
                        think: self.scenario.scaled_think(think),
                        seed,
                        cpus,
                    })?)
                }
            };
            clients.push((key, client));
        }
        Ok(clients)
    }

    /// Lets the arm run, watching that everything lives.
    fn pass(
        &mut self,
        time: Duration,
        clients: &[(String, AnyClient)],
        mut daemon: Option<&mut DaemonProcess>,
    ) -> Result<(), LabError> {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            interrupted(&self.config.stop)?;
            if let Some(daemon) = daemon.as_deref_mut() {
                daemon.check()?;
            }
            for vm in self.vms.values_mut() {
                if !vm.vm.is_alive() {
                    vm.vm.check()?;
                }
            }
            if clients.iter().any(|(_, client)| client.has_ended()) {
                // Its error comes when it is joined.
                return Ok(());
            }
            std::thread::sleep(left.min(WATCH));
        }
        Ok(())
    }

    /// CPU time of each VM, then of the daemon, in nanoseconds.
    fn cpu_times(&self, daemon: Option<&DaemonProcess>) -> Result<Vec<u64>, LabError> {
        let pids = self.vms.values().map(|vm| vm.vm.pid()).chain(daemon.map(DaemonProcess::pid));
        let time = |pid| {
            cpu::process_ns(pid)
                .map_err(|source| LabError::Io { what: format!("CPU time of process {pid}"), source })
        };
        pids.map(time).collect()
    }

    fn book_cpu(&self, arm: &str, before: &[u64], after: &[u64], repeat: &mut Repeat) {
        let used: Vec<u64> = after.iter().zip(before).map(|(a, b)| a.saturating_sub(*b)).collect();
        let wanting = frontdesk_scenario::wanting_vms(self.scenario, arm);
        let vms = self.vms.iter().zip(&used);
        let shares: Vec<(String, u64, u32, bool)> =
            vms.map(|((name, vm), ran)| (name.clone(), *ran, vm.weight, wanting.contains(name))).collect();
        let millis = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64() * 1000.0;
        repeat.cpu_ms = shares.iter().map(|(name, ran, ..)| (name.clone(), millis(*ran))).collect();
        repeat.cpu_share = frontdesk_scenario::cpu_shares(&shares);
        repeat.daemon_cpu =
            used.get(self.vms.len()).map(|ran| millis(*ran) / 1000.0 / repeat.seconds.max(f64::EPSILON));
    }

    fn host_info(&self) -> HostInfo {
        let uname = rustix::system::uname();
        HostInfo {
            kernel: uname.release().to_string_lossy().into_owned(),
            cpu: machine::cpu_model(),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            qemu: self.qemu.clone(),
            guest_kernel: self.guest_kernel.clone(),
            frontdesk: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Ends the VMs; the guardian removes what is left.
    fn tear_down(mut self) -> Result<(), LabError> {
        self.vms.clear();
        let report = self.guardian.finish()?;
        if report.failed.is_empty() { Ok(()) } else { Err(LabError::Left(report.failed.join("; "))) }
    }
}

/// Reads what the daemon recorded of the measured time.
fn examine(
    daemon: DaemonProcess,
    from: Time,
    to: Time,
    truth: &IndexMap<String, Truth>,
) -> Result<(Findings, f64), LabError> {
    let records = frontdesk_host::read_recording(&daemon.stop()?)?;
    Ok((replay::examine(&records, from, to, truth)?, replay::engine_speed(&records)?))
}

/// Response times in milliseconds of requests sent within the measured time.
fn measured(samples: &[Sample], from: Instant, to: Instant) -> Vec<f64> {
    let within = samples.iter().filter(|sample| sample.sent >= from && sample.sent <= to);
    within.map(|sample| sample.response.as_secs_f64() * 1000.0).collect()
}

pub(crate) fn interrupted(stop: &AtomicBool) -> Result<(), LabError> {
    if stop.load(Ordering::Relaxed) { Err(LabError::Interrupted) } else { Ok(()) }
}

fn make_run_dir(guardian: &Guardian) -> Result<PathBuf, LabError> {
    // Short, because the addresses of the sockets in it have at most 107 bytes.
    let failed = |source| LabError::Io { what: "making a folder for the run".to_owned(), source };
    let folder = tempfile::Builder::new().prefix("frontdesk-").tempdir().map_err(failed)?;
    let path = folder.keep();
    // The name begins as the guardian wants it.
    let undo = Undo::tree(&path).map_err(|error| failed(std::io::Error::other(error)))?;
    guardian.record(undo)?;
    Ok(path)
}
