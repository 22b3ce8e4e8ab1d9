//! Trials of the sched_ext threads.

mod fast_path;
pub(crate) mod work;

use crate::support::{eventually, start_guardian, trial};
use anyhow::{Context as _, Result, ensure};
use frontdesk_engine::{Boost, BoostTarget, VmId};
use frontdesk_guardian::Guardian;
use frontdesk_host::threads::{MechanismChoice, Threads};
use frontdesk_linux::cgroup::RealTimeRule;
use frontdesk_linux::sched::{self, Policy, ThreadId};
use frontdesk_probes::scx::{self, Scx, ScxError};
use libtest_mimic::Trial;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, ExitCode, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use work::{Schedstat, Work, consumed, near, permille_of, used};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("scx_is_one_of_its_kind", is_one_of_its_kind),
        trial("scx_takes_what_it_adopts_and_nothing_else", takes_what_it_adopts_and_nothing_else),
        trial("scx_shares_follow_the_weights", shares_follow_the_weights),
        trial("scx_little_weight_is_enough_to_run", little_weight_is_enough_to_run),
        trial("scx_weights_inside_a_vm_are_its_own_affair", weights_inside_a_vm_are_its_own_affair),
        trial("scx_boost_goes_first_and_is_charged", boost_goes_first_and_is_charged),
        trial("scx_multimedia_goes_before_io", multimedia_goes_before_io),
        trial("scx_boost_without_end_gains_nothing", boost_without_end_gains_nothing),
        trial("scx_ejected_goes_on_by_real_time", ejected_goes_on_by_real_time),
        trial("scx_dies_with_its_owner", dies_with_its_owner),
        trial("scx_vms_outlive_ordinary_hogs", vms_outlive_ordinary_hogs),
        trial("scx_vms_share_beside_an_ordinary_thread_that_often_wakes", share_beside_one_that_often_wakes),
    ];
    trials.extend(fast_path::trials());
    trials
}

const VMS: [VmId; 3] = [VmId(0), VmId(5), VmId(9)];

fn state() -> String {
    fs::read_to_string("/sys/kernel/sched_ext/state").unwrap_or_default().trim().to_owned()
}

fn is_ext(policy: Policy) -> bool {
    matches!(policy, Policy::Ext { .. })
}

fn adopt(threads: &mut Threads, vm: VmId, weight: u32, work: &Work, guardian: &Guardian) -> Result<()> {
    Ok(threads.adopt(vm, weight, &work.vcpus(), &[work.main], guardian)?)
}

fn is_one_of_its_kind() -> Result<()> {
    scx::probe()?;
    let scx = Scx::load(false)?;
    ensure!(state() == "enabled", "{}", state());
    let refused = Scx::load(false).err().context("a second one was loaded")?;
    ensure!(matches!(&refused, ScxError::Busy { name, .. } if name.starts_with("frontdesk")), "{refused}");
    ensure!(scx.ejected().is_none());
    drop(scx);
    eventually("it is gone", || state() == "disabled")?;
    Ok(scx::probe()?)
}

fn takes_what_it_adopts_and_nothing_else() -> Result<()> {
    let (ours, other) = (Work::start(2, 1)?, Work::start(1, 0)?);
    let before = (ours.attributes()?, other.attributes()?);
    let guardian = start_guardian()?;
    let mut threads = Threads::by_sched_ext(Scx::load(false)?);
    adopt(&mut threads, VMS[0], 1024, &ours, &guardian)?;
    for attributes in ours.attributes()? {
        ensure!(is_ext(attributes.policy) && attributes.reset_on_fork, "{attributes:?}");
    }
    ensure!(other.attributes()? == before.1, "an ordinary process stays what it was");
    let start = other.ran()?;
    eventually("the ordinary process runs", || other.ran().is_ok_and(|ran| ran > start + 100_000_000))?;
    let [found] = used(&threads, &VMS[..1], Duration::from_millis(100), |_| true)?[..] else {
        anyhow::bail!("one VM")
    };
    ensure!(found.runs > 0 && found.boosted_runs == 0, "{found:?}");
    threads.release(VMS[0], &guardian)?;
    ensure!(ours.attributes()? == before.0, "a released VM is what it was");
    ensure!(threads.usage(VMS[0])?.is_none());
    let report = guardian.finish()?;
    ensure!((report.undone, report.failed.len()) == (0, 0), "released threads are forgotten: {report:?}");
    Ok(())
}

