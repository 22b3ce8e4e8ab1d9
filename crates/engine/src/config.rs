//! Parameters, with the papers' defaults.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// All parameters of the engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Task-aware boosting.
    pub tavs: Tavs,
    /// The fairness ledger.
    pub ledger: Ledger,
    /// Multimedia.
    pub multimedia: Multimedia,
    /// Asymmetric vCPUs.
    pub asymmetric: Asymmetric,
}

/// Parameters of task-aware boosting (TAVS). The defaults are the paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tavs {
    /// A task that runs no longer than this after an event behaves like an I/O-bound one (§3.1: 0.5 ms).
    /// 1 us to 1 s.
    #[serde(with = "humantime_serde")]
    pub io_threshold: Duration,
    /// Added to the degree of belief by positive evidence (§5: 5). 0 to 1000.
    pub positive_evidence: i32,
    /// Subtracted from the degree of belief by negative evidence (§5: 20). 0 to 1000.
    pub negative_evidence: i32,
    /// A task is I/O-bound if its degree of belief is above this (§5: 20). Within `belief_min..belief_max`.
    pub belief_threshold: i32,
    /// Lower bound of the degree of belief (§5: -100). -10000 to 0.
    pub belief_min: i32,
    /// Upper bound of the degree of belief (§5: 300). 0 to 10000.
    pub belief_max: i32,
    /// CPU time the vCPUs of a VM may use while boosted, as a fraction of all they use (§3.2). 0 to 1; 0
    /// turns boosting off. §5.2 has 0.125. That is little where a VM is due little, for there are many: some
    /// letters could not be boosted, and waited longer than without boosts of others. It is the ledger that
    /// keeps a VM to its share. The paper's VMs have one vCPU; of several, one may do nothing but answer.
    /// What the guest runs from an event to the dispatch of the task that it wakes does not count: since
    /// Linux 6.6 it finishes its tick first.
    pub pb_ratio: f64,
    /// CPU time that all threads of a VM together may use boosted, in CPUs. It is lowered to what the world
    /// lets a VM run in real time. 0.001 to 1.
    pub boost_limit: f64,
    /// How often the counts behind `pb_ratio` start afresh (§3.2 says "periodically": 1 s). 10 ms to 1 h.
    #[serde(with = "humantime_serde")]
    pub pb_period: Duration,
    /// How long a boosted vCPU may run for an event before an I/O-bound task runs: a guest may finish its
    /// tick first (the paper's guests preempt at once). Used until it is learnt for each VM, between
    /// `io_threshold` and `max_boost`. 1 us to 1 s.
    #[serde(with = "humantime_serde")]
    pub patience: Duration,
    /// Longest boost, as run time of the vCPU (§3.2: a tick, 10 ms); with what it waits for a CPU four times
    /// that at most. 100 us to 1 s.
    #[serde(with = "humantime_serde")]
    pub max_boost: Duration,
    /// Boost only for events that the correlation says an I/O-bound task waits for (§3.3). Without it any
    /// event for a VM with an I/O-bound task boosts.
    pub correlation: bool,
    /// Whether TCP segments without payload count as packets, too, pure acknowledgements above all (§4.3.2:
    /// all do). They wake no task, so that boosts for them are in vain; what wakes nobody then teaches
    /// nothing about its port. Sources go by this: the engine does not hear of what does not count.
    pub acknowledgements: bool,
    /// Whether any event boosts a VM that sleeps as a whole and has not had more than its share (not in the
    /// paper, whose scheduler boosts by itself whoever wakes with credit left, §2.2). A guest in which a
    /// single task waits switches to nobody, so nothing would ever be known of it.
    pub idle: bool,
    /// Tasks looked at when a block is requested (§3.3.1: 3). 1 to 16.
    pub inspection_window: usize,
    /// Bits of a port's saturating counter (§3.3.2: 2). 1 to 8.
    pub counter_bits: u32,
    /// Guest tasks remembered per vCPU; the least recently seen is forgotten first (§4.1). 2 to 65536.
    pub tasks_per_vcpu: usize,
    /// An observation after an event ends when the vCPU ran this long (§2.2: a time slice, 30 ms).
    /// 1 ms to 10 s.
    #[serde(with = "humantime_serde")]
    pub time_slice: Duration,
}

