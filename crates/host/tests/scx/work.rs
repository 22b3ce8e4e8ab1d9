//! Processes that stand for VMs: threads that compute, and threads that sleep and answer.

use anyhow::{Context as _, Result, ensure};
use frontdesk_engine::VmId;
use frontdesk_host::threads::Threads;
use frontdesk_linux::sched::{self, Attributes, ThreadId};
use frontdesk_probes::scx::Usage;
use std::{
    env, fs,
    hint::spin_loop,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, ExitCode, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// The argument with which this program works.
pub(crate) const WORK: &str = "work";

/// How long a thread that answers sleeps, and then works.
const THINK: Duration = Duration::from_millis(5);
const ANSWER: Duration = Duration::from_micros(500);

/// A process with threads that compute and threads that answer, ended with the value.
pub(crate) struct Work {
    child: Child,
    /// First those that compute.
    pub(crate) workers: Vec<ThreadId>,
    pub(crate) main: ThreadId,
}

impl Work {
    pub(crate) fn start(computing: usize, answering: usize) -> Result<Work> {
        let mut child = Command::new(env::current_exe()?)
            .args([WORK, &computing.to_string(), &answering.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let pid = child.id().cast_signed();
        let stdout = child.stdout.take();
        let thread = |tid| ThreadId::of(pid, tid).context("the process has ended");
        // From here on the value ends the process, whatever fails.
        let mut work = Work { child, workers: Vec::new(), main: thread(pid)? };
        let mut line = String::new();
        BufReader::new(stdout.context("stdout")?).read_line(&mut line)?;
        let workers = line.split_ascii_whitespace().map(|tid| thread(tid.parse()?));
        work.workers = workers.collect::<Result<_>>()?;
        Ok(work)
    }

    pub(crate) fn vcpus(&self) -> Vec<(u16, ThreadId)> {
        (0..).zip(self.workers.iter().copied()).collect()
    }

    pub(crate) fn attributes(&self) -> Result<Vec<Attributes>> {
        let threads = self.workers.iter().chain([&self.main]);
        threads.map(|thread| Ok(sched::get(thread.tid)?)).collect()
    }

    /// CPU time of all its threads so far, as the kernel counts it, in nanoseconds.
    pub(crate) fn ran(&self) -> Result<u64> {
        let threads = self.workers.iter().chain([&self.main]);
        threads.map(|thread| Ok(Schedstat::of(thread)?.ran)).sum()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the kernel counts for a thread.
#[derive(Clone, Copy)]
pub(crate) struct Schedstat {
    /// Nanoseconds that it ran.
    pub(crate) ran: u64,
    /// Nanoseconds that it waited for a CPU.
    pub(crate) waited: u64,
    /// How many times it got one.
    pub(crate) runs: u64,
}

impl Schedstat {
    pub(crate) fn of(thread: &ThreadId) -> Result<Schedstat> {
        let text = fs::read_to_string(format!("/proc/{}/task/{}/schedstat", thread.pid, thread.tid))?;
        let fields: Vec<u64> = text.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [ran, waited, runs] = fields[..] else { anyhow::bail!("a schedstat of {text:?}") };
        Ok(Schedstat { ran, waited, runs })
    }

    /// Mean wait for a CPU since `before`, in microseconds.
    pub(crate) fn mean_wait_since(&self, before: &Schedstat) -> u64 {
        (self.waited - before.waited) / (self.runs - before.runs).max(1) / 1000
    }
}

/// How long a trial may take to come true: emulated CPUs of a busy machine do little in a second.
const PATIENCE: Duration = Duration::from_secs(300);

/// What each VM used, once that is `total` together at least, and `is_so` for it.
///
/// A VM may be ahead by what a thread runs at once, which is long where the machine below is busy; but no
/// further as time goes on. So what is to be true comes true sooner or later, or never.
pub(crate) fn used(
    threads: &Threads,
    vms: &[VmId],
    total: Duration,
    mut is_so: impl FnMut(&[Usage]) -> bool,
) -> Result<Vec<Usage>> {
    let now = || -> Result<Vec<Usage>> {
        vms.iter().map(|&vm| threads.usage(vm)?.with_context(|| format!("{vm:?} is not adopted"))).collect()
    };
    let (start, before, target) = (Instant::now(), now()?, u64::try_from(total.as_nanos())?);
    loop {
        thread::sleep(Duration::from_millis(20));
        let used: Vec<Usage> = now()?.iter().zip(&before).map(|(now, before)| since(now, before)).collect();
        ensure!(threads.ejected().is_none(), "ejected: {:?} after {used:?}", threads.ejected());
        if consumed(&used) >= target && is_so(&used) {
            return Ok(used);
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {:?} permille of {used:?}",
            permille_of(&used)
        );
    }
}

/// Whether each VM's part of what all used is within a quarter of what is wanted, in permille.
pub(crate) fn near(used: &[Usage], wanted: &[u64]) -> bool {
    permille_of(used).iter().zip(wanted).all(|(part, &wanted)| part.abs_diff(wanted) * 4 <= wanted)
}

fn since(now: &Usage, before: &Usage) -> Usage {
    Usage {
        consumed_ns: now.consumed_ns - before.consumed_ns,
        boosted_ns: now.boosted_ns - before.boosted_ns,
        runs: now.runs - before.runs,
        boosted_runs: now.boosted_runs - before.boosted_runs,
        gifts: now.gifts - before.gifts,
    }
}

pub(crate) fn consumed(used: &[Usage]) -> u64 {
    used.iter().map(|usage| usage.consumed_ns).sum()
}

/// Each VM's part of what all used.
pub(crate) fn permille_of(used: &[Usage]) -> Vec<u64> {
    let total = consumed(used).max(1);
    used.iter().map(|usage| usage.consumed_ns * 1000 / total).collect()
}

/// Works until it is killed, after telling the ids of its threads.
pub(crate) fn run() -> ExitCode {
    let mut counts = env::args().skip(2).map(|count| count.parse::<usize>().unwrap_or(0));
    let (computing, answering) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
    let (sender, receiver) = mpsc::channel();
    for number in 0..computing + answering {
        let sender = sender.clone();
        thread::spawn(move || {
            let _ = sender.send((number, rustix::thread::gettid().as_raw_nonzero()));
            loop {
                if number < computing {
                    spin_loop();
                } else {
                    thread::sleep(THINK);
                    let start = Instant::now();
                    while start.elapsed() < ANSWER {
                        spin_loop();
                    }
                }
            }
        });
    }
    let mut tids: Vec<_> = receiver.iter().take(computing + answering).collect();
    tids.sort_unstable();
    let line: Vec<String> = tids.iter().map(|(_, tid)| tid.to_string()).collect();
    println!("{}", line.join(" "));
    let _ = std::io::stdout().flush();
    loop {
        thread::park();
    }
}
