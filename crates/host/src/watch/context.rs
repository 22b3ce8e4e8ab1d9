//! What a watching thread works with.

use crate::notification::{Mailbox, Notification, Sighting, VmCgroup, VmOrigin};
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_linux::sched::ThreadId;
use frontdesk_probes::bpf::QemuProbes;
use frontdesk_qemu::QemuVm;

/// Characters of a VM's name that are kept. libvirt and QEMU set no limit.
const NAME_MAX: usize = 64;

/// What a watching thread needs to look at a VM and to tell of it.
#[derive(Clone)]
pub(crate) struct WatchContext {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) probes: QemuProbes,
    pub(crate) mailbox: Mailbox,
}

impl WatchContext {
    /// Tells of a VM.
    pub(crate) fn tell(&self, source: VmOrigin, name: &str, vm: QemuVm) {
        let name = name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
        let place = VmCgroup::of(&self.hierarchy, &vm);
        self.mailbox.post(Notification::Seen(Box::new(Sighting { source, name, vm, place })));
    }

    /// Sets probes for a VM that was told of.
    pub(crate) fn probe(&self, main: ThreadId) {
        self.mailbox.post(Notification::Probed(main, self.probes.attach(main.pid)));
    }
}
