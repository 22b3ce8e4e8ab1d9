//! VMs come, change and go.

use super::followed::{FollowedVm, watched_threads};
use super::token::Token;
use super::{Daemon, DaemonError};
use crate::clock::monotonic;
use crate::notification::{Notification, Sighting, VmOrigin};
use frontdesk_engine::{Event, EventKind, Standing, VmId};
use frontdesk_linux::cgroup::DEFAULT_WEIGHT;
use frontdesk_linux::sched::ThreadId;
use frontdesk_probes::BpfError;
use frontdesk_probes::bpf::Probes;
use frontdesk_qemu::{QemuVm, Unheard, VmEvent};
use frontdesk_record::Record;
use rustix::event::epoll;
use std::collections::{BTreeMap, BTreeSet};

impl Daemon {
    /// Takes all notifications; whether the first round of looking is over.
    pub(super) fn take_notifications(&mut self) -> Result<bool, DaemonError> {
        let mut settled = false;
        self.mailbox.silence();
        while let Ok(notification) = self.notifications.try_recv() {
            match notification {
                Notification::Seen(sighting) => self.seen(*sighting)?,
                Notification::Probed(main, probes) => self.probed(main, probes),
                Notification::Happened(main, event) => self.happened(main, event)?,
                Notification::Disk(back_end, news) => self.disk_news(back_end, news)?,
                Notification::Withdrawn(source) => self.withdraw(&source)?,
                Notification::Settings(settings) => self.reload(*settings)?,
                Notification::Refused(reason) => self.refuse(&reason),
                Notification::Reserved { vms, targets, any, asked } => {
                    self.name_targets(targets);
                    self.reserved(&vms, any, asked)?;
                }
                Notification::Admissible(request) => self.make_room(request)?,
                Notification::Settled => settled = true,
            }
        }
        // What was found is to have its budget before anything is decided about it.
        self.grant()?;
        Ok(settled)
    }

    /// What the supervisor is told.
    pub(super) fn summary(&self) -> String {
        let count = self.vms.len();
        format!("following {count} {}", if count == 1 { "VM" } else { "VMs" })
    }

    pub(super) fn feed(&mut self, kind: EventKind) -> Result<(), DaemonError> {
        let event = Event { at: monotonic(), kind };
        self.recordings.push(|| Record::Event(event));
        self.engine.on_event(&event);
        self.reconsider_mandates();
        self.apply()
    }

    fn seen(&mut self, mut sighting: Sighting) -> Result<(), DaemonError> {
        // A thread in another control group may have no real-time budget there.
        if self.budget.is_none() {
            let threads: Vec<ThreadId> = self.disks.threads(&sighting.vm).collect();
            sighting.vm.emulators.extend(threads);
        }
        let main = sighting.vm.main_thread();
        match self.vms.iter().position(|vm| vm.qemu.main_thread() == main) {
            Some(index) => self.update(index, sighting),
            None => self.add(sighting),
        }
    }

    fn add(&mut self, sighting: Sighting) -> Result<(), DaemonError> {
        let Sighting { source, name, vm: qemu, place } = sighting;
        let id = VmId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let taken = self.vms.iter().any(|other| other.name == name);
        let name = if taken { format!("{name} (process {})", qemu.pid) } else { name };
        let weight = place.as_ref().ok().and_then(|place| place.group.weight().ok());
        let followed = FollowedVm {
            id,
            settings: self.settings.of_vm(&name),
            name,
            sources: BTreeSet::from([source]),
            control: None,
            weight: weight.unwrap_or(DEFAULT_WEIGHT),
            limited: false,
            vcpu_weights: BTreeMap::new(),
            policy: None,
            standing: Standing::default(),
            paused: qemu.is_paused(),
            reserved: false,
            trouble: None,
            unprobed: Vec::new(),
            told: None,
            qemu,
        };
        tracing::info!(
            vm = followed.name,
            pid = followed.qemu.pid,
            vcpus = followed.qemu.vcpus.len(),
            "following the VM"
        );
        let level = epoll::EventFlags::IN;
        epoll::add(&self.epoll, followed.qemu.pidfd(), Token::Death(id).encode(), level)?;
        self.recordings.push(|| Record::Vm { vm: id, name: followed.name.clone() });
        self.feed(EventKind::VmAdded { vm: id, vcpus: vcpu_slots(&followed.qemu), weight: followed.weight })?;
        let mut current = Vec::new();
        match self.identities.follow(id, &followed.qemu, &mut current) {
            Ok(identity) => tracing::info!(vm = followed.name, "its guest tasks are known from: {identity}"),
            Err(error) => {
                tracing::warn!(vm = followed.name, "the VM's guest tasks cannot be told apart: {error}");
            }
        }
        for kind in current {
            self.feed(kind)?;
        }
        // What KVM tells is known since the first VM under it.
        self.tell_world()?;
        if followed.paused {
            self.feed(EventKind::VmPaused { vm: id })?;
        }
        tell_unheard(&followed, &[]);
        self.vms.push(followed);
        self.supervisor.changed(&self.summary());
        self.offer_askers(id);
        self.listen(id);
        self.engage(id, place)
    }

