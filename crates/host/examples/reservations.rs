//! How precisely reservations are kept: what a process gets in each period beside one that computes, by frontdesk and, in turn, by the
//! kernel's own `SCHED_DEADLINE`.
//!
//! `cargo run --release --example reservations [SECONDS [REPEATS]]`, as root on a quiet machine.

use anyhow::{Context as _, Result, bail, ensure};
use frontdesk_control_protocol::{Answer, Query, Reservation, Reserve, Target, ask};
use frontdesk_guardian::{self as guardian, GUARDIAN_ARGUMENT};
use frontdesk_host::config::Settings;
use frontdesk_host::{Daemon, DaemonConfig};
use frontdesk_linux::monotonic_ns;
use frontdesk_linux::sched::{self, Attributes, Policy};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, thread};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// A gap longer than this between two looks at the clock is one in which the program did not run.
const GAP: u64 = 4 * US;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    match arguments.first().map(String::as_str) {
        Some(GUARDIAN_ARGUMENT) => return Ok(guardian::run()),
        Some("target") => target(number(1, 1)?)?,
        Some("hog") => hog(u16::try_from(number(1, 0)?)?)?,
        Some("precision") | None => precision(number(1, 4)?, number(2, 3)?)?,
        Some("load") => load(number(1, 10)?)?,
        Some("change") => change(number(1, 300)?)?,
        Some("miss") => miss(number(1, 20)?)?,
        Some(other) => bail!("{other:?}: precision, load, change or miss"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Computes for so many milliseconds, and says when it ran.
fn target(millis: u64) -> Result<()> {
    let mut ran: Vec<(u64, u64)> = vec![(1, 1); 400_000];
    ran.clear();
    let end = monotonic_ns() + millis * MS;
    let own = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
    };
    let (mut from, mut used) = (monotonic_ns(), own());
    let mut last = from;
    while last < end {
        let now = monotonic_ns();
        if now - last > GAP {
            // An interrupt is not a gap: its time counts as ours.
            let so_far = own();
            if now - last > (so_far - used).saturating_sub(last - from) + GAP && ran.len() < ran.capacity() {
                ran.push((from, from + (so_far - used)));
                (from, used) = (now, so_far);
            }
        }
        last = now;
    }
    let mut out = std::io::stdout().lock();
    for (from, to) in ran {
        writeln!(out, "{from} {to}")?;
    }
    Ok(())
}

fn hog(cpu: u16) -> Result<()> {
    sched::set_affinity(0, &[cpu])?;
    loop {
        std::hint::spin_loop();
    }
}

/// A child process, ended when it goes.
struct Running(Child);

impl Running {
    fn start(arguments: &[&str]) -> Result<Running> {
        let child = Command::new(env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Running(child))
    }

    fn pid(&self) -> Result<i32> {
        Ok(i32::try_from(self.0.id())?)
    }

    /// When it ran, once it has ended.
    fn intervals(mut self) -> Result<Vec<(u64, u64)>> {
        let out = self.0.stdout.take().context("no output")?;
        let parse = |line: String| {
            let (from, to) = line.split_once(' ').context("no interval")?;
            Ok((from.parse()?, to.parse()?))
        };
        let read: Result<Vec<_>> = BufReader::new(out).lines().map(|line| parse(line?)).collect();
        self.0.wait()?;
        read
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon in a thread of this process.
struct Service {
    stop: Option<UnixStream>,
    thread: Option<thread::JoinHandle<Result<()>>>,
    socket: PathBuf,
    _home: tempfile::TempDir,
}

impl Service {
    fn start(spare: f64) -> Result<Service> {
        let home = tempfile::tempdir()?;
        let socket = home.path().join("control.sock");
        let mut settings = Settings::default();
        settings.control.socket.clone_from(&socket);
        settings.vms.libvirt = false;
        settings.reserve.spare = spare;
        let config = DaemonConfig {
            settings,
            act: true,
            record: None,
            guardian: (env::current_exe()?, GUARDIAN_ARGUMENT.into()),
            lock: home.path().join("lock"),
        };
        let (stop, stopped) = UnixStream::pair()?;
        let (ready, when_ready) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || -> Result<()> {
            let mut daemon = Daemon::start(&config)?;
            ready.send(())?;
            daemon.run(stopped)?;
            Ok(daemon.finish()?)
        });
        if when_ready.recv().is_err() {
            thread.join().map_err(|_| anyhow::anyhow!("the daemon panicked"))??;
            bail!("the daemon ended");
        }
        Ok(Service { stop: Some(stop), thread: Some(thread), socket, _home: home })
    }

    fn reserve(&self, pid: i32, period_ns: u64, slice_ns: u64, hard: bool) -> Result<Reservation> {
        let target = Target::Process(pid);
        let reserve = Reserve { target, period_ns, slice_ns, hard, phase_ns: Some(0) };
        reservation(&self.socket, &Query::Reserve(reserve))
    }

    fn end(mut self) -> Result<()> {
        drop(self.stop.take());
        let thread = self.thread.take().context("no thread")?;
        thread.join().map_err(|_| anyhow::anyhow!("the daemon panicked"))?
    }
}

fn reservation(socket: &Path, query: &Query) -> Result<Reservation> {
    match ask(socket, query)? {
        Answer::Reservation(reservation) => Ok(*reservation),
        other => bail!("unexpected answer {other:?}"),
    }
}

/// CPU time in each whole period from `begin` on.
fn delivered(intervals: &[(u64, u64)], begin: u64, end: u64, period: u64) -> Vec<u64> {
    let count = usize::try_from((end - begin) / period).unwrap_or(0);
    let mut periods = vec![0; count];
    for &(from, to) in intervals {
        let mut at = from.max(begin);
        while at < to {
            let index = usize::try_from((at - begin) / period).unwrap_or(usize::MAX);
            let Some(sum) = periods.get_mut(index) else { break };
            let until = to.min(begin + (index as u64 + 1) * period);
            *sum += until - at;
            at = until;
        }
    }
    periods
}

/// In microseconds.
fn quantile(sorted: &[u64], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0) as f64 / 1000.0
}

fn precision(seconds: u64, repeats: u64) -> Result<()> {
    let service = Service::start(0.05)?;
    println!("delivered us per period, beside a process that computes on each CPU; {repeats} x {seconds} s");
    println!(
        "{:<24} {:>9} {:>9} {:>9} {:>9} | {:>13} {:>15} {:>13}",
        "", "p1", "p50", "p99", "max", "median error", "shortfall p99", "overrun p99"
    );
    for (period, slice) in [(10 * MS, 5 * MS), (MS, MS / 2), (200 * US, 100 * US)] {
        let mut of_arm: [Vec<u64>; 3] = Default::default();
        for _ in 0..repeats {
            for (arm, name) in ["user", "user hard", "deadline"].iter().enumerate() {
                let _hogs = [Running::start(&["hog", "0"])?, Running::start(&["hog", "1"])?];
                let target = Running::start(&["target", &(seconds * 1000 + 600).to_string()])?;
                thread::sleep(Duration::from_millis(200));
                let begin = match *name {
                    "deadline" => {
                        let policy = Policy::Deadline {
                            runtime_ns: slice,
                            deadline_ns: period,
                            period_ns: period,
                            flags: 0,
                        };
                        let begin = monotonic_ns();
                        sched::set(target.pid()?, Attributes { policy, reset_on_fork: true })?;
                        begin
                    }
                    _ => {
                        let told = service.reserve(target.pid()?, period, slice, arm == 1)?;
                        ensure!(told.trouble.is_none(), "{:?}", told.trouble);
                        boundary(period)
                    }
                };
                // The first periods are a beginning.
                let begin = begin + (100 * MS).div_ceil(period) * period;
                if *name != "deadline" {
                    thread::sleep(Duration::from_secs(seconds));
                    let told = reservation(
                        &service.socket,
                        &Query::Release { target: Target::Process(target.pid()?) },
                    )?;
                    let (missed, stalls, worst) = (told.misses, told.stalls, told.worst_miss_ns / 1000);
                    eprintln!(
                        "{name} {period} {slice}: {missed} of {} missed, {stalls} in standstills, worst {worst} us",
                        told.periods
                    );
                }
                let end = begin + (seconds * 1000 - 300) * MS;
                of_arm[arm].extend(delivered(&target.intervals()?, begin, end, period));
            }
        }
        for (name, mut periods) in ["user", "user hard", "deadline"].iter().zip(of_arm) {
            periods.sort_unstable();
            let mut short: Vec<u64> = periods.iter().map(|d| slice.saturating_sub(*d)).collect();
            let mut over: Vec<u64> = periods.iter().map(|d| d.saturating_sub(slice)).collect();
            short.sort_unstable();
            over.sort_unstable();
            let part = |us: f64| us * 1000.0 / slice as f64 * 100.0;
            let median = quantile(&periods, 50);
            println!(
                "{:<24} {:>9.1} {:>9.1} {:>9.1} {:>9.1} | {:>11.2} % {:>13.2} % {:>11.2} %",
                format!("({}, {}) us {name}", period / US, slice / US),
                quantile(&periods, 1),
                median,
                quantile(&periods, 99),
                quantile(&periods, 100),
                part((median - slice as f64 / 1000.0).abs()),
                part(quantile(&short, 99)),
                part(quantile(&over, 99)),
            );
        }
    }
    service.end()
}

/// A boundary of periods aligned to the wall clock, on the monotonic one.
fn boundary(period: u64) -> u64 {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = monotonic_ns();
    let wall = u64::try_from(wall.as_nanos()).unwrap_or(0);
    now + period - wall % period
}

/// CPU time of the dispatching thread with twenty targets.
fn load(seconds: u64) -> Result<()> {
    let service = Service::start(0.05)?;
    let targets = (0..20).map(|_| Running::start(&["hog", "0"])).collect::<Result<Vec<_>>>()?;
    for target in &targets {
        service.reserve(target.pid()?, 10 * MS, 500 * US, false)?;
    }
    let before = thread_times()?;
    thread::sleep(Duration::from_secs(seconds));
    let after = thread_times()?;
    for (name, ticks) in after {
        let used = ticks - before.iter().find(|(other, _)| *other == name).map_or(0, |(_, ticks)| *ticks);
        println!("{name}: {:.2} % of one CPU", used as f64 / 1e7 / seconds as f64);
    }
    service.end()
}

/// CPU time of each named thread of this process, in nanoseconds.
fn thread_times() -> Result<Vec<(String, u64)>> {
    let mut times = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")?.flatten() {
        let name = std::fs::read_to_string(task.path().join("comm"))?.trim().to_owned();
        let text = std::fs::read_to_string(task.path().join("schedstat"))?;
        times.push((name, text.split(' ').next().context("no time")?.parse()?));
    }
    Ok(times)
}

