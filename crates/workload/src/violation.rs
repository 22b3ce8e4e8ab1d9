//! Values that a scenario cannot have.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A value that a scenario cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: allowed is {allowed}")]
pub struct Violation {
    /// The dotted key, in the form in which an override names it.
    pub key: String,
    /// The value found.
    pub value: String,
    /// What would be accepted.
    pub allowed: String,
}

/// Whether a value is allowed; `text` says what is.
///
/// # Errors
/// It is not.
pub fn require(
    allowed: bool,
    key: impl Into<String>,
    value: impl Display,
    text: impl Into<String>,
) -> Result<(), Violation> {
    if allowed {
        Ok(())
    } else {
        Err(Violation { key: key.into(), value: value.to_string(), allowed: text.into() })
    }
}

/// Whether a number is in its range.
///
/// # Errors
/// It is not.
pub fn range<N: PartialOrd + Display>(
    key: impl Into<String>,
    value: N,
    allowed: RangeInclusive<N>,
) -> Result<(), Violation> {
    let text = format!("{} to {}", allowed.start(), allowed.end());
    require(allowed.contains(&value), key, value, text)
}

/// Whether a time is in its range.
///
/// # Errors
/// It is not.
pub fn period(
    key: impl Into<String>,
    value: Duration,
    allowed: RangeInclusive<Duration>,
) -> Result<(), Violation> {
    let show = humantime::format_duration;
    let text = format!("{} to {}", show(*allowed.start()), show(*allowed.end()));
    require(allowed.contains(&value), key, show(value), text)
}