/// Three VMs with two threads each that compute, or one that computes and one that answers in the first.
fn three(weights: [u32; 3], answering: usize, guardian: &Guardian, scx: Scx) -> Result<([Work; 3], Threads)> {
    let work = [Work::start(2 - answering, answering)?, Work::start(2, 0)?, Work::start(2, 0)?];
    let mut threads = Threads::by_sched_ext(scx);
    for ((vm, work), weight) in VMS.into_iter().zip(&work).zip(weights) {
        adopt(&mut threads, vm, weight, work, guardian)?;
    }
    Ok((work, threads))
}

const EQUAL: [u64; 3] = [333, 333, 333];

fn shares_follow_the_weights() -> Result<()> {
    let guardian = start_guardian()?;
    let (work, mut threads) = three([1024, 1024, 2048], 0, &guardian, Scx::load(false)?)?;
    let ran = || work.iter().map(Work::ran).sum::<Result<u64>>();
    let before = ran()?;
    let found = used(&threads, &VMS, Duration::from_secs(3), |used| near(used, &[250, 250, 500]))?;
    let (kernel, charged) = (ran()? - before, consumed(&found));
    println!(
        "measured: weights 1:1:2 get {:?} permille; charged {} ms of the {} ms that the kernel counts",
        permille_of(&found),
        charged / 1_000_000,
        kernel / 1_000_000
    );
    // They are read one after the other, and what runs is charged at ticks.
    ensure!(charged.abs_diff(kernel) * 20 <= kernel, "charged {charged} ns of {kernel} ns");
    threads.set_weight(VMS[0], 2048)?;
    used(&threads, &VMS, Duration::from_secs(3), |used| near(used, &[400, 200, 400]))?;
    Ok(())
}

/// By weight alone it would have two milliseconds in a minute, and the kernel ejects a scheduler that lets a
/// thread wait for so long.
fn little_weight_is_enough_to_run() -> Result<()> {
    let guardian = start_guardian()?;
    let (_work, threads) = three([65_536, 65_536, 2], 0, &guardian, Scx::load(false)?)?;
    let found = used(&threads, &VMS, Duration::from_secs(12), |used| used[2].runs >= 8)?;
    println!("measured: weights 32768:32768:1 get {:?} permille", permille_of(&found));
    ensure!(found[2].consumed_ns * 4 <= consumed(&found), "{found:?}");
    Ok(())
}

/// What a vCPU gets less by its weight the others of its VM get, and the VM gets what it got.
fn weights_inside_a_vm_are_its_own_affair() -> Result<()> {
    let guardian = start_guardian()?;
    let (work, mut threads) = three([1024; 3], 0, &guardian, Scx::load(false)?)?;
    for permille in [335, 110, 4000, 1000] {
        threads.weigh(VMS[0], 1, permille)?;
        let ran = || -> Result<[u64; 2]> {
            let [first, second] = work[0].workers[..] else { anyhow::bail!("two workers") };
            Ok([Schedstat::of(&first)?.ran, Schedstat::of(&second)?.ran])
        };
        let (before, mut parts) = (ran()?, [0; 2]);
        let found = used(&threads, &VMS, Duration::from_secs(3), |used| {
            let Ok(now) = ran() else { return false };
            parts = [now[0] - before[0], now[1] - before[1]];
            let wanted = parts[0] * u64::from(permille) / 1000;
            near(used, &EQUAL) && wanted.abs_diff(parts[1]) * 4 <= wanted
        });
        let found = found.with_context(|| format!("weights 1000 and {permille}: {parts:?} ns"))?;
        println!(
            "measured: weights 1000 and {permille} inside a VM give {} and {} ms, the VMs {:?} permille",
            parts[0] / 1_000_000,
            parts[1] / 1_000_000,
            permille_of(&found)
        );
    }
    Ok(())
}

/// A VM that computes and is boosted for I/O all the time holds up another one's boost for I/O, but not one
/// for multimedia.
fn multimedia_goes_before_io() -> Result<()> {
    let guardian = start_guardian()?;
    let (work, mut threads) = three([1024; 3], 1, &guardian, Scx::load(false)?)?;
    let answering = work[0].workers[1];
    // With another CPU to go to, a boost hardly meets one.
    for worker in work.iter().flat_map(|work| &work.workers) {
        sched::set_affinity(worker.tid, &[0])?;
    }
    for vcpu in [0, 1] {
        threads.boost(VMS[1], BoostTarget::Vcpu(vcpu), Boost::Io)?;
    }
    let mut wait_before = u64::MAX;
    for level in [Boost::Io, Boost::Multimedia] {
        threads.boost(VMS[0], BoostTarget::Vcpu(1), level)?;
        let before = Schedstat::of(&answering)?;
        let (mut runs, mut wait) = (0, 0);
        let found = used(&threads, &VMS, Duration::from_secs(3), |used| {
            let Ok(now) = Schedstat::of(&answering) else { return false };
            (runs, wait) = (now.runs - before.runs, now.mean_wait_since(&before));
            near(used, &EQUAL) && (level == Boost::Io || wait * 2 < wait_before)
        });
        let found = found
            .with_context(|| format!("{level:?}: {runs} runs, mean wait {wait} us, before {wait_before}"))?;
        println!(
            "measured: beside a VM that is boosted all the time, {level:?}: {runs} runs, mean wait {wait} us, VMs {:?} permille",
            permille_of(&found)
        );
        wait_before = wait;
    }
    Ok(())
}

