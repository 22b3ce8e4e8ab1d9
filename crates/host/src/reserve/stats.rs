//! What the daemon says of reservations: room, refusals, what was delivered.

use super::controller::MemberReport;
use frontdesk_control_protocol::{self as control, CpuRoom, Delivered, Fit, Refusal, RefusalKind};
use frontdesk_engine::reservation::{self, AdmissionError, Distribution, Room, WHOLE_CPU};

/// A part of [`WHOLE_CPU`] as a fraction.
pub(super) fn ratio(part: u64) -> f64 {
    part as f64 / WHOLE_CPU as f64
}

/// What is free of each CPU; `capacity` of each can be reserved.
pub(super) fn rooms(rooms: &[Room], capacity: u64) -> Vec<CpuRoom> {
    let room = |room: &Room| CpuRoom {
        cpu: room.cpu,
        reserved_ratio: ratio(capacity.saturating_sub(room.free)),
        free_ratio: ratio(room.free),
    };
    rooms.iter().map(room).collect()
}

/// Why there is no such reservation.
pub(super) fn refusal(error: &AdmissionError, capacity: u64) -> Refusal {
    let kind = match error {
        AdmissionError::Invalid(_) => RefusalKind::Invalid,
        AdmissionError::Infeasible(_) => RefusalKind::Infeasible,
        AdmissionError::TooManyMembers { .. } => RefusalKind::Unsuitable,
    };
    let fit = match error {
        AdmissionError::Infeasible(infeasible) => {
            let fitting = infeasible.fit.clone();
            let (slice_ns, cpus) = fitting.map_or((0, Vec::new()), |fit| (fit.slice_ns, fit.cpus));
            Some(Fit { slice_ns, cpus, free: rooms(&infeasible.rooms, capacity) })
        }
        _ => None,
    };
    Refusal { kind, message: error.to_string(), fit }
}

/// Adds up what the members of a target got.
pub(super) fn account(into: &mut control::Reservation, reports: &[&MemberReport]) {
    let sum = |field: fn(&reservation::MemberAccount) -> u64| {
        reports.iter().fold(0, |sum: u64, report| sum.saturating_add(field(&report.account)))
    };
    let worst = |field: fn(&reservation::MemberAccount) -> &Distribution| {
        reports.iter().map(|report| field(&report.account).max_ns).max().unwrap_or(0)
    };
    into.periods = reports.iter().map(|report| report.account.periods).max().unwrap_or(0);
    into.misses = sum(|account| account.missed);
    into.stalls = sum(|account| account.stalled);
    into.worst_miss_ns = worst(|account| &account.shortfall);
    into.used_ns = sum(|account| account.used_ns);
    into.reserved_ns = sum(|account| account.reserved_ns);
    // The members have the same periods, and entries that end together.
    let longest = reports.iter().map(|report| report.account.recent.len()).max().unwrap_or(0);
    into.recent = vec![Delivered::default(); longest];
    for report in reports {
        for (entry, of_member) in into.recent.iter_mut().rev().zip(report.account.recent.iter().rev()) {
            entry.end_ns = entry.end_ns.max(of_member.end.0);
            entry.periods = entry.periods.max(of_member.periods);
            entry.reserved_ns += of_member.reserved_ns;
            entry.used_ns += of_member.used_ns;
            entry.misses += of_member.missed;
        }
    }
    let (used, reserved) =
        into.recent.iter().fold((0, 0), |(used, reserved), e| (used + e.used_ns, reserved + e.reserved_ns));
    into.efficiency_ratio = (reserved > 0).then(|| used as f64 / reserved as f64);
    if into.trouble.is_none() {
        into.trouble = reports.iter().find_map(|report| report.trouble.clone());
    }
}
