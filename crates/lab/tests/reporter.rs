//! The reporter in a real VM, beside the plugin, which sees the same task switches from outside.
//!
//! The static programs and the plugin are found as in `boot.rs`; the reporter by `FRONTDESK_REPORTER`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod vm;

use frontdesk_engine::{Event, EventKind, VmId};
use frontdesk_lab::{RunningVm, VmConfig, add_to_initramfs};
use frontdesk_lab_guest::Job;
use frontdesk_qemu::reporter::{
    EpisodeOrder, HostTime, Isolation, ReporterSource, ReporterState, Reporters, find_port,
};
use frontdesk_ring::{Consumer, Entry, EntryKind};
use frontdesk_scenario::{Storm, WorkloadKind};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vm::{PATIENCE, built, config};

const VM: VmId = VmId(7);
/// More than vCPUs, so that they take turns.
const HOGS: usize = 5;
/// Task switches to compare.
const SWITCHES: usize = 500;
/// What lab workloads are called.
const LAB_WORKLOAD: &str = "exe";
/// More than the time for which what a reporter tells is held back.
const MAX_HOLD: Duration = Duration::from_millis(5);

fn reporter() -> PathBuf {
    built("FRONTDESK_REPORTER", "x86_64-unknown-linux-gnu/release/frontdesk-guest").canonicalize().unwrap()
}

fn boot(run_dir: &TempDir, kernel: &str, vcpus: u16) -> RunningVm {
    let config = VmConfig { memory_mib: 160, reporter: true, ..config(run_dir, kernel, vcpus) };
    add_to_initramfs(&config.initrd, &BTreeSet::from([reporter()])).unwrap();
    let mut vm = RunningVm::boot(&config).unwrap();
    vm.wait_ready(PATIENCE).unwrap();
    vm
}

fn start_reporter(vm: &mut RunningVm) {
    start(vm, false);
}

fn start(vm: &mut RunningVm, isolate: bool) {
    let program = reporter().to_str().unwrap().to_owned();
    vm.start("reporter", Job::Reporter { program, isolate }).unwrap();
}

/// What both sources say, until `enough` says so.
struct Both {
    ring: Consumer,
    reporters: Reporters,
    events: Vec<Event>,
    /// By vCPU: time and address space.
    switches: Vec<Vec<(u64, u64)>>,
}

impl Both {
    fn new(vm: &RunningVm, vcpus: u16) -> Both {
        let ring = Consumer::attach(frontdesk_ring::find(vm.pid()).unwrap().unwrap()).unwrap();
        let reporters = Reporters::new(Duration::from_micros(500)).unwrap();
        let mut both =
            Both { ring, reporters, events: Vec::new(), switches: vec![Vec::new(); usize::from(vcpus)] };
        both.connect(vm, vcpus);
        both
    }

    fn connect(&mut self, vm: &RunningVm, vcpus: u16) {
        assert!(
            self.reporters
                .follow(
                    VM,
                    (vm.pid(), find_port(vm.pid()).unwrap().as_deref()),
                    vcpus,
                    Duration::ZERO,
                    HostTime::now().monotonic,
                )
                .unwrap()
        );
    }

    fn source(&self) -> &ReporterSource {
        self.reporters.get(VM).unwrap()
    }

    fn follow(&mut self, what: &str, mut enough: impl FnMut(&Both) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !enough(self) {
            assert!(Instant::now() < deadline, "{what}: never seen; {:?}", self.source());
            std::thread::sleep(Duration::from_millis(1));
            let now = HostTime::now();
            self.reporters.receive(now).unwrap();
            self.reporters.drain(now.monotonic, &mut self.events, |_| true, |_, _| {});
            for (vcpu, switches) in (0..).zip(&mut self.switches) {
                self.ring.drain(vcpu, usize::MAX, |Entry { at_ns, kind }| {
                    if let EntryKind::Switch { task } = kind {
                        switches.push((at_ns, task));
                    }
                });
            }
        }
    }

