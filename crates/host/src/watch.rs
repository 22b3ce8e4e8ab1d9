//! Finds VMs as they come and go, on a thread of its own: what takes time happens here, and the daemon's
//! loop, which decides within microseconds, only hears of it.
//!
//! One thread looks at all QMP sockets ([`sockets`]), however many a host has, and waits for none. libvirt's
//! VMs are looked for in `/proc` ([`libvirt`]). Another thread sets probes ([`context`]), for the kernel
//! takes its time for that.

mod context;
mod libvirt;
mod sockets;

pub(crate) use context::WatchContext;

use crate::config::VmsSettings;
use crate::notification::{Notification, VmOrigin};
use crate::wake::Wake;
use libvirt::LibvirtScan;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use sockets::{Round, WatchedSocket};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How often everything is looked at, whether the kernel says that something changed or not.
const TICK: Duration = Duration::from_millis(500);
/// Changes in a folder come in bursts, and others' may never end.
const BURST: Duration = Duration::from_millis(20);
/// More sockets than any host has VMs: a bound if a pattern matches too much.
const MAX_SOCKETS: usize = 1024;

/// The control of the thread that watches. It ends when this is dropped.
pub(crate) struct Watcher {
    orders: Sender<VmsSettings>,
    bell: Wake,
}

impl Watcher {
    /// Starts to watch, and to tell the context's mailbox. After everything that is there at the beginning
    /// was tried once, it tells that.
    pub(crate) fn start(vms: VmsSettings, context: WatchContext) -> io::Result<Watcher> {
        let bell = Wake::new()?;
        let (orders, receiver) = channel();
        let watch = Watch {
            vms,
            libvirt: LibvirtScan::new(context.clone()),
            round: Some(Arc::new(Round::new(context.mailbox.clone()))),
            context,
            inotify: inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?,
            sockets: BTreeMap::new(),
            scan: Instant::now(),
            missing: BTreeSet::new(),
            too_many: false,
        };
        let theirs = bell.clone();
        std::thread::Builder::new().name("watcher".into()).spawn(move || watch.run(&receiver, &theirs))?;
        Ok(Watcher { orders, bell })
    }

    /// Follows other VMs from now on.
    pub(crate) fn set(&self, vms: VmsSettings) {
        // A watcher that ended by a panic has told that already.
        let _ = self.orders.send(vms);
        self.bell.ring();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // That the former is gone tells the thread to end.
        self.orders = channel().0;
        self.bell.ring();
    }
}

struct Watch {
    vms: VmsSettings,
    context: WatchContext,
    libvirt: LibvirtScan,
    round: Option<Arc<Round>>,
    inotify: OwnedFd,
    sockets: BTreeMap<PathBuf, WatchedSocket>,
    /// When everything is looked at.
    scan: Instant,
    /// Sockets named in full that are not there, which was told.
    missing: BTreeSet<String>,
    too_many: bool,
}

