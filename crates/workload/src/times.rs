//! Pairs of durations, as `["1ms", "2ms"]`.

use humantime_serde::Serde;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

/// Writes a pair.
///
/// # Errors
/// Those of the format.
pub fn serialize<S: Serializer>(of: &[Duration; 2], to: S) -> Result<S::Ok, S::Error> {
    of.map(Serde::from).serialize(to)
}

/// Reads a pair.
///
/// # Errors
/// What is there is no pair of durations.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[Duration; 2], D::Error> {
    <[Serde<Duration>; 2]>::deserialize(from).map(|of| of.map(Serde::into_inner))
}
