//! The loop's part in reservations: it has the VMs, which it does not boost while they have one, and the
//! real-time budgets.

use super::followed::FollowedVm;
use super::{Daemon, DaemonError};
use crate::control::ReservationRequest;
use crate::reserve;
use frontdesk_control_protocol::{Answer, Query, Refusal, RefusalKind, Reserve, Target};
use frontdesk_engine::VmId;
use frontdesk_engine::reservation::TargetId;
use frontdesk_record::Record;
use std::collections::{BTreeMap, BTreeSet};

impl Daemon {
    /// Has the admission thread of reservations answer a request.
    pub(super) fn about_reservation(&mut self, request: ReservationRequest) -> Result<(), DaemonError> {
        let Some(reserves) = &self.reserves else {
            let message = "this daemon only observes, and changes nothing; run it without --observe";
            request.answer(unavailable(message.to_owned()));
            return Ok(());
        };
        match &request.query {
            Query::Reserve(_) => reserves.consider(request, self.reservable()),
            _ => _ = reserves.ask(request, self.reservable()),
        }
        Ok(())
    }

    /// Makes room for a reservation that is not to be refused, and asks for it.
    pub(super) fn make_room(&mut self, request: ReservationRequest) -> Result<(), DaemonError> {
        if let Err(message) = self.leave_room() {
            request.answer(unavailable(message));
            return Ok(());
        }
        if let Query::Reserve(Reserve { target: Target::Vm(name), .. }) = &request.query {
            self.stop_boosting(name)?;
        }
        // One that is not boosted any more leaves its real time to the others.
        self.grant()?;
        if let Some(reserves) = &self.reserves
            && reserves.ask(request, self.reservable())
        {
            self.reserves_asked += 1;
        }
        Ok(())
    }

    /// What the admission thread tells of its reservations.
    ///
    /// # Errors
    /// The guardian does not answer.
    pub(super) fn reserved(
        &mut self,
        vms: &BTreeSet<String>,
        any: bool,
        asked: u64,
    ) -> Result<(), DaemonError> {
        for vm in &mut self.vms {
            vm.reserved = vms.contains(&vm.name);
        }
        let ids: Vec<VmId> = self.vms.iter().map(|vm| vm.id).collect();
        for id in ids {
            self.tell_standing(id)?;
        }
        // A request that is on its way is told of, too.
        if self.reserves_room && !any && asked == self.reserves_asked {
            self.hold_back(0.0);
        }
        Ok(())
    }

    /// These targets have reservations, and no others.
    pub(super) fn name_targets(&mut self, targets: BTreeMap<TargetId, String>) {
        for (target, name) in targets.iter().filter(|(target, _)| !self.targets.contains_key(target)) {
            self.recordings.push(|| Record::Target { target: *target, name: name.clone() });
        }
        self.targets = targets;
    }

    /// Records what was decided about reservations, as long as anything is recorded.
    pub(super) fn record_decisions(&mut self) {
        if self.recordings.is_empty() {
            self.trace.end();
        }
        self.trace.drain(|record| self.recordings.push(|| record));
    }

    /// The VMs that can have reservations.
    pub(super) fn reservable(&self) -> Vec<reserve::VmThreads> {
        let vm = |vm: &FollowedVm| reserve::VmThreads {
            name: vm.name.clone(),
            pid: vm.qemu.pid,
            vcpus: vm.qemu.vcpus.iter().map(|(_, thread)| thread.tid).collect(),
        };
        self.vms.iter().map(vm).collect()
    }

    /// Before the first reservation, makes the throttle, and boosts as soon as budgets are granted anew,
    /// leave it its real-time budget.
    fn leave_room(&mut self) -> Result<(), String> {
        if let Some(guardian) = self.guardian.as_ref().filter(|_| !self.reserves_room) {
            let settings = &self.settings.reserve;
            reserve::make_room(self.budgets.hierarchy(), settings, guardian)?;
            let real_time = settings.real_time();
            self.hold_back(real_time);
        }
        Ok(())
    }

    /// Keeps this part of each CPU's real time for reservations.
    fn hold_back(&mut self, part: f64) {
        self.reserves_room = part > 0.0;
        self.budgets.hold_back(part);
        self.budgets_stale = true;
    }

    /// The threads of a VM are about to be scheduled by its reservation, and by nothing else. The admission
    /// thread says if it comes to that.
    fn stop_boosting(&mut self, name: &str) -> Result<(), DaemonError> {
        let Some(vm) = self.vms.iter_mut().find(|vm| vm.name == name && !vm.reserved) else { return Ok(()) };
        vm.reserved = true;
        let id = vm.id;
        self.let_go(id)?;
        self.tell_standing(id)
    }
}

fn unavailable(message: String) -> Result<Answer, Refusal> {
    Err(Refusal::new(RefusalKind::Unavailable, message))
}
