//! Which reservations fit, and where (VSched §3.1: the test of earliest deadline first, on each CPU).

use super::{LEVELS, Reservation, ReservationError, TargetId, WHOLE_CPU};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// So many members may have reservations on one CPU: each has a level of its own.
pub const MEMBERS_PER_CPU: usize = LEVELS as usize;

/// What is free of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The CPU.
    pub cpu: u16,
    /// What may still be reserved, of [`WHOLE_CPU`].
    pub free: u64,
}

/// The largest slice that would fit in place of the one refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fit {
    /// In nanoseconds.
    pub slice_ns: u64,
    /// On these CPUs, one for each member.
    pub cpus: Vec<u16>,
}

/// Why there is no room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Infeasible {
    /// What was asked for.
    pub wanted: Reservation,
    /// What that takes of a CPU with the decisions about it, of [`WHOLE_CPU`].
    pub needs: u64,
    /// On so many CPUs.
    pub members: usize,
    /// What is free, without what the target has already.
    pub rooms: Vec<Room>,
    /// What would fit with the same period, if anything does.
    pub fit: Option<Fit>,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: u64, out: &mut fmt::Formatter<'_>| {
            let tenths = part.saturating_mul(1000) / WHOLE_CPU;
            write!(out, "{}.{} %", tenths / 10, tenths % 10)
        };
        write!(out, "{} needs ", self.wanted)?;
        percent(self.needs, out)?;
        match self.members {
            1 => out.write_str(" of a CPU")?,
            count => write!(out, " of each of {count} CPUs")?,
        }
        for (at, room) in self.rooms.iter().enumerate() {
            write!(out, "{}cpu{} has ", if at == 0 { ", but " } else { ", " }, room.cpu)?;
            percent(room.free, out)?;
        }
        out.write_str(" free; ")?;
        match &self.fit {
            Some(Fit { slice_ns, cpus }) => {
                let fitting = Reservation { slice_ns: *slice_ns, ..self.wanted };
                let names: Vec<String> = cpus.iter().map(|cpu| format!("cpu{cpu}")).collect();
                write!(out, "{fitting} fits on {}", names.join(" and "))
            }
            None => out.write_str("nothing fits until another reservation is released or made smaller"),
        }
    }
}

/// A reservation that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// It makes no sense.
    #[error(transparent)]
    Invalid(#[from] ReservationError),
    /// There is no room for it.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// The target has more members than there are CPUs.
    #[error(
        "it has {members} vCPUs, and they need a CPU each to run in lock step, but reservations may use {cpus} only"
    )]
    TooManyMembers {
        /// Members of the target.
        members: usize,
        /// CPUs that reservations may use.
        cpus: usize,
    },
}

/// Which target has what, and where.
#[derive(Clone, Debug)]
pub struct Admission {
    cpus: Vec<u16>,
    /// What may be reserved of each CPU.
    capacity: u64,
    /// What the dispatcher takes in each period of a member.
    deciding_ns: u64,
    granted: BTreeMap<TargetId, Grant>,
}

#[derive(Clone, Debug)]
struct Grant {
    reservation: Reservation,
    cpus: Vec<u16>,
}

impl Admission {
    /// Nothing is reserved yet. Of each of these CPUs, `spare` of [`WHOLE_CPU`] stays for everything without
    /// a reservation: the administrator's reserve. The dispatcher takes `deciding_ns` nanoseconds of a CPU in
    /// each period of each member there.
    #[must_use]
    pub fn new(cpus: &[u16], spare: u64, deciding_ns: u64) -> Admission {
        let capacity = WHOLE_CPU.saturating_sub(spare);
        let mut admission = Admission { cpus: Vec::new(), capacity, deciding_ns, granted: BTreeMap::new() };
        admission.set_cpus(cpus);
        admission
    }

    /// From now on, these are the CPUs. Who has something on another keeps it until it is given back.
    pub fn set_cpus(&mut self, cpus: &[u16]) {
        self.cpus = cpus.to_vec();
        self.cpus.sort_unstable();
        self.cpus.dedup();
    }