    /// By vCPU: time and task.
    fn reported(&self) -> Vec<Vec<(u64, u64)>> {
        let mut reported = vec![Vec::new(); self.switches.len()];
        for event in &self.events {
            if let EventKind::TaskSwitch { vcpu, task, .. } = event.kind {
                reported[usize::from(vcpu)].push((event.at.0, task.0));
            }
        }
        reported
    }
}

/// The `count` tasks that ran most often, on any vCPU.
fn most_frequent(switches: &[Vec<(u64, u64)>], count: usize) -> Vec<u64> {
    let mut counts = HashMap::<u64, usize>::new();
    switches.iter().flatten().for_each(|(_, task)| *counts.entry(*task).or_default() += 1);
    let mut tasks: Vec<u64> = counts.keys().copied().collect();
    tasks.sort_unstable_by_key(|task| std::cmp::Reverse(counts[task]));
    tasks.truncate(count);
    tasks
}

/// The order in which some tasks ran: others are left out, and who goes on after one of those is there once.
fn order(switches: &[(u64, u64)], tasks: &[u64]) -> Vec<(u64, u64)> {
    let mut order: Vec<(u64, u64)> =
        switches.iter().copied().filter(|(_, task)| tasks.contains(task)).collect();
    order.dedup_by_key(|(_, task)| *task);
    order
}

/// Length of the longest sequence that is part of both.
fn common(a: &[u64], b: &[u64]) -> usize {
    common_with_parts(a, b)[b.len()]
}

/// Of the first 0, 1, 2 ... of `b`: the length of the longest sequence that is part of `a`, too.
fn common_with_parts(a: &[u64], b: &[u64]) -> Vec<usize> {
    let mut row = vec![0; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (index, y) in b.iter().enumerate() {
            let above = row[index + 1];
            row[index + 1] = if x == y { diagonal + 1 } else { above.max(row[index]) };
            diagonal = above;
        }
    }
    row
}

/// How many of `seen` there are from the first to the last that are told.
fn spanned(told: &[u64], seen: &[u64]) -> usize {
    let until_last = |told: &[u64], seen: &[u64]| {
        let parts = common_with_parts(told, seen);
        parts.iter().position(|part| *part == parts[seen.len()]).unwrap()
    };
    let reversed = |of: &[u64]| -> Vec<u64> { of.iter().rev().copied().collect() };
    let both = until_last(told, seen) + until_last(&reversed(told), &reversed(seen));
    both.saturating_sub(seen.len())
}

/// Which task has which address space.
type Spaces = HashMap<u64, u64>;

/// In which order some tasks ran on a vCPU, as address spaces: as told, and as seen.
fn orders(told: &[(u64, u64)], seen: &[(u64, u64)], space_of: &Spaces) -> (Vec<u64>, Vec<u64>) {
    let (tasks, spaces): (Vec<u64>, Vec<u64>) = space_of.iter().unzip();
    let told = order(told, &tasks).iter().map(|(_, task)| space_of[task]).collect();
    (told, order(seen, &spaces).iter().map(|(_, space)| *space).collect())
}

/// Which address spaces `tasks` have, each its own: those with which what is told agrees best with what is
/// seen. They are not found by the times: where the guest gets little CPU a report comes late, with many
/// switches that are all taken as of then.
fn spaces(tasks: &[u64], told: &[Vec<(u64, u64)>], seen: &[Vec<(u64, u64)>]) -> Spaces {
    // The reporter and init run often, too.
    let candidates = most_frequent(seen, tasks.len() + 3);
    // Of those that agree as well, whoever is seen in between and not told is the wrong one: the reporter,
    // which runs all the time, would agree with anybody. But what is told counts for more, for less is seen
    // in between where less agrees.
    let agreement = |space_of: &Spaces| -> i64 {
        let both = told.iter().zip(seen).map(|(told, seen)| orders(told, seen, space_of));
        let of = |(told, seen): (Vec<u64>, Vec<u64>)| {
            let count = |count: usize| i64::try_from(count).unwrap();
            16 * count(common(&told, &seen)) - count(spanned(&told, &seen))
        };
        both.map(of).sum()
    };
    // From several beginnings: from one alone, where three would have to change at a time, it stays wrong.
    let beginnings = (0..candidates.len()).map(|first| {
        let rotated = candidates.iter().cycle().skip(first).copied();
        tasks.iter().copied().zip(rotated).collect::<Spaces>()
    });
    let improved = beginnings.map(|beginning| improved(beginning, &candidates, agreement));
    improved.max_by_key(agreement).unwrap()
}

