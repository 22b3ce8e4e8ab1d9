//! The daemon with processes that pass for QEMUs: VMs that come and go, sockets that lie, configurations that
//! change.

use crate::{
    fake_qemu::FakeQemu,
    support::{eventually, start_guardian, trial},
};
use anyhow::{Context as _, Result, anyhow, ensure};
use frontdesk_engine::{EventKind, VmPolicy};
use frontdesk_guardian::Guardian;
use frontdesk_host::config::{Settings, VmSettings};
use frontdesk_host::{Daemon, DaemonConfig, Reloader};
use frontdesk_linux::cgroup::{Group, Hierarchy};
use frontdesk_record::{Record, read_recording};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::sched_getaffinity;
use std::{
    collections::BTreeSet,
    env, fs,
    io::{self, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
};
use tempfile::TempDir;

pub(crate) fn trials() -> Vec<Trial> {
    tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(|| Log).init();
    vec![
        trial("daemon_follows_vms_as_they_come_and_go", follows_vms_as_they_come_and_go),
        trial("daemon_is_not_kept_by_bad_sockets", is_not_kept_by_bad_sockets),
        trial("daemon_takes_another_configuration", takes_another_configuration),
        trial("daemon_only_watches_a_vm_in_a_shared_group", only_watches_a_vm_in_a_shared_group),
        trial("daemon_is_alone", is_alone),
        trial("daemon_keeps_to_its_cpus_with_all_its_threads", keeps_to_its_cpus),
        trial("daemon_ends_when_its_guardian_is_killed", ends_when_its_guardian_is_killed),
    ]
}

static LOGGED: Mutex<String> = Mutex::new(String::new());

/// What daemons say.
struct Log;

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).push_str(&String::from_utf8_lossy(text));
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How many lines of the log have all these words in them.
pub(crate) fn said(words: &[&str]) -> usize {
    let logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    logged.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

/// All that was said.
pub(crate) fn logged() -> String {
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub(crate) fn heard(words: &[&str]) -> Result<()> {
    eventually(&format!("the log says {words:?}"), || said(words) > 0).with_context(logged)
}

/// A daemon on a thread of its own, which becomes real-time.
pub(crate) struct Running {
    stop: UnixStream,
    reloader: Reloader,
    thread: JoinHandle<Result<()>>,
    recording: Option<PathBuf>,
}

impl Running {
    /// It records what it does.
    pub(crate) fn start(home: &Path, settings: Settings) -> Result<Running> {
        Running::start_with(home, settings, Some(home.join("recording")))
    }

    /// It records nothing, as when it is installed: what a recording costs is not the daemon's.
    pub(crate) fn start_unrecorded(home: &Path, settings: Settings) -> Result<Running> {
        Running::start_with(home, settings, None)
    }

    fn start_with(home: &Path, settings: Settings, recording: Option<PathBuf>) -> Result<Running> {
        let config = DaemonConfig {
            settings,
            act: true,
            record: recording.clone(),
            guardian: (env::current_exe()?, "guardian".into()),
            lock: home.join("lock"),
        };
        let (stop, stopped) = UnixStream::pair()?;
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || -> Result<()> {
            let mut daemon = Daemon::start(&config)?;
            tell.send(daemon.reloader())?;
            daemon.run(stopped)?;
            Ok(daemon.finish()?)
        });
        match told.recv() {
            Ok(reloader) => Ok(Running { stop, reloader, thread, recording }),
            Err(_) => Err(thread.join().ok().and_then(Result::err).context("the daemon panicked")?),
        }
    }

    /// Ends it; what it recorded, if it was to.
    pub(crate) fn end(self) -> Result<Vec<Record>> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow!("the daemon panicked"))??;
        Ok(self.recording.map_or(Ok(Vec::new()), |recording| read_recording(&recording))?)
    }
}

/// A place for a VM: its folder, a group of its own, and who removes that.
pub(crate) struct Place {
    pub(crate) home: TempDir,
    pub(crate) keeper: Guardian,
    pub(crate) root: Group,
}

