//! One repeat of one arm.

use super::disk::in_time;
use super::{Lab, LabError, LabVm, interrupted};
use crate::client::AnyClient;
use crate::clock::HostClock;
use crate::cpu;
use crate::daemon::{DaemonProcess, Following, SOCKET};
use crate::desktop::{DesktopClient, DesktopConfig, DesktopWork};
use crate::edit::{EditClient, EditConfig};
use crate::load::{ClientConfig, ClientWork, LoadClient, Sample};
use crate::lost::Watch;
use crate::machine;
use crate::replay::{self, Findings, Truth};
use crate::reserve::reserve_for;
use frontdesk_control_protocol::{Reserve, Target};
use frontdesk_engine::{Time, nanos};
use frontdesk_guardian::Undo;
use frontdesk_lab_guest::Job;
use frontdesk_linux::monotonic_ns;
use frontdesk_linux::sched::process_start_time;
use frontdesk_scenario::{
    self as scenario, Daemon, LoadKind, LoadProfile, Mechanism, Repeat, SeenAt, Summary, Timeline,
    WorkloadKind,
};
use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Where sshd listens.
const SSH_PORT: u16 = 22;
/// The part of each CPU that VMs with reservations leave to the others.
const SPARE: f64 = 0.2;
/// How often a running arm looks whether all is well.
const WATCH: Duration = Duration::from_millis(50);

/// A client that asks a workload of a VM.
struct Asking {
    vm: String,
    workload: String,
    /// Of its response times.
    key: String,
    client: AnyClient,
}

/// When each request was sent and its answer received, by VM and workload.
pub(super) type SentRequests = IndexMap<(String, String), Vec<(Time, Time)>>;