/// The best that comes of a beginning by giving one task another space, which may be that of another task.
fn improved(mut best: Spaces, candidates: &[u64], agreement: impl Fn(&Spaces) -> i64) -> Spaces {
    let tasks: Vec<u64> = best.keys().copied().collect();
    let mut most = agreement(&best);
    loop {
        let before = most;
        for task in &tasks {
            for space in candidates {
                let mut other = best.clone();
                let given_up = other.insert(*task, *space).unwrap();
                if let Some((_, owners)) = other.iter_mut().find(|(owner, of)| *owner != task && *of == space)
                {
                    *owners = given_up;
                }
                let matched = agreement(&other);
                if matched > most {
                    (best, most) = (other, matched);
                }
            }
        }
        if most == before {
            return best;
        }
    }
}

fn agrees_with_the_plugin(kernel: &str) {
    let run_dir = tempfile::tempdir().unwrap();
    let mut vm = boot(&run_dir, kernel, 2);
    let path = find_port(vm.pid()).unwrap().expect("QEMU's command line names the port");
    assert_eq!(path, vm.reporter());
    let mut both = Both::new(&vm, 2);
    assert!(matches!(both.source().state(), ReporterState::Silent), "{:?}", both.source());

    start_reporter(&mut vm);
    both.follow("a hello", |both| both.source().is_live());
    for hog in 0..HOGS {
        vm.start(&format!("hog{hog}"), WorkloadKind::Hog).unwrap();
    }
    // A task that starts a program has its parent's name and address space before.
    both.follow("the hogs' names", |both| {
        let told = both.reported();
        let tasks: BTreeSet<u64> = told.iter().flatten().map(|(_, task)| *task).collect();
        tasks
            .iter()
            .filter(|task| both.source().name(u32::try_from(**task).unwrap()) == Some(LAB_WORKLOAD))
            .count()
            == HOGS
    });
    let named = Instant::now();
    both.follow("what was told before", |_| named.elapsed() > MAX_HOLD);
    both.events.clear();
    let lost = both.source().stats().lost;
    both.follow("task switches", |both| {
        both.switches.iter().chain(&both.reported()).all(|switches| switches.len() >= SWITCHES)
    });
    // What is still on its way.
    let end = both.switches.iter().map(|switches| switches.last().unwrap().0).max().unwrap();
    both.follow("the last of them", |both| {
        both.reported().iter().all(|told| told.last().is_some_and(|last| last.0 > end))
    });

    for vcpu in 0..2 {
        assert_eq!(both.ring.dropped(vcpu), 0, "the plugin has seen all that vCPU {vcpu} did");
    }
    let reported = both.reported();
    let tasks = most_frequent(&reported, HOGS);
    for task in &tasks {
        assert_eq!(both.source().name(u32::try_from(*task).unwrap()), Some(LAB_WORKLOAD));
    }
    let space_of = spaces(&tasks, &reported, &both.switches);
    let mut of_all = (0, 0);
    for (vcpu, (told, seen)) in (0..).zip(reported.iter().zip(&both.switches)) {
        let (told, seen) = orders(told, seen, &space_of);
        let matched = common(&told, &seen);
        let among = spanned(&told, &seen);
        println!("{kernel}, vCPU {vcpu}: {matched} of {} told in order, of {among} seen", told.len());
        // However late a report comes: what it tells has happened, in that order. One in hundreds is now and
        // then not where it was seen.
        assert!(matched * 100 >= told.len() * 99, "{matched} of {} told in order", told.len());
        // Without what was seen before the first that is told, and after the last.
        of_all = (of_all.0 + told.len(), of_all.1 + among);
    }
    // Where the guest gets little CPU, its reporter has less than it wants and tells of fewer; but then it
    // says how many it lost. Where one is lost between two of the same task, these two are one.
    let (told, seen, lost) = (of_all.0, of_all.1, both.source().stats().lost - lost);
    let lost = usize::try_from(lost).unwrap();
    println!("{told} told, {lost} lost; {seen} seen");
    assert!((told + 2 * lost) * 10 > seen * 9, "{told} told, {lost} lost; {seen} seen");
    println!("{:?}, held back by {:?}", both.source().stats(), both.source().hold());
    assert_eq!(both.source().stats().refused, 0);

    // Without the reporter the VM goes on, and the source says that it is gone.
    vm.stop("reporter").unwrap();
    both.follow("the end of the reports", |both| !both.source().is_live());
    both.follow("a note that the source is lost", |both| {
        both.events.iter().any(|event| matches!(event.kind, EventKind::Lost { vm: Some(VM), .. }))
    });
    vm.check().unwrap();
    // It comes back.
    start_reporter(&mut vm);
    both.events.clear();
    both.follow("reports of another reporter", |both| {
        both.source().is_live()
            && both.events.iter().any(|event| matches!(event.kind, EventKind::TaskSwitch { .. }))
    });
    // So it does when frontdesk does.
    both.reporters.unfollow(VM);
    both.connect(&vm, 2);
    assert!(!both.source().is_live());
    both.follow("reports to another host", |both| both.source().is_live());
    vm.shutdown(PATIENCE).unwrap();
}

