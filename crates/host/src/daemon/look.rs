//! Answers those who look in.

use super::followed::Followed;
use super::{Daemon, monotonic};
use crate::control::{self, RecordRequest, Refusal, Request, SourceStatus, Status, StatusRequest, VmFacts};
use crate::identity::Identity;
use crate::status::{DaemonFacts, status};

impl Daemon {
    /// Serves one of those who look in.
    pub(super) fn answer(&mut self) {
        match self.control.next_request() {
            Some(Request::Status(request)) => {
                let answer = self.status(&request);
                request.answer(answer);
            }
            Some(Request::Record(request)) => self.begin_recording(request),
            None => {}
        }
    }

    /// Begins a recording in the middle of the daemon's life. It is completed when the client closes its half of the connection, or when the
    /// daemon ends. A client that is slow holds nobody up: if it falls far behind, its recording ends.
    fn begin_recording(&mut self, request: RecordRequest) {
        if let Err(error) = self.recordings.room() {
            return request.refuse(error.to_string());
        }
        // A client that has gone needs no recording.
        let Ok(client) = request.accept() else { return };
        let vms = self.vms.iter().map(|vm| (vm.id, vm.name.as_str()));
        if let Err(error) = self.recordings.begin(client, &self.engine, vms) {
            tracing::warn!("{error}");
        }
    }

    fn status(&mut self, request: &StatusRequest) -> Result<Status, Refusal> {
        let known = self.vms.iter().filter_map(|vm| self.identities.of(vm.id));
        let plugins = known.clone().filter(|identity| *identity == Identity::Plugin).count();
        let kvm = known.count() - plugins;
        let of_all = |count: usize| format!("{count} of {} VMs", self.vms.len());
        let source =
            |name: &str, in_use: bool, found: String| SourceStatus { name: name.to_owned(), in_use, found };
        let daemon = DaemonFacts {
            acting: self.act,
            mechanism: "real time".to_owned(),
            sources: vec![
                source("eBPF", true, "threads, packets and reads".to_owned()),
                source("QEMU plugin", plugins > 0, of_all(plugins)),
                source("KVM by eBPF", kvm > 0, of_all(kvm)),
            ],
        };
        let vms = self.vms.iter().map(|vm| (vm.id, facts(vm, self.identities.of(vm.id))));
        status(request, monotonic(), &self.engine, &mut self.tally, daemon, vms)
    }
}

fn facts(vm: &Followed, identity: Option<Identity>) -> VmFacts<'_> {
    VmFacts {
        name: &vm.name,
        pid: vm.qemu.pid,
        trouble: vm.trouble.clone(),
        identity: identity.map(|identity| control::Identity {
            source: identity.name().to_owned(),
            exact: identity.is_exact(),
        }),
    }
}