    /// Finds room for a target with so many members, in place of what it has already, if anything. Returns
    /// the CPU of each member. A target that fits where it is stays there; otherwise each member gets the CPU
    /// with the most room.
    ///
    /// # Errors
    /// There is no room, or the reservation makes no sense: all stays as it was.
    pub fn admit(
        &mut self,
        target: TargetId,
        reservation: Reservation,
        members: usize,
    ) -> Result<Vec<u16>, AdmissionError> {
        reservation.validate()?;
        let members = members.max(1);
        if members > self.cpus.len() {
            return Err(AdmissionError::TooManyMembers { members, cpus: self.cpus.len() });
        }
        let rooms = self.rooms_without(Some(target));
        let needs = self.needs(reservation);
        let fits = |cpu: u16| rooms.iter().any(|room| room.cpu == cpu && room.free >= needs);
        let kept = self.granted.get(&target).map(|grant| grant.cpus.clone());
        let kept = kept.filter(|cpus| cpus.len() == members && cpus.iter().all(|cpu| fits(*cpu)));
        let mut best = rooms.clone();
        // The CPU with the most room first, of equals the one with the lowest number.
        best.sort_by_key(|room| Reverse(room.free));
        best.truncate(members);
        let least = best.last().map_or(0, |room| room.free);
        let cpus = || best.iter().map(|room| room.cpu).collect::<Vec<u16>>();
        let cpus = match kept {
            Some(cpus) => cpus,
            None if least >= needs => cpus(),
            None => {
                let fit = self.largest_slice(reservation, least);
                let fit = fit.map(|slice_ns| Fit { slice_ns, cpus: cpus() });
                return Err(Infeasible { wanted: reservation, needs, members, rooms, fit }.into());
            }
        };
        self.granted.insert(target, Grant { reservation, cpus: cpus.clone() });
        Ok(cpus)
    }

    /// Gives back what a target has. One that has nothing is no error.
    pub fn release(&mut self, target: TargetId) {
        self.granted.remove(&target);
    }

    /// What is free of each CPU.
    #[must_use]
    pub fn rooms(&self) -> Vec<Room> {
        self.rooms_without(None)
    }

    fn rooms_without(&self, target: Option<TargetId>) -> Vec<Room> {
        let others =
            || self.granted.iter().filter(move |(id, _)| Some(**id) != target).map(|(_, grant)| grant);
        let room = |cpu: &u16| {
            let here = || others().filter(|grant| grant.cpus.contains(cpu));
            let taken = here().fold(0, |sum: u64, grant| sum.saturating_add(self.needs(grant.reservation)));
            let places = here().count() < MEMBERS_PER_CPU;
            Room { cpu: *cpu, free: if places { self.capacity.saturating_sub(taken) } else { 0 } }
        };
        self.cpus.iter().map(room).collect()
    }

    /// What a member takes of its CPU with the decisions about it, of [`WHOLE_CPU`].
    fn needs(&self, reservation: Reservation) -> u64 {
        let with_decisions = reservation.slice_ns.saturating_add(self.deciding_ns);
        Reservation { slice_ns: with_decisions, ..reservation }.utilisation()
    }