#[test]
fn agrees_with_the_plugin_on_linux_6_12() {
    agrees_with_the_plugin("6.12-cloud");
}

#[test]
fn agrees_with_the_plugin_on_linux_6_1() {
    agrees_with_the_plugin("6.1-cloud");
}

/// The vCPUs on which address spaces are seen, until `enough` of their switches are.
fn seen_on(both: &mut Both, spaces: &BTreeSet<u64>, enough: usize) -> BTreeSet<usize> {
    both.switches.iter_mut().for_each(Vec::clear);
    let of = |both: &Both| -> Vec<usize> {
        let vcpus = both.switches.iter().enumerate();
        let seen = vcpus.flat_map(|(vcpu, switches)| switches.iter().map(move |(_, space)| (vcpu, *space)));
        seen.filter(|(_, space)| spaces.contains(space)).map(|(vcpu, _)| vcpu).collect()
    };
    both.follow("switches of the hogs", |both| of(both).len() >= enough);
    of(both).into_iter().collect()
}

/// Background work is kept on one vCPU as long as an episode goes on, and on all of them after it, as the
/// plugin sees it from outside.
#[test]
fn background_work_is_isolated_and_given_back() {
    let run_dir = tempfile::tempdir().unwrap();
    let mut vm = boot(&run_dir, "6.12-cloud", 2);
    let mut both = Both::new(&vm, 2);
    start(&mut vm, true);
    both.follow("that it takes orders", |both| both.source().isolation() == Isolation::Ready);
    for hog in 0..HOGS {
        vm.start(&format!("hog{hog}"), WorkloadKind::Hog).unwrap();
    }
    both.follow("task switches", |both| both.switches.iter().all(|switches| switches.len() >= SWITCHES));
    let processes: Vec<u32> = most_frequent(&both.reported(), HOGS)
        .into_iter()
        .map(|task| u32::try_from(task).unwrap())
        .filter(|task| both.source().name(*task) == Some(LAB_WORKLOAD))
        .collect();
    assert_eq!(processes.len(), HOGS);
    // The reporter runs as often as any, and stays where it is.
    let tasks: Vec<u64> = processes.iter().map(|process| u64::from(*process)).collect();
    let spaces: BTreeSet<u64> = spaces(&tasks, &both.reported(), &both.switches).into_values().collect();
    let (all, slow) = (BTreeSet::from([0, 1]), BTreeSet::from([1]));
    assert_eq!(seen_on(&mut both, &spaces, SWITCHES), all);

    let now = HostTime::now().monotonic;
    let until = now.plus(60_000_000_000);
    let order = EpisodeOrder { since: now, until, tasks: processes.clone(), sound: false };
    both.reporters.order(VM, Some(&order), now);
    both.follow("the isolation", |both| matches!(both.source().isolation(), Isolation::Divided { .. }));
    let Isolation::Divided { slow: told, background, others } = both.source().isolation() else {
        panic!("{:?}", both.source());
    };
    assert_eq!((told, background), (0b10, 5));
    assert!(others > 0);
    assert!(both.events.iter().any(|event| event.kind == EventKind::Isolated { vm: VM, slow: 0b10 }));
    both.events.clear();
    // Hogs that are alone on their vCPU take turns there.
    assert_eq!(seen_on(&mut both, &spaces, SWITCHES), slow);
    both.reporters.order(VM, None, HostTime::now().monotonic);
    both.follow("the end", |both| both.source().isolation() == Isolation::Ready);
    assert_eq!(seen_on(&mut both, &spaces, SWITCHES), all);

    // Killed with its guardian it can give nothing back: whoever is started next does.
    let now = HostTime::now().monotonic;
    let order = EpisodeOrder { since: now, until: now.plus(60_000_000_000), ..order };
    both.reporters.order(VM, Some(&order), now);
    both.follow("the isolation", |both| matches!(both.source().isolation(), Isolation::Divided { .. }));
    vm.stop("reporter").unwrap();
    assert_eq!(seen_on(&mut both, &spaces, SWITCHES), slow);
    start(&mut vm, false);
    assert_eq!(seen_on(&mut both, &spaces, SWITCHES), all);
    vm.shutdown(PATIENCE).unwrap();
}

