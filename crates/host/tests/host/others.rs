//! Threads of a QEMU that are not followed one by one: it starts them when it likes, and as many as it likes.

use crate::{
    daemon::{Place, Running, heard},
    fake_qemu::FakeQemu,
    support::{eventually, trial},
};
use anyhow::{Context as _, Result, bail, ensure};
use frontdesk_engine::{Event, EventKind, Thread, VmId};
use frontdesk_linux::{monotonic_ns, online_cpus};
use frontdesk_probes::bpf::BpfSource;
use frontdesk_record::Record;
use libtest_mimic::Trial;
use procfs::process::Process;
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_setaffinity},
};
use std::{thread, time::Duration};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("bpf_counts_what_other_threads_run", counts_what_other_threads_run),
        trial("bpf_counts_how_long_other_threads_wait", counts_how_long_other_threads_wait),
        trial("bpf_counts_nothing_after_execve", counts_nothing_after_execve),
        trial("daemon_counts_what_a_qemu_starts_later", counts_what_a_qemu_starts_later),
        trial("daemon_follows_no_births_one_by_one", follows_no_births_one_by_one),
    ]
}

const VM: VmId = VmId(7);
const SECOND: u64 = 1_000_000_000;
/// The loop tells of them this often, and once more where the engine settles.
const TOLD_EVERY: u64 = 100_000_000;
const SETTLED_EVERY: u64 = 50_000_000;

/// CPU time of a process, in nanoseconds.
fn used(vm: &FakeQemu) -> Result<u64> {
    let stat = Process::new(vm.pid().cast_signed())?.stat()?;
    Ok((stat.utime + stat.stime) * SECOND / procfs::ticks_per_second())
}

fn wait_until_used(vm: &FakeQemu, nanos: u64) -> Result<()> {
    eventually("it has computed", || used(vm).is_ok_and(|used| used >= nanos))
}

/// What the others ran since the last call.
fn ran(source: &mut BpfSource) -> Result<u64> {
    Ok(ran_and_waited(source)?[0])
}

/// And how long they waited for that.
fn ran_and_waited(source: &mut BpfSource) -> Result<[u64; 2]> {
    let mut kinds = Vec::new();
    source.take_others(&mut kinds)?;
    kinds.iter().try_fold([0, 0], |[ran, waited], kind| match kind {
        EventKind::OthersRan { vm: VM, ran_ns, waited_ns, .. } => Ok([ran + ran_ns, waited + waited_ns]),
        _ => bail!("{kinds:?}"),
    })
}

/// A QEMU whose first thread is followed, and of which the others are counted.
fn followed(place: &Place) -> Result<(FakeQemu, i32, BpfSource)> {
    let vm = FakeQemu::start(place.home.path())?;
    let pid = vm.pid().cast_signed();
    let mut source = BpfSource::open()?;
    source.follow(VM, &[(pid, Thread::Emulator(0))], &[])?;
    source.count_others(VM, pid)?;
    Ok((vm, pid, source))
}

/// A thread that is started later is counted, until it is followed itself.
fn counts_what_other_threads_run() -> Result<()> {
    let place = Place::new()?;
    let (mut vm, pid, mut source) = followed(&place)?;
    ensure!(source.count_others(VmId(8), pid).is_err(), "another VM's");
    vm.order("compute")?;
    wait_until_used(&vm, SECOND)?;
    let counted = ran(&mut source)?;
    ensure!(counted > SECOND / 2, "{counted} ns of a second");
    let tasks = Process::new(pid)?.tasks()?.flatten();
    let other = tasks.map(|task| task.tid).find(|tid| *tid != pid).context("no other thread")?;
    source.refollow(VM, &[(pid, Thread::Emulator(0)), (other, Thread::Vcpu(0))], &[])?;
    // It is counted until it loses its CPU the next time, by whoever else wants it.
    let mut heard = Vec::new();
    eventually("it loses its CPU", || {
        let drained = source.drain(&mut heard);
        let own = |event: &Event| matches!(event.kind, EventKind::Stop { thread: Thread::Vcpu(0), .. });
        drained.is_err() || heard.iter().any(own)
    })?;
    ran(&mut source)?;
    let before = used(&vm)?;
    wait_until_used(&vm, before + SECOND / 2)?;
    let counted = ran(&mut source)?;
    ensure!(counted == 0, "{counted} ns although it is followed");
    source.unfollow(VM);
    ensure!(ran(&mut source)? == 0, "counted after unfollow");
    source.count_others(VmId(8), pid)?;
    Ok(())
}