    /// The largest slice that takes no more than `free`, rounded down to three digits, for people are to read
    /// and use it.
    fn largest_slice(&self, reservation: Reservation, free: u64) -> Option<u64> {
        let exact = u128::from(reservation.period_ns) * u128::from(free) / u128::from(WHOLE_CPU);
        let exact = u64::try_from(exact).unwrap_or(u64::MAX).saturating_sub(self.deciding_ns);
        let step = 10u64.saturating_pow(exact.checked_ilog10().unwrap_or(0).saturating_sub(2));
        let slice_ns = exact / step * step;
        let fitting = Reservation { slice_ns, ..reservation };
        (fitting.validate().is_ok() && self.needs(fitting) <= free).then_some(slice_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PERCENT: u64 = WHOLE_CPU / 100;

    fn reservation(period_ms: u64, slice_us: u64) -> Reservation {
        Reservation { period_ns: period_ms * MS, slice_ns: slice_us * 1000, hard: false, phase_ns: None }
    }

    /// The example of VSched §3.3: 200 ms every 1000 ms, and the three VMs of figure 2.
    #[test]
    fn what_fits_is_admitted_where_there_is_most_room() {
        let mut admission = Admission::new(&[1, 0], 10 * PERCENT, 0);
        assert_eq!(admission.admit(TargetId(1), reservation(1000, 200_000), 1).unwrap(), [0]);
        assert_eq!(admission.admit(TargetId(2), reservation(50, 20_000), 1).unwrap(), [1]);
        assert_eq!(admission.admit(TargetId(3), reservation(100, 10_000), 1).unwrap(), [0]);
        assert_eq!(admission.admit(TargetId(4), reservation(1000, 300_000), 2).unwrap(), [0, 1]);
        let free =
            |admission: &Admission| admission.rooms().iter().map(|room| room.free).collect::<Vec<u64>>();
        assert_eq!(free(&admission), [30 * PERCENT, 20 * PERCENT]);
        assert_eq!(admission.admit(TargetId(1), reservation(1000, 450_000), 1).unwrap(), [0], "it stays");
        admission.release(TargetId(4));
        assert_eq!(free(&admission), [35 * PERCENT, 50 * PERCENT]);
        assert_eq!(admission.admit(TargetId(3), reservation(100, 46_000), 1).unwrap(), [1], "it has to move");
    }

    #[test]
    fn a_refusal_says_what_is_free_and_what_would_fit() {
        let mut admission = Admission::new(&[0, 1], 5 * PERCENT, 0);
        admission.admit(TargetId(1), reservation(10, 8_300), 1).unwrap();
        admission.admit(TargetId(2), reservation(10, 7_800), 1).unwrap();
        let before = admission.rooms();
        let refused = admission.admit(TargetId(3), reservation(10, 5_000), 1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "10ms / 5ms needs 50.0 % of a CPU, but cpu0 has 12.0 %, cpu1 has 17.0 % free; 10ms / 1.7ms fits on cpu1"
        );
        let refused = admission.admit(TargetId(3), reservation(10, 5_000), 2).unwrap_err().to_string();
        assert!(refused.ends_with("10ms / 1.2ms fits on cpu1 and cpu0"), "{refused}");
        assert_eq!(admission.rooms(), before, "a refusal changes nothing");
        let refused = admission.admit(TargetId(1), reservation(10, 9_900), 1).unwrap_err().to_string();
        assert!(refused.ends_with("10ms / 9.5ms fits on cpu0"), "its own is not in its way: {refused}");
        assert_eq!(admission.rooms(), before, "nor does the refusal of a change");
        let refused = admission.admit(TargetId(3), reservation(10, 1_000), 3).unwrap_err();
        assert_eq!(refused, AdmissionError::TooManyMembers { members: 3, cpus: 2 });
        let invalid = admission.admit(TargetId(3), reservation(10, 11_000), 1).unwrap_err();
        assert!(matches!(invalid, AdmissionError::Invalid(ReservationError { key: "slice", .. })));
    }

    #[test]
    fn what_is_said_to_fit_does() {
        for period in [200_000, 333_333, 10_000_000, 600_000_000_000, 7_777_777_777] {
            for taken in (0..100).step_by(7) {
                let mut admission = Admission::new(&[0], 5 * PERCENT, 40_000);
                let taken = Reservation {
                    period_ns: period,
                    slice_ns: period / 100 * taken,
                    hard: true,
                    phase_ns: None,
                };
                let _ = admission.admit(TargetId(0), taken, 1);
                let wanted = Reservation { slice_ns: period, ..taken };
                let Err(AdmissionError::Infeasible(refusal)) = admission.admit(TargetId(1), wanted, 1) else {
                    panic!("the whole CPU was given away");
                };
                let Some(fit) = refusal.fit else { continue };
                assert_eq!(
                    admission.admit(TargetId(1), Reservation { slice_ns: fit.slice_ns, ..wanted }, 1),
                    Ok(vec![0])
                );
            }
        }
    }

    #[test]
    fn decisions_take_their_part_of_each_period() {
        let mut admission = Admission::new(&[0], 5 * PERCENT, 40_000);
        admission.admit(TargetId(1), reservation(10, 8_460), 1).unwrap();
        let refused = admission.admit(TargetId(2), reservation(1, 70), 1).unwrap_err().to_string();
        assert_eq!(
            refused,
            "1ms / 70us needs 11.0 % of a CPU, but cpu0 has 10.0 % free; 1ms / 60us fits on cpu0"
        );
        admission.admit(TargetId(2), reservation(1, 60), 1).unwrap();
        assert_eq!(admission.rooms(), [Room { cpu: 0, free: 0 }]);
    }

    #[test]
    fn nothing_is_admitted_to_a_cpu_that_went() {
        let mut admission = Admission::new(&[0, 1], 5 * PERCENT, 0);
        assert_eq!(admission.admit(TargetId(1), reservation(10, 1_000), 1).unwrap(), [0]);
        admission.set_cpus(&[0]);
        assert_eq!(admission.admit(TargetId(2), reservation(10, 8_000), 1).unwrap(), [0]);
        let refused = admission.admit(TargetId(3), reservation(10, 1_000), 2).unwrap_err();
        assert_eq!(refused, AdmissionError::TooManyMembers { members: 2, cpus: 1 });
        admission.set_cpus(&[1, 0]);
        assert_eq!(admission.admit(TargetId(3), reservation(10, 8_000), 1).unwrap(), [1], "it came back");
    }

    #[test]
    fn a_cpu_has_a_bounded_number_of_members() {
        let mut admission = Admission::new(&[3], 0, 0);
        for target in 0..22 {
            admission.admit(TargetId(target), reservation(1000, 10), 1).unwrap();
        }
        let refused = admission.admit(TargetId(22), reservation(1000, 10), 1).unwrap_err().to_string();
        assert!(refused.contains("nothing fits"), "{refused}");
    }
}
