//! What the daemon has, how it starts and ends.

use super::DaemonError;
use super::disks::Disks;
use super::followed::FollowedVm;
use super::lock::Lock;
use super::supervisor::Supervisor;
use super::token::Token;
use crate::budget::{Budget, RealTimeBudgets};
use crate::clock::monotonic;
use crate::config::Settings;
use crate::control::{Control, ControlError};
use crate::disks::{DiskAccess, DiskServer};
use crate::identity::Identities;
use crate::notification::{Mailbox, Notification};
use crate::reserve::{Reserves, TraceReader};
use crate::status::Tally;
use crate::threads::Threads;
use crate::watch::{WatchContext, Watcher};
use frontdesk_engine::reservation::TargetId;
use frontdesk_engine::{Config, Engine, Event, Time, VmId};
use frontdesk_guardian::{Guardian, Promise, Promiser};
use frontdesk_linux::cgroup::{CgroupError, Hierarchy, RealTimeRule};
use frontdesk_linux::realtime;
use frontdesk_probes::bpf::BpfSource;
use frontdesk_record::{Record, Recorder, Recordings};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Events that woke nobody are fetched at least this often while there are many. What has piled up is handled
/// before the packet that ends the wait, so the pile must be small when one comes; and a daemon that ran just
/// before finds its memory in the cache.
pub(super) const TICK: u64 = 5_000_000;
/// What the kernel's scheduler lets a thread run while others wait, of Linux 6.6 and of those before.
const SLICE_FILES: [&str; 2] =
    ["/sys/kernel/debug/sched/base_slice_ns", "/sys/kernel/debug/sched/min_granularity_ns"];
/// The daemon decides when others run, so it runs before all of them.
const DAEMON_PRIORITY: u32 = 50;

/// A real-time thread of the daemon's that runs for so long without a pause hangs: the kernel kills the
/// daemon, and the guardian puts everything back.
const LONGEST_RUN: Duration = Duration::from_secs(5);

/// The lock of the one daemon of a host.
pub const LOCK: &str = "/run/frontdesk/daemon.lock";

/// What the daemon is to do.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// The configuration; it must be [valid](Settings::problems).
    pub settings: Settings,
    /// Whether to act; if not, it watches and infers but changes nothing on the host.
    pub act: bool,
    /// Where to record the run.
    pub record: Option<PathBuf>,
    /// The program that is the guardian, and its argument.
    pub guardian: (PathBuf, String),
    /// The file that only one daemon can hold; [`LOCK`] but in tests. The journal of what is to be undone is
    /// beside it, with the ending `journal`.
    pub lock: PathBuf,
}

/// Gives a running daemon another configuration.
#[derive(Clone, Debug)]
pub struct Reloader(Mailbox);

impl Reloader {
    /// Hands over a [valid](Settings::problems) configuration. The daemon keeps all it knows.
    pub fn reload(&self, settings: Settings) {
        self.0.post(Notification::Settings(Box::new(settings)));
    }

    /// Tells why there is no other configuration. The daemon says so, and all stays as it was.
    pub fn refuse(&self, reason: String) {
        self.0.post(Notification::Refused(reason));
    }
}

/// When the loop is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// When everything that was there at the beginning was tried.
    Settled,
    /// When the daemon is told to end.
    Stopped,
}