impl Default for Tavs {
    fn default() -> Self {
        Tavs {
            io_threshold: Duration::from_micros(500),
            positive_evidence: 5,
            negative_evidence: 20,
            belief_threshold: 20,
            belief_min: -100,
            belief_max: 300,
            pb_ratio: 0.5,
            boost_limit: 1.0,
            pb_period: Duration::from_secs(1),
            patience: Duration::from_millis(6),
            max_boost: Duration::from_millis(10),
            correlation: true,
            acknowledgements: false,
            idle: true,
            inspection_window: 3,
            counter_bits: 2,
            tasks_per_vcpu: 256,
            time_slice: Duration::from_millis(30),
        }
    }
}

/// Parameters of the ledger that takes back what boosts gave beyond a VM's share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ledger {
    /// How often accounts are settled. 1 ms to 10 s.
    #[serde(with = "humantime_serde")]
    pub period: Duration,
    /// A debt is repaid over this time. 1 ms to 60 s, not below `period`.
    #[serde(with = "humantime_serde")]
    pub horizon: Duration,
    /// A VM's share is never lowered below this fraction of its weight. 0.01 to 1.
    pub min_share: f64,
    /// A thread that wants a physical CPU for so long, and for longer than turns take, though its VM has not
    /// had more than its share, has been forgotten by the host's scheduler: it gets turns of a slice,
    /// `tavs.max_boost` at most, until it has one of its own again (not in the papers). 0 turns that off,
    /// else 10 ms to 60 s.
    #[serde(with = "humantime_serde")]
    pub longest_wait: Duration,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger {
            period: Duration::from_millis(50),
            horizon: Duration::from_millis(250),
            min_share: 0.05,
            longest_wait: Duration::from_millis(100),
        }
    }
}

impl Ledger {
    fn checks(&self) -> [Result<(), ConfigError>; 5] {
        let wait = self.longest_wait;
        [
            duration("ledger.period", self.period, 1_000_000, 10_000_000_000, "1ms to 10s"),
            duration("ledger.horizon", self.horizon, 1_000_000, 60_000_000_000, "1ms to 60s"),
            if self.horizon < self.period {
                let value = format!("{:?}", self.horizon);
                Err(ConfigError { key: "ledger.horizon", value, allowed: "at least ledger.period" })
            } else {
                Ok(())
            },
            number("ledger.min_share", self.min_share, 0.01, 1.0, "0.01 to 1"),
            if wait.is_zero() {
                Ok(())
            } else {
                duration("ledger.longest_wait", wait, 10_000_000, 60_000_000_000, "0s, or 10ms to 60s")
            },
        ]
    }
}

/// Parameters for films and the like (MM). The defaults are the paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Multimedia {
    /// Whether vCPUs are boosted for what a person sees or hears (§5.3).
    pub boost: bool,
    /// Longest boost (§4.1: a tick, 10 ms). 100 us to 1 s.
    #[serde(with = "humantime_serde")]
    pub max_boost: Duration,
    /// Whose host it is, which decides what `max_share` is.
    pub profile: Profile,
    /// What the share of a VM that plays may be raised to, as a multiple of its weight, at the cost of the
    /// others. 1 to 16; 1 raises none. If it is not given, 1 with the profile `shared` and 8 with `personal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_share: Option<f64>,
    /// How often the share is adapted (§5.2: 1 s). 100 ms to 10 s.
    #[serde(with = "humantime_serde")]
    pub period: Duration,
    /// How long a task that begins to play is adapted to faster (§5.2: 1 s). 0 to 10 s.
    #[serde(with = "humantime_serde")]
    pub fast_start: Duration,
    /// How often during that time (§5.2: 200 ms). 50 ms to 10 s.
    #[serde(with = "humantime_serde")]
    pub fast_period: Duration,
    /// What the share is raised by, as a multiple of the VM's weight (Algorithm 1, SHARE-UNIT: 256, which is
    /// what a VM has). 0.01 to 16.
    pub share_unit: f64,
    /// After so many raises in vain the share is halved (§5.2: 3). 1 to 100.
    pub negative_count: u32,
    /// Desired frame rate, in frames a second, until it is known better (§5.2: 20). 1 to 1000.
    pub frame_rate: f64,
    /// The same for what a graphics processor shows (§5.2: 7700 interrupts a second, 110 a frame: 70). 1 to
    /// 1000.
    pub gpu_frame_rate: f64,
    /// The desired frame rate is not below this fraction of the one that is seen (§5.2: 0.8). 0.01 to 1.
    pub tolerance: f64,
    /// Weight of the latest value in the average of frame rates (§5.2: 0.8). 0.01 to 1.
    pub weight: f64,
    /// The same for a graphics processor's, which vary more (§5.2: 0.2). 0.01 to 1.
    pub gpu_weight: f64,
    /// The share is the original one again so long after the last frame (§5.2: 1 s). 100 ms to 60 s.
    #[serde(with = "humantime_serde")]
    pub end_after: Duration,
    /// Whether a frame that is missed raises the share at once, rather than a bad period; a film that has
    /// become slow gets more though it misses none; and it is tried once whether it has more frames than it
    /// shows (none of which is in the paper).
    pub early: bool,
    /// Whether an average begins with the first rate that is measured, rather than with 0 (not in the paper).
    pub seed_average: bool,
    /// Whether the vCPU of a player is made fast among those of its VM for a period before the share is
    /// raised (not in the paper).
    pub inside: bool,
}

