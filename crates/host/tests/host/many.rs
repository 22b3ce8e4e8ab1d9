//! The daemon with many VMs, and with some that do what they can to take its time.

use crate::{
    daemon::{Place, Running, heard, logged, said},
    fake_qemu::FakeQemu,
    support::{eventually, trial},
};
use anyhow::{Context as _, Result, ensure};
use frontdesk_host::config::VmSettings;
use frontdesk_linux::cgroup::{Group, Hierarchy, RealTimeRule};
use frontdesk_linux::monotonic_ns;
use libtest_mimic::Trial;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use rustix::time::{ClockId, clock_gettime};
use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("daemon_follows_many_vms_with_the_same_threads", follows_many_vms_with_the_same_threads),
        trial("daemon_goes_on_beside_hostile_vms", goes_on_beside_hostile_vms),
        trial("daemon_follows_a_hundred_qemus", follows_a_hundred_qemus).with_ignored_flag(true),
        trial("daemon_time_for_hostile_vms", time_for_hostile_vms).with_ignored_flag(true),
    ]
}

/// Threads of this process, the daemon's among them.
fn threads() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

/// Waits until each group has the weight that the configuration gives its VM.
fn all_are_acted_on(groups: &[Group]) -> Result<()> {
    let acted_on = |group: &Group| group.weight().is_ok_and(|weight| weight == 3072);
    eventually("all are acted on", || groups.iter().all(acted_on)).with_context(logged)
}

/// In place of a limit of its unit, which would stop it from following more.
fn follows_many_vms_with_the_same_threads() -> Result<()> {
    const MANY: usize = 40;
    let place = Place::new()?;
    let mut settings = place.settings();
    settings.vm.insert("many-*".into(), VmSettings { weight: Some(300), ..VmSettings::default() });
    let daemon = Running::start(place.home.path(), settings)?;
    let (_first, group) = place.vm("many-0")?;
    all_are_acted_on(&[group])?;
    let before = threads()?;
    let others = (1..MANY).map(|n| place.vm(&format!("many-{n}"))).collect::<Result<Vec<_>>>()?;
    let (others, groups): (Vec<FakeQemu>, Vec<Group>) = others.into_iter().unzip();
    all_are_acted_on(&groups)?;
    // Some of those before may have been about to end.
    let after = threads()?;
    ensure!(after <= before, "{after} threads, not {before}, for {MANY} VMs");
    drop(others);
    daemon.end()?;
    Ok(())
}

/// One that tells events without end, and one that fills its ring: the others are heard. It is not recorded:
/// on a busy machine a recording does not keep up with so much, and ends.
fn goes_on_beside_hostile_vms() -> Result<()> {
    let place = Place::new()?;
    let _hostile = hostile(&place, 1)?;
    let (mut good, _group) = place.vm("beside")?;
    let daemon = Running::start_unrecorded(place.home.path(), place.settings())?;
    heard(&["following the VM", "\"beside\""])?;
    for (order, words) in [("STOP", "the VM is paused"), ("RESUME", "the VM is running")] {
        good.order(order)?;
        heard(&["beside", words])?;
    }
    let (_late, _group) = place.vm("beside-late")?;
    heard(&["following the VM", "\"beside-late\""])?;
    ensure!(said(&["flood-0", "the guest was reset"]) > 0, "it did not flood");
    daemon.end()?;
    Ok(())
}

/// So many of each kind.
fn hostile(place: &Place, count: usize) -> Result<Vec<FakeQemu>> {
    let mut all = Vec::new();
    for n in 0..count {
        for (kind, before, after) in [("flood", "", "flood"), ("spin", "ring", "spin")] {
            let mut vm = FakeQemu::start(place.home.path())?;
            let group = place.keeper.create_group(&place.root, &format!("frontdesk-{kind}-{}", vm.pid()))?;
            group.add(vm.pid())?;
            if !before.is_empty() {
                vm.order(before)?;
            }
            let socket = place.path(&format!("{kind}-{n}.qmp"));
            vm.order(&format!("listen {socket} {kind}-{n}"))?;
            vm.order(after)?;
            all.push(vm);
        }
    }
    Ok(all)
}

/// What this process, which is the daemon, uses of a core.
fn use_of_a_core(over: Duration) -> f64 {
    let used = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    };
    let (before, began) = (used(), Instant::now());
    thread::sleep(over);
    (used() - before).as_secs_f64() / began.elapsed().as_secs_f64()
}

