//! What other threads tell the daemon's loop: those that watch for VMs, the one that keeps reservations, and
//! whoever reloads.

use crate::config::Settings;
use crate::control::ReservationRequest;
use crate::wake::Wake;
use frontdesk_disk_protocol::{Channel, DiskReport};
use frontdesk_engine::reservation::TargetId;
use frontdesk_linux::cgroup::{Group, Hierarchy};
use frontdesk_linux::sched::ThreadId;
use frontdesk_probes::bpf::Probes;
use frontdesk_qemu::{QemuVm, VmEvent};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Notifications that may wait to be taken. Who has more waits: it is never the loop.
const CAPACITY: usize = 256;

/// Where a VM was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VmOrigin {
    /// At this QMP socket.
    Qmp(PathBuf),
    /// Among libvirt's.
    Libvirt,
}

/// The control group of a VM.
#[derive(Debug)]
pub(crate) struct VmCgroup {
    pub(crate) group: Group,
    /// Whether no other process is in it.
    pub(crate) alone: bool,
}

impl VmCgroup {
    pub(crate) fn of(hierarchy: &Hierarchy, vm: &QemuVm) -> Result<VmCgroup, String> {
        let group = hierarchy.group_of(vm.pid).map_err(|error| error.to_string())?;
        // Before Linux 6.4 vhost workers are processes, which the kernel puts into the VM's groups of
        // version 1.
        let own: Vec<i32> = vm.emulators.iter().map(|thread| thread.tid).collect();
        let alone = group.holds_only(&own).map_err(|error| error.to_string())?;
        Ok(VmCgroup { group, alone })
    }
}

/// A VM as it was just found.
#[derive(Debug)]
pub(crate) struct Sighting {
    pub(crate) source: VmOrigin,
    pub(crate) name: String,
    pub(crate) vm: QemuVm,
    pub(crate) place: Result<VmCgroup, String>,
}

/// What a back end of disks tells, looked through.
#[derive(Debug)]
pub(crate) enum DiskNews {
    /// It is there, and hears what is said in this channel.
    Come(Arc<Channel>),
    /// The QEMU process `qemu` is connected to a disk of this name.
    Attached {
        disk: u16,
        name: String,
        qemu: ThreadId,
        /// Its thread that serves the disk.
        thread: ThreadId,
    },
    /// It is connected no longer.
    Detached { disk: u16 },
    /// Its guest notifies it by these eventfds.
    Notifiers { disk: u16, eventfds: Vec<u32> },
    /// What was served.
    Report { disk: u16, report: DiskReport },
    /// A read was taken up, or is done.
    Read { disk: u16, request: u32, done: bool },
    /// It is gone.
    Gone,
}

/// What there is to tell.
#[derive(Debug)]
pub(crate) enum Notification {
    /// A VM is there, or still there.
    Seen(Box<Sighting>),
    /// These VMs, by name, have reservations, and no others; all targets that have some; whether real time is
    /// kept for any; and after how many requests for reservations that is so.
    Reserved { vms: BTreeSet<String>, targets: BTreeMap<TargetId, String>, any: bool, asked: u64 },
    /// A request for a reservation that is not to be refused, as things are.
    Admissible(ReservationRequest),
    /// These probes are set in the VM with this main thread.
    Probed(ThreadId, Probes),
    /// Of the back end of disks with this number.
    Disk(u32, DiskNews),
    /// Something happened to the VM with this main thread.
    Happened(ThreadId, VmEvent),
    /// VMs found here are not to be followed any more.
    Withdrawn(VmOrigin),
    /// All that was there at the beginning was tried.
    Settled,
    /// The configuration is to be another.
    Settings(Box<Settings>),
    /// The configuration was to be another, but that is wrong.
    Refused(String),
}

/// Takes notifications for the loop.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    sender: SyncSender<Notification>,
    bell: Wake,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<(Mailbox, Receiver<Notification>)> {
        let bell = Wake::new()?;
        let (sender, receiver) = sync_channel(CAPACITY);
        Ok((Mailbox { sender, bell }, receiver))
    }

    /// Waits while the box is full; when nobody will take it any more, it is nobody's business.
    pub(crate) fn post(&self, notification: Notification) {
        if self.sender.send(notification).is_ok() {
            self.bell.ring();
        }
    }

    /// Readable when there are notifications.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// To be called before the notifications are taken.
    pub(crate) fn silence(&self) {
        self.bell.take();
    }
}
