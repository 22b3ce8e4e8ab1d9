//! One of two hosts that keep a parallel program in lock step (VSched §2.1): with the same reservation and
//! the same clock on each, nobody has to tell the other when to run.
//!
//! The kernel's parameter [`HOST`] says which of the two this is. Each has its own kernel, clock, daemon and
//! network card, and both do the same at the same time.

use crate::partner::{Apart, Partner, wall_ns};
use crate::reserve::{MS, Process, Service, computing};
use crate::support::trial;
use crate::turns::{PERIOD, Turns, Waits};
use anyhow::{Context as _, Result, ensure};
use frontdesk_control_protocol::{Reserve, Target};
use libtest_mimic::Trial;
use rustix::process::Signal;
use std::{
    fs,
    io::{BufRead as _, BufReader},
};

/// Kernel parameter: `first` or `second`.
pub(crate) const HOST: &str = "frontdesk.host";

/// As much as one of five gets, so that the program has as much beside [`HOGS`] if nothing is reserved.
const SLICE: u64 = PERIOD / 5;
const HOGS: usize = 4;
/// Until a measurement begins, the daemons have looked at the wall clock anew.
const SETTLED: u64 = 15 * PERIOD;
const MEASURED: u64 = 20 * PERIOD;
const REPEATS: usize = 3;
/// What else runs around the hosts may hide for a while what can be seen.
const MOST_REPEATS: usize = 6;
/// A slice may begin so much late in the median: an emulated host is slow to wake up, the more so where much
/// else runs around it. Half a period is what it must be told from.
const TOLERANCE: u64 = PERIOD / 5;

/// So much the clocks are put on before each measurement. Hosts that boot at once have alike monotonic
/// clocks, and those are not to be taken for the wall clock, nor is what that showed before.
const ON: u64 = PERIOD * 3 / 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Both hosts' periods begin with those of the wall clock,
    In,
    /// or the second's half a period later.
    OutOf,
    /// Nothing is reserved: each kernel shares its CPU equally.
    Unreserved,
}

impl Step {
    /// Of which phase the reservation is.
    fn phase(self, first: bool) -> u64 {
        if self == Step::OutOf && !first { PERIOD / 2 } else { 0 }
    }
}

/// What is measured in turn.
const ARMS: [(Waits, Step); 5] = [
    (Waits::Asking, Step::In),
    (Waits::Asking, Step::OutOf),
    (Waits::Asking, Step::Unreserved),
    (Waits::Sleeping, Step::In),
    (Waits::Sleeping, Step::OutOf),
];

/// The trials of such a host, if this is one.
pub(crate) fn trials() -> Option<Vec<Trial>> {
    is_first()?;
    Some(vec![trial("lock_step_makes_a_parallel_program_faster", makes_a_parallel_program_faster)])
}

/// Nothing on a host that is not one of two.
fn is_first() -> Option<bool> {
    let told = fs::read_to_string("/proc/cmdline").ok()?;
    let word = told.split_whitespace().find_map(|word| word.strip_prefix(HOST)?.strip_prefix('='))?;
    Some(word == "first")
}

/// What came of one measurement.
struct Measured {
    step: Step,
    waits: Waits,
    /// How far the clocks were apart after it.
    apart: Apart,
    /// The first host's, then the second's.
    turns: [Turns; 2],
}

impl Measured {
    /// Whether who has not run for long has waited for its slice, and for nothing else.
    fn tells_slices(&self) -> bool {
        self.waits == Waits::Asking && self.step != Step::Unreserved
    }
}

/// One of the two, and the other.
struct Host {
    first: bool,
    partner: Partner,
    daemon: Service,
    /// Stopped while nothing is measured.
    hogs: Process,
}

fn makes_a_parallel_program_faster() -> Result<()> {
    let first = is_first().context("not one of two hosts")?;
    let mut partner = Partner::meet(first)?;
    let before = partner.clocks_apart()?;
    let mut hogs = computing()?;
    (1..HOGS).try_for_each(|_| hogs.say("thread"))?;
    hogs.signal(Signal::STOP)?;
    let mut host = Host { first, partner, daemon: Service::start("user")?, hogs };
    let mut all = Vec::new();
    while all.len() < REPEATS * ARMS.len()
        || all.len() < MOST_REPEATS * ARMS.len() && check_rounds(&all).is_err()
    {
        for (waits, step) in ARMS {
            all.push(host.measure(waits, step)?);
        }
    }
    host.daemon.end()?;
    // Both know the same.
    if first {
        println!("measured: the clocks of two hosts that have booted: {before}");
        all.iter().for_each(tell);
    }
    check_slices(&all, Step::In)?;
    check_slices(&all, Step::OutOf)?;
    check_rounds(&all)
}

