//! Who wakes the daemon: the vCPUs whose next task switch or interrupt is waited for.

use super::identities::{Identities, KVM, REPORTERS, WatchedVcpu};
use frontdesk_engine::VmId;
use frontdesk_qemu::reporter::HostTime;
use frontdesk_ring::Interest;
use rustix::event::{Timespec, epoll};
use std::io;

impl Identities {
    /// Makes [`fd`](Self::fd) wait for the next wake-up. Those vCPUs that may have caused this one want to be
    /// [armed](Self::arm) again.
    ///
    /// # Errors
    /// If it cannot be read, which no working kernel makes happen.
    pub fn clear_wakes(&mut self) -> io::Result<()> {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 16];
        let (events, _) = epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default()))?;
        for event in events {
            let source = event.data.u64();
            if source == REPORTERS {
                self.reporters.receive(HostTime::now())?;
                continue;
            }
            let is_of = |vm: VmId| match source {
                KVM => !self.plugins.contains_key(&vm),
                plugin => plugin == u64::from(vm.0),
            };
            self.plugins.iter().filter(|(vm, _)| is_of(**vm)).for_each(|(_, plugin)| plugin.clear_wake());
            let watched = self.watched.iter_mut().filter(|watched| is_of(watched.vm));
            watched.for_each(|watched| watched.armed = false);
        }
        Ok(())
    }

    /// Watches a vCPU for task switches and halts, or for interrupts, or for both, in place of what it was
    /// watched for before.
    pub fn watch(&mut self, vm: VmId, vcpu: u16, interest: Interest) {
        self.unwatch(vm, vcpu);
        if self.of(vm).is_some() {
            self.watched.push(WatchedVcpu { vm, vcpu, interest, armed: false });
        }
    }

    /// The vCPUs of a VM are followed afresh, and nobody is asked about them any more.
    pub(super) fn rearm(&mut self, vm: VmId) {
        self.watched.iter_mut().filter(|watched| watched.vm == vm).for_each(|watched| watched.armed = false);
    }

    /// Ends [`watch`](Self::watch). A wake-up may already be under way.
    pub fn unwatch(&mut self, vm: VmId, vcpu: u16) {
        let Some(index) = self.watched.iter().position(|w| (w.vm, w.vcpu) == (vm, vcpu)) else { return };
        let watched = self.watched.swap_remove(index);
        if !watched.armed {
            return;
        }
        match (self.plugins.get(&vm), &self.kvm) {
            (Some(plugin), _) => plugin.disarm(vcpu),
            (None, Some(kvm)) => kvm.disarm(vm, vcpu),
            (None, None) => {}
        }
    }

    /// Asks for a wake-up when the next thing of interest happens on each watched vCPU; whether there was one
    /// not asked yet.
    pub fn arm(&mut self) -> bool {
        let mut any = false;
        for watched in self.watched.iter_mut().filter(|watched| !watched.armed) {
            match (self.plugins.get(&watched.vm), &self.kvm) {
                (Some(plugin), _) => plugin.arm(watched.vcpu, watched.interest),
                (None, Some(kvm)) => kvm.arm(watched.vm, watched.vcpu, watched.interest),
                (None, None) => {}
            }
            watched.armed = true;
            any = true;
        }
        any
    }
}
