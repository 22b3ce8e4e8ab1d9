//! Reservations by the kernel's `SCHED_DEADLINE`. The dispatcher only keeps the account then; the kernel
//! enforces, as precisely as its timer tick, and every limit is hard.

use super::enforce::Enforce;
use super::members::{MemberRole, MemberThread, MemberThreads};
use super::target::Found;
use super::user::stop_or_go_on;
use crate::threads::HIGHEST_PRIORITY;
use frontdesk_control_protocol::{Refusal, RefusalKind};
use frontdesk_engine::reservation::{Dispatch, DispatchKind, Member, Reservation};
use frontdesk_linux::sched::{Attributes, Policy, SchedError};
use std::collections::BTreeMap;

/// The kernel takes no longer periods (`sched_deadline_period_max_us`, 2^22). A longer one is kept as several
/// with a part of the slice each.
const LONGEST: u64 = 4_000_000_000;
/// Emulator threads come before everything ordinary and before boosts, and like the vCPUs they serve use
/// little.
const EMULATOR: Attributes = Attributes::fifo(HIGHEST_PRIORITY + 1);

#[derive(Debug)]
struct DeadlineMember {
    threads: MemberThreads,
    reservation: Option<Reservation>,
    stopped: bool,
}

/// Carries out reservations by telling the kernel of them.
#[derive(Debug, Default)]
pub(super) struct Deadline {
    members: BTreeMap<Member, DeadlineMember>,
}

impl Enforce for Deadline {
    fn dispatcher(&self) -> [Attributes; 2] {
        // It keeps the account and leaves the kernel's room for `SCHED_DEADLINE` to the members: above the
        // daemon's other threads, and below the guardian. Where real time is refused, a little of that room
        // does.
        let policy = Policy::Deadline {
            runtime_ns: 500_000,
            deadline_ns: 10_000_000,
            period_ns: 10_000_000,
            flags: 0,
        };
        [Attributes::fifo(55), Attributes { policy, reset_on_fork: true }]
    }

    fn hold(
        &mut self,
        member: Member,
        reservation: Option<Reservation>,
        threads: MemberThreads,
    ) -> Result<(), SchedError> {
        let fresh = DeadlineMember { threads: MemberThreads::default(), reservation: None, stopped: false };
        let held = self.members.entry(member).or_insert(fresh);
        let known = std::mem::replace(&mut held.threads, threads);
        let changed = reservation.is_some() && held.reservation != reservation;
        held.reservation = reservation.or(held.reservation);
        let Some(reservation) = held.reservation else { return Ok(()) };
        for MemberThread { thread, role } in &held.threads.all {
            if changed || !known.has(thread.id()) {
                let attributes =
                    if *role == MemberRole::Emulator { EMULATOR } else { attributes(reservation) };
                match thread.set(attributes) {
                    Ok(()) | Err(SchedError::Vanished { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn forget(&mut self, member: Member) {
        if let Some(held) = self.members.remove(&member)
            && held.stopped
        {
            // Who puts the process back makes sure of it, and tells if it fails.
            let _ = stop_or_go_on([&held.threads], false);
        }
    }

    /// Only a pause is for us to carry out.
    fn apply(&mut self, dispatch: Dispatch) -> Result<(), SchedError> {
        let Some(held) = self.members.get_mut(&dispatch.member) else { return Ok(()) };
        let hard = held.reservation.is_some_and(|reservation| reservation.hard);
        let stop = dispatch.kind == DispatchKind::Stop && !hard;
        if held.stopped != stop {
            stop_or_go_on([&held.threads], stop)?;
            held.stopped = stop;
        }
        Ok(())
    }
}

fn attributes(Reservation { period_ns, slice_ns, .. }: Reservation) -> Attributes {
    let parts = period_ns.div_ceil(LONGEST).max(1);
    let (period_ns, runtime_ns) = (period_ns / parts, slice_ns.div_ceil(parts));
    let policy = Policy::Deadline { runtime_ns, deadline_ns: period_ns, period_ns, flags: 0 };
    Attributes { policy, reset_on_fork: true }
}

/// The kernel reserves for single threads, in phases of its own.
pub(super) fn suits(found: &Found, reservation: Reservation) -> Result<(), Refusal> {
    let unsuitable = |message: &str| Err(Refusal::new(RefusalKind::Unsuitable, message));
    if reservation.phase_ns.is_some() {
        return unsuitable(
            "SCHED_DEADLINE chooses the phase of periods itself; reserve.mechanism = \"user\" aligns them",
        );
    }
    if found.vcpus.is_empty() && found.threads()?.len() > 1 {
        return unsuitable(
            "it has several threads, and SCHED_DEADLINE reserves for each alone; reserve.mechanism = \"user\" reserves for all together",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::members::tests::Stranger;
    use super::*;
    use frontdesk_engine::reservation::TargetId;

    #[test]
    fn who_has_a_members_number_by_now_is_left_alone() {
        let stranger = Stranger::start();
        let before = stranger.now();
        let member = Member { target: TargetId(0), index: 0 };
        let reservation =
            Reservation { period_ns: 10_000_000, slice_ns: 1_000_000, hard: false, phase_ns: None };
        Deadline::default().hold(member, Some(reservation), stranger.member()).unwrap();
        assert_eq!(stranger.now(), before);
    }

    #[test]
    fn long_periods_are_kept_in_parts() {
        let policy = |period_ns, slice_ns| {
            let reservation = Reservation { period_ns, slice_ns, hard: false, phase_ns: None };
            match attributes(reservation).policy {
                Policy::Deadline { runtime_ns, deadline_ns, period_ns, .. } if deadline_ns == period_ns => {
                    (period_ns, runtime_ns)
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(policy(10_000_000, 2_000_000), (10_000_000, 2_000_000));
        assert_eq!(policy(600_000_000_000, 60_000_000_000), (4_000_000_000, 400_000_000), "10 min / 1 min");
        assert_eq!(policy(5_000_000_000, 1_000_000_001), (2_500_000_000, 500_000_001), "no less");
    }
}
