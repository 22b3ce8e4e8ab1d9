//! Parameters.

use crate::config::{ConfigError, duration, number};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What kind of device the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// An arm moves: what lies together is to be served together.
    Arm,
    /// Flash.
    Flash,
}

/// Which inputs count, and for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inputs {
    /// Those that start something, which are Enter and the release of a button; a request counts once, for
    /// the input that is nearer. Who types would else lose: with inputs closer than the periods each
    /// request is before one and after another (not in the paper).
    #[default]
    Start,
    /// All, and a request may be both after one and before another (§3.1.2).
    All,
}

/// What limits are counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Time of the device. What it offers in a period is the period, so nothing is to be predicted, and large
    /// or far requests are no way to get more (not in the paper).
    #[default]
    Time,
    /// Requests (§3.2.1): what the disk offers in a period is predicted from those before.
    Requests,
}

/// Parameters of the disk policy (vSIP). The defaults are the paper's where it has any.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiskConfig {
    /// Which inputs count.
    pub inputs: Inputs,
    /// Requests this long before an input count against their application (§4.1: 4 s). 100 ms to 100 s.
    #[serde(with = "humantime_serde")]
    pub pre_input: Duration,
    /// Requests this long after one count for it (§4.1: 4 s). 100 ms to 100 s.
    #[serde(with = "humantime_serde")]
    pub post_input: Duration,
    /// An application is interactive if more than this fraction of its counts is after inputs (§4.1: 0.6).
    /// 0.01 to 1.
    pub threshold: f64,
    /// Counts halve each time this has passed (not in the paper). 1 s to 1 h.
    #[serde(with = "humantime_serde")]
    pub half_life: Duration,
    /// Names of media players, which are interactive without inputs (§3.2.2). At most 64, each of at most 64
    /// bytes.
    pub players: Vec<String>,
    /// A name needs so many identifications to come on the white list (§3.2.2 has no number). 1 to 1000.
    pub identifications: u32,
    /// And this fraction of them interactive (§3.2.2 has no number). 0.01 to 1.
    pub identified: f64,
    /// A VM's part of what may come first, over the sum of all caps (§4.1: 5). 1 to 1000, at most `cap`.
    pub weight: u32,
    /// A VM's part of the disk, over the sum of all caps (§4.1: 10). 1 to 1000.
    pub cap: u32,
    /// What limits are counted in.
    pub unit: Unit,
    /// Limits are for this long (§3.2.1 says "periods": 1 s). 10 ms to 60 s.
    #[serde(with = "humantime_serde")]
    pub period: Duration,
    /// What a VM leaves of its limits is kept for it, up to so many periods' worth, so that it can start
    /// something at once. 1 is the paper's, which keeps nothing. 1 to 600.
    pub carry: u32,
    /// What is served although something of a higher class waits, of all service: nothing starves. 0.001 to
    /// 0.5.
    pub low_share: f64,
    /// More is given to the device at once as long as it takes less than this for each (not in the paper).
    /// 100 us to 1 s.
    #[serde(with = "humantime_serde")]
    pub target_latency: Duration,
    /// Most requests that the device has at once. 1 to 1024.
    pub max_depth: u32,
    /// Of an arm: how long a VM is served before it is the next one's turn, in device time (CFQ: 100 ms). 0
    /// to 1 s.
    #[serde(with = "humantime_serde")]
    pub slice: Duration,
    /// Of an arm: how long it is kept where it is for the next request of whom it served last (CFQ: 8 ms). 0
    /// to 100 ms; 0 never keeps it.
    #[serde(with = "humantime_serde")]
    pub idle: Duration,
    /// The same while a person waits for that request, and not a player, if most come within `idle`: about
    /// what it costs to leave and to come back (not in the paper). 0 to 100 ms; less than `idle` is as
    /// `idle`.
    #[serde(with = "humantime_serde")]
    pub idle_high: Duration,
    /// How long at most a flush that nobody waits for is held while a `High` request waits or is served (not
    /// in the paper). 0 to 1 s; 0 holds none.
    #[serde(with = "humantime_serde")]
    pub hold_flush: Duration,
}

/// Most players, and the longest name of an application, in bytes.
const MOST_PLAYERS: usize = 64;
pub(super) const LONGEST_NAME: usize = 64;

