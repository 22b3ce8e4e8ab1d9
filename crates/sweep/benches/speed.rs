//! How much faster a sweep is on two threads than on one, with all that it writes: of runs that take a
//! quarter of a second, for which there is a bar, and of runs that take two milliseconds.

#![allow(clippy::unwrap_used)] // A benchmark that panics fails.

use frontdesk_sweep::{Ended, Folder, Sweep, Workers, run};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many times faster it is to be.
const BAR: f64 = 1.9;
/// Sweeps with either number of threads, in turn; the medians count.
const SWEEPS: usize = 3;

fn main() -> ExitCode {
    let (long, short) = (ratio("180s", 10), ratio("1s", 100));
    println!("bar for the long ones {BAR}: {long:.2}; the short ones: {short:.2}");
    if long < BAR { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Of ten times as many runs as seeds, each of so much modelled time.
fn ratio(duration: &str, seeds: u32) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/echo-mixed.toml");
    let text = format!(
        "scenario = {:?}\narms = [\"frontdesk\"]\nseeds = {seeds}\nset = {{ duration = {duration:?}, warmup = \"0s\" }}\n\
         [latin-hypercube]\npoints = 10\nranges.policy.tavs.pb_ratio = {{ from = 0.05, to = 0.5 }}\n",
        scenario.canonicalize().unwrap()
    );
    let file = folder.path().join("sweep.toml");
    std::fs::write(&file, text).unwrap();
    let sweep = Arc::new(Sweep::load(&file).unwrap());
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..SWEEPS {
        for (threads, times) in [1, 2].into_iter().zip(&mut times) {
            let out = folder.path().join(format!("{number}-{threads}"));
            let mut results = Folder::open(&out, &sweep).unwrap();
            let begin = Instant::now();
            let ended =
                run(&sweep, &mut results, Workers::Threads(threads), &Arc::default(), &|_| {}).unwrap();
            times.push(begin.elapsed());
            assert_eq!((ended, results.failures()), (Ended::Finished, 0));
        }
    }
    let [one, two] = times.map(median);
    let ratio = one.as_secs_f64() / two.as_secs_f64();
    let runs = sweep.runs();
    println!(
        "{runs} runs of {duration}: {one:.2?} on one thread, {two:.2?} on two: {ratio:.2} times as fast"
    );
    ratio
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
