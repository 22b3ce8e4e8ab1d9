//! The daemon loop: sources -> engine -> actuators, in one thread.

use crate::boost::{BoostError, Booster};
use crate::bpf::{BpfError, BpfSource};
use crate::cgroup::{Budget, CgroupError, Group, Hierarchy, RealTimeBudgets, ShareControl};
use crate::guardian::{Guardian, GuardianError};
use crate::qemu::{self, DiscoverError, QemuVm};
use crate::realtime;
use crate::record::{Record, RecordError, Recorder, Recordings};
use crate::tcg::{TcgError, TcgSource};
use frontdesk_engine::{
    ActionKind, Boost, Config, ConfigError, Engine, Event, EventKind, Thread, Time, VmId,
};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Events that woke nobody are fetched at least this often. What has piled up is handled before the packet that ends the wait,
/// so the pile must be small when one comes; and a daemon that ran just before finds its memory in the cache.
const TICK: u64 = 5_000_000;
/// A QMP monitor that does not answer within this is taken for dead.
const QMP_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of a VM's real-time budget boosts may take: what comes in a burst is on top of it, and a VM that oversteps its budget is
/// stalled.
const BUDGET_USED: f64 = 0.8;
/// The smallest limit that the engine takes.
const LEAST_LIMIT: f64 = 0.001;
/// The daemon decides when others run, so it runs before all of them.
const DAEMON_PRIORITY: u32 = 50;

/// What the daemon is to do.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// QMP sockets of the VMs to follow.
    pub qmp: Vec<PathBuf>,
    /// Parameters of the engine.
    pub policy: Config,
    /// Whether to act; if not, it watches and infers but changes nothing on the host.
    pub act: bool,
    /// Where to record the run.
    pub record: Option<PathBuf>,
    /// The program that is the guardian, and its argument.
    pub guardian: (PathBuf, String),
    /// Physical CPUs the daemon runs on; any if empty.
    pub cpus: Vec<u16>,
}

/// The daemon can't begin or go on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant passes on an error that describes itself.
pub enum DaemonError {
    #[error("the policy is not valid: {0}")]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error(transparent)]
    Bpf(#[from] BpfError),
    #[error(transparent)]
    Tcg(#[from] TcgError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Boost(#[from] BoostError),
    #[error(transparent)]
    Guardian(#[from] GuardianError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("{0}")]
    Realtime(#[from] realtime::RealtimeError),
    #[error(
        "VM {vm} shares its CPU control group {group} with other processes, whose share frontdesk would change. Start each VM \
         in a group of its own, for example with `systemd-run --scope -p CPUWeight=100`"
    )]
    SharedGroup { vm: String, group: String },
    #[error("waiting for events failed: {0}")]
    Wait(#[from] rustix::io::Errno),
}

struct Followed {
    id: VmId,
    name: String,
    qemu: QemuVm,
    tcg: Option<TcgSource>,
    group: Group,
    /// Absent while the daemon only observes.
    share: Option<ShareControl>,
    boosted: Vec<BoostedVcpu>,
}

impl Followed {
    /// The threads whose scheduling is watched.
    fn threads(&self) -> Vec<(i32, Thread)> {
        let vcpus = self.qemu.vcpus.iter().map(|(index, thread)| (thread.tid, Thread::Vcpu(*index)));
        let emulators = (0..).zip(&self.qemu.emulators);
        vcpus.chain(emulators.map(|(index, thread)| (thread.tid, Thread::Emulator(index)))).collect()
    }

    /// What its vCPUs run now: the ring only tells what changes.
    fn current_tasks(&self) -> impl Iterator<Item = EventKind> + '_ {
        self.qemu.vcpus.iter().filter_map(|(vcpu, _)| {
            let task = self.tcg.as_ref()?.current_task(*vcpu)?;
            Some(EventKind::TaskSwitch { vm: self.id, vcpu: *vcpu, task })
        })
    }
}

struct BoostedVcpu {
    vcpu: u16,
    /// Whether the plugin was asked to wake us at its next task switch, and has not yet.
    armed: bool,
}

/// A running daemon. Dropping it leaves every VM to the guardian, as a crash would.
pub struct Daemon {
    act: bool,
    engine: Engine,
    bpf: BpfSource,
    vms: Vec<Followed>,
    booster: Booster,
    guardian: Option<Guardian>,
    recordings: Recordings,
    epoll: OwnedFd,
    pending: Vec<Event>,
}

/// What an epoll event is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Stop,
    Bpf,
    Switch(VmId),
    Death(VmId),
}

impl Token {
    fn encode(self) -> epoll::EventData {
        let (kind, vm) = match self {
            Token::Stop => (0, 0),
            Token::Bpf => (1, 0),
            Token::Switch(vm) => (2, vm.0),
            Token::Death(vm) => (3, vm.0),
        };
        epoll::EventData::new_u64(kind << 32 | u64::from(vm))
    }