impl Default for DiskConfig {
    fn default() -> Self {
        let players = ["mplayer", "mpv", "vlc", "ffplay", "totem", "smplayer", "celluloid", "kodi"];
        DiskConfig {
            inputs: Inputs::Start,
            pre_input: Duration::from_secs(4),
            post_input: Duration::from_secs(4),
            threshold: 0.6,
            half_life: Duration::from_secs(64),
            players: players.map(str::to_owned).to_vec(),
            identifications: 8,
            identified: 0.75,
            weight: 5,
            cap: 10,
            unit: Unit::Time,
            period: Duration::from_secs(1),
            carry: 30,
            low_share: 0.01,
            target_latency: Duration::from_millis(10),
            max_depth: 32,
            slice: Duration::from_millis(100),
            idle: Duration::from_millis(8),
            idle_high: Duration::from_millis(24),
            hold_flush: Duration::from_millis(50),
        }
    }
}

impl DiskConfig {
    /// The paper's, without what is not in it: for comparisons.
    #[must_use]
    pub fn paper() -> DiskConfig {
        DiskConfig {
            inputs: Inputs::All,
            unit: Unit::Requests,
            carry: 1,
            idle_high: Duration::ZERO,
            hold_flush: Duration::ZERO,
            ..DiskConfig::default()
        }
    }

    /// The same for guests in which everything takes `dilation` times as long: the periods around inputs
    /// multiplied.
    #[must_use]
    pub fn dilated(&self, dilation: f64) -> DiskConfig {
        DiskConfig {
            pre_input: self.pre_input.mul_f64(dilation),
            post_input: self.post_input.mul_f64(dilation),
            half_life: self.half_life.mul_f64(dilation),
            ..self.clone()
        }
    }

    /// Every parameter out of its documented range.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let players = if self.players.len() <= MOST_PLAYERS
            && self.players.iter().all(|name| (1..=LONGEST_NAME).contains(&name.len()))
        {
            Ok(())
        } else {
            let value = format!("{:?}", self.players);
            Err(ConfigError { key: "disk.players", value, allowed: "at most 64 names of 1 to 64 bytes" })
        };
        let checks = [
            duration("disk.pre_input", self.pre_input, 100_000_000, 100_000_000_000, "100ms to 100s"),
            duration("disk.post_input", self.post_input, 100_000_000, 100_000_000_000, "100ms to 100s"),
            number("disk.threshold", self.threshold, 0.01, 1.0, "0.01 to 1"),
            duration("disk.half_life", self.half_life, 1_000_000_000, 3_600_000_000_000, "1s to 1h"),
            players,
            number("disk.identifications", self.identifications, 1, 1000, "1 to 1000"),
            number("disk.identified", self.identified, 0.01, 1.0, "0.01 to 1"),
            number("disk.cap", self.cap, 1, 1000, "1 to 1000"),
            number("disk.weight", self.weight, 1, self.cap, "1 to disk.cap"),
            duration("disk.period", self.period, 10_000_000, 60_000_000_000, "10ms to 60s"),
            number("disk.carry", self.carry, 1, 600, "1 to 600"),
            number("disk.low_share", self.low_share, 0.001, 0.5, "0.001 to 0.5"),
            duration("disk.target_latency", self.target_latency, 100_000, 1_000_000_000, "100us to 1s"),
            number("disk.max_depth", self.max_depth, 1, 1024, "1 to 1024"),
            duration("disk.slice", self.slice, 0, 1_000_000_000, "0s to 1s"),
            duration("disk.idle", self.idle, 0, 100_000_000, "0s to 100ms"),
            duration("disk.idle_high", self.idle_high, 0, 100_000_000, "0s to 100ms"),
            duration("disk.hold_flush", self.hold_flush, 0, 1_000_000_000, "0s to 1s"),
        ];
        checks.into_iter().filter_map(Result::err).collect()
    }

    /// Checks every parameter against its documented range.
    ///
    /// # Errors
    /// The first parameter out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_their_ranges_and_others_are_named() {
        assert_eq!(DiskConfig::default().problems(), []);
        assert_eq!(DiskConfig::paper().problems(), []);
        let wrong = DiskConfig { weight: 11, threshold: f64::NAN, carry: 0, ..DiskConfig::default() };
        let keys: Vec<_> = wrong.problems().iter().map(|problem| problem.key).collect();
        assert_eq!(keys, ["disk.threshold", "disk.weight", "disk.carry"]);
        let wrong = DiskConfig { players: vec![String::new()], ..DiskConfig::default() };
        assert!(wrong.validate().unwrap_err().to_string().starts_with("disk.players = "));
    }

    #[test]
    fn only_what_guests_do_is_dilated() {
        let dilated = DiskConfig::default().dilated(6.0);
        assert_eq!([dilated.pre_input, dilated.post_input], [Duration::from_secs(24); 2]);
        assert_eq!(dilated.period, DiskConfig::default().period);
    }
}