    /// Listens to the VM's threads and taps.
    fn listen(&mut self, id: VmId) {
        let Some(vm) = self.vms.iter().find(|vm| vm.id == id) else { return };
        let followed = self.bpf.follow(id, &watched_threads(&vm.qemu), &vm.qemu.taps);
        let counted = |left_out| self.bpf.count_others(id, vm.qemu.pid).map(|()| left_out);
        tell_followed(&vm.name, followed.and_then(counted));
    }

    /// What QEMU does for the VM can be followed, as far as its functions could be probed.
    fn probed(&mut self, main: ThreadId, probes: Probes) {
        let Some(vm) = self.vms.iter_mut().find(|vm| vm.qemu.main_thread() == main) else {
            return probes.drop_elsewhere();
        };
        let failures = probes.failures().iter();
        vm.unprobed = failures.map(|(heard, error)| format!("its {heard} are not heard: {error}")).collect();
        if let Err(error) = self.bpf.follow_process(vm.id, main.pid, probes) {
            vm.unprobed = vec![format!("its disk reads, its display and its input are not heard: {error}")];
        }
        for unprobed in &vm.unprobed {
            tracing::warn!(vm = vm.name, "{unprobed}");
        }
    }

    /// A VM that is followed was looked at again.
    fn update(&mut self, index: usize, sighting: Sighting) -> Result<(), DaemonError> {
        let Sighting { source, vm: now, place, .. } = sighting;
        let state = &mut self.vms[index];
        let id = state.id;
        state.sources.insert(source);
        let before = std::mem::replace(&mut state.qemu, now);
        // The new description has another descriptor of the same process.
        epoll::delete(&self.epoll, before.pidfd())?;
        epoll::add(&self.epoll, state.qemu.pidfd(), Token::Death(id).encode(), epoll::EventFlags::IN)?;
        tell_unheard(state, &before.unheard);
        let now = &state.qemu;
        let gone = before.vcpus.iter().filter(|vcpu| !now.vcpus.contains(vcpu));
        let new = now.vcpus.iter().filter(|vcpu| !before.vcpus.contains(vcpu));
        let mut changes: Vec<EventKind> =
            gone.rev().map(|(vcpu, _)| EventKind::VcpuRemoved { vm: id, vcpu: *vcpu }).collect();
        changes.extend(new.map(|(vcpu, _)| EventKind::VcpuAdded { vm: id, vcpu: *vcpu }));
        let replaced = before.emulators != now.emulators;
        if replaced {
            // They are counted by their place in the list.
            changes.push(EventKind::Lost { vm: Some(id), count: 0 });
        }
        if !changes.is_empty() {
            tracing::info!(vm = state.name, vcpus = now.vcpus.len(), "the VM's threads have changed");
        }
        if !changes.is_empty() || before.taps != now.taps {
            let followed = self.bpf.refollow(id, &watched_threads(now), &now.taps);
            let counted = |left_out| self.bpf.count_others(id, now.pid).map(|()| left_out);
            tell_followed(&state.name, followed.and_then(counted));
        }
        if before.taps != now.taps {
            self.threads.set_taps(id, &now.taps);
        }
        if !changes.is_empty()
            && let Err(error) = self.identities.refollow(id, now)
        {
            tracing::warn!(vm = state.name, "the VM's guest tasks cannot be told apart any more: {error}");
        }
        // Whether a VM is paused is not known of all sources.
        let paused = now.status.is_some().then(|| now.is_paused());
        let threads = !changes.is_empty();
        if threads {
            // It may have more vCPUs now.
            self.disks.withdraw(&self.vms[index].qemu);
            self.offer_askers(id);
        }
        for change in changes {
            if let EventKind::VcpuAdded { vcpu, .. } | EventKind::VcpuRemoved { vcpu, .. } = change {
                // What comes in its place begins with an ordinary weight.
                self.vms[index].vcpu_weights.remove(&vcpu);
            }
            self.feed(change)?;
        }
        if let Some(paused) = paused {
            self.set_paused(index, paused)?;
        }
        if threads {
            self.hold_threads(id)?;
            if let Some(reserves) = &self.reserves {
                reserves.vms(self.reservable());
            }
        }
        self.engage(id, place)
    }