/// Whose host it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Several people's: what a VM is due is nobody else's.
    #[default]
    Shared,
    /// One person's, who wants films to be smooth whatever the other VMs do.
    Personal,
}

impl Default for Multimedia {
    fn default() -> Self {
        Multimedia {
            boost: true,
            max_boost: Duration::from_millis(10),
            profile: Profile::Shared,
            max_share: None,
            period: Duration::from_secs(1),
            fast_start: Duration::from_secs(1),
            fast_period: Duration::from_millis(200),
            share_unit: 1.0,
            negative_count: 3,
            frame_rate: 20.0,
            gpu_frame_rate: 70.0,
            tolerance: 0.8,
            weight: 0.8,
            gpu_weight: 0.2,
            end_after: Duration::from_secs(1),
            early: true,
            seed_average: true,
            inside: true,
        }
    }
}

impl Multimedia {
    /// What the share of a VM that plays may be raised to, as a multiple of its weight.
    #[must_use]
    pub fn most_share(&self) -> f64 {
        self.max_share.unwrap_or(match self.profile {
            Profile::Shared => 1.0,
            Profile::Personal => 8.0,
        })
    }

    fn checks(&self) -> [Result<(), ConfigError>; 13] {
        let (fast, period) = (self.fast_period, self.period);
        [
            duration("multimedia.max_boost", self.max_boost, 100_000, 1_000_000_000, "100us to 1s"),
            number("multimedia.max_share", self.most_share(), 1.0, 16.0, "1 to 16"),
            duration("multimedia.period", period, 100_000_000, 10_000_000_000, "100ms to 10s"),
            duration("multimedia.fast_start", self.fast_start, 0, 10_000_000_000, "0s to 10s"),
            duration("multimedia.fast_period", fast, 50_000_000, 10_000_000_000, "50ms to 10s"),
            number("multimedia.share_unit", self.share_unit, 0.01, 16.0, "0.01 to 16"),
            number("multimedia.negative_count", self.negative_count, 1, 100, "1 to 100"),
            number("multimedia.frame_rate", self.frame_rate, 1.0, 1000.0, "1 to 1000"),
            number("multimedia.gpu_frame_rate", self.gpu_frame_rate, 1.0, 1000.0, "1 to 1000"),
            number("multimedia.tolerance", self.tolerance, 0.01, 1.0, "0.01 to 1"),
            number("multimedia.weight", self.weight, 0.01, 1.0, "0.01 to 1"),
            number("multimedia.gpu_weight", self.gpu_weight, 0.01, 1.0, "0.01 to 1"),
            duration("multimedia.end_after", self.end_after, 100_000_000, 60_000_000_000, "100ms to 60s"),
        ]
    }
}

