//! The reporter in one VM.

use super::clock::HostTime;
use super::session::{Offence, ReporterSession, ReporterStats, Told};
use frontdesk_engine::{Event, EventKind, Time, VmId};
use frontdesk_guest_protocol::{Decoder, HEARTBEAT, HostMessage, Isolation, MAX_BACKGROUND, VERSION, encode};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with, sockopt,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A guest that says nothing for so long has no reporter any more.
const SILENCE_NS: u64 = 3_000_000_000 * HEARTBEAT.as_secs();
/// Time between two requests to begin anew.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Time to the first attempt after a failure. It doubles with each failure.
const RETRY_NS: u64 = 1_000_000_000;
/// Longest time to the next attempt, and the life of a connection that counts as a success.
const MAX_RETRY_NS: u64 = 64_000_000_000;
/// Bytes taken at a time, more than a report of ours has: no VM holds up the others.
const CHUNK: usize = 4 << 10;

/// Why a guest's reporter cannot be heard.
#[derive(Debug, thiserror::Error)]
pub enum ReporterError {
    /// QEMU's socket cannot be reached.
    #[error("cannot connect to {}, the port of the guest's reporter: {source}; does another program hold it?", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not QEMU's.
    #[error("process {peer} listens at {}, not the VM's QEMU (process {pid})", path.display())]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// The VM's process.
        pid: i32,
        /// The process that listens.
        peer: i32,
    },
    /// QEMU hung up.
    #[error("QEMU closed the port of the guest's reporter")]
    Closed,
    /// The socket failed.
    #[error("the port of the guest's reporter: {0}")]
    Socket(#[from] Errno),
    /// The guest has another version.
    #[error(
        "the guest's reporter speaks version {theirs} of the protocol, and frontdesk version {VERSION}: install matching ones"
    )]
    Version {
        /// The guest's.
        theirs: u16,
    },
    /// The guest sends too much.
    #[error("the guest's reporter sends more than any should, and is not listened to for a while")]
    Flood,
}

/// How it is with a reporter.
#[derive(Debug)]
pub enum ReporterState<'a> {
    /// It tells what happens.
    Live,
    /// The port is there, but nobody speaks: the reporter is not installed, does not run, or the VM is
    /// paused.
    Silent,
    /// It cannot be heard. There will be another attempt.
    Failed(&'a ReporterError),
}

/// A person waits for something that is none of these tasks (vAMP §3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpisodeOrder {
    /// When it began,
    pub since: Time,
    /// and when it ends at the latest.
    pub until: Time,
    /// The background tasks, as process ids of the guest. The first 64 are told.
    pub tasks: Vec<u32>,
    /// Whether it began with sound.
    pub sound: bool,
}

/// Orders come no more often than that, in nanoseconds: moving threads costs the guest something.
const ORDER_INTERVAL_NS: u64 = 100_000_000;

/// The reporter in one VM.
#[derive(Debug)]
pub struct ReporterSource {
    path: PathBuf,
    pid: i32,
    /// Holds the connection while there is one, so that whoever waits need not know that it changes.
    epoll: OwnedFd,
    session: ReporterSession,
    link: Result<ReporterLink, ReporterError>,
    retry_at: Time,
    retry_ns: u64,
    /// The engine is to be told that what it knows is void.
    lost: bool,
    /// How often reports are wanted at most.
    pace: Duration,
    /// The order that holds, to whom that said hello it was given, and when.
    ordered: (Option<EpisodeOrder>, u64, Time),
    /// The vCPUs that the engine knows to be kept for background work.
    told_slow: u64,
}

/// The connection.
struct ReporterLink {
    socket: OwnedFd,
    decoder: Decoder,
    since: Time,
    heard: Time,
    asked: Time,
    pace: Duration,
}

