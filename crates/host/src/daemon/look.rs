//! Answers those who look in.

use super::followed::FollowedVm;
use super::{Daemon, DaemonError};
use crate::clock::monotonic;
use crate::control::{ControlRequest, RecordRequest, StatusRequest};
use crate::identity::{Identities, Identity};
use crate::status::{DaemonFacts, status};
use frontdesk_control_protocol::{self as control, Refusal, SourceStatus, Status, VmFacts};
use frontdesk_linux::cgroup::RealTimeRule;
use frontdesk_probes::scx;
use frontdesk_qemu::Unheard;
use frontdesk_qemu::reporter::{Isolation, Refusal as Refused};

impl Daemon {
    /// Serves one of those who look in.
    ///
    /// # Errors
    /// The guardian does not answer.
    pub(super) fn answer(&mut self) -> Result<(), DaemonError> {
        match self.control.next_request() {
            Some(ControlRequest::Status(request)) => {
                let answer = self.status(&request);
                request.answer(answer);
            }
            Some(ControlRequest::Record(request)) => self.begin_recording(request),
            Some(ControlRequest::Reservation(request)) => {
                return self.about_reservation(request);
            }
            None => {}
        }
        Ok(())
    }

    /// Begins a recording in the middle of the daemon's life. It is completed when the client closes its half
    /// of the connection, or when the daemon ends. A client that is slow holds nobody up: if it falls far
    /// behind, its recording ends.
    fn begin_recording(&mut self, request: RecordRequest) {
        if let Err(error) = self.recordings.room() {
            return request.refuse(error.to_string());
        }
        // A client that has gone needs no recording.
        let Ok(client) = request.accept() else { return };
        let vms = self.vms.iter().map(|vm| (vm.id, vm.name.as_str()));
        let targets = self.targets.iter().map(|(target, name)| (*target, name.as_str()));
        match self.recordings.begin(client, &self.engine, vms, targets) {
            Ok(()) if self.reserves.is_some() => self.trace.begin(),
            Ok(()) => {}
            Err(error) => tracing::warn!("{error}"),
        }
    }

    fn status(&mut self, request: &StatusRequest) -> Result<Status, Refusal> {
        let known: Vec<Identity> = self.vms.iter().filter_map(|vm| self.identities.of(vm.id)).collect();
        let of = |one: fn(&Identity) -> bool| known.iter().filter(|identity| one(identity)).count();
        let plugins = of(|identity| *identity == Identity::Plugin);
        let reporters = of(|identity| *identity == Identity::Reporter);
        let kvm = of(|identity| matches!(identity, Identity::Kvm(_)));
        let of_all = |count: usize| format!("{count} of {} VMs", self.vms.len());
        let source =
            |name: &str, in_use: bool, found: String| SourceStatus { name: name.to_owned(), in_use, found };
        let daemon = DaemonFacts {
            acting: self.act,
            mechanism: match (self.threads.is_real_time(), self.budgets.rule()) {
                (false, _) => "sched_ext",
                (true, RealTimeRule::Refused) => "none",
                (true, _) => "real time",
            }
            .to_owned(),
            ejection: self.ejection.clone(),
            sources: vec![
                source("eBPF", true, "threads, packets, reads and displays".to_owned()),
                source("QEMU plugin", plugins > 0, of_all(plugins)),
                source("guest reporter", reporters > 0, of_all(reporters)),
                source("KVM by eBPF", kvm > 0, of_all(kvm)),
            ],
        };
        let vms = self.vms.iter().map(|vm| (vm.id, facts(vm, &self.identities)));
        let mut status = status(request, monotonic(), &self.engine, &mut self.tally, daemon, vms)?;
        for told in &mut status.vms {
            let Some(vm) = self.vms.iter().find(|vm| vm.name == told.name) else { continue };
            let taken_over = self.threads.taken_over(vm.id);
            let charged =
                self.threads.usage(vm.id).map(|usage| usage.map(|usage| charged(usage, taken_over)));
            told.charged = charged.unwrap_or_else(|error| {
                tracing::warn!(vm = vm.name, "{error}");
                None
            });
            let disks = self.disks.of(&vm.qemu);
            told.disks = disks.map(|disk| disk.status(vm.id, &vm.qemu, &self.identities)).collect();
            for task in &mut told.engine.tasks {
                let process = self.identities.process(vm.id, task.id);
                task.pid = process.map(|(pid, _)| pid);
                task.name = process.map(|(_, name)| name.to_owned());
            }
            if !told.disks.is_empty() {
                // It is ours, and tells.
                told.unheard.retain(|unheard| *unheard != Unheard::VhostUserDisk.to_string());
            }
        }
        Ok(status)
    }
}

/// As it is told.
fn charged(usage: scx::Usage, gifts_taken_over: u64) -> control::Usage {
    let scx::Usage { consumed_ns, boosted_ns, runs, boosted_runs, gifts } = usage;
    control::Usage { consumed_ns, boosted_ns, runs, boosted_runs, gifts, gifts_taken_over }
}

/// As it is told: nothing of a reporter that takes no orders.
fn extension(isolation: Isolation) -> Option<control::ExtensionStatus> {
    let refused =
        |why: &str| control::ExtensionStatus { refused: Some(why.to_owned()), ..Default::default() };
    Some(match isolation {
        Isolation::Off => return None,
        Isolation::Ready => control::ExtensionStatus::default(),
        Isolation::Divided { slow, background, others } => {
            let slow = (0..64).filter(|vcpu| slow & (1 << vcpu) != 0).collect();
            control::ExtensionStatus { slow, background, others, refused: None }
        }
        Isolation::Refused(Refused::Vcpus) => refused("the guest has one vCPU, or may have more than 64"),
        Isolation::Refused(Refused::Threads) => refused("the guest has too many threads"),
        Isolation::Refused(Refused::Guardian) => refused("its guardian process cannot be started"),
        Isolation::Refused(Refused::Kernel) => refused("the guest's kernel does not tell what runs"),
    })
}

fn facts<'a>(vm: &'a FollowedVm, identities: &Identities) -> VmFacts<'a> {
    let identity = identities.of(vm.id);
    VmFacts {
        name: &vm.name,
        pid: vm.qemu.pid,
        trouble: vm.trouble.clone(),
        unheard: vm.qemu.unheard.iter().map(ToString::to_string).chain(vm.unprobed.iter().cloned()).collect(),
        identity: identity.map(|identity| control::IdentityStatus {
            source: identity.name().to_owned(),
            exact: identity.is_exact(),
        }),
        extension: identities.extension(vm.id).and_then(extension),
    }
}