/// A running daemon. Dropping it leaves every VM to the guardian, as a crash would.
pub struct Daemon {
    pub(super) settings: Settings,
    pub(super) act: bool,
    pub(super) engine: Engine,
    /// What the engine has.
    pub(super) policy: Config,
    /// The kernel's slice, in nanoseconds.
    pub(super) slice_ns: u64,
    pub(super) bpf: BpfSource,
    pub(super) identities: Identities,
    pub(super) vms: Vec<FollowedVm>,
    pub(super) next_id: u32,
    pub(super) threads: Threads,
    /// VMs for which the engine may foresee something else now, with the time of the last packet handled that
    /// the kernel may have given a boost for.
    pub(super) foresee_anew: BTreeMap<VmId, Option<Time>>,
    /// That the kernel has ejected frontdesk's scheduler, why, and how it goes on.
    pub(super) ejection: Option<String>,
    pub(super) budgets: RealTimeBudgets,
    /// What each VM has of them, where there is one.
    pub(super) budget: Option<Budget>,
    /// Whether VMs came or went since real-time budgets were handed out.
    pub(super) budgets_stale: bool,
    /// Ends before the guardian does.
    pub(super) reserves: Option<Reserves>,
    /// Whether real-time budgets leave room for reservations.
    pub(super) reserves_room: bool,
    /// Requests for reservations that the admission thread was given.
    pub(super) reserves_asked: u64,
    /// The targets that have some, by name.
    pub(super) targets: BTreeMap<TargetId, String>,
    /// What recordings hear of decisions about them.
    pub(super) trace: TraceReader,
    pub(super) guardian: Option<Arc<Guardian>>,
    /// That the loop will be back, and until when that was said.
    pub(super) promise: Option<Promise>,
    pub(super) promised: Time,
    pub(super) recordings: Recordings,
    pub(super) control: Control,
    pub(super) tally: Tally,
    pub(super) epoll: OwnedFd,
    pub(super) pending: Vec<Event>,
    /// Events handled since the last wait.
    pub(super) handled: usize,
    /// The longest wait, in nanoseconds.
    pub(super) tick: u64,
    /// When the rings were last emptied.
    pub(super) emptied: Time,
    /// When a boost began or ended last.
    pub(super) last_boost: Option<Time>,
    /// When the nice values of vCPUs were last looked at.
    pub(super) looked: Time,
    /// When the extensions in guests were last told of episodes.
    pub(super) told_extensions: Time,
    /// When the engine was last told what threads run that are not followed one by one.
    pub(super) told_others: Time,
    pub(super) notifications: Receiver<Notification>,
    pub(super) mailbox: Mailbox,
    pub(super) watcher: Watcher,
    pub(super) supervisor: Supervisor,
    /// Disks that back ends serve,
    pub(super) disks: Disks,
    /// and the thread that hears these. Ends after nobody takes notifications any more, for which it may
    /// wait.
    _disk_server: DiskServer,
    _lock: Lock,
}

/// The kernel's slice in nanoseconds; 0 if it does not tell.
fn host_slice() -> u64 {
    let read = |file: &&str| std::fs::read_to_string(file).ok()?.trim().parse().ok();
    SLICE_FILES.iter().find_map(read).unwrap_or(0)
}

