//! Serving those who look in.

use super::{Daemon, Followed, monotonic};
use crate::control::{Identity, Refusal, Request, SourceStatus, Status, StatusRequest, VmFacts};
use crate::status::{DaemonFacts, status};

impl Daemon {
    /// Serves one of those who look in.
    pub(super) fn answer(&mut self) {
        match self.control.next_request() {
            Some(Request::Status(request)) => {
                let answer = self.status(&request);
                request.answer(answer);
            }
            Some(Request::Record(request)) => {
                request.refuse("this daemon can't record on request; see `run --record`")
            }
            None => {}
        }
    }

    fn status(&mut self, request: &StatusRequest) -> Result<Status, Refusal> {
        let plugins = self.vms.iter().filter(|vm| vm.tcg.is_some()).count();
        let source =
            |name: &str, in_use: bool, found: String| SourceStatus { name: name.to_owned(), in_use, found };
        let daemon = DaemonFacts {
            acting: self.act,
            mechanism: "real time".to_owned(),
            sources: vec![
                source("eBPF", true, "threads, packets and reads".to_owned()),
                source("QEMU plugin", plugins > 0, format!("in {plugins} of {} VMs", self.vms.len())),
            ],
        };
        let vms = self.vms.iter().map(|vm| (vm.id, facts(vm)));
        status(request, monotonic(), &self.engine, &mut self.tally, daemon, vms)
    }
}

fn facts(vm: &Followed) -> VmFacts<'_> {
    let plugin = || Identity { source: "QEMU plugin".to_owned(), exact: true };
    VmFacts {
        name: &vm.name,
        pid: vm.qemu.pid,
        trouble: vm.trouble.clone(),
        identity: vm.tcg.as_ref().map(|_| plugin()),
    }
}