fn boost_goes_first_and_is_charged() -> Result<()> {
    let guardian = start_guardian()?;
    let (work, mut threads) = three([1024; 3], 1, &guardian, Scx::load(false)?)?;
    let answering = work[0].workers[1];
    let mut wait_before = u64::MAX;
    for level in [Boost::None, Boost::Io] {
        threads.boost(VMS[0], BoostTarget::Vcpu(1), level)?;
        let before = Schedstat::of(&answering)?;
        let (mut runs, mut wait) = (0, 0);
        let found = used(&threads, &VMS, Duration::from_secs(3), |used| {
            let Ok(now) = Schedstat::of(&answering) else { return false };
            (runs, wait) = (now.runs - before.runs, now.mean_wait_since(&before));
            // Some of its runs go the ordinary way, while the VM is in debt.
            let first = level == Boost::None || (used[0].boosted_runs * 2 >= runs && wait * 2 < wait_before);
            near(used, &EQUAL) && first
        });
        let found = found
            .with_context(|| format!("{level:?}: {runs} runs, mean wait {wait} us, before {wait_before}"))?;
        println!(
            "measured: {level:?}: {runs} runs, mean wait {wait} us, VMs {:?} permille",
            permille_of(&found)
        );
        if level == Boost::None {
            ensure!(found[0].boosted_runs == 0 && found[0].boosted_ns == 0, "{:?}", found[0]);
        }
        wait_before = wait;
    }
    Ok(())
}

fn boost_without_end_gains_nothing() -> Result<()> {
    let guardian = start_guardian()?;
    let (_work, mut threads) = three([1024; 3], 0, &guardian, Scx::load(false)?)?;
    for vcpu in [0, 1] {
        threads.boost(VMS[0], BoostTarget::Vcpu(vcpu), Boost::Io)?;
    }
    ensure!(threads.is_boosted(VMS[0]) && !threads.is_boosted(VMS[1]));
    let found = used(&threads, &VMS, Duration::from_secs(3), |used| near(used, &EQUAL))?;
    println!(
        "measured: a VM that is boosted all the time gets {:?} permille, {} of its {} ms first",
        permille_of(&found),
        found[0].boosted_ns / 1_000_000,
        found[0].consumed_ns / 1_000_000
    );
    ensure!(0 < found[0].boosted_ns && found[0].boosted_ns < found[0].consumed_ns, "{:?}", found[0]);
    Ok(())
}

fn ejected_goes_on_by_real_time() -> Result<()> {
    let work = Work::start(1, 1)?;
    let original = work.attributes()?;
    let guardian = start_guardian()?;
    let mut threads = Threads::start(MechanismChoice::SchedExt, false, RealTimeRule::Free);
    ensure!(!threads.is_real_time(), "sched_ext can be had");
    threads.adopt(VMS[0], 1024, &work.vcpus(), &[work.main], &guardian)?;
    threads.boost(VMS[0], BoostTarget::Vcpu(1), Boost::Io)?;
    ensure!(threads.fall_back(&guardian)?.is_none() && threads.is_boosted(VMS[0]));
    // What an administrator does to be rid of a scheduler.
    fs::write("/proc/sysrq-trigger", "S")?;
    let mut reason = None;
    eventually("it is ejected", || {
        reason = threads.fall_back(&guardian).ok().flatten();
        reason.is_some()
    })?;
    println!("measured: ejected by sysrq-S: {reason:?}");
    ensure!(threads.is_real_time() && !threads.is_boosted(VMS[0]));
    ensure!(work.attributes()? == original, "the threads are what they were");
    threads.boost(VMS[0], BoostTarget::Vcpu(1), Boost::Io)?;
    let boosted = sched::get(work.workers[1].tid)?;
    ensure!(matches!(boosted.policy, Policy::Fifo { .. }), "boosts go on: {boosted:?}");
    threads.release(VMS[0], &guardian)?;
    ensure!(work.attributes()? == original);
    let auto = Threads::start(MechanismChoice::Auto, false, RealTimeRule::Free);
    ensure!(auto.is_real_time(), "where real time is allowed it is preferred");
    let auto = Threads::start(MechanismChoice::Auto, false, RealTimeRule::Refused);
    ensure!(!auto.is_real_time(), "where it is not, sched_ext serves");
    Ok(())
}