impl Daemon {
    /// Starts the guardian, begins to look for VMs, and follows those that are there.
    ///
    /// # Errors
    /// Another daemon runs, or something the daemon needs is missing; nothing has been changed then.
    pub fn start(config: &DaemonConfig) -> Result<Daemon, DaemonError> {
        let lock = Lock::take(&config.lock)?;
        let policy = config.settings.engine();
        let engine = Engine::new(policy.clone())?;
        let hierarchy = Hierarchy::detect()?;
        // What the kernel does about a packet by itself comes before the packet is told of.
        let wanted = &config.settings.daemon;
        let threads = match config.act {
            true => Threads::start(wanted.mechanism, wanted.fast_path, hierarchy.real_time()),
            false => Threads::by_real_time(),
        };
        let bpf = BpfSource::open()?;
        bpf.count_acknowledgements(policy.tavs.acknowledgements)?;
        let identities = Identities::new(wanted.identity, policy.tavs.io_threshold)?;
        let guardian = match config.act {
            true if threads.is_real_time() && hierarchy.real_time() == RealTimeRule::Refused => {
                return Err(CgroupError::RealTimeRefused.into());
            }
            true => {
                let ((exe, arg), journal) = (&config.guardian, config.lock.with_extension("journal"));
                Some(Arc::new(Guardian::start_with_journal(exe, arg, &journal)?))
            }
            false => None,
        };
        let promise = guardian.as_ref().map(|guardian| guardian.promise(Promiser::Loop));
        let promise = promise.transpose().map_err(DaemonError::Threads)?;
        if !config.settings.daemon.cpus.is_empty() {
            // Before its other threads start, which come along. The guardian does not: it watches over a
            // thread that may keep such a CPU.
            realtime::pin(&config.settings.daemon.cpus)?;
        }
        let control = Control::start(&config.settings.control)?;
        let recordings = Recordings::new(config.record.as_deref().map(Recorder::create).transpose()?);
        let (mailbox, notifications) = Mailbox::new().map_err(DaemonError::Threads)?;
        let control_settings = &config.settings.control;
        let (socket, access) = (control_settings.disk_socket(), DiskAccess::new(&control_settings.disk_user));
        let disk_server = DiskServer::start(&socket, access, mailbox.clone());
        let disk_server = disk_server.map_err(|source| ControlError::Disks { socket, source })?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, bpf.fd(), Token::Bpf.encode(), edge)?;
        epoll::add(&epoll, identities.fd(), Token::Identities.encode(), epoll::EventFlags::IN)?;
        epoll::add(&epoll, control.fd(), Token::Control.encode(), epoll::EventFlags::IN)?;
        epoll::add(&epoll, mailbox.bell(), Token::Notification.encode(), epoll::EventFlags::IN)?;
        if let Some(guardian) = &guardian {
            guardian.watch(&epoll, Token::Guardian.encode())?;
        }
        let mut trace = TraceReader::default();
        if config.act && config.record.is_some() {
            trace.begin();
        }
        let start_reserves = |guardian: &Arc<Guardian>| {
            let (settings, own_cpus) = (&config.settings.reserve, &config.settings.daemon.cpus);
            let (guardian, mailbox) = (Arc::clone(guardian), mailbox.clone());
            Reserves::start(settings, own_cpus, hierarchy.clone(), guardian, mailbox, trace.source())
        };
        let reserves = guardian.as_ref().map(start_reserves).transpose().map_err(DaemonError::Threads)?;
        let context = WatchContext::new(hierarchy.clone(), bpf.qemu_probes(), mailbox.clone())
            .map_err(DaemonError::Threads)?;
        let watcher = Watcher::start(config.settings.vms.clone(), context).map_err(DaemonError::Threads)?;
        let mut daemon = Daemon {
            settings: config.settings.clone(),
            act: config.act,
            engine,
            policy: policy.clone(),
            slice_ns: host_slice(),
            bpf,
            identities,
            vms: Vec::new(),
            next_id: 0,
            threads,
            foresee_anew: BTreeMap::new(),
            ejection: None,
            budgets: RealTimeBudgets::new(hierarchy),
            budget: None,
            budgets_stale: false,
            reserves,
            reserves_room: false,
            reserves_asked: 0,
            targets: BTreeMap::new(),
            trace,
            promise,
            promised: Time(0),
            guardian,
            recordings,
            control,
            tally: Tally::new(monotonic()),
            epoll,
            pending: Vec::new(),
            handled: 0,
            tick: TICK,
            emptied: monotonic(),
            last_boost: None,
            looked: Time(0),
            told_extensions: Time(0),
            told_others: Time(0),
            notifications,
            mailbox,
            watcher,
            supervisor: Supervisor::find(),
            disks: Disks::default(),
            _disk_server: disk_server,
            _lock: lock,
        };
        daemon.recordings.push(|| Record::Config(policy));
        daemon.tell_world()?;
        // Reading a page of the program from disk in the middle of a decision would cost more than the
        // decision. Without the right to lock memory, it still works.
        let _ = rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT);
        // After the guardian has started, which may need longer. One that cannot be limited still works.
        let _ = realtime::limit(LONGEST_RUN);
        realtime::enter(DAEMON_PRIORITY, &[])?;
        daemon.follow_until(Until::Settled)?;
        Ok(daemon)
    }

    /// What gives the daemon another configuration while it runs.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader(self.mailbox.clone())
    }

    /// Names of the VMs that are followed, and acted on if the daemon acts at all.
    pub fn vm_names(&self) -> impl Iterator<Item = &str> {
        self.vms.iter().filter(|vm| vm.trouble.is_none()).map(|vm| vm.name.as_str())
    }

    /// Follows and acts until `stop` is readable.
    ///
    /// # Errors
    /// A source fails. The guardian restores every VM when the daemon is dropped.
    pub fn run(&mut self, stop: impl AsFd) -> Result<(), DaemonError> {
        epoll::add(&self.epoll, stop.as_fd(), Token::Stop.encode(), epoll::EventFlags::IN)?;
        self.supervisor.ready(&self.summary());
        let result = self.follow_until(Until::Stopped);
        epoll::delete(&self.epoll, stop.as_fd())?;
        self.supervisor.stopping();
        result
    }

    /// Ends the daemon: the guardian puts everything back, and the recording is completed.
    ///
    /// # Errors
    /// Something could not be restored, or the recording not be written.
    pub fn finish(mut self) -> Result<(), DaemonError> {
        drop(self.reserves.take());
        self.record_decisions();
        let restored = self.guardian.take().and_then(Arc::into_inner).map(Guardian::finish).transpose();
        let recorded = self.recordings.finish();
        restored?;
        recorded?;
        Ok(())
    }
}