/// Two that compute on one CPU: while one runs the other one waits.
fn counts_how_long_other_threads_wait() -> Result<()> {
    let place = Place::new()?;
    let (mut vm, pid, mut source) = followed(&place)?;
    let mut cpu = CpuSet::new();
    cpu.set(0);
    sched_setaffinity(Pid::from_raw(pid), &cpu)?;
    vm.order("compute")?;
    vm.order("compute")?;
    wait_until_used(&vm, SECOND)?;
    let [ran, waited] = ran_and_waited(&mut source)?;
    ensure!(waited > ran / 2, "they waited {waited} ns, and ran {ran}");
    // Whoever waits is heard of once he has run.
    let began = monotonic_ns();
    wait_until_used(&vm, 2 * SECOND)?;
    let [_, waited] = ran_and_waited(&mut source)?;
    let most = 2 * (monotonic_ns() - began) + SECOND;
    ensure!(waited < most, "two waited {waited} ns, of {most} that passed for both");
    Ok(())
}

/// A thread that calls execve has the number of the first one before it loses its CPU the next time. It is
/// not taken to run from then on.
fn counts_nothing_after_execve() -> Result<()> {
    let place = Place::new()?;
    let (mut vm, pid, mut source) = followed(&place)?;
    vm.order("sleep")?;
    let process = Process::new(pid)?;
    eventually("it sleeps", || {
        process.stat().is_ok_and(|stat| stat.comm == "sleep" && stat.state == 'S' && stat.num_threads == 1)
    })?;
    ran(&mut source)?;
    thread::sleep(Duration::from_millis(300));
    let counted = ran(&mut source)?;
    ensure!(counted == 0, "{counted} ns of a process that sleeps");
    Ok(())
}

/// What is recorded of a VM.
fn events_of(records: &[Record], name: &str) -> Result<Vec<Event>> {
    let id = records.iter().find_map(|record| match record {
        Record::Vm { vm, name: known } if known == name => Some(*vm),
        _ => None,
    });
    let id = id.with_context(|| format!("{name} was not followed"))?;
    let of = |kind| match kind {
        EventKind::Run { vm, .. }
        | EventKind::Stop { vm, .. }
        | EventKind::Wake { vm, .. }
        | EventKind::OthersRan { vm, .. } => vm == id,
        _ => false,
    };
    let events = records.iter().filter_map(|record| match record {
        Record::Event(event) if of(event.kind) => Some(*event),
        _ => None,
    });
    Ok(events.collect())
}

/// An escaped QEMU computes with a thread that was not there when it was found.
fn counts_what_a_qemu_starts_later() -> Result<()> {
    let place = Place::new()?;
    let (mut vm, _group) = place.vm("escaped")?;
    let daemon = Running::start(place.home.path(), place.settings())?;
    heard(&["following the VM", "\"escaped\""])?;
    let before = used(&vm)?;
    vm.order("compute")?;
    wait_until_used(&vm, before + 2 * SECOND)?;
    let used = used(&vm)? - before;
    let events = events_of(&daemon.end()?, "escaped")?;
    let counted: u64 = events
        .iter()
        .map(|event| if let EventKind::OthersRan { ran_ns, .. } = event.kind { ran_ns } else { 0 })
        .sum();
    ensure!(counted > used / 2, "{counted} of {used} ns: {} events", events.len());
    Ok(())
}

/// However many it starts, the daemon hears of as much as of one.
fn follows_no_births_one_by_one() -> Result<()> {
    let place = Place::new()?;
    let (mut vm, _group) = place.vm("fertile")?;
    vm.order("crowd")?;
    let daemon = Running::start(place.home.path(), place.settings())?;
    heard(&["following the VM", "\"fertile\""])?;
    vm.order("births")?;
    let before = used(&vm)?;
    wait_until_used(&vm, before + 2 * SECOND)?;
    let (_late, _group) = place.vm("beside-births")?;
    heard(&["following the VM", "\"beside-births\""])?;
    let events = events_of(&daemon.end()?, "fertile")?;
    let is_told = |kind| matches!(kind, EventKind::OthersRan { .. });
    let told: Vec<u64> = events.iter().filter(|event| is_told(event.kind)).map(|event| event.at.0).collect();
    let (Some(first), Some(last)) = (told.first(), told.last()) else { bail!("nothing was told") };
    let turns = (last - first) / TOLD_EVERY + (last - first) / SETTLED_EVERY + 2;
    let most = turns * online_cpus()?.len() as u64;
    ensure!(told.len() as u64 <= most, "told {} times, not {most}", told.len());
    for event in &events {
        let followed = match event.kind {
            EventKind::Run { thread, .. }
            | EventKind::Stop { thread, .. }
            | EventKind::Wake { thread, .. } => {
                matches!(thread, Thread::Vcpu(0) | Thread::Emulator(0))
            }
            _ => true,
        };
        ensure!(followed, "{event:?}");
    }
    Ok(())
}
