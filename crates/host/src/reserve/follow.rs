//! What the admission thread follows by itself: threads and processes that come and go, VMs that change, and
//! targets that end.

use super::admission::AdmissionThread;
use crate::clock::monotonic;
use crate::reserve::controller::ControllerCommand;
use crate::reserve::reserved::ReservedTarget;
use crate::reserve::reserved_group::ReservedGroup;
use crate::reserve::target::VmThreads;
use frontdesk_control_protocol::Target;
use frontdesk_linux::online_cpus;

/// Reservations whose targets have ended are told this long, in nanoseconds, and so many of them.
const ENDED_FOR: u64 = 60_000_000_000;
const ENDED_MOST: usize = 16;
/// How often it is looked for threads and processes that were not heard of, in nanoseconds.
const LOOK: u64 = 900_000_000;
/// The kernel forgives a group what it has used within two periods of its budget; in nanoseconds.
const FORGIVEN_AFTER: u64 = 3_000_000_000;

impl AdmissionThread {
    /// Follows threads and processes that came into being as members.
    pub(super) fn follow_births(&mut self) {
        let Some(running) = &self.running else { return };
        running.births.drain();
        let mut changed = Vec::new();
        while let Ok(birth) = running.born.try_recv() {
            let Some(index) = self.targets.iter().position(|held| held.slots.contains(&birth.slot)) else {
                continue;
            };
            let held = &mut self.targets[index];
            if let Err(error) = held.welcome(birth, &running.meter, &self.guardian) {
                held.trouble = Some(error.to_string());
            }
            changed.push(index);
        }
        changed.dedup();
        changed.into_iter().for_each(|index| self.tell_threads(index));
    }

    fn tell_threads(&self, index: usize) {
        let (Some(running), held) = (&self.running, &self.targets[index]) else { return };
        for member in held.members() {
            let threads = held.threads_of(usize::from(member.index));
            running.send(member, ControllerCommand::Threads { member, threads });
        }
    }

    /// Looks whether targets have ended, or threads of theirs, or CPUs were taken away; and now and then
    /// whether there are new ones that were not heard of, for the ring was full.
    pub(super) fn look(&mut self) {
        let online = online_cpus().unwrap_or_else(|_| self.cpus.clone());
        let there: Vec<u16> = self.cpus.iter().copied().filter(|cpu| online.contains(cpu)).collect();
        self.admission.set_cpus(&there);
        // Reads a file for each of their threads.
        let unheard = monotonic().since(self.looked) >= LOOK;
        if unheard {
            self.looked = monotonic();
        }
        let mut index = 0;
        while index < self.targets.len() {
            let held = &mut self.targets[index];
            held.processes.retain(|process| !process.has_ended());
            let end = match held.processes.is_empty() {
                true => Some("it has ended, and its reservation with it"),
                // The kernel lets its threads run elsewhere, where nobody reckons with them.
                false if !held.cpus.iter().all(|cpu| there.contains(cpu)) => {
                    Some("its CPU was taken away, and its reservation with it")
                }
                false => None,
            };
            if let Some(end) = end {
                let mut told = self.tell(&self.targets[index], &self.reports());
                tracing::info!(target = %told.target, "{end}");
                told.trouble = Some(end.into());
                self.ended.push_back((monotonic().0, told));
                self.release(index);
                self.tell_reserved();
                continue;
            }
            let before = held.threads.len();
            if unheard && let Some(running) = &self.running {
                let new = held.find_unheard(&self.own, &self.hierarchy, &running.meter, &self.guardian);
                if let Err(error) = new {
                    held.trouble = Some(error.to_string());
                }
            }
            let found = held.threads.len();
            let (alive, gone) =
                std::mem::take(&mut held.threads).into_iter().partition(|held| held.pinned().is_alive());
            held.threads = alive;
            for thread in gone {
                let _ = thread.forget(&self.guardian);
            }
            if found != before || held.threads.len() != found {
                self.tell_threads(index);
            }
            index += 1;
        }
        let now = monotonic().0;
        while self.ended.len() > ENDED_MOST || self.ended.front().is_some_and(|(at, _)| now - at > ENDED_FOR)
        {
            self.ended.pop_front();
        }
    }

    /// Some time after the last reservation, leaves its real time to boosts. What a group has used is
    /// forgiven as it has a budget: without that, the next reservation would begin with the debt of the last.
    pub(super) fn close_reserved_group(&mut self) {
        let over = monotonic().0.saturating_sub(self.emptied) >= FORGIVEN_AFTER;
        if self.group_open && self.targets.is_empty() && over {
            match self.reserved_group.iter().flatten().try_for_each(ReservedGroup::close) {
                Ok(()) => self.group_open = false,
                Err(error) => tracing::warn!("boosts have less real time than they could have: {error}"),
            }
            if let Err(error) = self.fair_servers.restore(&self.guardian) {
                tracing::warn!(
                    "the kernel's fair server stays as it was for reservations until the end: {error}"
                );
            }
            self.emptied = monotonic().0;
            self.tell_reserved();
        }
    }

    /// The VMs have changed. One whose vCPUs have changed gets its reservation anew.
    pub(super) fn renew(&mut self, vms: &[VmThreads]) {
        let changed = |held: &ReservedTarget| match &held.target {
            Target::Vm(name) => vms.iter().any(|vm| vm.name == *name && vm.vcpus != held.found.vcpus),
            _ => false,
        };
        while let Some(index) = self.targets.iter().position(changed) {
            let (target, reservation) = (self.targets[index].target.clone(), self.targets[index].reservation);
            let mut told = self.tell(&self.targets[index], &self.reports());
            self.release(index);
            if let Err(refusal) = self.begin(&target, reservation, vms) {
                tracing::warn!(%target, "the VM's vCPUs have changed, and its reservation has ended: {refusal}");
                told.trouble =
                    Some(format!("its vCPUs have changed, and its reservation has ended: {refusal}"));
                self.ended.push_back((monotonic().0, told));
            }
            self.tell_reserved();
        }
    }
}
