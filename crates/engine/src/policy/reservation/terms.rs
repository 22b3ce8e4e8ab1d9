//! What is reserved, and for whom.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The shortest period: 200 us.
pub const MIN_PERIOD_NS: u64 = 200_000;
/// The longest period: 30 days.
pub const MAX_PERIOD_NS: u64 = 30 * 24 * 3600 * 1_000_000_000;
/// The shortest slice: 10 us. Switching to a target and back costs nearly as much.
pub const MIN_SLICE_NS: u64 = 10_000;
/// The longest that a target runs before everything without a reservation: 20 ms.
const TURN_NS: u64 = 20_000_000;
/// The whole of a CPU, in the unit in which utilisation is counted.
pub const WHOLE_CPU: u64 = 1_000_000_000;

/// Something that reservations are made for, numbered by whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TargetId(pub u32);

/// What of a target runs on one CPU: a vCPU of a VM, or all of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Of which target.
    pub target: TargetId,
    /// Which of its members; 0 is the first.
    pub index: u16,
}

/// So much CPU time in every period, for each member of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reservation {
    /// Length of a period in nanoseconds: [`MIN_PERIOD_NS`] to [`MAX_PERIOD_NS`]. Its end is the deadline of
    /// its slice.
    pub period_ns: u64,
    /// CPU time in each period in nanoseconds: [`MIN_SLICE_NS`] to the period.
    pub slice_ns: u64,
    /// Whether the slice is also the most that the target gets. If not, it may use what nobody else wants.
    pub hard: bool,
    /// Periods begin so long after the multiples of their length on the wall clock: 0 to the period, in
    /// nanoseconds. If absent, the first begins at once.
    pub phase_ns: Option<u64>,
}

/// A reservation that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {} is out of range: allowed is {} to {}", Span(*value), Span(*least), Span(*most))]
pub struct ReservationError {
    /// `period`, `slice` or `phase`.
    pub key: &'static str,
    /// What was asked for, in nanoseconds.
    pub value: u64,
    /// The least that is allowed, in nanoseconds.
    pub least: u64,
    /// The most that is allowed, in nanoseconds.
    pub most: u64,
}

impl Reservation {
    /// Checks both values.
    ///
    /// # Errors
    /// The first that is out of its range.
    pub fn validate(&self) -> Result<(), ReservationError> {
        let check = |key, value, least, most| {
            let error = ReservationError { key, value, least, most };
            if (least..=most).contains(&value) { Ok(()) } else { Err(error) }
        };
        check("period", self.period_ns, MIN_PERIOD_NS, MAX_PERIOD_NS)?;
        check("slice", self.slice_ns, MIN_SLICE_NS, self.period_ns)?;
        check("phase", self.phase_ns.unwrap_or(0), 0, self.period_ns)
    }

    /// How it is kept: a slice of more than 20 ms as several equal parts of it, in as many parts of the
    /// period. A batch VM at (10 min, 1 min) would have the CPU for a minute otherwise, and nothing without a
    /// reservation would run there.
    #[must_use]
    pub fn in_turns(self) -> Reservation {
        let turns = self.slice_ns.div_ceil(TURN_NS).max(1);
        let period_ns = self.period_ns / turns;
        let phase_ns = self.phase_ns.map(|phase| phase % period_ns.max(1));
        Reservation { period_ns, slice_ns: self.slice_ns.div_ceil(turns), phase_ns, ..self }
    }

    /// The part of a CPU that it takes, of [`WHOLE_CPU`], rounded up.
    #[must_use]
    pub fn utilisation(&self) -> u64 {
        let parts = u128::from(self.slice_ns) * u128::from(WHOLE_CPU);
        u64::try_from(parts.div_ceil(u128::from(self.period_ns.max(1)))).unwrap_or(u64::MAX)
    }

    /// What of the slice belongs to `length` nanoseconds of a period: all of it if that is a whole period or
    /// more.
    pub(super) fn slice_in(&self, length: u64) -> u64 {
        let part = u128::from(self.slice_ns) * u128::from(length) / u128::from(self.period_ns.max(1));
        u64::try_from(part).unwrap_or(u64::MAX).min(self.slice_ns)
    }
}

impl fmt::Display for Reservation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} / {}", Span(self.period_ns), Span(self.slice_ns))
    }
}

/// A duration in nanoseconds, shown in the unit that suits it, with up to three decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub u64);

impl fmt::Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] = [
            (86_400_000_000_000, "d"),
            (3_600_000_000_000, "h"),
            (60_000_000_000, "min"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
        ];
        let (unit, name) = UNITS.into_iter().find(|(unit, _)| self.0 >= *unit).unwrap_or((1, "ns"));
        let thousandths = u128::from(self.0 % unit) * 1000 / u128::from(unit);
        write!(out, "{}", self.0 / unit)?;
        if thousandths > 0 {
            write!(out, ".{}", format!("{thousandths:03}").trim_end_matches('0'))?;
        }
        out.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_with_key_value_and_range() {
        let told = |period_ns, slice_ns| {
            Reservation { period_ns, slice_ns, hard: false, phase_ns: None }
                .validate()
                .map_err(|error| error.to_string())
        };
        assert_eq!(told(10_000_000, 2_000_000), Ok(()));
        assert_eq!(told(MIN_PERIOD_NS, MIN_PERIOD_NS), Ok(()));
        for (period, slice, message) in [
            (0, 0, "period = 0ns is out of range: allowed is 200us to 30d"),
            (199_999, 100_000, "period = 199.999us is out of range: allowed is 200us to 30d"),
            (MAX_PERIOD_NS * 2, 1_000_000, "period = 60d is out of range: allowed is 200us to 30d"),
            (u64::MAX, u64::MAX, "period = 213503.982d is out of range: allowed is 200us to 30d"),
            (10_000_000, 0, "slice = 0ns is out of range: allowed is 10us to 10ms"),
            (10_000_000, 10_000_001, "slice = 10ms is out of range: allowed is 10us to 10ms"),
        ] {
            assert_eq!(told(period, slice), Err(message.to_owned()));
        }
    }

    #[test]
    fn long_slices_are_kept_in_turns() {
        let in_turns = |period_ns, slice_ns, phase_ns| {
            let kept = Reservation { period_ns, slice_ns, hard: true, phase_ns }.in_turns();
            (kept.period_ns, kept.slice_ns, kept.phase_ns)
        };
        let (ms, min) = (1_000_000, 60_000_000_000);
        assert_eq!(in_turns(10 * min, min, None), (200 * ms, 20 * ms, None));
        assert_eq!(in_turns(1000 * ms, 900 * ms, Some(50 * ms)), (22_222_222, 20 * ms, Some(5_555_556)));
        for (period, slice) in [(10 * min, 20 * ms), (20 * ms, 20 * ms), (200_000, 10_000)] {
            assert_eq!(in_turns(period, slice, Some(1)), (period, slice, Some(1)), "as it is");
        }
        let longest =
            Reservation { period_ns: MAX_PERIOD_NS, slice_ns: MAX_PERIOD_NS, hard: false, phase_ns: None };
        assert_eq!(longest.in_turns().validate(), Ok(()));
    }

    #[test]
    fn spans_are_told_in_the_unit_that_suits() {
        for (nanos, told) in [
            (999, "999ns"),
            (1_700_000, "1.7ms"),
            (200_000, "200us"),
            (15_800_000, "15.8ms"),
            (600_000_000_000, "10min"),
            (90_000_000_000, "1.5min"),
            (1_050_000_000, "1.05s"),
        ] {
            assert_eq!(Span(nanos).to_string(), told);
        }
    }
}
