//! Hears the back ends of disks (`frontdesk disk`), for the loop.
//!
//! One thread for all of them. It looks through what they say before the loop hears of it: whose connection
//! it is, and whose threads. Who says too much is heard later, and who says nonsense no more.

use crate::accept_rate::{self, AcceptRate};
use crate::notification::{DiskNews, Mailbox, Notification};
use crate::wake::Wake;
use frontdesk_disk_protocol::{
    Channel, ChannelError, FromDisk, MAX_DISKS, MAX_NAME, MAX_NOTIFIERS, READS, READS_PERIOD, listen,
};
use frontdesk_linux::sched::ThreadId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::socket_peercred;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Most back ends at once: one for each physical disk.
const MAX_BACK_ENDS: usize = 16;
/// Messages of a back end in a period: of reads both begin and end, and some more for all else.
const MESSAGES: u32 = 2 * READS + 28;

/// Who may be a back end, besides root and the daemon's own user.
#[derive(Clone, Debug)]
pub(crate) struct DiskAccess(Option<u32>);

impl DiskAccess {
    /// The user of this name, if there is one.
    pub(crate) fn new(user: &str) -> DiskAccess {
        let found = nix::unistd::User::from_name(user).ok().flatten();
        DiskAccess(found.map(|user| user.uid.as_raw()))
    }

    fn allows(&self, user: u32) -> bool {
        user == 0 || user == rustix::process::geteuid().as_raw() || self.0 == Some(user)
    }
}

/// The thread that hears back ends. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct DiskServer {
    stop: Wake,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl DiskServer {
    /// Listens at `path`.
    ///
    /// # Errors
    /// If there can be no socket or thread.
    pub(crate) fn start(path: &Path, access: DiskAccess, mailbox: Mailbox) -> io::Result<DiskServer> {
        let owner = access.0.filter(|_| rustix::process::geteuid().is_root());
        let listener = listen(path, owner)?;
        let stop = Wake::new()?;
        let (path, told) = (path.to_owned(), stop.clone());
        let mut hearing = Hearing {
            listener,
            access,
            mailbox,
            back_ends: BTreeMap::new(),
            next: 0,
            rate: AcceptRate::new(Instant::now()),
            accepts_at: None,
        };
        let thread = std::thread::Builder::new().name("disks".into()).spawn(move || {
            // What is said of a read cannot wait for ordinary threads.
            accept_rate::become_real_time();
            while hearing.turn(&told) {}
        })?;
        Ok(DiskServer { stop, thread: Some(thread), path })
    }
}

impl Drop for DiskServer {
    fn drop(&mut self) {
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

struct Hearing {
    listener: OwnedFd,
    access: DiskAccess,
    mailbox: Mailbox,
    back_ends: BTreeMap<u32, BackEnd>,
    next: u32,
    rate: AcceptRate,
    /// When the next is accepted, if not at once.
    accepts_at: Option<Instant>,
}

struct BackEnd {
    channel: Arc<Channel>,
    pid: i32,
    since: Instant,
    messages: u32,
}

impl BackEnd {
    /// Whether it may say something now.
    fn may_speak(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= READS_PERIOD {
            (self.since, self.messages) = (now, 0);
        }
        self.messages < MESSAGES
    }
}

impl Hearing {
    /// Waits until there is something to hear, and hears it; false when it is to end.
    fn turn(&mut self, stop: &Wake) -> bool {
        let now = Instant::now();
        let (mut heard, mut silenced) = (Vec::new(), false);
        for (number, back_end) in &mut self.back_ends {
            match back_end.may_speak(now) {
                true => heard.push((*number, Arc::clone(&back_end.channel))),
                false => silenced = true,
            }
        }
        self.accepts_at = self.accepts_at.filter(|at| now < *at);
        silenced |= self.accepts_at.is_some();
        let accepted = if self.accepts_at.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(&self.listener, accepted)];
        fds.extend(heard.iter().map(|(_, channel)| PollFd::new(&**channel, PollFlags::IN)));
        let pause = Timespec { tv_sec: 0, tv_nsec: READS_PERIOD.subsec_nanos().into() };
        // After a signal it is looked again.
        let _ = poll(&mut fds, silenced.then_some(&pause));
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            return false;
        }
        if ready[1] {
            self.accept();
        }
        for ((number, channel), ready) in heard.iter().zip(&ready[2..]) {
            if *ready && let Err(error) = self.hear(*number, channel) {
                match error {
                    ChannelError::Gone => {}
                    error => tracing::warn!("a back end of disks is not heard any more: {error}"),
                }
                channel.close();
                self.back_ends.remove(number);
                self.mailbox.post(Notification::Disk(*number, DiskNews::Gone));
            }
        }
        true
    }