impl std::fmt::Debug for ReporterLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl ReporterSource {
    /// Connects to the reporter of the VM of QEMU process `pid`, which has so many vCPUs, at the socket that
    /// [`find_port`](super::find_port) found. If that fails, it is tried again later; [`state`](Self::state)
    /// tells. Reports come no more often than `pace`, up to a minute; zero is for at once.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn new(path: PathBuf, pid: i32, vcpus: u16, pace: Duration, now: Time) -> io::Result<ReporterSource> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut source = ReporterSource {
            path,
            pid,
            epoll,
            session: ReporterSession::new(vcpus),
            link: Err(ReporterError::Closed),
            retry_at: now,
            retry_ns: RETRY_NS,
            lost: false,
            pace,
            ordered: (None, 0, Time(0)),
            told_slow: 0,
        };
        source.connect(now);
        Ok(source)
    }

    /// The VM has so many vCPUs from now on. What the guest says of others is refused.
    pub fn set_vcpus(&mut self, vcpus: u16) {
        self.session.set_vcpus(vcpus);
    }

    /// An I/O-bound task runs no longer than that: what the guest tells late is held back, so that runs keep
    /// their length, for as long as matters to tell such a task. 0.5 ms until this says otherwise.
    pub fn set_io_threshold(&mut self, threshold: Duration) {
        self.session.set_io_threshold(threshold);
    }

    /// Readable when there is something to [`receive`](Self::receive). Stays the same.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn connect(&mut self, now: Time) {
        let link = ReporterLink::connect(&self.path, self.pid, self.pace, now).and_then(|link| {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&self.epoll, &link.socket, data, epoll::EventFlags::IN)?;
            Ok(link)
        });
        match link {
            Ok(link) => self.link = Ok(link),
            Err(error) => self.fail(error, now),
        }
    }

    fn fail(&mut self, error: ReporterError, now: Time) {
        if self.link.as_ref().is_ok_and(|link| now.since(link.since) >= MAX_RETRY_NS) {
            self.retry_ns = RETRY_NS;
        }
        self.retry_at = now.plus(self.retry_ns);
        self.retry_ns = (2 * self.retry_ns).min(MAX_RETRY_NS);
        self.lost |= self.session.distrust();
        // Closing a descriptor takes it out of the epoll.
        self.link = Err(error);
    }

    /// Takes what has come. To be called when [`fd`](Self::fd) is readable.
    pub fn receive(&mut self, now: HostTime) {
        let Ok(link) = &mut self.link else { return };
        if let Err(error) = link.receive(&mut self.session, now) {
            self.fail(error, now.monotonic);
        }
    }

    /// What it has cost since its second began, in messages: nothing if it is not listened to.
    pub(super) fn cost(&self, now: Time) -> u32 {
        if self.link.is_ok() { self.session.cost(now) } else { 0 }
    }

    /// Listens to it no more for a while.
    pub(super) fn hang_up(&mut self, now: Time) {
        self.fail(ReporterError::Flood, now);
    }

    /// Appends what is due by `now` to `out`, as events of `vm`. To be called often, for it also looks after
    /// the connection.
    pub fn drain(&mut self, vm: VmId, now: Time, out: &mut Vec<Event>) {
        self.look_after(now);
        if std::mem::take(&mut self.lost) {
            out.push(Event { at: now, kind: EventKind::Lost { vm: Some(vm), count: 1 } });
        }
        self.session.drain(vm, now, out);
    }

    /// In place of [`drain`](Self::drain): takes all that was told, which is no event for the engine.
    pub fn take_told(&mut self, now: Time) -> impl Iterator<Item = Told> {
        self.look_after(now);
        self.lost = false;
        self.session.take_told()
    }

    /// Tells the guest of an episode, or (`None`) that none goes on, if it takes orders and does not know.
    /// What cannot be said now is said with a later call.
    pub fn order(&mut self, episode: Option<&EpisodeOrder>, now: Time) {
        let (known, to, at) = &self.ordered;
        let same = known.as_ref() == episode && (*to == self.session.hellos() || episode.is_none());
        let takes = self.session.is_live() && self.isolation() != Isolation::Off;
        if same || !takes || (episode.is_some() && now.since(*at) < ORDER_INTERVAL_NS) {
            return;
        }
        let Ok(link) = &self.link else { return };
        let mut bytes = Vec::new();
        let last = match episode {
            None => HostMessage::EpisodeOver,
            Some(order) => {
                let tasks = order.tasks.iter().take(MAX_BACKGROUND);
                for &task in tasks.clone() {
                    encode(&HostMessage::Background { task }, usize::MAX, &mut bytes);
                }
                let left_ms = u16::try_from(order.until.since(now) / 1_000_000).unwrap_or(u16::MAX);
                let tasks = u8::try_from(tasks.len()).unwrap_or(u8::MAX);
                HostMessage::Episode { left_ms, tasks, sound: order.sound }
            }
        };
        encode(&last, usize::MAX, &mut bytes);
        if send(&link.socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) == Ok(bytes.len()) {
            self.ordered = (episode.cloned(), self.session.hellos(), now);
        }
    }

    /// What the guest says that it does about background work.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        self.session.isolation()
    }

    /// Appends to `out` that the guest keeps other vCPUs for background work than before, as an event of
    /// `vm`.
    pub(super) fn drain_isolation(&mut self, vm: VmId, now: Time, out: &mut Vec<Event>) {
        // It can only do what it was told.
        let slow = match (self.isolation(), &self.ordered.0) {
            (Isolation::Divided { slow, .. }, Some(_)) => slow,
            _ => 0,
        };
        if slow != self.told_slow {
            self.told_slow = slow;
            out.push(Event { at: now, kind: EventKind::Isolated { vm, slow } });
        }
    }

    fn look_after(&mut self, now: Time) {
        match &self.link {
            Ok(link) if now.since(link.heard) > SILENCE_NS => self.lost |= self.session.distrust(),
            Err(_) if now >= self.retry_at => self.connect(now),
            _ => {}
        }
    }

    /// When the next event is due; it is already in memory and wakes nobody.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.session.next_due()
    }

    /// Whether the guest tells what happens. If not, another source is needed.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.session.is_live()
    }

    /// How it is with the reporter.
    #[must_use]
    pub fn state(&self) -> ReporterState<'_> {
        match &self.link {
            Err(error) => ReporterState::Failed(error),
            Ok(_) if self.session.is_live() => ReporterState::Live,
            Ok(_) => ReporterState::Silent,
        }
    }

    /// The name of a process of the guest, as the guest says; it can be printed.
    #[must_use]
    pub fn name(&self, process: u32) -> Option<&str> {
        self.session.name(process)
    }

    /// What came so far.
    #[must_use]
    pub fn stats(&self) -> ReporterStats {
        self.session.stats()
    }

    /// How late its events are given to the engine, so that runs keep their length.
    #[must_use]
    pub fn hold(&self) -> Duration {
        Duration::from_nanos(self.session.hold_ns())
    }
}