    fn happened(&mut self, main: ThreadId, event: VmEvent) -> Result<(), DaemonError> {
        let Some(index) = self.vms.iter().position(|vm| vm.qemu.main_thread() == main) else { return Ok(()) };
        match event {
            VmEvent::Reset => {
                tracing::info!(
                    vm = self.vms[index].name,
                    "the guest was reset: its tasks have to be learnt again"
                );
                self.feed(EventKind::VmReset { vm: self.vms[index].id })
            }
            VmEvent::Paused => self.set_paused(index, true),
            VmEvent::Resumed => self.set_paused(index, false),
        }
    }

    fn set_paused(&mut self, index: usize, paused: bool) -> Result<(), DaemonError> {
        let state = &mut self.vms[index];
        if std::mem::replace(&mut state.paused, paused) == paused {
            return Ok(());
        }
        let vm = state.id;
        tracing::info!(vm = state.name, "the VM is {}", if paused { "paused" } else { "running" });
        self.feed(if paused { EventKind::VmPaused { vm } } else { EventKind::VmResumed { vm } })
    }

    /// The configuration does not name this source any more.
    fn withdraw(&mut self, source: &VmOrigin) -> Result<(), DaemonError> {
        for vm in &mut self.vms {
            vm.sources.remove(source);
        }
        while let Some(vm) = self.vms.iter().find(|vm| vm.sources.is_empty()) {
            tracing::info!(
                vm = vm.name,
                "the VM is not followed any more: the configuration does not name it"
            );
            let id = vm.id;
            self.remove(id)?;
        }
        Ok(())
    }

    /// A VM has ended.
    pub(super) fn vm_ended(&mut self, id: VmId) -> Result<(), DaemonError> {
        if let Some(vm) = self.vms.iter().find(|vm| vm.id == id) {
            tracing::info!(vm = vm.name, "the VM has ended");
            self.disks.ended(&vm.qemu);
        }
        self.remove(id)
    }

    fn remove(&mut self, id: VmId) -> Result<(), DaemonError> {
        // Ends its boosts, and gives back what it had before.
        self.feed(EventKind::VmRemoved { vm: id })?;
        self.let_go(id)?;
        self.bpf.unfollow(id);
        self.identities.unfollow(id);
        let Some(index) = self.vms.iter().position(|vm| vm.id == id) else { return Ok(()) };
        let vm = self.vms.remove(index);
        self.disks.withdraw(&vm.qemu);
        self.supervisor.changed(&self.summary());
        epoll::delete(&self.epoll, vm.qemu.pidfd())?;
        Ok(())
    }
}

/// Says what of a VM cannot be followed.
fn tell_followed(vm: &str, followed: Result<Vec<BpfError>, BpfError>) {
    match followed {
        Ok(left_out) => {
            for error in left_out {
                tracing::warn!(vm, "packets that come that way are not heard: {error}");
            }
        }
        Err(error) => {
            tracing::warn!(vm, "nothing is heard of the VM, which is never boosted then: {error}");
        }
    }
}

/// Says of what nothing is heard, but for what was said before.
fn tell_unheard(vm: &FollowedVm, before: &[Unheard]) {
    for unheard in vm.qemu.unheard.iter().filter(|unheard| !before.contains(unheard)) {
        tracing::warn!(vm = vm.name, "{unheard}");
    }
}

/// Places for vCPUs, of which some in between may be empty.
fn vcpu_slots(vm: &QemuVm) -> u16 {
    vm.vcpus.last().map_or(0, |(index, _)| index.saturating_add(1))
}