    fn decode(data: epoll::EventData) -> Token {
        let vm = VmId(u32::try_from(data.u64() & u64::from(u32::MAX)).unwrap_or(u32::MAX));
        match data.u64() >> 32 {
            0 => Token::Stop,
            1 => Token::Bpf,
            2 => Token::Switch(vm),
            _ => Token::Death(vm),
        }
    }
}

impl Daemon {
    /// Finds the VMs, starts the guardian, and begins to follow.
    ///
    /// # Errors
    /// A VM can't be found, or something the daemon needs is missing; nothing has been changed then.
    pub fn start(config: &DaemonConfig) -> Result<Daemon, DaemonError> {
        let mut policy = config.policy.clone();
        if !config.act {
            policy.tavs.pb_ratio = 0.0;
        }
        policy.validate()?;
        let mut bpf = BpfSource::open()?;
        let hierarchy = Hierarchy::detect()?;
        let mut vms = Vec::new();
        for (number, socket) in (0..).zip(&config.qmp) {
            vms.push(find(VmId(number), socket, &hierarchy)?);
        }
        let guardian = match config.act {
            true => Some(Guardian::start(&config.guardian.0, &config.guardian.1)?),
            false => None,
        };
        let mut booster = Booster::default();
        if let Some(guardian) = &guardian {
            let budget = adopt(&mut vms, hierarchy, &mut booster, guardian)?;
            let limit = budget.map_or(1.0, |budget| budget.cpus() * BUDGET_USED);
            policy.tavs.boost_limit = policy.tavs.boost_limit.min(limit.max(LEAST_LIMIT));
        }
        let mut engine = Engine::new(policy.clone())?;
        let mut recordings = Recordings::new(config.record.as_deref().map(Recorder::create).transpose()?);
        recordings.push(|| Record::Config(policy));
        for vm in &vms {
            let added = EventKind::VmAdded {
                vm: vm.id,
                vcpus: u16::try_from(vm.qemu.vcpus.len()).unwrap_or(u16::MAX),
                weight: vm.group.weight()?,
            };
            recordings.push(|| Record::Vm { vm: vm.id, name: vm.name.clone() });
            for kind in std::iter::once(added).chain(vm.current_tasks()) {
                let event = Event { at: monotonic(), kind };
                engine.on_event(&event);
                recordings.push(|| Record::Event(event));
            }
            bpf.follow(vm.id, &vm.threads(), &vm.qemu.taps)?;
            if let Err(error) = bpf.follow_reads(vm.id, vm.qemu.pid) {
                tracing::warn!(
                    vm = vm.name,
                    "the VM's disk reads can't be followed, and boost nobody: {error}"
                );
            }
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, bpf.fd(), Token::Bpf.encode(), edge)?;
        for vm in &vms {
            let level = epoll::EventFlags::IN;
            epoll::add(&epoll, vm.qemu.pidfd(), Token::Death(vm.id).encode(), level)?;
            if let Some(tcg) = &vm.tcg {
                epoll::add(&epoll, tcg.wake_fd(), Token::Switch(vm.id).encode(), level)?;
            }
        }
        // Reading a page of the program from disk in the middle of a decision would cost more than the decision. Without the
        // right to lock memory, it still works.
        let _ = rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT);
        realtime::enter(DAEMON_PRIORITY, &config.cpus)?;
        Ok(Daemon {
            act: config.act,
            engine,
            bpf,
            vms,
            booster,
            guardian,
            recordings,
            epoll,
            pending: Vec::new(),
        })
    }

    /// Names of the VMs followed.
    pub fn vm_names(&self) -> impl Iterator<Item = &str> {
        self.vms.iter().map(|vm| vm.name.as_str())
    }

    /// Follows and acts until `stop` is readable.
    ///
    /// # Errors
    /// A source fails. The guardian restores every VM when the daemon is dropped.
    pub fn run(&mut self, stop: impl AsFd) -> Result<(), DaemonError> {
        epoll::add(&self.epoll, stop.as_fd(), Token::Stop.encode(), epoll::EventFlags::IN)?;
        let result = self.follow();
        epoll::delete(&self.epoll, stop.as_fd())?;
        result
    }