impl ReporterLink {
    fn connect(path: &Path, pid: i32, pace: Duration, now: Time) -> Result<ReporterLink, ReporterError> {
        let failed = |error: Errno| ReporterError::Connect { path: path.to_owned(), source: error.into() };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        connect(&socket, &SocketAddrUnix::new(path).map_err(failed)?).map_err(failed)?;
        let peer = sockopt::socket_peercred(&socket).map_err(failed)?.pid.as_raw_nonzero().get();
        if peer != pid {
            return Err(ReporterError::Stranger { path: path.to_owned(), pid, peer });
        }
        let mut link =
            ReporterLink { socket, decoder: Decoder::default(), since: now, heard: now, asked: now, pace };
        link.ask(now);
        Ok(link)
    }

    /// Asks the guest to begin anew.
    fn ask(&mut self, now: Time) {
        let mut request = Vec::new();
        encode(&HostMessage::start(), usize::MAX, &mut request);
        if !self.pace.is_zero() {
            let interval_ms = u16::try_from(self.pace.as_millis()).unwrap_or(u16::MAX);
            encode(&HostMessage::Pace { interval_ms }, usize::MAX, &mut request);
        }
        // A socket that is full has asked already.
        let _ = send(&self.socket, &request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        self.asked = now;
    }

    fn receive(&mut self, session: &mut ReporterSession, now: HostTime) -> Result<(), ReporterError> {
        let mut buffer = [0; CHUNK];
        let length = match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(ReporterError::Closed),
            Ok((_, length)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.heard = now.monotonic;
        let (mut stale, mut result) = (false, session.woken(now));
        self.decoder.feed(&buffer[..length], |message| {
            if result.is_ok() {
                result = session.take(message, now).map(|unusable| stale |= unusable);
            }
        });
        if stale && now.monotonic.since(self.asked) >= PATIENCE_NS {
            self.ask(now.monotonic);
        }
        result.map_err(|offence| match offence {
            Offence::Version(theirs) => ReporterError::Version { theirs },
            Offence::Flood => ReporterError::Flood,
        })
    }
}

#[cfg(test)]
mod tests;