/// Parameters of asymmetric vCPUs (vAMP): while a person waits for what they have just started, the vCPUs
/// that run background work are slow. The defaults are the paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Asymmetric {
    /// The weights of slow and fast vCPUs (§4.2).
    pub ratio: Ratio,
    /// How long before a person's input guest tasks are looked at, for who works in the background (§4.1, the
    /// pre-I/O period: 1024 ms). 100 ms to 100 s.
    #[serde(with = "humantime_serde")]
    pub pre_io_period: Duration,
    /// A task is background if it used more of a CPU in that time, with what it would have used of stolen
    /// time (§4.1, `bgload_thresh`: 50 %). 0.01 to 1.
    pub background_load: f64,
    /// Whether that is to be on one vCPU, as in the paper. Else it is the sum over all, for guests move tasks
    /// from one to another.
    pub per_vcpu: bool,
    /// Longest episode after an input, which the next one ends (§4.1, `max_int_period`: 5 s). 100 ms to
    /// 1000 s.
    #[serde(with = "humantime_serde")]
    pub max_episode: Duration,
    /// TCP ports of the VM on which a packet is a person's input, such as 22 (§3.1.2). At most 16.
    pub ports: Vec<u16>,
    /// Whether a task that plays sound is no background work, however much it uses (§3.1.3).
    pub identify_players: bool,
    /// An interrupt of another vCPU woke the task that runs so soon after it (§3.1.3: 20 us), as run time of
    /// the vCPU. 1 us to 10 ms.
    #[serde(with = "humantime_serde")]
    pub wake_latency: Duration,
    /// Whether a slow vCPU is fast again when it is interrupted, but for background work, until it goes on
    /// with that (not in the paper).
    pub restore: bool,
    /// A vCPU that is fast stays so for this run time at least (not in the paper). With less than a guest's
    /// time slice, what a person waits for waits longer still where it takes turns with background work on a
    /// vCPU. 0 to 1 s.
    #[serde(with = "humantime_serde")]
    pub min_fast: Duration,
}

/// The weights of slow vCPUs and fast ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ratio {
    /// All are equal.
    None,
    /// 1:3 (§4.2: L).
    #[default]
    Low,
    /// 1:9 (§4.2: M).
    Medium,
    /// 1:18 (§4.2: H).
    High,
    /// 1:68, the most that niceness allows a vCPU that is not above the VM's emulator threads. Where two of
    /// two VMs share two physical CPUs, a fast vCPU has nearly one to itself (not in the paper).
    Most,
}

impl Ratio {
    /// The weight of a slow vCPU, in permille of a fast one's; `None` if there are none.
    #[must_use]
    pub const fn slow_permille(self) -> Option<u32> {
        match self {
            Ratio::None => None,
            Ratio::Low => Some(333),
            Ratio::Medium => Some(111),
            Ratio::High => Some(56),
            Ratio::Most => Some(15),
        }
    }
}

/// Most ports that can be configured.
const MOST_PORTS: usize = 16;

impl Default for Asymmetric {
    fn default() -> Self {
        Asymmetric {
            ratio: Ratio::Low,
            pre_io_period: Duration::from_millis(1024),
            background_load: 0.5,
            per_vcpu: false,
            max_episode: Duration::from_secs(5),
            ports: Vec::new(),
            identify_players: true,
            wake_latency: Duration::from_micros(20),
            restore: true,
            min_fast: Duration::from_millis(12),
        }
    }
}

impl Asymmetric {
    /// What an engine without it does.
    pub(crate) fn none() -> Asymmetric {
        Asymmetric { ratio: Ratio::None, ..Asymmetric::default() }
    }

    fn checks(&self) -> [Result<(), ConfigError>; 6] {
        let (before, episode) = (self.pre_io_period, self.max_episode);
        let ports = if self.ports.len() <= MOST_PORTS && !self.ports.contains(&0) {
            Ok(())
        } else {
            let value = format!("{:?}", self.ports);
            Err(ConfigError { key: "asymmetric.ports", value, allowed: "at most 16 ports from 1 to 65535" })
        };
        [
            duration("asymmetric.pre_io_period", before, 100_000_000, 100_000_000_000, "100ms to 100s"),
            number("asymmetric.background_load", self.background_load, 0.01, 1.0, "0.01 to 1"),
            duration("asymmetric.max_episode", episode, 100_000_000, 1_000_000_000_000, "100ms to 1000s"),
            ports,
            duration("asymmetric.wake_latency", self.wake_latency, 1_000, 10_000_000, "1us to 10ms"),
            duration("asymmetric.min_fast", self.min_fast, 0, 1_000_000_000, "0s to 1s"),
        ]
    }
}

/// What holds for one VM only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmPolicy {
    /// It is never boosted. The ledger counts it all the same.
    pub off: bool,
    /// In place of [`Tavs::pb_ratio`]. 0 to 1; 0 turns its boosting off.
    pub pb_ratio: Option<f64>,
}

impl VmPolicy {
    /// Checks its parameters.
    ///
    /// # Errors
    /// The one out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        number("pb_ratio", self.pb_ratio.unwrap_or(0.0), 0.0, 1.0, "0 to 1")
    }
}

