//! The processes that a study schedules: this program again, with [`WORKER_ARGUMENT`]. They end at SIGTERM,
//! or with whoever started them.

use super::delivered::RunInterval;
use crate::command::die_with_this_thread;
use frontdesk_linux::{monotonic_ns, sched};
use rustix::time::{ClockId, clock_gettime};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first argument of this program when it is to be a worker. [`work`] takes the others.
pub const WORKER_ARGUMENT: &str = "lab-worker";

/// A gap longer than this between two looks at the clock is one in which the process did not get on.
const GAP_NS: u64 = 4_000;
/// Runs that are remembered: a second of them is at most some ten thousand.
const MOST_RUNS: usize = 400_000;
/// A process that computes part of the time does so in turns of this length.
const TURN_NS: u64 = 100_000_000;

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WorkerKind {
    /// Computes, and tells at the end when it ran.
    Compute,
    /// The same on one CPU, for a part of the time.
    Hog { cpu: u16, part: f64 },
    /// One of some that compute and exchange data, and tells at the end when each step was done.
    Parallel { index: usize, workers: usize, compute_ns: u64, bytes: usize },
}

impl WorkerKind {
    fn arguments(self) -> Vec<String> {
        match self {
            WorkerKind::Compute => vec!["compute".to_owned()],
            WorkerKind::Hog { cpu, part } => vec!["hog".to_owned(), cpu.to_string(), part.to_string()],
            WorkerKind::Parallel { index, workers, compute_ns, bytes } => {
                let numbers =
                    [index.to_string(), workers.to_string(), compute_ns.to_string(), bytes.to_string()];
                ["parallel".to_owned()].into_iter().chain(numbers).collect()
            }
        }
    }

    fn parse(arguments: &[String]) -> Option<WorkerKind> {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Some(match words.as_slice() {
            ["compute"] => WorkerKind::Compute,
            ["hog", cpu, part] => WorkerKind::Hog { cpu: cpu.parse().ok()?, part: part.parse().ok()? },
            ["parallel", index, workers, compute_ns, bytes] => WorkerKind::Parallel {
                index: index.parse().ok()?,
                workers: workers.parse().ok()?,
                compute_ns: compute_ns.parse().ok()?,
                bytes: bytes.parse().ok()?,
            },
            _ => return None,
        })
    }
}

/// Does what a worker does until it is told to end.
#[must_use]
pub fn work(arguments: &[String]) -> ExitCode {
    let Some(task) = WorkerKind::parse(arguments) else {
        eprintln!("frontdesk: {WORKER_ARGUMENT} is for the lab itself");
        return ExitCode::from(2);
    };
    let stop = Arc::new(AtomicBool::new(false));
    let done =
        signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop)).and_then(
            |_| match task {
                WorkerKind::Compute => compute(&stop, 1.0),
                WorkerKind::Hog { cpu, part } => {
                    sched::set_affinity(0, &[cpu]).map_err(io::Error::other)?;
                    compute(&stop, part)
                }
                WorkerKind::Parallel { index, workers, compute_ns, bytes } => {
                    Parallel::meet(index, workers, bytes)?.run(&stop, compute_ns)
                }
            },
        );
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("frontdesk: {WORKER_ARGUMENT}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// CPU time that the kernel charged this thread for.
fn charged() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn ready(word: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{word}")?;
    out.flush()
}

/// Computes a part of the time, and tells when it ran.
fn compute(stop: &AtomicBool, part: f64) -> io::Result<()> {
    // Filled once, so that no page is missing later.
    let mut runs = vec![RunInterval { from: 1, to: 1, stalled: 1 }; MOST_RUNS];
    runs.clear();
    ready("ready")?;
    let begun = monotonic_ns();
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
    let computes = (TURN_NS as f64 * part) as u64;
    let (mut from, mut last, mut charge) = (begun, begun, charged());
    while !stop.load(Ordering::Relaxed) {
        let now = monotonic_ns();
        if now - last > GAP_NS {
            let charge_now = charged();
            let stalled = (charge_now - charge).saturating_sub(last - from);
            if runs.len() < MOST_RUNS {
                runs.push(RunInterval { from, to: last, stalled });
            }
            (from, charge) = (now, charge_now);
        }
        last = now;
        let turn = (now - begun) % TURN_NS;
        if turn >= computes {
            std::thread::sleep(std::time::Duration::from_nanos(TURN_NS - turn));
        }
    }
    runs.push(RunInterval { from, to: last, stalled: 0 });
    let mut out = io::BufWriter::new(io::stdout().lock());
    runs.iter().try_for_each(|run| writeln!(out, "{} {} {}", run.from, run.to, run.stalled))?;
    out.flush()
}

/// One of the processes of a parallel program, connected to all others.
struct Parallel {
    peers: Vec<TcpStream>,
    data: Vec<u8>,
}

impl Parallel {
    /// Tells its port, hears those of all, and connects with each.
    fn meet(index: usize, workers: usize, bytes: usize) -> io::Result<Parallel> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        ready(&listener.local_addr()?.port().to_string())?;
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        let ports: Result<Vec<u16>, _> = line.split_whitespace().map(str::parse).collect();
        let ports = ports.map_err(io::Error::other)?;
        let mut peers = Vec::new();
        for port in ports.iter().take(index) {
            peers.push(TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?);
        }
        for _ in index + 1..workers {
            peers.push(listener.accept()?.0);
        }
        peers.iter().try_for_each(|peer| peer.set_nodelay(true))?;
        Ok(Parallel { peers, data: vec![1; bytes] })
    }

    /// Computes, exchanges, and again, until told to end or left by another. Tells when each step was done,
    /// and what part of it the process computed.
    fn run(mut self, stop: &AtomicBool, compute_ns: u64) -> io::Result<()> {
        let mut steps = Vec::new();
        let turns = turns_for(compute_ns);
        while !stop.load(Ordering::Relaxed) {
            let begun = monotonic_ns();
            turn(turns);
            let computed = monotonic_ns();
            if self.exchange().is_err() {
                // Another has ended before us.
                break;
            }
            let now = monotonic_ns();
            steps.push((now, computed - begun, now - computed));
        }
        // The others are not to wait for us.
        drop(self.peers);
        let mut out = io::BufWriter::new(io::stdout().lock());
        steps
            .iter()
            .try_for_each(|(at, computed, exchanged)| writeln!(out, "{at} {computed} {exchanged}"))?;
        out.flush()
    }

    fn exchange(&mut self) -> io::Result<()> {
        for peer in &mut self.peers {
            peer.write_all(&self.data)?;
        }
        for peer in &mut self.peers {
            peer.read_exact(&mut self.data)?;
        }
        Ok(())
    }
}