impl Watch {
    fn run(mut self, orders: &Receiver<VmsSettings>, bell: &Wake) {
        let mut ready = BTreeSet::new();
        loop {
            let now = Instant::now();
            for (path, socket) in &mut self.sockets {
                socket.turn(now, ready.contains(path), &self.context);
            }
            if now >= self.scan {
                self.scan();
                self.scan = Instant::now() + TICK;
                self.round = None;
            }
            ready = self.wait(bell);
            loop {
                match orders.try_recv() {
                    Ok(vms) => self.change(vms),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    /// Waits until something comes or is due; the sockets where something came.
    fn wait(&mut self, bell: &Wake) -> BTreeSet<PathBuf> {
        let now = Instant::now();
        let due = self.sockets.values().map(|socket| socket.due(now)).min();
        let until = due.map_or(self.scan, |due| due.min(self.scan)).saturating_duration_since(now);
        let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
        let mut paths = Vec::new();
        for (path, socket) in &self.sockets {
            if let Some(fd) = socket.readable(now) {
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
                paths.push(path);
            }
        }
        // What has changed is looked at soon, and more than that can wait.
        let changes = self.scan > now + BURST;
        if changes {
            fds.push(PollFd::new(&self.inotify, PollFlags::IN));
        }
        let came = match poll(&mut fds, Timespec::try_from(until).ok().as_ref()) {
            Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
            // After a signal, what is due is done.
            Err(_) => vec![false; fds.len()],
        };
        if came[0] {
            bell.take();
            self.scan = now;
        }
        let ready = paths.iter().zip(&came[1..]).filter(|(_, came)| **came).map(|(path, _)| (*path).clone());
        let ready = ready.collect();
        if changes && came.last() == Some(&true) {
            empty(&self.inotify);
            self.scan = self.scan.min(now + BURST);
        }
        ready
    }

    fn change(&mut self, vms: VmsSettings) {
        self.vms = vms;
        if !self.vms.libvirt {
            self.libvirt.forget();
            self.context.mailbox.post(Notification::Withdrawn(VmOrigin::Libvirt));
        }
        let wanted: Vec<_> = self.vms.qmp.iter().filter_map(|text| glob::Pattern::new(text).ok()).collect();
        let withdrawn = self.sockets.extract_if(.., |path, _| !wanted.iter().any(|p| p.matches_path(path)));
        for (path, _) in withdrawn {
            self.context.mailbox.post(Notification::Withdrawn(VmOrigin::Qmp(path)));
        }
    }

    fn scan(&mut self) {
        let mut found = BTreeMap::new();
        for pattern in &self.vms.qmp {
            let before = found.len();
            // A folder that cannot be read has nothing that could be followed.
            for path in glob::glob(pattern).into_iter().flatten().flatten() {
                found.extend(socket_identity(&path).map(|identity| (path, identity)));
            }
            watch_folder(&self.inotify, literal_folder(pattern));
            let there = found.len() > before || pattern.contains(['*', '?', '[']);
            if there {
                self.missing.remove(pattern);
            } else if !found.contains_key(Path::new(pattern)) && self.missing.insert(pattern.clone()) {
                tracing::info!("there is no QMP socket {pattern} yet: its VM is followed when there is");
            }
        }
        // The VM of one that has vanished, if it still runs, is followed on without.
        self.sockets.retain(|path, _| found.contains_key(path));
        for (path, identity) in found {
            if let Some(folder) = path.parent() {
                watch_folder(&self.inotify, folder);
            }
            match self.sockets.get_mut(&path) {
                Some(watched) => watched.is(identity),
                None => self.watch_socket(path, identity),
            }
        }
        if self.vms.libvirt {
            self.libvirt.scan();
        }
    }

    fn watch_socket(&mut self, path: PathBuf, identity: (u64, u64)) {
        let full = self.sockets.len() >= MAX_SOCKETS;
        if full != std::mem::replace(&mut self.too_many, full) && full {
            tracing::warn!("vms.qmp matches more than {MAX_SOCKETS} sockets: the rest is not looked at");
        }
        if full {
            return;
        }
        let watched = WatchedSocket::new(path.clone(), identity, self.round.clone());
        self.sockets.insert(path, watched);
    }
}

fn socket_identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_socket())?;
    Some((metadata.dev(), metadata.ino()))
}

/// The deepest folder that a pattern names in full.
fn literal_folder(pattern: &str) -> &Path {
    let literal = pattern.find(['*', '?', '[']).map_or(pattern, |wild| &pattern[..wild]);
    Path::new(
        literal.rsplit_once('/').map_or("/", |(folder, _)| if folder.is_empty() { "/" } else { folder }),
    )
}

/// Watching what is watched already changes nothing. What cannot be watched is looked at now and then all the
/// same.
fn watch_folder(inotify: &OwnedFd, folder: &Path) {
    let changes = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ONLYDIR;
    let _ = inotify::add_watch(inotify, folder, changes);
}

/// Takes what can be read: that something happened is all that counts.
fn empty(fd: &OwnedFd) {
    let mut buffer = [0; 4096];
    while matches!(rustix::io::read(fd, &mut buffer), Ok(1..) | Err(Errno::INTR)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_to_watch_is_the_deepest_that_is_named_in_full() {
        for (pattern, folder) in [
            ("/run/vms/*.qmp", "/run/vms"),
            ("/run/alice.qmp", "/run"),
            ("/run/vm-?/qmp", "/run"),
            ("/*/qmp", "/"),
            ("/qmp", "/"),
        ] {
            assert_eq!(literal_folder(pattern), Path::new(folder), "{pattern}");
        }
    }
}
