//! What back ends of disks tell, and when they are told something.

use super::disks::DiskId;
use super::{Daemon, DaemonError};
use crate::clock::monotonic;
use crate::notification::DiskNews;
use frontdesk_engine::{EventKind, Time, UserInput, VmId};
use frontdesk_linux::sched::ThreadId;

impl Daemon {
    /// A back end told something.
    pub(super) fn disk_news(&mut self, back_end: u32, news: DiskNews) -> Result<(), DaemonError> {
        let id = |number| DiskId { back_end, number };
        match news {
            DiskNews::Come(channel) => self.disks.come(back_end, channel),
            DiskNews::Gone => self.disks.gone(back_end),
            DiskNews::Attached { disk, name, qemu, thread } => {
                self.disks.attached(id(disk), name, qemu, thread);
                if let Some(vm) = self.vm_of(qemu) {
                    self.offer_askers(vm);
                }
            }
            DiskNews::Detached { disk } => self.disks.detached(id(disk)),
            DiskNews::Notifiers { disk, eventfds } => {
                self.disks.notified_by(id(disk), eventfds);
                if let Some(vm) = self.disks.qemu(id(disk)).and_then(|qemu| self.vm_of(qemu)) {
                    self.offer_askers(vm);
                }
            }
            DiskNews::Report { disk, report } => self.disks.reported(id(disk), report),
            DiskNews::Read { disk, request, done } => {
                let vm = self.disks.qemu(id(disk)).and_then(|qemu| self.vm_of(qemu));
                let Some(vm) = vm else { return Ok(()) };
                // Reads of QEMU's own disks are told apart by their addresses, which are none of these.
                let request = u64::from(disk) << 32 | u64::from(request);
                return self.feed(match done {
                    true => EventKind::BlockDone { vm, request },
                    false => EventKind::BlockRead { vm, request },
                });
            }
        }
        Ok(())
    }

    fn vm_of(&self, qemu: ThreadId) -> Option<VmId> {
        self.vms.iter().find(|vm| vm.qemu.main_thread() == qemu).map(|vm| vm.id)
    }

    /// Tells the back ends of a VM's disks where to look up who asks.
    pub(super) fn offer_askers(&mut self, id: VmId) {
        if let Some(vm) = self.vms.iter().find(|vm| vm.id == id) {
            self.disks.offer(id, &vm.qemu, &mut self.identities);
        }
    }

    /// The back ends of disks hear of what a person does.
    pub(super) fn tell_of_input(&self, id: VmId, input: UserInput, at: Time) {
        if let Some(vm) = self.vms.iter().find(|vm| vm.id == id) {
            self.disks.input(&vm.qemu, input, at);
        }
    }

    /// Says to back ends that the daemon is there.
    pub(super) fn tell_disks(&mut self) {
        self.disks.alive(monotonic());
    }
}