    fn accept(&mut self) {
        let now = Instant::now();
        self.accepts_at = self.rate.count(now).map(|wait| now + wait);
        let Ok(channel) = Channel::accept(&self.listener) else { return };
        let Ok((pid, user)) = channel.peer() else { return };
        if !self.access.allows(user) {
            tracing::warn!(pid, user, "this user may not serve disks: control.disk_user names who may");
            return;
        }
        if self.back_ends.len() >= MAX_BACK_ENDS {
            tracing::warn!(pid, "no more than {MAX_BACK_ENDS} back ends of disks are heard");
            return;
        }
        tracing::info!(pid, "a back end of disks is there");
        let (number, channel) = (self.next, Arc::new(channel));
        self.next = self.next.wrapping_add(1);
        self.mailbox.post(Notification::Disk(number, DiskNews::Come(Arc::clone(&channel))));
        self.back_ends.insert(number, BackEnd { channel, pid, since: Instant::now(), messages: 0 });
    }

    /// Hears one message.
    fn hear(&mut self, number: u32, channel: &Channel) -> Result<(), ChannelError> {
        let Some(back_end) = self.back_ends.get_mut(&number) else { return Ok(()) };
        let Some((message, descriptor)) = channel.receive::<FromDisk>()? else { return Ok(()) };
        back_end.messages += 1;
        if let FromDisk::Notifiers { eventfds, .. } = &message {
            // Each may be a system call for the daemon.
            back_end.messages += u32::try_from(eventfds.len() / 8).unwrap_or(u32::MAX);
        }
        let news = look_through(message, descriptor, back_end.pid).map_err(ChannelError::Nonsense)?;
        self.mailbox.post(Notification::Disk(number, news));
        Ok(())
    }
}

/// What the process `pid` says, if it can be so.
fn look_through(message: FromDisk, descriptor: Option<OwnedFd>, pid: i32) -> Result<DiskNews, String> {
    let known = |disk: u16| {
        if disk < MAX_DISKS { Ok(disk) } else { Err(format!("disk {disk}: it can have {MAX_DISKS}")) }
    };
    Ok(match message {
        FromDisk::Attached { disk, name, thread } => {
            if name.len() > MAX_NAME || name.chars().any(char::is_control) {
                return Err("a name that is too long or cannot be printed".to_owned());
            }
            // Whoever has it, QEMU itself has made the connection.
            let connection = descriptor.ok_or("no connection came with it")?;
            let peer = socket_peercred(&connection).map_err(|e| format!("its connection is none: {e}"))?;
            let thread = ThreadId::of(pid, thread).ok_or("a thread that is not its own")?;
            let qemu = peer.pid.as_raw_nonzero().get();
            let qemu = ThreadId::of(qemu, qemu).ok_or("a connection of a process that has ended")?;
            DiskNews::Attached { disk: known(disk)?, name, qemu, thread }
        }
        FromDisk::Detached { disk } => DiskNews::Detached { disk: known(disk)? },
        FromDisk::Notifiers { disk, eventfds } if eventfds.len() <= MAX_NOTIFIERS => {
            DiskNews::Notifiers { disk: known(disk)?, eventfds }
        }
        FromDisk::Notifiers { .. } => return Err("too many queues".to_owned()),
        FromDisk::Report { disk, report } if report.is_bounded() => {
            DiskNews::Report { disk: known(disk)?, report }
        }
        FromDisk::Report { .. } => return Err("a report that is too long".to_owned()),
        FromDisk::Read { disk, request } => DiskNews::Read { disk: known(disk)?, request, done: false },
        FromDisk::ReadDone { disk, request } => DiskNews::Read { disk: known(disk)?, request, done: true },
    })
}

#[cfg(test)]
mod tests;