impl Host {
    fn measure(&mut self, waits: Waits, step: Step) -> Result<Measured> {
        let Host { first, partner, daemon, hogs } = self;
        partner.bring_clocks_together(ON)?;
        let word = if *first { "first" } else { "second" };
        let mut program = Process::start(&["turns", word, waits.word()])?;
        let mut said = BufReader::new(program.child.stdout.take().context("stdout")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        ensure!(line == "connected\n", "the program failed: see above");
        hogs.signal(Signal::CONT)?;
        let target = Target::Process(program.pid());
        if step != Step::Unreserved {
            let (target, phase_ns) = (target.clone(), Some(step.phase(*first)));
            let reserve = Reserve { target, period_ns: PERIOD, slice_ns: SLICE, hard: true, phase_ns };
            daemon.reserve_as(reserve)?;
        }
        // Both begin when the later one is ready.
        let ready = wall_ns() + SETTLED;
        let begin = ready.max(partner.exchange(&ready.to_string())?.parse()?);
        program.say(&format!("{begin} {}", begin + MEASURED))?;
        line.clear();
        said.read_line(&mut line)?;
        hogs.signal(Signal::STOP)?;
        if step != Step::Unreserved {
            let told = daemon.release(target)?;
            ensure!(told.trouble.is_none(), "{told:?}");
        }
        drop(program);
        let theirs = partner.exchange(line.trim())?;
        let mut turns = [Turns::parse(&line)?, Turns::parse(&theirs)?];
        if !*first {
            turns.reverse();
        }
        Ok(Measured { step, waits, apart: partner.clocks_apart()?, turns })
    }
}

fn tell(measured: &Measured) {
    let Measured { step, waits, apart, turns: [first, second] } = measured;
    let (rounds, periods) = (first.rounds, MEASURED / PERIOD);
    print!("measured: {waits:?}, {step:?}: {rounds} rounds in {periods} periods; clocks {apart}");
    if measured.tells_slices() {
        let ms = |late| median(late).map_or(f64::NAN, |ns| ns as f64 / MS as f64);
        let (after, seconds) = (ms(first.after(step.phase(true))), ms(second.after(step.phase(false))));
        let between = ms(first.between(second));
        print!("; slices {between:.1} ms apart, {after:.1} and {seconds:.1} after their periods");
    }
    println!();
}

/// Slices begin with the periods that were asked for, by the clock of their own host, and so by the other's,
/// too.
fn check_slices(all: &[Measured], step: Step) -> Result<()> {
    let tried = || all.iter().filter(|one| one.step == step && one.tells_slices());
    let error = tried().map(|one| one.apart.at_most()).max().context("no measurement")?;
    ensure!(error < TOLERANCE, "the clocks went {error} ns apart");
    for (index, host) in ["first", "second"].into_iter().enumerate() {
        let after: Vec<u64> =
            tried().flat_map(|one| one.turns[index].after(step.phase(index == 0))).collect();
        let enough = REPEATS as u64 * MEASURED / PERIOD / 2;
        ensure!(after.len() as u64 >= enough, "{step:?}: only {} slices", after.len());
        let late = median(after).context("no slices")?;
        ensure!(late < TOLERANCE, "{step:?}: slices on the {host} host begin {late} ns after their periods");
    }
    let between = tried().flat_map(|one| one.turns[0].between(&one.turns[1])).collect();
    let between = median(between).context("no slices")?;
    let wanted = step.phase(true).abs_diff(step.phase(false));
    ensure!(
        between.abs_diff(wanted) < TOLERANCE + error,
        "{step:?}: slices on the two hosts begin {between} ns apart, not {wanted}"
    );
    Ok(())
}

/// Out of step, a program that asks for messages gets one at the beginning of its slice and one at its
/// partner's, however fast the hosts are. In step, what else runs around the hosts makes it slower, but not
/// always.
fn check_rounds(all: &[Measured]) -> Result<()> {
    let rounds = |step| -> Vec<u64> {
        let tried = all.iter().filter(|one| one.step == step && one.tells_slices());
        tried.map(|one| one.turns[0].rounds).collect()
    };
    let (in_step, most) = (rounds(Step::In), rounds(Step::OutOf).into_iter().max());
    let most = most.context("no measurement")?;
    let best = in_step.into_iter().max().context("no measurement")?;
    ensure!(best > most, "up to {best} rounds in step, up to {most} out of it");
    Ok(())
}

fn median(mut all: Vec<u64>) -> Option<u64> {
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}
