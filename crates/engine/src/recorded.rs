//! The parameters as recordings have them, which later releases are to read: durations in nanoseconds, and a
//! parameter that is not known is left out, where a configuration with one is refused.
//!
//! A parameter that is added later gets a `serde(default)` here, with the value under which the engine
//! decides as it did without it.

use crate::config::{Asymmetric, Config, Ledger, Multimedia, Profile, Ratio, Tavs, VmPolicy};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a recording has a [`Config`]; for `serde(with)`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Config")]
pub struct RecordedConfig {
    #[serde(with = "RecordedTavs")]
    tavs: Tavs,
    #[serde(with = "RecordedLedger")]
    ledger: Ledger,
    #[serde(default, with = "RecordedMultimedia")]
    multimedia: Multimedia,
    #[serde(default = "Asymmetric::none", with = "RecordedAsymmetric")]
    asymmetric: Asymmetric,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Tavs")]
struct RecordedTavs {
    #[serde(rename = "io_threshold_ns", with = "nanoseconds")]
    io_threshold: Duration,
    positive_evidence: i32,
    negative_evidence: i32,
    belief_threshold: i32,
    belief_min: i32,
    belief_max: i32,
    pb_ratio: f64,
    boost_limit: f64,
    #[serde(rename = "pb_period_ns", with = "nanoseconds")]
    pb_period: Duration,
    #[serde(rename = "patience_ns", with = "nanoseconds")]
    patience: Duration,
    #[serde(rename = "max_boost_ns", with = "nanoseconds")]
    max_boost: Duration,
    correlation: bool,
    acknowledgements: bool,
    #[serde(default)]
    idle: bool,
    inspection_window: usize,
    counter_bits: u32,
    tasks_per_vcpu: usize,
    #[serde(rename = "time_slice_ns", with = "nanoseconds")]
    time_slice: Duration,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Ledger")]
struct RecordedLedger {
    #[serde(rename = "period_ns", with = "nanoseconds")]
    period: Duration,
    #[serde(rename = "horizon_ns", with = "nanoseconds")]
    horizon: Duration,
    min_share: f64,
    #[serde(default, rename = "longest_wait_ns", with = "nanoseconds")]
    longest_wait: Duration,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Multimedia")]
struct RecordedMultimedia {
    boost: bool,
    #[serde(rename = "max_boost_ns", with = "nanoseconds")]
    max_boost: Duration,
    profile: Profile,
    max_share: Option<f64>,
    #[serde(rename = "period_ns", with = "nanoseconds")]
    period: Duration,
    #[serde(rename = "fast_start_ns", with = "nanoseconds")]
    fast_start: Duration,
    #[serde(rename = "fast_period_ns", with = "nanoseconds")]
    fast_period: Duration,
    share_unit: f64,
    negative_count: u32,
    frame_rate: f64,
    gpu_frame_rate: f64,
    tolerance: f64,
    weight: f64,
    gpu_weight: f64,
    #[serde(rename = "end_after_ns", with = "nanoseconds")]
    end_after: Duration,
    early: bool,
    #[serde(default)]
    seed_average: bool,
    #[serde(default)]
    inside: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Asymmetric")]
struct RecordedAsymmetric {
    ratio: Ratio,
    #[serde(rename = "pre_io_period_ns", with = "nanoseconds")]
    pre_io_period: Duration,
    background_load: f64,
    per_vcpu: bool,
    #[serde(rename = "max_episode_ns", with = "nanoseconds")]
    max_episode: Duration,
    ports: Vec<u16>,
    identify_players: bool,
    #[serde(rename = "wake_latency_ns", with = "nanoseconds")]
    wake_latency: Duration,
    restore: bool,
    #[serde(rename = "min_fast_ns", with = "nanoseconds")]
    min_fast: Duration,
}

/// How a recording has a [`VmPolicy`]; for `serde(with)`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "VmPolicy")]
pub struct RecordedPolicy {
    off: bool,
    pb_ratio: Option<f64>,
}

mod nanoseconds {
    use crate::nanos::nanos;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(nanos(*duration))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_nanos)
    }
}