impl Lab<'_> {
    pub(super) fn run_arm(
        &mut self,
        name: &str,
        number: u32,
    ) -> Result<(Repeat, Option<Timeline>, Option<f64>), LabError> {
        self.set_disk(name)?;
        self.start_desktops()?;
        self.set_workloads(name)?;
        self.set_agents(name)?;
        self.set_nice(name)?;
        let mut daemon = self.start_daemon(name, number)?;
        let clients = self.start_clients(name, number)?;
        while !clients.iter().all(|asking| asking.client.is_ready() || asking.client.has_ended()) {
            self.pass(WATCH, &clients, daemon.as_mut())?;
        }
        self.pass(self.scenario.warmup, &clients, daemon.as_mut())?;

        // What runs around this machine, or around the host that it emulates, is not seen otherwise.
        let cpus = machine::online_cpus()
            .map_err(|source| LabError::Io { what: "examining the machine".to_owned(), source })?;
        let watch = Watch::start(&cpus);
        self.disk_served()?;
        let first = self.readings()?;
        let from = (Instant::now(), Time(monotonic_ns()));
        let before = self.cpu_times(daemon.as_ref())?;
        self.pass(self.scenario.duration, &clients, daemon.as_mut())?;
        let after = self.cpu_times(daemon.as_ref())?;
        let to = (Instant::now(), Time(monotonic_ns()));
        let last = self.readings()?;
        let disk = self.disk_served()?;
        disk.as_ref().map_or(Ok(()), in_time)?;
        let lost = Some(watch.finish());
        if number == 1 {
            self.take_screenshots(name)?;
        }

        let mut samples: IndexMap<String, Vec<f64>> = IndexMap::new();
        let mut asked = SentRequests::new();
        for Asking { vm, workload, key, client } in clients {
            let all = client.finish()?;
            let measured: Vec<&Sample> =
                all.iter().filter(|sample| sample.sent >= from.0 && sample.sent <= to.0).collect();
            let millis = measured.iter().map(|sample| sample.response.as_secs_f64() * 1000.0);
            samples.entry(key).or_default().extend(millis);
            // The engine's clock is that of `Instant`.
            let at = |instant: Instant| from.1.plus(nanos(instant - from.0));
            let times = measured.iter().map(|sample| (at(sample.sent), at(sample.sent + sample.response)));
            asked.entry((vm, workload)).or_default().extend(times);
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
            lost,
            disk,
            ..Repeat::default()
        };
        self.book_cpu(name, &before, &after, &mut repeat);
        let clock = HostClock::through(self.began, HostClock::read());
        repeat.rates = self.rates(&first, &last);
        repeat.times_ms = self.times_ms(&clock, [&first, &last], from.1, to.1);
        let frames = self.frames(&clock, [&first, &last], from.1, to.1);
        repeat.frames = frames.iter().map(|(workload, (frames, _))| (workload.clone(), *frames)).collect();
        let Some(daemon) = daemon else { return Ok((repeat, None, None)) };
        let truth = self.truth(name, &clock, [&first, &last], &asked);
        let (findings, speed) = examine(daemon, from.1, to.1, &truth)?;
        repeat.boosts = findings.boosts;
        repeat.boost_hits = findings.hits;
        (repeat.request_boosts, repeat.unanswered_boosts) =
            (findings.request_boosts.all, findings.request_boosts.unanswered);
        repeat.decision_us = frontdesk_scenario::latency(&findings.decisions_us);
        repeat.lost_events = findings.lost_events;
        repeat.follow = findings.follow;
        // The engine's players have no names: what all of a VM show is compared.
        let vm_of = |workload: &str| workload.split_once('/').map_or(workload, |(vm, _)| vm).to_owned();
        let mut shown: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (workload, (_, own)) in &frames {
            let all = shown.entry(vm_of(workload)).or_default();
            all.resize(all.len().max(own.len()), 0.0);
            all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
        }
        for (workload, of) in &mut repeat.frames {
            let vm = vm_of(workload);
            of.estimate_error = shown.get(&vm).and_then(|shown| findings.estimate_error(&vm, shown));
        }
        let disk_work = match &self.shared {
            Some(shared) if number == 1 => shared.work(&findings.timeline.vms, from.1, to.1)?,
            _ => Vec::new(),
        };
        let timeline = Timeline { arm: name.to_owned(), repeat: number, disk_work, ..findings.timeline };
        Ok((repeat, Some(timeline), Some(speed)))
    }

    /// A VM that died is the cause of whatever failed after it: the daemon, a client, a request.
    pub(super) fn blame_dead_vm(&mut self, error: LabError) -> LabError {
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
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Neither negative nor too large.
        let steps_per_s = (self.steps_per_s * self.scenario.cost_scale) as u64;
        for entry in &self.scenario.vms {
            for name in entry.names() {
                let Some(vm) = self.vms.get_mut(&name) else { continue };
                for workload in &entry.workloads {
                    let mut runs = vm.running.contains(&workload.name);
                    // A film goes on where it was, and one that was starved long before the end would be late
                    // in the next arm, too: each arm begins with a film that begins.
                    if runs && matches!(workload.kind, WorkloadKind::Play { .. }) {
                        vm.vm.stop(&workload.name)?;
                        vm.running.retain(|running| *running != workload.name);
                        runs = false;
                    }
                    match (runs, arm.stops(entry, workload)) {
                        (false, false) => {
                            let kind = workload.kind.clone();
                            vm.vm.start(&workload.name, Job::Workload { kind, steps_per_s })?;
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

    fn start_daemon(&self, arm: &str, repeat: u32) -> Result<Option<DaemonProcess>, LabError> {
        let act = match self.scenario.arms[arm].daemon {
            Daemon::Off => return Ok(None),
            Daemon::Observe => false,
            Daemon::Act => true,
        };
        let tracked = self.vms.values().filter(|vm| vm.tracked);
        let sockets: Vec<&Path> = tracked.map(|vm| vm.vm.qmp()).collect();
        let policy = self.scenario.policy_of(&self.scenario.arms[arm]);
        let cpus = &self.scenario.host.client_cpus;
        // Reserved VMs stay on the CPUs of all VMs; the others are boosted in what is spared.
        let reserve = format!("[reserve]\ncpus = {:?}\nspare = {SPARE}\n", self.scenario.host.vm_cpus);
        let mechanism = match self.scenario.arms[arm].mechanism {
            None => "",
            Some(Mechanism::RealTime) => "mechanism = \"real-time\"\n",
            Some(Mechanism::SchedExt) => "mechanism = \"sched-ext\"\n",
            Some(Mechanism::SchedExtFastPath) => "mechanism = \"sched-ext\"\nfast_path = true\n",
        };
        let identity = match self.scenario.arms[arm].identity {
            None => "",
            Some(SeenAt::ThreadSwitches) => "identity = \"thread-switches\"\n",
        };
        let settings = format!("{reserve}[daemon]\n{mechanism}{identity}");
        let (program, dir) = (&self.config.frontdesk, &self.run_dir);
        // Written where it is kept: whatever ends the run, it can be read up to there.
        let kept = self.config.recordings.get(&(arm.to_owned(), repeat)).cloned();
        let recording = kept.unwrap_or_else(|| dir.join("daemon.rec"));
        let following = Following { sockets: &sockets, cpus, act, recording };
        let daemon = DaemonProcess::start(program, dir, policy, &settings, following)?;
        // If the lab dies, its daemon must not stay.
        if let Some(started) = process_start_time(daemon.pid()) {
            self.guardian.record(Undo::Process { pid: daemon.pid(), started })?;
        }
        for (entry, of) in &self.scenario.arms[arm].reserve {
            let entries = self.scenario.vms.iter().filter(|vm| vm.name == *entry);
            for name in entries.flat_map(scenario::VmSpec::names) {
                let target = Target::Vm(name);
                let (period_ns, slice_ns) = (nanos(of.period), nanos(of.slice));
                reserve_for(
                    &self.run_dir.join(SOCKET),
                    Reserve { target, period_ns, slice_ns, hard: false, phase_ns: None },
                )?;
            }
        }
        Ok(Some(daemon))
    }

    /// Starts the clients.
    fn start_clients(&self, arm: &str, repeat: u32) -> Result<Vec<Asking>, LabError> {
        let arm = &self.scenario.arms[arm];
        // A client whose server is stopped in this arm has nothing to do.
        let asked = |load: &LoadProfile| {
            let entry = self.scenario.vms.iter().find(|entry| entry.name == load.vm)?;
            load.target(entry).filter(|server| !arm.stops(entry, server))
        };
        let mut clients = Vec::new();
        for (number, (vm, load)) in (0u64..).zip(self.scenario.clients()) {
            let Some(server) = self.vms.get(&vm) else { continue };
            let workload = match asked(load) {
                Some(workload) => workload.name.clone(),
                None if load.kind.is_on_desktop() => "desktop".to_owned(),
                None => continue,
            };
            let key = self.scenario.response_key(&vm, load);
            // The same in every arm of the repeat.
            let seed = u64::from(repeat) << 32 | number;
            let cpus = self.scenario.host.client_cpus.clone();
            let start = |port, work, keyboard: Option<&Path>| {
                let keyboard = keyboard.map(Path::to_owned);
                let (server, cpus) = (SocketAddr::from((server.link.guest, port)), cpus.clone());
                LoadClient::start(ClientConfig { server, vm: vm.clone(), work, keyboard, seed, cpus })
            };
            let desktop = |server: &LabVm, work, think| {
                AnyClient::Desktop(DesktopClient::start(DesktopConfig {
                    vm: vm.clone(),
                    socket: server.vm.vnc().to_owned(),
                    work,
                    think: self.scenario.scaled_think(think),
                    seed,
                    cpus: cpus.clone(),
                }))
            };
            let client = match load.kind {
                LoadKind::Ask { protocol, port, bytes, think, enter } => {
                    let think = self.scenario.scaled_think(think);
                    let keyboard = enter.then(|| server.vm.keyboard());
                    AnyClient::Plain(start(port, ClientWork::Ask { protocol, bytes, think }, keyboard)?)
                }
                LoadKind::Bulk { port } => AnyClient::Plain(start(port, ClientWork::Bulk, None)?),
                LoadKind::Launch { ref command, think } => {
                    desktop(server, DesktopWork::Launch(command.clone()), think)
                }
                LoadKind::Page { think } => desktop(server, DesktopWork::Page, think),
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
            clients.push(Asking { vm, workload, key, client });
        }
        Ok(clients)
    }

    /// Lets the arm run, watching that everything lives.
    fn pass(
        &mut self,
        time: Duration,
        clients: &[Asking],
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
            if clients.iter().any(|asking| asking.client.has_ended()) {
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
}

/// Reads what the daemon recorded of the measured time.
fn examine(
    daemon: DaemonProcess,
    from: Time,
    to: Time,
    truth: &IndexMap<String, Truth>,
) -> Result<(Findings, f64), LabError> {
    let records = frontdesk_record::read_recording(&daemon.stop()?)?;
    Ok((replay::examine(&records, from, to, truth)?, replay::engine_speed(&records)?))
}