/// How soon another reservation holds.
fn change(count: u64) -> Result<()> {
    let service = Service::start(0.05)?;
    let _hogs = [Running::start(&["hog", "0"])?, Running::start(&["hog", "1"])?];
    let target = Running::start(&["target", "600000"])?;
    service.reserve(target.pid()?, 10 * MS, MS, false)?;
    let mut answered = Vec::new();
    for at in 0..count {
        thread::sleep(Duration::from_millis(10 + at % 7));
        let begin = monotonic_ns();
        service.reserve(target.pid()?, 10 * MS, MS + at % 5 * MS, false)?;
        answered.push(monotonic_ns() - begin);
    }
    answered.sort_unstable();
    println!(
        "request to answer, when the change holds: p50 {:.0} us, p99 {:.0} us, max {:.0} us",
        quantile(&answered, 50),
        quantile(&answered, 99),
        quantile(&answered, 100)
    );
    service.end()
}

/// Deadlines missed with nearly all of a CPU reserved.
fn miss(seconds: u64) -> Result<()> {
    let service = Service::start(0.02)?;
    let hogs = [Running::start(&["hog", "0"])?, Running::start(&["hog", "1"])?];
    let sets: [&[(u64, u64)]; 3] = [
        &[(MS, 920 * US), (MS, 920 * US)],
        &[(2 * MS, 920 * US), (5 * MS, 2_350 * US), (2 * MS, 920 * US), (5 * MS, 2_350 * US)],
        &[(4 * MS, 980 * US), (7 * MS, 1_715 * US), (11 * MS, 2_695 * US), (40 * MS, 9_800 * US)],
    ];
    for set in sets {
        let targets = set.iter().map(|_| Running::start(&["hog", "1"])).collect::<Result<Vec<_>>>()?;
        for (target, (period, slice)) in targets.iter().zip(set) {
            service.reserve(target.pid()?, *period, *slice, false)?;
        }
        thread::sleep(Duration::from_secs(seconds));
        for target in &targets {
            let told =
                reservation(&service.socket, &Query::Release { target: Target::Process(target.pid()?) })?;
            println!(
                "({}, {}) us on {:?}: {} of {} missed ({:.3} % without standstills), worst by {} us {}",
                told.period_ns / US,
                told.slice_ns / US,
                told.cpus,
                told.misses,
                told.periods,
                told.misses as f64 * 100.0 / told.periods.max(1) as f64,
                told.worst_miss_ns / 1000,
                told.trouble.unwrap_or_default()
            );
        }
    }
    drop(hogs);
    service.end()
}