fn turn(turns: u64) {
    let mut x = 1_u64;
    for _ in 0..turns {
        x = std::hint::black_box(x.wrapping_mul(3));
    }
}

/// How many turns take so long: from the fastest of some trials, for whatever else runs only makes it slower.
fn turns_for(nanos: u64) -> u64 {
    const TRIAL: u64 = 100_000;
    let trial = || {
        let begun = monotonic_ns();
        turn(TRIAL);
        monotonic_ns() - begun
    };
    let fastest = (0..50).map(|_| trial()).min().unwrap_or(1).max(1);
    (nanos * TRIAL / fastest).max(1)
}

/// A running worker. Dropping it kills it.
pub(super) struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What it said first.
    pub(super) said: String,
}

impl Worker {
    /// Starts one and waits until it is ready. It does not outlive the calling thread.
    pub(super) fn start(program: &Path, task: WorkerKind) -> io::Result<Worker> {
        let mut command = Command::new(program);
        command.arg(WORKER_ARGUMENT).args(task.arguments());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = die_with_this_thread(&mut command).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| io::Error::other("a worker has no pipes"))?;
        let mut worker = Worker { child, input, output: BufReader::new(output), said: String::new() };
        worker.output.read_line(&mut worker.said)?;
        match worker.said.is_empty() {
            true => Err(io::Error::other("a worker ended at once")),
            false => Ok(worker),
        }
    }

    pub(super) fn pid(&self) -> i32 {
        // A process id always fits.
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }

    pub(super) fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input, "{line}")
    }

    /// Tells it to end.
    pub(super) fn stop(&self) -> io::Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid()).ok_or_else(|| io::Error::other("no process"))?;
        Ok(rustix::process::kill_process(pid, rustix::process::Signal::TERM)?)
    }

    /// Waits until it has ended, and reads the numbers that it tells.
    pub(super) fn numbers(mut self) -> io::Result<Vec<[u64; 3]>> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("a worker failed ({status})")));
        }
        let numbers: Option<Vec<[u64; 3]>> = text.lines().map(three).collect();
        numbers.ok_or_else(|| io::Error::other("a worker told nonsense"))
    }

    /// Ends it, and reads when it ran.
    pub(super) fn runs(self) -> io::Result<Vec<RunInterval>> {
        self.stop()?;
        let runs = self.numbers()?.into_iter().map(|[from, to, stalled]| RunInterval { from, to, stalled });
        Ok(runs.collect())
    }
}

fn three(line: &str) -> Option<[u64; 3]> {
    let mut numbers = line.split(' ').map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    Some([next()?, next()?, next()?])
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_what_its_arguments_say() {
        let tasks = [
            WorkerKind::Compute,
            WorkerKind::Hog { cpu: 1, part: 0.5 },
            WorkerKind::Parallel { index: 1, workers: 4, compute_ns: 7, bytes: 9 },
        ];
        for task in tasks {
            assert_eq!(WorkerKind::parse(&task.arguments()), Some(task));
        }
        assert_eq!(WorkerKind::parse(&["hog".to_owned()]), None);
        assert_eq!(three("1 2 x"), None);
    }
}
