//! Reservations beside the kernel's fair servers (Linux 6.12 and newer), where debugfs shows them.

use crate::reserve::{MS, Service, computing};
use crate::support::{Idler, eventually, trial};
use anyhow::{Context as _, Result, anyhow, ensure};
use frontdesk_control_protocol::Target;
use frontdesk_linux::sched::{self, Attributes};
use libtest_mimic::Trial;
use rustix::time::{ClockId, clock_gettime};
use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

const FOLDER: &str = "/sys/kernel/debug/sched/fair_server";

pub(crate) fn trials() -> Vec<Trial> {
    // Elsewhere there is nothing to compare.
    if !PathBuf::from(FOLDER).exists() {
        return Vec::new();
    }
    vec![
        trial("fair_server_is_lowered_and_put_back", is_lowered_and_put_back),
        trial("fair_server_takes_no_periods", takes_no_periods),
    ]
}

/// The run time of each server and its file.
fn servers() -> Vec<(PathBuf, u64)> {
    let folders = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let server = |folder: fs::DirEntry| {
        let file = folder.path().join("runtime");
        let runtime = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        Some((file, runtime))
    };
    let mut servers: Vec<_> = folders.filter_map(server).collect();
    servers.sort();
    servers
}

fn is_lowered_and_put_back() -> Result<()> {
    let before = servers();
    // Half of what cannot be reserved, of each second.
    let lowered: Vec<_> =
        before.iter().map(|(file, runtime)| (file.clone(), 10 * MS.min(*runtime))).collect();
    ensure!(before.iter().any(|(_, runtime)| *runtime > 10 * MS), "there is something to lower: {before:?}");
    let (target, back) = (computing()?, || servers() == before);
    let name = Target::Process(target.pid());
    let daemon = Service::with_spare("user", 0.02)?;
    ensure!(back(), "nothing is changed before the first reservation");
    for _ in 0..2 {
        daemon.reserve(name.clone(), 10 * MS, 5 * MS, false)?;
        ensure!(servers() == lowered, "{:?} instead of {lowered:?}", servers());
        daemon.release(name.clone())?;
        eventually("they are put back after the last reservation", back)?;
    }
    daemon.reserve(name.clone(), 10 * MS, 5 * MS, false)?;
    daemon.end()?;
    ensure!(back(), "the end of the daemon: {:?} instead of {before:?}", servers());
    let mut daemon = Service::with_spare("deadline", 0.02)?;
    let idler = Idler::start()?;
    daemon.reserve(Target::Process(idler.pid()), 50 * MS, 49 * MS, false)?;
    ensure!(servers() == lowered, "{:?} instead of {lowered:?}", servers());
    daemon.process.child.kill()?;
    daemon.process.child.wait()?;
    eventually("they are put back when the daemon is killed", back)
}

/// A FIFO thread that wants 0.98 of each second stands in for a reservation, beside a busy ordinary process:
/// what the fair server takes from it as the kernel has it, and as frontdesk does while it has a reservation
/// for something that sleeps.
fn takes_no_periods() -> Result<()> {
    let (hog, sleeper) = (computing()?, Idler::start()?);
    let name = Target::Process(sleeper.pid());
    let daemon = Service::with_spare("user", 0.02)?;
    let cpu = daemon.reserve(name.clone(), 1000 * MS, MS, false)?.cpus[0];
    for task in fs::read_dir(format!("/proc/{}/task", hog.pid()))?.flatten() {
        sched::set_affinity(task.file_name().to_string_lossy().parse()?, &[cpu])?;
    }
    let beside_ours = thousandths_got(cpu)?;
    daemon.release(name)?;
    daemon.end()?;
    let beside_the_kernels = thousandths_got(cpu)?;
    println!(
        "measured: thousandths of a slice of 0.98 s: {beside_ours:?}, and without frontdesk {beside_the_kernels:?}"
    );
    let lost = |mut got: Vec<u128>| {
        got.sort_unstable();
        1000 - got[got.len() / 2].min(1000)
    };
    let (ours, kernels) = (lost(beside_ours), lost(beside_the_kernels));
    ensure!(kernels > 2 * ours, "thousandths lost: {ours} and without frontdesk {kernels}");
    Ok(())
}

/// What a FIFO thread gets of the 0.98 s that it wants in each of some seconds, in thousandths.
fn thousandths_got(cpu: u16) -> Result<Vec<u128>> {
    const PERIOD: Duration = Duration::from_secs(1);
    const SLICE: Duration = Duration::from_millis(980);
    let run = move || -> Result<Vec<u128>> {
        sched::set_affinity(0, &[cpu])?;
        sched::set(0, Attributes::fifo(40))?;
        let ran = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).context("CPU time");
        let period = || -> Result<u128> {
            let (begin, before) = (Instant::now(), ran()?);
            while begin.elapsed() < PERIOD && ran()? - before < SLICE {}
            let got = ran()? - before;
            thread::sleep(PERIOD.saturating_sub(begin.elapsed()));
            Ok(got.as_micros() * 1000 / SLICE.as_micros())
        };
        // The fair server may owe something from before.
        period()?;
        (0..6).map(|_| period()).collect()
    };
    thread::spawn(run).join().map_err(|_| anyhow!("the thread panicked"))?
}