impl Place {
    pub(crate) fn new() -> Result<Place> {
        let root = Hierarchy::detect()?.root_group();
        Ok(Place { home: tempfile::tempdir()?, keeper: start_guardian()?, root })
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.vms.qmp = vec![self.path("*.qmp")];
        settings
    }

    /// A VM with its own group and socket.
    pub(crate) fn vm(&self, name: &str) -> Result<(FakeQemu, Group)> {
        let mut vm = FakeQemu::start(self.home.path())?;
        let group = self.keeper.create_group(&self.root, &format!("frontdesk-{name}-{}", vm.pid()))?;
        group.add(vm.pid())?;
        vm.order(&format!("listen {}.qmp {name}", self.path(name)))?;
        Ok((vm, group))
    }
}

fn events(records: &[Record]) -> Vec<EventKind> {
    let mut kinds = Vec::new();
    for record in records {
        if let Record::Event(event) = record
            && !matches!(event.kind, EventKind::Run { .. } | EventKind::Stop { .. } | EventKind::Wake { .. })
        {
            kinds.push(event.kind);
        }
    }
    kinds
}

fn follows_vms_as_they_come_and_go() -> Result<()> {
    let place = Place::new()?;
    let (first, _) = place.vm("first")?;
    eventually("it listens", || Path::new(&place.path("first.qmp")).exists())?;
    let daemon = Running::start(place.home.path(), place.settings())?;
    ensure!(said(&["following the VM", "\"first\""]) == 1, "followed from the start");
    let (mut second, group) = place.vm("second")?;
    heard(&["following the VM", "\"second\"", "vcpus=1"])?;
    for (order, words) in [
        ("RESET", ["second", "the guest was reset"]),
        ("STOP", ["second", "the VM is paused"]),
        ("RESUME", ["second", "the VM is running"]),
        ("plug", ["second", "vcpus=2"]),
    ] {
        second.order(order)?;
        heard(&words)?;
    }
    // Somebody else gives the VM another weight: that is noticed, and neither taken back now nor at the end.
    group.set_weight(2048)?;
    heard(&["second", "another weight", "2048"])?;
    drop(first);
    heard(&["first", "the VM has ended"])?;
    drop(second);
    heard(&["second", "the VM has ended"])?;
    let records = daemon.end()?;
    let (mut of_first, mut of_second) = (Vec::new(), Vec::new());
    let vm = |name: &str| {
        records.iter().find_map(|record| match record {
            Record::Vm { vm, name: known } if known == name => Some(*vm),
            _ => None,
        })
    };
    let (a, b) = (vm("first").context("first")?, vm("second").context("second")?);
    for kind in events(&records) {
        match kind {
            EventKind::VmAdded { vm, .. }
            | EventKind::VmRemoved { vm }
            | EventKind::VmReset { vm }
            | EventKind::VmPaused { vm }
            | EventKind::VmResumed { vm }
            | EventKind::VcpuAdded { vm, .. }
            | EventKind::Weight { vm, .. } => if vm == a { &mut of_first } else { &mut of_second }.push(kind),
            _ => {}
        }
    }
    let added = |vm| EventKind::VmAdded { vm, vcpus: 1, weight: 1024 };
    ensure!(of_first == [added(a), EventKind::VmRemoved { vm: a }], "{of_first:?}");
    let expected = [
        added(b),
        EventKind::VmReset { vm: b },
        EventKind::VmPaused { vm: b },
        EventKind::VmResumed { vm: b },
        EventKind::VcpuAdded { vm: b, vcpu: 1 },
        EventKind::Weight { vm: b, weight: 2048 },
        EventKind::VmRemoved { vm: b },
    ];
    ensure!(of_second == expected, "{of_second:?}");
    ensure!(group.weight()? == 2048, "what others wrote stays");
    Ok(())
}

