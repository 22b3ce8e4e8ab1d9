//! One process of a case: this program again, told by its arguments and standard input.

use super::case::{Process, Sleeps, Work};
use anyhow::{Context as _, Result};
use rustix::process::{getpid, setpriority_process};
use rustix::thread::{
    ClockId as SleepClock, CpuSet, clock_nanosleep_absolute, sched_setaffinity, set_current_timer_slack,
};
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::{self, Read as _};
use std::num::NonZeroU64;

/// The argument that makes this program a worker.
pub const ARGUMENT: &str = "--worker";

/// What a worker is told.
#[derive(Serialize, Deserialize)]
pub struct Order {
    pub process: Process,
    /// The CPUs that it may use.
    pub cpus: Vec<u16>,
    /// When it is to begin and to end, on CLOCK_MONOTONIC, in nanoseconds.
    pub begin: u64,
    pub end: u64,
    /// Latencies from this time on are told.
    pub measured_from: u64,
}

pub fn now() -> u64 {
    read(ClockId::Monotonic)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Sleeps until `at` on CLOCK_MONOTONIC.
pub fn sleep_until(at: u64) -> Result<()> {
    let at =
        Timespec { tv_sec: i64::try_from(at / 1_000_000_000)?, tv_nsec: i64::try_from(at % 1_000_000_000)? };
    while let Err(error) = clock_nanosleep_absolute(SleepClock::Monotonic, &at) {
        anyhow::ensure!(error == rustix::io::Errno::INTR, "sleep: {error}");
    }
    Ok(())
}

/// Obeys the order on standard input, and tells its latencies in microseconds on standard output.
pub fn main() -> Result<()> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("read the order")?;
    let order: Order = serde_json::from_str(&text).context("parse the order")?;
    let mut cpus = CpuSet::new();
    for cpu in order.process.cpu.map_or(order.cpus.clone(), |cpu| vec![cpu]) {
        cpus.set(usize::from(cpu));
    }
    sched_setaffinity(None, &cpus).context("set the affinity")?;
    setpriority_process(Some(getpid()), i32::from(order.process.nice)).context("set the nice value")?;
    set_current_timer_slack(Some(NonZeroU64::MIN)).context("set the timer slack")?;
    let mut latencies = Vec::new();
    sleep_until(order.begin)?;
    match order.process.work {
        Work::Hog => while now() < order.end {},
        Work::Sleeper { sleep_us, compute_us, seed } => {
            let mut sleeps = Sleeps::new(sleep_us, seed);
            let mut wake = order.begin + sleeps.next();
            while wake < order.end {
                sleep_until(wake)?;
                let woken = now();
                if wake >= order.measured_from {
                    latencies.push((woken - wake) as f64 / 1000.0);
                }
                let until = read(ClockId::ThreadCPUTime) + compute_us * 1000;
                while read(ClockId::ThreadCPUTime) < until {}
                wake = now() + sleeps.next();
            }
        }
    }
    serde_json::to_writer(io::stdout().lock(), &latencies).context("tell the latencies")
}