/// The nightly one: eight of each kind take less than a tenth of a core.
fn time_for_hostile_vms() -> Result<()> {
    const OVER: Duration = Duration::from_secs(10);
    const BAR: f64 = 0.1;
    let place = Place::new()?;
    let (_good, _group) = place.vm("idle")?;
    let daemon = Running::start_unrecorded(place.home.path(), place.settings())?;
    heard(&["following the VM", "\"idle\""])?;
    let without = use_of_a_core(OVER);
    let hostile = hostile(&place, 4)?;
    for n in 0..4 {
        for kind in ["flood", "spin"] {
            heard(&["following the VM", &format!("\"{kind}-{n}\"")])?;
        }
    }
    let with = use_of_a_core(OVER);
    println!("measured: {with:.3} of a core beside {} hostile VMs, {without:.3} without", hostile.len());
    drop(hostile);
    daemon.end()?;
    ensure!(with - without < BAR, "{with:.3} of a core, {without:.3} without");
    Ok(())
}

/// A real one that has not begun to run, ended with the value.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes from the calling thread, and whatever it starts, the rights that the packaged unit does not have.
fn as_under_the_unit() -> Result<()> {
    let unit = include_str!("../../../../packaging/frontdesk.service");
    let line =
        unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).context("no rights")?;
    let left = line.split(' ').filter_map(|name| CapabilitySet::from_name(name.strip_prefix("CAP_")?));
    let left: CapabilitySet = left.collect();
    ensure!(left.iter().count() == 9, "{left:?} of {line}");
    for number in (0..64).filter(|number| left.bits() >> number & 1 == 0) {
        // SAFETY: it touches no memory. Rights that the kernel does not know are an error, and no harm.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
    }
    // A container may lack some of them itself.
    let left = left & capabilities(None)?.permitted;
    let sets = CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("give up rights")
}

/// The nightly one, with real QEMUs of another user, and the daemon with the rights of its unit: how long
/// until all are followed, and until all are acted on.
fn follows_a_hundred_qemus() -> Result<()> {
    const MANY: usize = 100;
    const NOBODY: u32 = 65_534;
    let place = Place::new()?;
    // Who listens at a socket has put it there.
    let theirs = place.home.path().join("theirs");
    fs::create_dir(&theirs)?;
    chown(&theirs, Some(NOBODY), Some(NOBODY))?;
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700))?;
    fs::set_permissions(place.home.path(), fs::Permissions::from_mode(0o755))?;
    let (mut vms, mut groups) = (Vec::new(), Vec::new());
    for n in 0..MANY {
        let socket = theirs.join(format!("real-{n}.qmp"));
        #[rustfmt::skip]
        let vm = Command::new("qemu-system-x86_64")
            .args(["-name", &format!("real-{n}"), "-S", "-m", "16", "-nodefaults", "-display", "none"])
            .args(["-accel", "tcg,thread=multi"])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", socket.display())])
            .uid(NOBODY).gid(NOBODY).current_dir("/")
            .stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("start QEMU")?;
        vms.push(Stopped(vm));
        let pid = vms[n].0.id();
        groups.push(place.keeper.create_group(&place.root, &format!("frontdesk-real-{pid}"))?);
        groups[n].add(pid)?;
    }
    eventually("all listen", || {
        (0..MANY).all(|n| fs::exists(theirs.join(format!("real-{n}.qmp"))).is_ok_and(|is| is))
    })?;
    let mut settings = place.settings();
    settings.vms.qmp = vec![theirs.join("*.qmp").display().to_string()];
    settings.vm.insert("real-*".into(), VmSettings { weight: Some(300), ..VmSettings::default() });
    as_under_the_unit().context("as under the unit")?;
    let began = monotonic_ns();
    let since = || Duration::from_nanos(monotonic_ns() - began);
    let before = threads()?;
    let daemon = Running::start(place.home.path(), settings)?;
    let followed = since();
    ensure!(said(&["following the VM", "\"real-"]) == MANY, "not all are followed from the start");
    // Where each group needs a part of the host's real time, as with RT_GROUP_SCHED, there is not enough for
    // more; the others are only watched.
    let enough = if Hierarchy::detect()?.real_time() == RealTimeRule::Free { MANY } else { 75 };
    let acted_on = |group: &&Group| group.weight().is_ok_and(|weight| weight == 3072);
    eventually("they are acted on", || groups.iter().filter(acted_on).count() >= enough)
        .with_context(logged)?;
    let (acted_on, more) = (since(), threads()? - before);
    println!(
        "measured: {MANY} QEMUs of another user followed after {followed:?}, {enough} acted on after \
         {acted_on:?}, by {more} threads"
    );
    drop(vms);
    daemon.end()?;
    ensure!(followed < Duration::from_secs(2), "followed after {followed:?}");
    Ok(())
}
