//! What is needed to look at VMs, and the thread that sets probes in them.

use crate::notification::{Mailbox, Notification, Sighting, VmCgroup, VmOrigin};
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_linux::sched::ThreadId;
use frontdesk_probes::bpf::QemuProbes;
use frontdesk_qemu::QemuVm;
use std::io;
use std::sync::mpsc::{Sender, channel};

/// Characters of a VM's name that are kept. libvirt and QEMU set no limit.
const NAME_MAX: usize = 64;

/// What is needed to look at VMs and to tell of them.
#[derive(Clone)]
pub(crate) struct WatchContext {
    hierarchy: Hierarchy,
    prober: Sender<ThreadId>,
    pub(super) mailbox: Mailbox,
}

impl WatchContext {
    /// Starts the thread that sets probes. It ends when all that were cloned are dropped.
    pub(crate) fn new(
        hierarchy: Hierarchy,
        probes: QemuProbes,
        mailbox: Mailbox,
    ) -> io::Result<WatchContext> {
        let (prober, mains) = channel::<ThreadId>();
        let told = mailbox.clone();
        let probe = move || {
            for main in mains {
                told.post(Notification::Probed(main, probes.attach(main.pid)));
            }
        };
        std::thread::Builder::new().name("prober".into()).spawn(probe)?;
        Ok(WatchContext { hierarchy, prober, mailbox })
    }

    /// Tells of a VM.
    pub(super) fn tell(&self, source: VmOrigin, name: &str, vm: QemuVm) {
        let name = name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
        let place = VmCgroup::of(&self.hierarchy, &vm);
        self.mailbox.post(Notification::Seen(Box::new(Sighting { source, name, vm, place })));
    }

    /// Has probes set for a VM that was told of.
    pub(super) fn probe(&self, main: ThreadId) {
        // One that ended by a panic has told that already.
        let _ = self.prober.send(main);
    }
}
