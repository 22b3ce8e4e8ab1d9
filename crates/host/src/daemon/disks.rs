//! Disks of VMs that back ends (`frontdesk disk`) serve, and what these are told.

use crate::identity::{Identities, Identity};
use frontdesk_control_protocol::DiskStatus;
use frontdesk_disk_protocol::{ALIVE, Channel, DiskReport, FromDaemon, Layout};
use frontdesk_engine::{Time, UserInput, VmId, nanos};
use frontdesk_linux::sched::ThreadId;
use frontdesk_qemu::QemuVm;
use frontdesk_ring::TaskWords;
use rustix::fd::BorrowedFd;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All back ends.
#[derive(Debug, Default)]
pub(super) struct Disks {
    back_ends: BTreeMap<u32, Arc<Channel>>,
    /// Disks to which a VM is connected.
    served: Vec<ServedDisk>,
    /// When they were told last that we are there.
    alive: Time,
}

/// A disk: by its back end, and the number that this has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskId {
    pub(super) back_end: u32,
    pub(super) number: u16,
}

/// A disk of a VM.
#[derive(Debug)]
pub(super) struct ServedDisk {
    id: DiskId,
    name: String,
    /// QEMU's process, by its first thread.
    qemu: ThreadId,
    /// What serves it.
    thread: ThreadId,
    /// Whether its back end can look up who asks.
    told: bool,
    /// The eventfds by which the VM notifies it.
    eventfds: Vec<u32>,
    /// Whether it was said that the kernel does not let it.
    refused: bool,
    report: DiskReport,
}

impl ServedDisk {
    /// As it is told, with the names of tasks as far as they are known.
    pub(super) fn status(&self, vm: VmId, qemu: &QemuVm, identities: &Identities) -> DiskStatus {
        let mut report = self.report.clone();
        let identity = identities.of(vm);
        // A reporter that is believed has other names for tasks than those that asked.
        let named = identity.is_some_and(|identity| identity != Identity::Reporter);
        for application in &mut report.applications {
            let task = application.task.filter(|_| named);
            let process = task.and_then(|task| identities.process(vm, task));
            application.name = process.map(|(_, name)| name.to_owned());
        }
        let (queues, vcpus) = (usize::from(report.queues), qemu.vcpus.len());
        let trouble = if !self.told {
            let why = match identity {
                Some(Identity::Reporter) => "a guest's reporter does not tell it in time",
                Some(_) => "the kernel did not take what tells it, as the daemon's log says",
                None => "the VM's guest tasks cannot be told apart",
            };
            Some(format!("which task asks is not known: {why}"))
        } else if vcpus > 1 && queues != vcpus && queues > 0 {
            Some(format!("it has {queues} queues for {vcpus} vCPUs: give QEMU's device num-queues={vcpus}"))
        } else {
            None
        };
        DiskStatus { name: self.name.clone(), thread: self.thread.tid, trouble, report }
    }
}

impl Disks {
    /// Tells a back end something. One that does not read is not told anything more.
    fn say(&self, back_end: u32, message: FromDaemon, memory: Option<BorrowedFd<'_>>) {
        let Some(channel) = self.back_ends.get(&back_end) else { return };
        if let Err(error) = channel.send(&message, memory) {
            tracing::debug!("a back end of disks is told nothing more: {error}");
            // Its own thread sees that.
            channel.close();
        }
    }

    /// The disks of a VM.
    pub(super) fn of(&self, qemu: &QemuVm) -> impl Iterator<Item = &ServedDisk> {
        let main = qemu.main_thread();
        self.served.iter().filter(move |disk| disk.qemu == main)
    }

    /// The threads that serve them.
    pub(super) fn threads(&self, qemu: &QemuVm) -> impl Iterator<Item = ThreadId> {
        self.of(qemu).map(|disk| disk.thread)
    }

    /// A person did something in a VM.
    pub(super) fn input(&self, qemu: &QemuVm, input: UserInput, at: Time) {
        for disk in self.of(qemu) {
            let DiskId { back_end, number } = disk.id;
            self.say(back_end, FromDaemon::Input { disk: number, input, at_ns: at.0 }, None);
        }
    }

