//! Nanoseconds, which saturate as all numbers of the engine do.

use std::time::Duration;

/// A duration in nanoseconds; the most that there is if it is longer than 584 years.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds as a float; exact below 104 days.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn nanos_f64(nanos: u64) -> f64 {
    nanos as f64
}

/// Nanoseconds of which others can be taken.
pub(crate) fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

/// A sum.
pub(crate) fn total(nanos: impl Iterator<Item = u64>) -> u64 {
    nanos.fold(0, u64::saturating_add)
}
