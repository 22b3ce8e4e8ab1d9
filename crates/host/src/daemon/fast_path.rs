//! What follows when an event was handled: back ends of disks hear of inputs; and the boosts that the kernel
//! gives by itself, for what it is mandated follows what the engine foresees.

use super::Daemon;
use frontdesk_engine::{Event, EventKind, VmId};

impl Daemon {
    /// An event was handled, and what the engine wanted was done.
    pub(super) fn event_handled(&mut self, event: &Event) {
        if let EventKind::Input { vm, input } = event.kind {
            self.tell_of_input(vm, input, event.at);
        }
        let EventKind::Packet { vm, protocol, port } = event.kind else { return };
        if !self.threads.has_fast_path() {
            return;
        }
        let awaited = self.engine.awaits(vm, protocol, port);
        // Only such a packet can have been boosted by the kernel.
        if self.threads.learn_port(vm, protocol, port, awaited) {
            self.foresee_anew.insert(vm, Some(event.at));
        } else {
            self.reconsider_mandate(vm);
        }
    }

    /// What the engine foresees for a VM may be something else now.
    pub(super) fn reconsider_mandate(&mut self, vm: VmId) {
        if self.threads.has_fast_path() {
            self.foresee_anew.entry(vm).or_default();
        }
    }

    /// The same for all VMs.
    pub(super) fn reconsider_mandates(&mut self) {
        let ids: Vec<VmId> = self.vms.iter().map(|vm| vm.id).collect();
        ids.into_iter().for_each(|vm| self.reconsider_mandate(vm));
    }

    /// Mandates what the engine foresees now.
    pub(super) fn mandate(&mut self) {
        while let Some((vm, handled)) = self.foresee_anew.pop_first() {
            let foreseen = self.engine.foresee(vm);
            if let Err(error) = self.threads.mandate(vm, handled, foreseen.as_ref()) {
                tracing::warn!("{error}");
            }
        }
    }
}
