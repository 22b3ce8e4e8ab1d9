//! The reporter's life: wait for a host that listens, then tell it what happens.

use crate::follower::Follower;
use crate::isolation::{Isolator, guardian};
use crate::pacer::Pacer;
use crate::port::{Port, PortError};
use crate::priority;
use crate::rings::{self, Ring, RingError};
use crate::tasks::System;
use crate::tracepoint::{SchedSwitch, TracepointError};
use frontdesk_guest_protocol::HEARTBEAT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often it looks whether a host has connected: the port cannot be waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why the reporter cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReporterError {
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Tracepoint(#[from] TracepointError),
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("cannot tell which CPUs are online: {0}")]
    Cpus(io::Error),
    #[error("waiting failed: {0}")]
    Wait(#[from] Errno),
}

/// Why telling has ended.
enum End {
    /// Nobody listens any more.
    Unheard,
    /// All is to begin anew: CPUs came or went, or the host wants to be told at once, or no longer.
    Anew,
}

/// Tells whoever listens at the port at `path` what happens, for ever; and isolates background work when it
/// says so, if it may.
pub(crate) fn run(path: &Path, isolate: bool) -> Result<Infallible, ReporterError> {
    let tracepoint = SchedSwitch::find()?;
    if let Err(error) = priority::enter() {
        eprintln!(
            "frontdesk-guest: reports may come late while the guest computes, because this process cannot become real-time: \
             {error}; it needs root or CAP_SYS_NICE"
        );
    }
    if let Err(error) = guardian::recover() {
        eprintln!("frontdesk-guest: what another left moved stays so: {error}");
    }
    // What is missing is told before anybody listens.
    watch(&tracepoint, true)?;
    let mut port = Port::open(path)?;
    let mut isolator = isolate.then(Isolator::new);
    loop {
        if port.has_host()? {
            let mut interval = Duration::ZERO;
            loop {
                let end = tell(&mut port, &tracepoint, isolator.as_mut(), &mut interval);
                // Nobody orders it any more, or other vCPUs are there.
                if let Some(isolator) = &mut isolator {
                    isolator.end();
                }
                if let End::Unheard = end? {
                    break;
                }
            }
        }
        sleep(PATIENCE);
    }
}

/// Begins to watch all CPUs. Returns their rings, and how many vCPUs the guest has.
fn watch(tracepoint: &SchedSwitch, at_once: bool) -> Result<(Vec<Ring>, u16), ReporterError> {
    let cpus = rings::cpus().map_err(ReporterError::Cpus)?;
    let vcpus = cpus.iter().max().map_or(0, |last| last.saturating_add(1));
    let rings = cpus.into_iter().map(|cpu| Ring::open(cpu, tracepoint, at_once));
    Ok((rings.collect::<Result<_, _>>()?, vcpus))
}

/// Tells a host that listens what happens, at an `interval` that the host may change.
fn tell(
    port: &mut Port,
    tracepoint: &SchedSwitch,
    mut isolator: Option<&mut Isolator>,
    interval: &mut Duration,
) -> Result<End, ReporterError> {
    let (mut rings, vcpus) = watch(tracepoint, interval.is_zero())?;
    let mut follower = Follower::new(System, vcpus);
    follower.begin(now_ns());
    let mut pacer = Pacer::default();
    pacer.set_interval(*interval);
    let mut heartbeat = Instant::now();
    let mut is_called = false;
    loop {
        let begun = now_ns();
        for ring in &mut rings {
            let cpu = ring.cpu();
            ring.drain(tracepoint, |entry| follower.take(cpu, &entry));
        }
        let due = heartbeat <= Instant::now();
        if due && rings::cpus().map_err(ReporterError::Cpus)?.into_iter().ne(rings.iter().map(Ring::cpu)) {
            return Ok(End::Anew);
        }
        if due || is_called {
            let Some(wanted) = port.read()? else { return Ok(End::Unheard) };
            if wanted.begin {
                follower.begin(now_ns());
            }
            if let Some(wanted) = wanted.interval {
                pacer.set_interval(wanted);
                if std::mem::replace(interval, wanted).is_zero() != wanted.is_zero() {
                    return Ok(End::Anew);
                }
            }
            if let (Some(isolator), Some(episode)) = (&mut isolator, wanted.episode) {
                match episode {
                    Some(order) => isolator.begin(order, Instant::now()),
                    None => isolator.end(),
                }
            }
        }
        if let Some(isolator) = &mut isolator {
            isolator.look(Instant::now());
            follower.set_isolation(isolator.state());
        }
        if due || follower.has_pending() {
            send(port, &mut follower)?;
        }
        if due {
            heartbeat = Instant::now() + HEARTBEAT;
        }
        let pause = pacer.ran(begun, now_ns());
        // Without orders to take the port is left out: it would wake this process once more for each report.
        let Some(isolator) = &isolator else {
            sleep(pause);
            wait(&rings, None, heartbeat.saturating_duration_since(Instant::now()))?;
            continue;
        };
        is_called = wait(&[], Some(port), pause)?;
        if !is_called {
            let next = isolator.next_look().map_or(heartbeat, |look| look.min(heartbeat));
            is_called = wait(&rings, Some(port), next.saturating_duration_since(Instant::now()))?;
        }
    }
}

/// Waits until a ring has something, or the host, at most `timeout`. Returns whether the host has.
fn wait(rings: &[Ring], port: Option<&Port>, timeout: Duration) -> Result<bool, ReporterError> {
    let rings = rings.iter().map(|ring| PollFd::new(ring, PollFlags::IN));
    let mut fds: Vec<_> =
        port.map(|port| PollFd::new(port, PollFlags::IN)).into_iter().chain(rings).collect();
    let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
    let timeout = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => Ok(port.is_some() && fds.first().is_some_and(|port| !port.revents().is_empty())),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn send(port: &Port, follower: &mut Follower<System>) -> Result<(), PortError> {
    let sent = port.write(follower.finish(now_ns()))?;
    follower.finished(sent);
    Ok(())
}

fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::MonotonicRaw);
    let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}