    /// Tells where to look up who asks in a VM, if it has such a disk and that is known.
    pub(super) fn offer(&mut self, vm: VmId, qemu: &QemuVm, identities: &mut Identities) {
        if self.of(qemu).next().is_none() {
            return;
        }
        let eventfds: Vec<u32> = self.of(qemu).flat_map(|disk| &disk.eventfds).copied().collect();
        let (memory, words) = match identities.task_words(vm, &eventfds) {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => {
                let of_vm = self.served.iter_mut().filter(|disk| disk.qemu == qemu.main_thread());
                for disk in of_vm.filter(|disk| !disk.told && !disk.refused) {
                    tracing::warn!(
                        disk = disk.name,
                        "which task asks for what it does is not known: {error}"
                    );
                    disk.refused = true;
                }
                return;
            }
        };
        let TaskWords { current, notified, notifications, stride } = words;
        let layout = Layout { current, notified, notifications, stride };
        let vcpus = qemu.vcpus.last().map_or(0, |(index, _)| index.saturating_add(1));
        for index in 0..self.served.len() {
            let ServedDisk { id: DiskId { back_end, number: disk }, told, .. } = self.served[index];
            if self.served[index].qemu == qemu.main_thread() && !told {
                self.say(back_end, FromDaemon::Askers { disk, vcpus, layout }, Some(memory));
                self.served[index].told = true;
            }
        }
    }

    /// It is not known any more who asks in a VM.
    pub(super) fn withdraw(&mut self, qemu: &QemuVm) {
        for index in 0..self.served.len() {
            let ServedDisk { id: DiskId { back_end, number: disk }, told, .. } = self.served[index];
            if self.served[index].qemu == qemu.main_thread() && told {
                self.say(back_end, FromDaemon::NoAskers { disk }, None);
                self.served[index].told = false;
            }
        }
    }

    /// A back end is there.
    pub(super) fn come(&mut self, back_end: u32, channel: Arc<Channel>) {
        self.back_ends.insert(back_end, channel);
        self.say(back_end, FromDaemon::Alive {}, None);
    }

    /// A back end is gone.
    pub(super) fn gone(&mut self, back_end: u32) {
        self.back_ends.remove(&back_end);
        self.served.retain(|disk| disk.id.back_end != back_end);
    }

    /// The QEMU process `qemu` is connected to a disk, which a thread serves.
    pub(super) fn attached(&mut self, disk: DiskId, name: String, qemu: ThreadId, thread: ThreadId) {
        self.detached(disk);
        let report = DiskReport::default();
        let (told, refused, eventfds) = (false, false, Vec::new());
        self.served.push(ServedDisk { id: disk, name, qemu, thread, told, eventfds, refused, report });
    }

    /// It is connected no longer.
    pub(super) fn detached(&mut self, disk: DiskId) {
        self.served.retain(|served| served.id != disk);
    }

    /// The eventfds by which its VM notifies a disk.
    pub(super) fn notified_by(&mut self, disk: DiskId, eventfds: Vec<u32>) {
        if let Some(served) = self.served.iter_mut().find(|served| served.id == disk) {
            served.eventfds = eventfds;
        }
    }

    /// What was served of a disk.
    pub(super) fn reported(&mut self, disk: DiskId, report: DiskReport) {
        if let Some(served) = self.served.iter_mut().find(|served| served.id == disk) {
            served.report = report;
        }
    }

    /// The QEMU process that is connected to a disk.
    pub(super) fn qemu(&self, disk: DiskId) -> Option<ThreadId> {
        self.served.iter().find(|served| served.id == disk).map(|served| served.qemu)
    }

    /// A VM has ended.
    pub(super) fn ended(&mut self, qemu: &QemuVm) {
        self.served.retain(|disk| disk.qemu != qemu.main_thread());
    }

    /// Says that we are there, once in a while.
    pub(super) fn alive(&mut self, now: Time) {
        if now.since(self.alive) >= nanos(ALIVE) {
            self.alive = now;
            self.back_ends.keys().for_each(|back_end| self.say(*back_end, FromDaemon::Alive {}, None));
        }
    }
}
