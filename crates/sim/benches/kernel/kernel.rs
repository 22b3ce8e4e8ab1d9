//! The kernel's side: processes in control groups of their own.

use super::case::{Case, Latency, Measured, WARM_UP_MS};
use super::worker::{self, Order};
use anyhow::{Context as _, Result, bail};
use frontdesk_guardian::Guardian;
use frontdesk_linux::cgroup::{Group, Hierarchy};
use std::env;
use std::fs;
use std::process::{Child, Command, Stdio};

/// From the first worker's start until all are in their groups and asleep.
const START_MS: u64 = 300;
/// How much longer they work than they are measured.
const TAIL_MS: u64 = 200;

/// Weight of the group around those of the case: what else runs on this machine gets next to nothing.
const MOST_WEIGHT: u32 = 262_144;

/// Runs a case on the CPUs `first`, `first + 1`, ...
pub fn run(case: &Case, first: u16, guardian: &Guardian) -> Result<Measured> {
    let root = Hierarchy::detect()?.root_group();
    let outer = guardian.create_group(&root, &format!("frontdesk-bench-{}", std::process::id()))?;
    outer.set_weight(MOST_WEIGHT)?;
    let mut groups: Vec<Group> = Vec::new();
    let mut workers: Vec<Vec<Child>> = Vec::new();
    let measured = (|| {
        for (index, wanted) in case.groups.iter().enumerate() {
            let group = guardian.create_group(&outer, &format!("group-{index}"))?;
            groups.push(group.clone());
            group.set_weight(wanted.shares)?;
        }
        let begin = worker::now() + START_MS * 1_000_000;
        let from = begin + WARM_UP_MS * 1_000_000;
        let to = from + case.measured_ms * 1_000_000;
        for (group, wanted) in groups.iter().zip(&case.groups) {
            workers.push(Vec::new());
            for process in &wanted.processes {
                let mut process = process.clone();
                process.cpu = process.cpu.map(|cpu| first + cpu);
                let cpus = (first..first + case.cpus).collect();
                let order =
                    Order { process, cpus, begin, end: to + TAIL_MS * 1_000_000, measured_from: from };
                let child = start(group, &order)?;
                workers.last_mut().context("a group")?.push(child);
            }
        }
        anyhow::ensure!(worker::now() < begin, "the workers took longer than {START_MS} ms to start");
        worker::sleep_until(from)?;
        let before = cpu_times(&workers)?;
        worker::sleep_until(to)?;
        let after = cpu_times(&workers)?;
        let mut latency = Vec::new();
        for group in &mut workers {
            latency.push(group.drain(..).map(latencies).collect::<Result<Vec<_>>>()?);
        }
        let fraction =
            |(after, before): (&u64, &u64)| (after - before) as f64 / (case.measured_ms * 1_000_000) as f64;
        let cpu = after.iter().zip(&before).map(|(a, b)| a.iter().zip(b).map(fraction).collect()).collect();
        Ok(Measured { cpu, latency })
    })();
    for child in workers.iter_mut().flatten() {
        child.kill().ok();
        child.wait().ok();
    }
    for group in groups {
        group.remove()?;
    }
    outer.remove()?;
    measured
}

/// Starts a worker and moves it into its group while it waits for its order.
fn start(group: &Group, order: &Order) -> Result<Child> {
    let mut child = Command::new(env::current_exe()?)
        .arg(worker::ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start a worker")?;
    let ordered = (|| {
        group.add(child.id())?;
        let input = child.stdin.take().context("no standard input")?;
        serde_json::to_writer(input, order).context("order a worker")
    })();
    if ordered.is_err() {
        child.kill().ok();
        child.wait().ok();
    }
    ordered.map(|()| child)
}

fn latencies(child: Child) -> Result<Option<Latency>> {
    let output = child.wait_with_output().context("wait for a worker")?;
    if !output.status.success() {
        bail!("a worker failed: {}", output.status);
    }
    Ok(Latency::of(serde_json::from_slice(&output.stdout).context("read a worker's latencies")?))
}

/// Nanoseconds that each worker has run; a tick old at most.
fn cpu_times(workers: &[Vec<Child>]) -> Result<Vec<Vec<u64>>> {
    let time = |child: &Child| -> Result<u64> {
        let path = format!("/proc/{}/schedstat", child.id());
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        text.split(' ').next().and_then(|time| time.parse().ok()).with_context(|| format!("{path}: {text}"))
    };
    workers.iter().map(|group| group.iter().map(time).collect()).collect()
}
