//! How much faster a sweep is on two threads than on one, with all that it writes: of runs that take a
//! quarter of a second, for which there is a bar, and of runs that take two milliseconds.
//!
//! Two processors need not do twice as much as one: they may share a core, and its memory. What this machine
//! can do is measured beside it: the same runs by two processes that share nothing.

#![allow(clippy::unwrap_used)] // A benchmark that panics fails.

use frontdesk_sweep::{Ended, Folder, Sweep, Workers, run};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many times faster it is to be.
const BAR: f64 = 1.9;
/// Sweeps of each way, in turn; the medians count.
const SWEEPS: usize = 3;
/// The argument of a process that makes one sweep, on one thread: its file follows, and a folder.
const ONE: &str = "one-sweep";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [ONE, file, out] = *arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        sweep(&Arc::new(Sweep::load(Path::new(file)).unwrap()), Path::new(out), 1);
        return ExitCode::SUCCESS;
    }
    let (long, short) = (ratio("180s", 10), ratio("1s", 100));
    println!("bar for the long ones {BAR}: {long:.2}; the short ones: {short:.2}");
    if long < BAR { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Of ten times as many runs as seeds, each of so much modelled time.
fn ratio(duration: &str, seeds: u32) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/echo-mixed.toml");
    let scenario = scenario.canonicalize().unwrap();
    let [whole, half] = [("whole.toml", seeds), ("half.toml", seeds / 2)].map(|(name, seeds)| {
        let text = format!(
            "scenario = {scenario:?}\narms = [\"frontdesk\"]\nseeds = {seeds}\n\
             set = {{ duration = {duration:?}, warmup = \"0s\" }}\n\
             [latin-hypercube]\npoints = 10\nranges.policy.tavs.pb_ratio = {{ from = 0.05, to = 0.5 }}\n"
        );
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    });
    let loaded = Arc::new(Sweep::load(&whole).unwrap());
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for number in 0..SWEEPS {
        let out = |way: &str| folder.path().join(format!("{number}-{way}"));
        let [one, two, apart] = &mut times;
        one.push(time(|| sweep(&loaded, &out("one"), 1)));
        two.push(time(|| sweep(&loaded, &out("two"), 2)));
        apart.push(time(|| {
            let halves = ["left", "right"].map(|way| {
                let program = std::env::current_exe().unwrap();
                Command::new(program).arg(ONE).arg(&half).arg(out(way)).spawn().unwrap()
            });
            for mut process in halves {
                assert!(process.wait().unwrap().success());
            }
        }));
    }
    let [one, two, apart] = times.map(median);
    let ratio = one.as_secs_f64() / two.as_secs_f64();
    println!(
        "{} runs of {duration}: {one:.2?} on one thread, {two:.2?} on two: {ratio:.2} times as fast; \
         two processes, half of them each: {apart:.2?}, {:.2} times as fast",
        loaded.runs(),
        one.as_secs_f64() / apart.as_secs_f64()
    );
    ratio
}

fn sweep(sweep: &Arc<Sweep>, out: &Path, threads: usize) {
    let mut results = Folder::open(out, sweep).unwrap();
    let ended = run(sweep, &mut results, Workers::Threads(threads), &Arc::default(), &|_| {}).unwrap();
    assert_eq!((ended, results.failures()), (Ended::Finished, 0));
}

fn time(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