/// A parameter outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value} is out of range: allowed is {allowed}")]
pub struct ConfigError {
    /// The dotted key, relative to [`Config`].
    pub key: &'static str,
    /// The value found.
    pub value: String,
    /// What would be accepted.
    pub allowed: &'static str,
}

impl Config {
    /// Checks every parameter against its documented range.
    ///
    /// # Errors
    /// The first parameter out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// The same for a machine on which everything takes `dilation` times as long: its durations multiplied.
    #[must_use]
    pub fn dilated(&self, dilation: f64) -> Config {
        let by = |duration: Duration| duration.mul_f64(dilation);
        let (tavs, ledger) = (&self.tavs, &self.ledger);
        Config {
            tavs: Tavs {
                io_threshold: by(tavs.io_threshold),
                pb_period: by(tavs.pb_period),
                patience: by(tavs.patience),
                max_boost: by(tavs.max_boost),
                time_slice: by(tavs.time_slice),
                ..tavs.clone()
            },
            ledger: Ledger {
                period: by(ledger.period),
                horizon: by(ledger.horizon),
                longest_wait: by(ledger.longest_wait),
                ..ledger.clone()
            },
            // A film has as many frames a second as ever.
            multimedia: Multimedia { max_boost: by(self.multimedia.max_boost), ..self.multimedia.clone() },
            asymmetric: Asymmetric {
                pre_io_period: by(self.asymmetric.pre_io_period),
                max_episode: by(self.asymmetric.max_episode),
                wake_latency: by(self.asymmetric.wake_latency),
                min_fast: by(self.asymmetric.min_fast),
                ..self.asymmetric.clone()
            },
        }
    }

    /// Every parameter out of its documented range.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let t = &self.tavs;
        let between = "between tavs.belief_min and tavs.belief_max";
        let checks = [
            duration("tavs.io_threshold", t.io_threshold, 1_000, 1_000_000_000, "1us to 1s"),
            number("tavs.positive_evidence", t.positive_evidence, 0, 1000, "0 to 1000"),
            number("tavs.negative_evidence", t.negative_evidence, 0, 1000, "0 to 1000"),
            number("tavs.belief_min", t.belief_min, -10_000, 0, "-10000 to 0"),
            number("tavs.belief_max", t.belief_max, 0, 10_000, "0 to 10000"),
            number("tavs.belief_threshold", t.belief_threshold, t.belief_min, t.belief_max, between),
            number("tavs.pb_ratio", t.pb_ratio, 0.0, 1.0, "0 to 1"),
            number("tavs.boost_limit", t.boost_limit, 0.001, 1.0, "0.001 to 1"),
            duration("tavs.pb_period", t.pb_period, 10_000_000, 3_600_000_000_000, "10ms to 1h"),
            duration("tavs.patience", t.patience, 1_000, 1_000_000_000, "1us to 1s"),
            duration("tavs.max_boost", t.max_boost, 100_000, 1_000_000_000, "100us to 1s"),
            number("tavs.inspection_window", t.inspection_window, 1, 16, "1 to 16"),
            number("tavs.counter_bits", t.counter_bits, 1, 8, "1 to 8"),
            number("tavs.tasks_per_vcpu", t.tasks_per_vcpu, 2, 65_536, "2 to 65536"),
            duration("tavs.time_slice", t.time_slice, 1_000_000, 10_000_000_000, "1ms to 10s"),
        ];
        checks
            .into_iter()
            .chain(self.ledger.checks())
            .chain(self.multimedia.checks())
            .chain(self.asymmetric.checks())
            .filter_map(Result::err)
            .collect()
    }
}

pub(crate) fn number<N: PartialOrd + std::fmt::Display>(
    key: &'static str,
    value: N,
    min: N,
    max: N,
    allowed: &'static str,
) -> Result<(), ConfigError> {
    // Written so that NaN, which compares false to everything, is refused.
    if value >= min && value <= max {
        Ok(())
    } else {
        Err(ConfigError { key, value: value.to_string(), allowed })
    }
}

pub(crate) fn duration(
    key: &'static str,
    value: Duration,
    min: u64,
    max: u64,
    allowed: &'static str,
) -> Result<(), ConfigError> {
    let nanos = value.as_nanos();
    if nanos >= u128::from(min) && nanos <= u128::from(max) {
        Ok(())
    } else {
        Err(ConfigError { key, value: format!("{value:?}"), allowed })
    }
}