/// Sockets that vanish, lie, stall, or belong to something else.
fn is_not_kept_by_bad_sockets() -> Result<()> {
    let place = Place::new()?;
    let _foreign = UnixListener::bind(place.path("foreign.qmp"))?;
    drop(UnixListener::bind(place.path("stale.qmp"))?);
    std::fs::write(place.path("file.qmp"), "no socket")?;
    let mut liar = FakeQemu::start(place.home.path())?;
    // No vCPUs: it listens before it has any.
    liar.order(&format!("listen {} liar", place.path("mute.qmp")))?;
    liar.order("mute")?;
    eventually("it listens", || Path::new(&place.path("mute.qmp")).exists())?;
    let mut settings = place.settings();
    settings.vms.qmp.push(place.path("missing/vm.qmp"));
    let daemon = Running::start(place.home.path(), settings)?;
    heard(&["foreign.qmp", "not QEMU"])?;
    heard(&["stale.qmp", "cannot connect"])?;
    heard(&["missing/vm.qmp", "there is no QMP socket"])?;
    heard(&["mute.qmp", "one client at a time"])?;
    let (good, _) = place.vm("good")?;
    heard(&["following the VM", "\"good\""])?;
    // A socket that was named before it was there.
    std::fs::create_dir(place.path("missing"))?;
    let mut late = FakeQemu::start(place.home.path())?;
    late.order(&format!("listen {} late", place.path("missing/vm.qmp")))?;
    heard(&["following the VM", "\"late\""])?;
    // The same place, another VM.
    drop(good);
    heard(&["good", "the VM has ended"])?;
    std::fs::remove_file(place.path("good.qmp"))?;
    let (_again, _) = place.vm("good")?;
    eventually("the next VM at the same place", || said(&["following the VM", "\"good\""]) == 2)?;
    for socket in ["foreign.qmp", "stale.qmp", "missing/vm.qmp"] {
        ensure!(said(&[socket]) == 1, "{socket}: {} times", said(&[socket]));
    }
    ensure!(said(&["file.qmp"]) == 0, "not a socket");
    daemon.end()?;
    Ok(())
}

fn takes_another_configuration() -> Result<()> {
    let place = Place::new()?;
    let (_vm, group) = place.vm("desk-1")?;
    let daemon = Running::start(place.home.path(), place.settings())?;
    heard(&["following the VM", "\"desk-1\""])?;
    let mut settings = place.settings();
    settings.tavs.pb_ratio = 0.25;
    let own = VmSettings { off: false, weight: Some(200), pb_ratio: Some(0.5) };
    settings.vm.insert("desk-*".into(), own);
    daemon.reloader.reload(settings.clone());
    eventually("the weight of the configuration", || group.weight().is_ok_and(|weight| weight == 2048))?;
    settings.vm.insert("desk-1".into(), VmSettings { off: true, ..VmSettings::default() });
    daemon.reloader.reload(settings.clone());
    eventually("its own weight again", || group.weight().is_ok_and(|weight| weight == 1024))?;
    settings.vms.qmp.clear();
    daemon.reloader.reload(settings);
    heard(&["desk-1", "the configuration does not name it"])?;
    let records = daemon.end()?;
    let policies: Vec<VmPolicy> = records
        .iter()
        .filter_map(|record| match record {
            Record::Policy { policy, .. } => Some(*policy),
            _ => None,
        })
        .collect();
    let expected = [(false, None), (false, Some(0.5)), (true, None)];
    let expected = expected.map(|(off, pb_ratio)| VmPolicy { off, pb_ratio });
    ensure!(policies.starts_with(&expected), "{policies:?}");
    let ratios = records.iter().filter_map(|record| match record {
        Record::Config(config) => Some(config.tavs.pb_ratio),
        _ => None,
    });
    let ratios: Vec<f64> = ratios.collect();
    ensure!(ratios.first() == Some(&0.5) && ratios.last() == Some(&0.25), "{ratios:?}");
    let kinds = events(&records);
    let removed = kinds.iter().filter(|kind| matches!(kind, EventKind::VmRemoved { .. })).count();
    ensure!(removed == 1, "the VM was forgotten only when it was not named any more: {kinds:?}");
    Ok(())
}