/// CPU time of QEMU's threads so far: of the vCPU's, and of all others.
fn cpu_times(vm: &RunningVm) -> (f64, f64) {
    let (mut vcpu, mut others) = (0.0, 0.0);
    for thread in std::fs::read_dir(format!("/proc/{}/task", vm.pid())).unwrap().flatten() {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(") ") else { continue };
        let ticks: f64 = rest.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum();
        *(if name.contains("(CPU ") { &mut vcpu } else { &mut others }) += ticks / 100.0;
    }
    (vcpu, others)
}

#[test]
#[ignore = "a measurement, not a test"]
fn what_it_costs() {
    const ROUNDS: usize = 3;
    const TIME: Duration = Duration::from_secs(4);
    let run_dir = tempfile::tempdir().unwrap();
    let mut vm = boot(&run_dir, "6.12-cloud", 1);
    let mut both = Both::new(&vm, 1);
    println!("load            reporter  changes/s  operations/s  vCPU thread  other threads");
    for (name, loads) in [
        ("idle", vec![]),
        ("two hogs", vec![WorkloadKind::Hog, WorkloadKind::Hog]),
        ("switch storm", vec![WorkloadKind::Storm { of: Storm::Switches }]),
    ] {
        for (number, load) in loads.iter().enumerate() {
            vm.start(&format!("load{number}"), load.clone()).unwrap();
        }
        for round in 0..2 * ROUNDS {
            let with = round % 2 == 1;
            if with {
                start_reporter(&mut vm);
                both.follow("a hello", |both| both.source().is_live());
            }
            let operations = |vm: &mut RunningVm| -> u64 {
                (0..loads.len()).map(|number| vm.report(&format!("load{number}")).unwrap().operations).sum()
            };
            let begun = Instant::now();
            let before = (operations(&mut vm), both.source().stats().changes, cpu_times(&vm));
            both.follow("the end of the time", |_| begun.elapsed() > TIME);
            both.events.clear();
            let after = (operations(&mut vm), both.source().stats().changes, cpu_times(&vm));
            let seconds = begun.elapsed().as_secs_f64();
            let per_second =
                |before: u64, after: u64| u32::try_from(after - before).map_or(f64::NAN, f64::from) / seconds;
            println!(
                "{name:<15} {with:<9} {:<10.0} {:<13.0} {:<12.3} {:.4}",
                per_second(before.1, after.1),
                per_second(before.0, after.0),
                (after.2.0 - before.2.0) / seconds,
                (after.2.1 - before.2.1) / seconds,
            );
            if with {
                vm.stop("reporter").unwrap();
                both.follow("the end of the reports", |both| !both.source().is_live());
            }
        }
        for number in 0..loads.len() {
            vm.stop(&format!("load{number}")).unwrap();
        }
    }
    println!("{:?}", both.source().stats());
}