    fn follow(&mut self) -> Result<(), DaemonError> {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match Token::decode(event.data) {
                    Token::Stop => return Ok(()),
                    Token::Bpf => {}
                    Token::Switch(vm) => {
                        if let Some(state) = self.vms.iter_mut().find(|state| state.id == vm) {
                            state.tcg.iter().for_each(TcgSource::clear_wake);
                            state.boosted.iter_mut().for_each(|boosted| boosted.armed = false);
                        }
                    }
                    Token::Death(vm) => self.bury(vm)?,
                }
            }
            // After arming the rings are looked at once more, for switches that came before.
            self.turn()?;
            while self.arm() {
                self.turn()?;
            }
        }
    }

    /// Time until the engine or the rings want attention.
    fn timeout(&self) -> Timespec {
        let deadline = self.engine.next_deadline().map_or(TICK, |deadline| deadline.since(monotonic()));
        let nanos = i64::try_from(deadline.min(TICK)).unwrap_or(0);
        Timespec { tv_sec: 0, tv_nsec: nanos }
    }

    /// Feeds the engine what has happened and applies what it decides.
    fn turn(&mut self) -> Result<(), DaemonError> {
        let began = monotonic();
        self.bpf.drain(&mut self.pending)?;
        for (vm, count) in self.bpf.take_lost()? {
            self.pending.push(Event { at: began, kind: EventKind::Lost { vm: Some(vm), count } });
        }
        for vm in &mut self.vms {
            let Some(tcg) = &mut vm.tcg else { continue };
            let first = self.pending.len();
            tcg.drain(vm.id, &mut self.pending);
            // The ring belongs to QEMU, which may write any time into it: events from the future would never leave.
            let now = monotonic();
            self.pending[first..].iter_mut().for_each(|event| event.at = event.at.min(now));
            let count = tcg.take_dropped();
            if count > 0 {
                self.pending.push(Event { at: began, kind: EventKind::Lost { vm: Some(vm.id), count } });
            }
        }
        self.pending.sort_by_key(|event| event.at);
        // Sources are drained one after the other: what is later than the first drain may have company that we have
        // not seen yet, and waits for the next turn.
        let ready = self.pending.partition_point(|event| event.at <= began);
        for index in 0..ready {
            let event = self.pending[index];
            self.recordings.push(|| Record::Event(event));
            self.engine.on_event(&event);
            self.apply()?;
        }
        self.pending.drain(..ready);
        let time = monotonic();
        if self.engine.next_deadline().is_some_and(|deadline| deadline <= time) {
            self.recordings.push(|| Record::Deadline(time));
            self.engine.on_deadline(time);
            self.apply()?;
        }
        self.recordings.tick(time);
        Ok(())
    }

    fn apply(&mut self) -> Result<(), DaemonError> {
        while let Some(action) = self.engine.poll_action() {
            if !self.act {
                self.recordings.push(|| Record::Discarded(action));
                continue;
            }
            match action.kind {
                ActionKind::Boost { vm, vcpu, level } => {
                    let Some(state) = self.vms.iter_mut().find(|state| state.id == vm) else {
                        self.recordings.push(|| Record::Discarded(action));
                        continue;
                    };
                    state.boosted.retain(|boosted| boosted.vcpu != vcpu);
                    match level {
                        Boost::None => {
                            if let Some(tcg) = &state.tcg {
                                tcg.disarm(vcpu);
                            }
                        }
                        Boost::Io => state.boosted.push(BoostedVcpu { vcpu, armed: false }),
                    }
                    self.booster.apply(vm, vcpu, level)?;
                }
                ActionKind::Share { vm, permille } => {
                    let Some(state) = self.vms.iter_mut().find(|state| state.id == vm) else {
                        self.recordings.push(|| Record::Discarded(action));
                        continue;
                    };
                    if let Some(share) = &mut state.share {
                        share.set_permille(permille)?;
                    }
                }
            }
            let latency_ns = monotonic().since(action.at);
            self.recordings.push(|| Record::Applied { action, latency_ns });
        }
        Ok(())
    }

    /// Asks to be woken at the next task switch of each boosted vCPU; whether there was one not asked yet.
    fn arm(&mut self) -> bool {
        let mut any = false;
        for vm in &mut self.vms {
            let Some(tcg) = &vm.tcg else { continue };
            for boosted in vm.boosted.iter_mut().filter(|boosted| !boosted.armed) {
                tcg.arm(boosted.vcpu);
                boosted.armed = true;
                any = true;
            }
        }
        any
    }

    /// A VM has ended.
    fn bury(&mut self, id: VmId) -> Result<(), DaemonError> {
        let Some(index) = self.vms.iter().position(|vm| vm.id == id) else { return Ok(()) };
        let vm = self.vms.remove(index);
        tracing::info!(vm = vm.name, "the VM has ended");
        epoll::delete(&self.epoll, vm.qemu.pidfd())?;
        if let Some(tcg) = &vm.tcg {
            epoll::delete(&self.epoll, tcg.wake_fd())?;
        }
        self.bpf.unfollow(id);
        if let Some(guardian) = &self.guardian {
            self.booster.release(id, guardian)?;
        }
        let event = Event { at: monotonic(), kind: EventKind::VmRemoved { vm: id } };
        self.recordings.push(|| Record::Event(event));
        self.engine.on_event(&event);
        while let Some(action) = self.engine.poll_action() {
            self.recordings.push(|| Record::Discarded(action));
        }
        Ok(())
    }

    /// Begins a recording in the middle of the daemon's life, for a client. It is completed when the client closes its half of the
    /// connection, or when the daemon ends. A client that is slow holds nobody up: if it falls far behind, its recording ends.
    ///
    /// # Errors
    /// Too many recordings are being made already, or the engine's state is too large.
    pub fn record_to(&mut self, client: UnixStream) -> Result<(), RecordError> {
        let vms = self.vms.iter().map(|vm| (vm.id, vm.name.as_str()));
        self.recordings.begin(client, &self.engine, vms)
    }

    /// Ends the daemon: the guardian puts everything back, and the recording is completed.
    ///
    /// # Errors
    /// Something could not be restored, or the recording not be written.
    pub fn finish(mut self) -> Result<(), DaemonError> {
        let restored = self.guardian.take().map(Guardian::finish).transpose();
        let recorded = self.recordings.finish();
        restored?;
        recorded?;
        Ok(())
    }
}

