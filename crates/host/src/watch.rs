//! Finds VMs as they come and go, on threads of its own: what takes time or can stall happens here, and the
//! daemon's loop, which decides within microseconds, only hears of it.
//!
//! Each QMP socket has a thread ([`socket`]), for whoever listens there may stall: it keeps nobody else
//! waiting then. libvirt's VMs are looked for in `/proc` ([`libvirt`]).

mod context;
mod libvirt;
mod socket;

pub(crate) use context::WatchContext;

use crate::config::VmsSettings;
use crate::notification::{Notification, VmOrigin};
use crate::wake::Wake;
use libvirt::LibvirtScan;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use socket::{Round, SocketWatcher};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::time::Duration;

/// How often everything is looked at, whether the kernel says that something changed or not.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// Changes in a folder come in bursts, and others' may never end.
const BURST: Duration = Duration::from_millis(20);
/// More sockets than any host has VMs: a bound on threads if a pattern matches too much.
const MAX_SOCKETS: usize = 1024;
/// A socket's thread reads and writes messages on its heap.
const SOCKET_STACK: usize = 256 << 10;

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
    /// Sockets named in full that are not there, which was told.
    missing: BTreeSet<String>,
    too_many: bool,
}

/// A socket with a thread.
struct WatchedSocket {
    /// The thread ends when this is dropped.
    pokes: std::sync::mpsc::SyncSender<()>,
    /// Device and inode: another one at the same place is another VM's.
    identity: (u64, u64),
}

impl Watch {
    fn run(mut self, orders: &Receiver<VmsSettings>, bell: &Wake) {
        loop {
            self.scan();
            self.round = None;
            let ready = poll(
                &mut [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(bell, PollFlags::IN)],
                Some(&TICK),
            );
            if ready.is_ok_and(|ready| ready > 0) {
                std::thread::sleep(BURST);
                empty(&self.inotify);
                bell.take();
            }
            loop {
                match orders.try_recv() {
                    Ok(vms) => self.change(vms),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
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
        // One that has vanished ends its thread. The VM, if it still runs, is followed on without.
        self.sockets.retain(|path, _| found.contains_key(path));
        for (path, identity) in found {
            if let Some(folder) = path.parent() {
                watch_folder(&self.inotify, folder);
            }
            match self.sockets.get_mut(&path) {
                Some(watched) if watched.identity == identity => {}
                Some(watched) => {
                    watched.identity = identity;
                    // If one is waiting to be taken already, that does.
                    let _ = watched.pokes.try_send(());
                }
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
        let (pokes, receiver) = sync_channel(1);
        let watcher = SocketWatcher::new(path.clone(), self.context.clone(), receiver, self.round.clone());
        let thread = std::thread::Builder::new().name("socket".into()).stack_size(SOCKET_STACK);
        match thread.spawn(move || watcher.run()) {
            Ok(_) => drop(self.sockets.insert(path, WatchedSocket { pokes, identity })),
            // The next scan tries again.
            Err(error) => tracing::warn!("QMP socket {}: no thread to look at it: {error}", path.display()),
        }
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