/// The argument with which this program runs a scheduler until it is killed, for the threads of a process.
pub(crate) const OWNER: &str = "scx-owner";

pub(crate) fn owner() -> ExitCode {
    match own() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e:?}");
            ExitCode::FAILURE
        }
    }
}

fn own() -> Result<()> {
    let numbers: Vec<i32> = env::args().skip(2).map(|number| number.parse()).collect::<Result<_, _>>()?;
    let [pid, tid] = numbers[..] else { anyhow::bail!("which thread?") };
    let thread = ThreadId::of(pid, tid).context("no such thread")?;
    let guardian = start_guardian()?;
    let mut threads = Threads::by_sched_ext(Scx::load(false)?);
    threads.adopt(VMS[0], 1024, &[(0, thread)], &[], &guardian)?;
    println!("owned");
    std::io::stdout().flush()?;
    thread::sleep(Duration::from_secs(600));
    Ok(())
}

fn dies_with_its_owner() -> Result<()> {
    let work = Work::start(1, 0)?;
    let target = work.workers[0];
    let before = sched::get(target.tid)?;
    let mut owner = Command::new(env::current_exe()?)
        .args([OWNER, &target.pid.to_string(), &target.tid.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let read = BufReader::new(owner.stdout.take().context("stdout")?).read_line(&mut line);
    let owned = sched::get(target.tid);
    owner.kill()?;
    owner.wait()?;
    read?;
    ensure!(line == "owned\n" && is_ext(owned?.policy), "the owner failed: {line:?}");
    eventually("the scheduler is gone", || state() == "disabled")?;
    eventually("the thread is ordinary again", || sched::get(target.tid).is_ok_and(|found| found == before))
}

/// Ordinary threads go before those of sched_ext. Either the kernel keeps some time for these, or it ejects
/// the scheduler.
fn vms_outlive_ordinary_hogs() -> Result<()> {
    let (vm, ordinary) = (Work::start(2, 0)?, Work::start(3, 0)?);
    let guardian = start_guardian()?;
    let mut threads = Threads::by_sched_ext(Scx::load(false)?);
    adopt(&mut threads, VMS[0], 1024, &vm, &guardian)?;
    // The kernel spreads them over the CPUs first.
    let start = ordinary.ran()?;
    eventually("they run", || ordinary.ran().is_ok_and(|ran| ran > start + 1_000_000_000))?;
    let (start, before, ordinary_before) = (Instant::now(), vm.ran()?, ordinary.ran()?);
    eventually("the VM has run for 100 ms", || vm.ran().is_ok_and(|ran| ran > before + 100_000_000))?;
    println!(
        "measured: beside ordinary threads on every CPU a VM ran {} ms while they ran {} ms, in {} ms; ejected: {:?}",
        (vm.ran()? - before) / 1_000_000,
        (ordinary.ran()? - ordinary_before) / 1_000_000,
        start.elapsed().as_millis(),
        threads.ejected()
    );
    Ok(())
}

/// An ordinary thread goes before those of sched_ext, for a moment and many times. Whoever it preempts goes
/// on, and still has his slice only.
fn share_beside_one_that_often_wakes() -> Result<()> {
    let guardian = start_guardian()?;
    let work = [Work::start(1, 0)?, Work::start(1, 0)?, Work::start(1, 0)?];
    let mut only = CpuSet::new();
    only.set(0);
    let mut threads = Threads::by_sched_ext(Scx::load(false)?);
    for (vm, work) in VMS.into_iter().zip(&work) {
        for (_, thread) in work.vcpus() {
            sched_setaffinity(Pid::from_raw(thread.tid), &only)?;
        }
        adopt(&mut threads, vm, 1024, work, &guardian)?;
    }
    let over = AtomicBool::new(false);
    let found = thread::scope(|scope| {
        scope.spawn(|| {
            sched_setaffinity(None, &only)?;
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_micros(300) {}
            }
            anyhow::Ok(())
        });
        let found = used(&threads, &VMS, Duration::from_secs(8), |used| near(used, &EQUAL));
        over.store(true, Ordering::Relaxed);
        found
    })?;
    println!("measured: beside an ordinary thread that often wakes {:?} permille", permille_of(&found));
    ensure!(threads.ejected().is_none(), "{:?}", threads.ejected());
    Ok(())
}
