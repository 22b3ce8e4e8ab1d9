//! A scenario on real VMs: boots them, runs the arms interleaved, measures.

use crate::daemon::{DaemonProcess, DaemonProcessError};
use crate::load::{Client, ClientConfig, LoadError, Sample};
use crate::machine::{self, Busy};
use crate::net::{self, Link, NetError};
use crate::replay::{self, Findings};
use crate::summary::{self, Extra};
use crate::{InitramfsError, Kernel, KernelError, TapConfig, Vm, VmConfig, VmError, cpu, plugin_cost};
use frontdesk_engine::{Protocol, Time};
use frontdesk_host::RecordError;
use frontdesk_host::cgroup::{CgroupError, Hierarchy};
use frontdesk_host::guardian::{Guardian, GuardianError, Undo};
use frontdesk_host::sched::process_start_time;
use frontdesk_lab_guest as guest;
use frontdesk_scenario::{
    Daemon, HostInfo, Outcome, Repeat, Scenario, Summary, Timeline, Violation, WorkloadKind,
};
use indexmap::IndexMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A guest that is not up by then will not come up.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// How often a running arm looks whether all is well.
const WATCH: Duration = Duration::from_millis(50);

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
    Load(#[from] LoadError),
    #[error(transparent)]
    Daemon(#[from] DaemonProcessError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the recording's parameters are not valid: {0}")]
    Config(#[from] frontdesk_engine::ConfigError),
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
    _busy: Busy,
    guardian: Guardian,
}

struct LabVm {
    vm: Vm,
    link: Link,
    weight: u32,
    /// Names of the workloads that run.
    running: Vec<String>,
}

/// Runs a scenario. Call [`enter_namespace`](crate::enter_namespace) before, from the thread that calls this, which must live
/// as long as the run.
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
    let initrd = run_dir.join("initrd");
    crate::write_initramfs(&kernel, &config.guest, &initrd)?;
    report(0, format!("booting {} VMs", scenario.vm_names().len()));
    let mut lab = Lab::boot(scenario, config, guardian, run_dir, &kernel, &initrd)?;
    let result = lab.run_arms(&report).and_then(|(arms, timelines, mut extra)| {
        lab.vms.clear();
        if measures_plugin {
            report(runs, "measuring the plugin's cost".to_owned());
            plugin_cost::measure(scenario, config, &kernel, &initrd, &lab.run_dir, &mut extra)?;
        }
        let checks = summary::checks(scenario, &arms, &extra);
        let host = lab.host_info();
        Ok((Outcome { scenario: scenario.name.clone(), host, arms, checks }, timelines))
    });
    lab.tear_down()?;
    result
}

impl<'a> Lab<'a> {
    fn boot(
        scenario: &'a Scenario,
        config: &'a LabConfig,
        guardian: Guardian,
        run_dir: PathBuf,
        kernel: &Kernel,
        initrd: &Path,
    ) -> Result<Lab<'a>, LabError> {
        let mut lab = Lab {
            scenario,
            config,
            vms: IndexMap::new(),
            run_dir,
            qemu: machine::qemu_version(),
            guest_kernel: String::new(),
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
                kernel: kernel.image.clone(),
                initrd: initrd.to_owned(),
                tap: Some(TapConfig {
                    ifname: link.ifname.clone(),
                    mac: link.mac.clone(),
                    guest_ip: link.guest,
                    prefix: link.prefix,
                }),
                plugin: Some(config.plugin.clone()),
                cpus: scenario.host.vm_cpus.clone(),
                run_dir: lab.run_dir.clone(),
                cgroup_procs: vec![group.procs_file()],
            })?;
            if let Some(started) = process_start_time(vm.pid()) {
                lab.guardian.record(Undo::Process { pid: vm.pid(), started })?;
            }
            lab.vms.insert(name, LabVm { vm, link, weight: entry.weight, running: Vec::new() });
        }
        for vm in lab.vms.values_mut() {
            interrupted(&config.stop)?;
            lab.guest_kernel = vm.vm.wait_ready(BOOT_TIMEOUT)?;
        }
        Ok(lab)
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
        let arms = repeats.into_iter().map(|(name, repeats)| (name, summary::summarise(repeats)));
        Ok((arms.collect(), timelines, extra))
    }

    fn run_arm(
        &mut self,
        name: &str,
        number: u32,
    ) -> Result<(Repeat, Option<Timeline>, Option<f64>), LabError> {
        self.set_workloads(name)?;
        let mut daemon = self.start_daemon(name)?;
        let clients = self.start_clients(number)?;
        self.pass(self.scenario.warmup, &clients, daemon.as_mut())?;

        let from = (Instant::now(), frontdesk_host::monotonic());
        let before = self.cpu_times(daemon.as_ref())?;
        self.pass(self.scenario.duration, &clients, daemon.as_mut())?;
        let after = self.cpu_times(daemon.as_ref())?;
        let to = (Instant::now(), frontdesk_host::monotonic());

        let mut samples = IndexMap::new();
        for client in clients {
            let vm = client.vm().to_owned();
            let all = client.finish()?;
            samples.entry(vm).or_insert_with(Vec::new).extend(measured(&all, from.0, to.0));
        }
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
        let Some(daemon) = daemon else { return Ok((repeat, None, None)) };
        let (findings, speed) = examine(daemon, from.1, to.1)?;
        repeat.boosts = findings.boosts;
        repeat.boost_hits = findings.hits;
        repeat.decision_us = summary::latency(&findings.decisions_us);
        repeat.lost_events = findings.lost_events;
        let timeline = Timeline { arm: name.to_owned(), repeat: number, ..findings.timeline };
        Ok((repeat, Some(timeline), Some(speed)))
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
                            vm.vm.start(&workload.name, guest_workload(&workload.kind))?;
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
        let sockets: Vec<&Path> = self.vms.values().map(|vm| vm.vm.qmp()).collect();
        let policy = &self.scenario.policy;
        let cpus = &self.scenario.host.client_cpus;
        let daemon =
            DaemonProcess::start(&self.config.frontdesk, &self.run_dir, &sockets, policy, cpus, act)?;
        // If the lab dies, its daemon must not stay.
        if let Some(started) = process_start_time(daemon.pid()) {
            self.guardian.record(Undo::Process { pid: daemon.pid(), started })?;
        }
        Ok(Some(daemon))
    }

    fn start_clients(&self, repeat: u32) -> Result<Vec<Client>, LabError> {
        let mut clients = Vec::new();
        for (number, (vm, load)) in (0u64..).zip(self.scenario.clients()) {
            let Some(server) = self.vms.get(&vm) else { continue };
            clients.push(Client::start(ClientConfig {
                server: SocketAddr::from((server.link.guest, load.port)),
                vm,
                protocol: load.protocol,
                bytes: load.bytes,
                think: self.scenario.scaled_think(load),
                // The same in every arm of the repeat.
                seed: u64::from(repeat) << 32 | number,
                cpus: self.scenario.host.client_cpus.clone(),
            })?);
        }
        Ok(clients)
    }

    /// Lets the arm run, watching that everything lives.
    fn pass(
        &mut self,
        time: Duration,
        clients: &[Client],
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
            if clients.iter().any(Client::has_ended) {
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
        let wanting = summary::wanting_vms(self.scenario, arm);
        let vms = self.vms.iter().zip(&used);
        let shares: Vec<(String, u64, u32, bool)> =
            vms.map(|((name, vm), ran)| (name.clone(), *ran, vm.weight, wanting.contains(name))).collect();
        let millis = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64() * 1000.0;
        repeat.cpu_ms = shares.iter().map(|(name, ran, ..)| (name.clone(), millis(*ran))).collect();
        repeat.cpu_share = summary::cpu_shares(&shares);
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
fn examine(daemon: DaemonProcess, from: Time, to: Time) -> Result<(Findings, f64), LabError> {
    let records = frontdesk_host::read_recording(&daemon.stop()?)?;
    Ok((replay::examine(&records, from, to)?, replay::engine_speed(&records)?))
}

/// Response times in milliseconds of requests sent within the measured time.
fn measured(samples: &[Sample], from: Instant, to: Instant) -> Vec<f64> {
    let within = samples.iter().filter(|sample| sample.sent >= from && sample.sent <= to);
    within.map(|sample| sample.response.as_secs_f64() * 1000.0).collect()
}

fn guest_workload(kind: &WorkloadKind) -> guest::Workload {
    match kind {
        WorkloadKind::Hog => guest::Workload::Hog,
        WorkloadKind::Echo { protocol, port, cost } => guest::Workload::Echo {
            protocol: match protocol {
                Protocol::Tcp => guest::Protocol::Tcp,
                Protocol::Udp => guest::Protocol::Udp,
            },
            port: *port,
            cost: *cost,
        },
    }
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
