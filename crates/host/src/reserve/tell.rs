//! What the admission thread tells of reservations.

use super::admission::{AdmissionThread, deciding_ns};
use crate::clock::monotonic;
use crate::notification::Notification;
use crate::reserve::controller::MemberReport;
use crate::reserve::reserved::ReservedTarget;
use crate::reserve::running::Running;
use crate::reserve::stats;
use frontdesk_control_protocol::{self as control, Reserve, SCHEMA, Target};
use frontdesk_engine::reservation::{MAX_PERIOD_NS, MIN_PERIOD_NS, MIN_SLICE_NS, Reservation};

impl AdmissionThread {
    /// Tells the daemon's loop which VMs have reservations, for it does not boost them, and whether real time
    /// is kept for any, for boosts have less then. And all targets by name, for its recordings.
    pub(super) fn tell_reserved(&self) {
        let names = self.targets.iter().filter_map(|held| match &held.target {
            Target::Vm(name) => Some(name.clone()),
            _ => None,
        });
        let (vms, any) = (names.collect(), self.group_open);
        let targets = self.targets.iter().map(|held| (held.id, held.target.to_string())).collect();
        self.mailbox.post(Notification::Reserved { vms, targets, any, asked: self.asked });
    }

    pub(super) fn reports(&self) -> Vec<MemberReport> {
        self.running.as_ref().map_or_else(Vec::new, Running::reports)
    }

    pub(super) fn tell(&self, held: &ReservedTarget, reports: &[MemberReport]) -> control::Reservation {
        let Reservation { period_ns, slice_ns, hard, phase_ns } = held.reservation;
        let whole = stats::ratio(self.capacity) * self.cpus.len().max(1) as f64;
        let host_ratio = stats::ratio(held.reservation.utilisation()) * held.cpus.len() as f64 / whole;
        let reserve = Reserve { target: held.target.clone(), period_ns, slice_ns, hard, phase_ns };
        let (name, cpus) = (held.found.name.clone(), held.cpus.clone());
        let mut told = control::Reservation {
            paused: held.paused,
            trouble: held.trouble.clone(),
            ..reserve.begin(name, cpus, self.mechanism.name(), host_ratio)
        };
        let own: Vec<&MemberReport> =
            reports.iter().filter(|report| report.member.target == held.id).collect();
        stats::account(&mut told, &own);
        told
    }

    pub(super) fn list(&self) -> control::Reservations {
        let reports = self.reports();
        let ended = self.ended.iter().map(|(_, told)| told.clone());
        control::Reservations {
            schema: SCHEMA,
            at_ns: monotonic().0,
            acting: true,
            mechanism: self.mechanism.name().into(),
            reserve_ratio: 1.0 - stats::ratio(self.capacity),
            min_period_ns: MIN_PERIOD_NS,
            max_period_ns: MAX_PERIOD_NS,
            min_slice_ns: MIN_SLICE_NS,
            deciding_ns: deciding_ns(self.mechanism),
            cpus: stats::rooms(&self.admission.rooms(), self.capacity),
            reservations: self.targets.iter().map(|held| self.tell(held, &reports)).chain(ended).collect(),
        }
    }
}