fn only_watches_a_vm_in_a_shared_group() -> Result<()> {
    let place = Place::new()?;
    let (_vm, group) = place.vm("shared")?;
    let other = FakeQemu::start(place.home.path())?;
    group.add(other.pid())?;
    let daemon = Running::start(place.home.path(), place.settings())?;
    heard(&["shared", "only watching it", "a group of its own"])?;
    heard(&["following the VM", "\"shared\""])?;
    // When the other has gone, all is well.
    drop(other);
    // Its weight is then under control.
    let mut settings = place.settings();
    settings.vm.insert("shared".into(), VmSettings { weight: Some(300), ..VmSettings::default() });
    daemon.reloader.reload(settings);
    eventually("it is acted on", || group.weight().is_ok_and(|weight| weight == 3072))?;
    ensure!(said(&["shared", "only watching it"]) == 1, "once");
    daemon.end()?;
    ensure!(group.weight()? == 1024);
    Ok(())
}

fn is_alone() -> Result<()> {
    let place = Place::new()?;
    let first = Running::start(place.home.path(), place.settings())?;
    let second = Running::start(place.home.path(), place.settings()).err().context("not refused")?;
    let holder = format!("(process {} since", std::process::id());
    ensure!(second.to_string().contains(&holder), "{second}");
    first.end()?;
    Running::start(place.home.path(), place.settings())?.end()?;
    Ok(())
}

fn keeps_to_its_cpus() -> Result<()> {
    let place = Place::new()?;
    let mut settings = place.settings();
    let allowed = sched_getaffinity(None)?;
    // Of one alone nothing is to be seen.
    let last = (0..1024).rfind(|cpu| allowed.is_set(usize::from(*cpu))).context("no CPU")?;
    settings.daemon.cpus = vec![last];
    let before = threads()?;
    let daemon = Running::start(place.home.path(), settings)?;
    let mut names = Vec::new();
    for tid in threads()?.difference(&before) {
        let cpus = sched_getaffinity(Pid::from_raw(*tid));
        // One that looks for VMs may have ended meanwhile.
        let (Ok(cpus), Ok(name)) = (cpus, fs::read_to_string(format!("/proc/self/task/{tid}/comm"))) else {
            continue;
        };
        ensure!(cpus.count() == 1 && cpus.is_set(last.into()), "{} may run elsewhere", name.trim());
        names.push(name.trim().to_owned());
    }
    for name in ["record", "control", "disks", "watcher"] {
        ensure!(names.iter().any(|it| it == name), "no {name} among {names:?}");
    }
    daemon.end()?;
    Ok(())
}

/// Those of this process.
fn threads() -> Result<BTreeSet<i32>> {
    fs::read_dir("/proc/self/task")?
        .map(|task| Ok(task?.file_name().to_str().context("no text")?.parse()?))
        .collect()
}

fn ends_when_its_guardian_is_killed() -> Result<()> {
    let place = Place::new()?;
    let (_vm, group) = place.vm("orphan")?;
    let mut settings = place.settings();
    settings.vm.insert("orphan".into(), VmSettings { weight: Some(300), ..VmSettings::default() });
    let daemon = Running::start(place.home.path(), settings)?;
    eventually("it is acted on", || group.weight().is_ok_and(|weight| weight == 3072))?;
    for task in fs::read_dir("/proc/self/task")? {
        // Threads and children of other tests may end meanwhile.
        let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            let cmdline = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            let guards = cmdline.ends_with(b"\0guardian\0");
            if guards && child != place.keeper.pid().to_string() {
                kill_process(Pid::from_raw(child.parse()?).context("pid")?, Signal::KILL)?;
            }
        }
    }
    let error = daemon.thread.join().map_err(|_| anyhow!("the daemon panicked"))?.err();
    let error = error.context("it went on without its guardian")?;
    ensure!(error.to_string().contains("every change is undone"), "{error}");
    ensure!(group.weight()? == 1024);
    drop(daemon.stop);
    Ok(())
}
