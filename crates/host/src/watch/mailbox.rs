//! What the watching threads tell the daemon's loop.

use crate::bpf::{Probes, ReadProbes};
use crate::cgroup::{Group, Hierarchy};
use crate::config::Settings;
use crate::qemu::{QemuVm, VmEvent};
use crate::sched::ThreadId;
use frontdesk_engine::reservation::TargetId;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// News that may wait to be taken. Who has more waits: it is never the loop.
const CAPACITY: usize = 256;
/// Characters of a VM's name that are kept. libvirt and QEMU set no limit.
const NAME_MAX: usize = 64;

/// Where a VM was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// At this QMP socket.
    Qmp(PathBuf),
    /// Among libvirt's.
    Libvirt,
}

/// The control group of a VM.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) group: Group,
    /// Whether no other process is in it.
    pub(crate) alone: bool,
}

impl Place {
    pub(crate) fn of(hierarchy: &Hierarchy, pid: i32) -> Result<Place, String> {
        let group = hierarchy.group_of(pid).map_err(|error| error.to_string())?;
        let alone = group.holds_only(pid).map_err(|error| error.to_string())?;
        Ok(Place { group, alone })
    }
}

/// A VM as it was just found.
#[derive(Debug)]
pub(crate) struct Sighting {
    pub(crate) source: Source,
    pub(crate) name: String,
    pub(crate) vm: QemuVm,
    pub(crate) place: Result<Place, String>,
}

#[derive(Debug)]
pub(crate) enum News {
    /// A VM is there, or still there.
    Seen(Box<Sighting>),
    /// These VMs, by name, have reservations, and no others; all targets that have some; whether real time is
    /// kept for any; and after how many requests for reservations that is so.
    Reserved { vms: BTreeSet<String>, targets: BTreeMap<TargetId, String>, any: bool, asked: u64 },
    /// The reads of the VM with this main thread can be followed, or why not.
    Probed(ThreadId, Result<Probes, String>),
    /// Something happened to the VM with this main thread.
    Happened(ThreadId, VmEvent),
    /// VMs found here are not to be followed any more.
    Withdrawn(Source),
    /// All that was there at the beginning was tried.
    Settled,
    /// The configuration is to be another.
    Settings(Box<Settings>),
    /// The configuration was to be another, but that is wrong.
    Refused(String),
}

/// What a watching thread needs to look at a VM and to tell of it.
#[derive(Clone)]
pub(crate) struct Kit {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) probes: ReadProbes,
    pub(crate) mailbox: Mailbox,
}

impl Kit {
    /// Tells of a VM.
    pub(crate) fn tell(&self, source: Source, name: &str, vm: QemuVm) {
        let name = name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
        let place = Place::of(&self.hierarchy, vm.pid);
        self.mailbox.post(News::Seen(Box::new(Sighting { source, name, vm, place })));
    }

    /// Sets probes for a VM that was told of.
    pub(crate) fn probe(&self, main: ThreadId) {
        let probes = self.probes.attach(main.pid).map_err(|error| error.to_string());
        self.mailbox.post(News::Probed(main, probes));
    }
}

/// Takes news for the loop.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    sender: SyncSender<News>,
    bell: Arc<OwnedFd>,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<(Mailbox, Receiver<News>)> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, receiver) = sync_channel(CAPACITY);
        Ok((Mailbox { sender, bell }, receiver))
    }

    /// Waits while the box is full; when nobody will take it any more, it is nobody's business.
    pub(crate) fn post(&self, news: News) {
        if self.sender.send(news).is_ok() {
            let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Readable when there is news.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// To be called before the news is taken.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }
}