fn find(id: VmId, socket: &Path, hierarchy: &Hierarchy) -> Result<Followed, DaemonError> {
    let qemu = qemu::discover(socket, QMP_TIMEOUT)?;
    // A VM without a name goes by its socket's.
    let name = qemu.name.clone().unwrap_or_else(|| {
        socket
            .file_stem()
            .map_or_else(|| socket.display().to_string(), |stem| stem.to_string_lossy().into_owned())
    });
    let tcg = TcgSource::find(qemu.pid)?;
    if tcg.is_none() {
        tracing::warn!(
            vm = name,
            "the VM runs without frontdesk's QEMU plugin: its guest tasks can't be told apart"
        );
    }
    let group = hierarchy.group_of(qemu.pid)?;
    Ok(Followed { id, name, qemu, tcg, group, share: None, boosted: Vec::new() })
}

/// Prepares the VMs for what may be changed, after telling the guardian how they were. Returns the real-time budget of each, where
/// there is one.
fn adopt(
    vms: &mut [Followed],
    hierarchy: Hierarchy,
    booster: &mut Booster,
    guardian: &Guardian,
) -> Result<Option<Budget>, DaemonError> {
    for vm in vms.iter_mut() {
        if !vm.group.holds_only(vm.qemu.pid)? {
            let group = vm.group.path().display().to_string();
            return Err(DaemonError::SharedGroup { vm: vm.name.clone(), group });
        }
        vm.share = Some(vm.group.control_share(guardian)?);
        booster.adopt(vm.id, &vm.qemu.vcpus, &vm.qemu.emulators, guardian)?;
    }
    let groups: Vec<Group> = vms.iter().map(|vm| vm.group.clone()).collect();
    Ok(RealTimeBudgets::new(hierarchy).grant(&groups, guardian)?)
}

/// The time on the clock that all events carry.
#[must_use]
pub fn monotonic() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Time(seconds * 1_000_000_000 + nanos)
}

/// A descriptor that becomes readable when the process is told to end (SIGTERM or SIGINT).
///
/// # Errors
/// The signal handlers can't be set.
pub fn stop_signal() -> std::io::Result<impl AsFd> {
    let (receiver, sender) = std::os::unix::net::UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
    }
    Ok(receiver)
}
