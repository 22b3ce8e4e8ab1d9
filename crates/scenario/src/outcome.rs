//! The result of a run: what `--json` writes and the report shows.

use crate::figure::{Figure, NumberTable};
use crate::statistics::{float, median, quantile};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// The result of running one scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the scenario.
    pub scenario: String,
    /// The machine it ran on.
    pub host: HostInfo,
    /// What each arm gave, in the order of the scenario file.
    pub arms: IndexMap<String, ArmResult>,
    /// Every bar of the scenario and whether it was reached.
    pub checks: Vec<Check>,
    /// Of a study: what was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<NumberTable>,
    /// Of a study: its plots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    /// What the desktops showed at the end of each arm's first repeat.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub screenshots: Vec<Screenshot>,
}

/// What a desktop showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Screenshot {
    /// The arm.
    pub arm: String,
    /// The VM.
    pub vm: String,
    /// A PNG file, in base64.
    pub png: String,
}

/// The machine a scenario ran on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostInfo {
    /// Kernel release.
    pub kernel: String,
    /// CPU model.
    pub cpu: String,
    /// Number of physical CPUs online.
    pub cpus: usize,
    /// QEMU version.
    pub qemu: String,
    /// Release of the guests' kernel.
    pub guest_kernel: String,
    /// Version of frontdesk.
    pub frontdesk: String,
    /// How many times longer everything takes on it than on a real machine, by which durations of the load
    /// and of the engine were multiplied; absent if they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dilation: Option<f64>,
    /// The machine that emulates it, if it is emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated_on: Option<Box<HostInfo>>,
}

/// What one arm gave: medians over its repeats, and the repeats.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ArmResult {
    /// Response times per VM that was under load, in milliseconds.
    pub response_ms: IndexMap<String, Summary>,
    /// CPU time of each VM (vCPU and emulator threads) over its fair share, both measured while the arm ran.
    pub cpu_share: IndexMap<String, f64>,
    /// Throughput of each workload that has one, as VM/WORKLOAD.
    pub rates: IndexMap<String, Rate>,
    /// How long the operations of each workload that repeats took, as VM/WORKLOAD, in milliseconds; and the
    /// response times of rt-app's tasks, as VM/WORKLOAD/TASK.
    pub times_ms: IndexMap<String, Summary>,
    /// The frames of each workload that shows some, as VM/WORKLOAD, where they are seen.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub frames: IndexMap<String, Frames>,
    /// Time until the belief followed when a task changed its character; absent where none did.
    pub follow: Option<Follow>,
    /// Boosts given in all repeats.
    pub boosts: u64,
    /// Fraction of boosts in which an I/O-bound task really woke; absent if there was no boost.
    pub pbhr: Option<f64>,
    /// Fraction of the boosts for a request, in all repeats, that ended before its answer was sent; absent if
    /// there were none.
    pub unanswered: Option<f64>,
    /// From a packet in the kernel to the boost applied; absent if there was no boost.
    pub decision_us: Option<Latency>,
    /// CPU time of the daemon over wall-clock time; absent where no daemon ran.
    pub daemon_cpu: Option<f64>,
    /// The single repeats.
    pub repeats: Vec<Repeat>,
}

/// One repeat of an arm.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Repeat {
    /// Response times per VM that was under load, in milliseconds; as VM/WORKLOAD where a VM has several
    /// loads.
    pub response_ms: IndexMap<String, Summary>,
    /// Every response time in milliseconds, in the order measured.
    pub samples_ms: IndexMap<String, Vec<f64>>,
    /// How long those had waited at the end that still waited for an answer, in milliseconds; of the model
    /// only.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub open_ms: IndexMap<String, Vec<f64>>,
    /// CPU time of each VM over its fair share.
    pub cpu_share: IndexMap<String, f64>,
    /// CPU time of each VM in milliseconds.
    pub cpu_ms: IndexMap<String, f64>,
    /// Throughput of each workload that has one, as VM/WORKLOAD.
    pub rates: IndexMap<String, Rate>,
    /// How long each operation of a workload that repeats took, as VM/WORKLOAD, in milliseconds; and each
    /// response time of rt-app's tasks, as VM/WORKLOAD/TASK: from the time at which its timer expired, its
    /// sleep was over or it was resumed, until it waits for one of these again.
    pub times_ms: IndexMap<String, Vec<f64>>,
    /// The frames of each workload that shows some, as VM/WORKLOAD, where they are seen.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub frames: IndexMap<String, Frames>,
    /// Time until the belief followed when a task changed its character.
    pub follow: Option<Follow>,
    /// Boosts given.
    pub boosts: u64,
    /// Boosts in which an I/O-bound task really woke: by what the workloads stamped in a VM where they do,
    /// else by what the engine believes.
    pub boost_hits: u64,
    /// Boosts for requests to servers that stamp their answers; those of a VM that overlap are one.
    #[serde(default)]
    pub request_boosts: u64,
    /// Those of them that ended before the answer was sent.
    #[serde(default)]
    pub unanswered_boosts: u64,
    /// From a packet in the kernel to the boost applied.
    pub decision_us: Option<Latency>,
    /// CPU time of the daemon over wall-clock time.
    pub daemon_cpu: Option<f64>,
    /// Events that were lost before the engine saw them.
    pub lost_events: u64,
    /// Length of the measured part in seconds.
    pub seconds: f64,
    /// Why earlier attempts at it count for nothing: each time a VM died; in the first of all also that the
    /// whole run was made again, with another emulated host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub voided: Vec<String>,
    /// Time that the machine itself did not have; absent where it was not looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Lost>,
    /// What the modelled disk did; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskServed>,
    /// What only a model knows; absent in the lab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Modelled>,
}

/// What the simulator knows of a repeat beside what the lab measures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Modelled {
    /// Events of the model, from its start, warm-up included.
    pub events: u64,
    /// Events that the engine was told since then; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_events: Option<u64>,
    /// From each request pending for a vCPU until that ran, in milliseconds, by VM (TAVS Figure 4(b)).
    /// Packets of streams do not count.
    pub delivery_ms: IndexMap<String, Vec<f64>>,
    /// Each thread of the VMs, as "VM/vCPU 0" and "VM/emulator", and the driver domain.
    pub threads: IndexMap<String, ThreadUse>,
}

/// How a thread used the physical CPUs while a repeat was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadUse {
    /// How often it was given a physical CPU on which it had not run just before.
    pub dispatches: u64,
    /// CPU time, in milliseconds.
    pub cpu_ms: f64,
    /// CPU time over the measured time: 1 is a whole physical CPU.
    pub utilisation: f64,
}

/// What a modelled disk of the lab did while a repeat was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskServed {
    /// Requests that it served.
    pub requests: u64,
    /// Time that they kept it, in seconds.
    pub busy_s: f64,
    /// How much later than the model says it answered, 99th percentile, in milliseconds.
    pub late_p99_ms: f64,
    /// The latest, in milliseconds.
    pub late_max_ms: f64,
}

/// Time that was taken from an emulated host while a repeat was measured: nothing ran on one of its CPUs,
/// whatever its scheduler did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// How often one of its CPUs stood still for more than 5 ms.
    pub gaps: u64,
    /// How long these were together, of all CPUs, in milliseconds.
    pub ms: f64,
    /// The longest, in milliseconds.
    pub longest_ms: f64,
}

/// Frames of a film or a game.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Frames {
    /// Shown a second: the mean of the seconds.
    pub per_s: f64,
    /// Standard deviation of the seconds.
    pub deviation: f64,
    /// Frames that were too late and not shown, as a fraction of all.
    pub dropped: f64,
    /// Standard deviation of the time between a frame and the next that was shown, in milliseconds.
    pub jitter_ms: f64,
    /// By how much the engine's estimate for the VM is wrong, as a fraction of what all its players showed,
    /// both in the mean of the seconds; absent where it knew of no player.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate_error: Option<f64>,
    /// The longest time, in seconds, from a workload of another VM that began to compute until a second held
    /// 95 % of the frames there were before it; absent where none did, and in the simulator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_s: Option<f64>,
}

/// Throughput.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Per second.
    pub per_s: f64,
    /// Of what.
    pub unit: Unit,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Operations of the workload.
    #[default]
    Operations,
    /// Bytes.
    Bytes,
}

/// How the belief follows a task that changes its character: medians, in milliseconds; absent if it never
/// did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Follow {
    /// From becoming I/O-bound to being believed so.
    pub to_io_ms: Option<f64>,
    /// From becoming CPU-bound to being believed so.
    pub to_cpu_ms: Option<f64>,
    /// Changes that the belief did not follow before the next one.
    pub missed: u64,
    /// Boosts while no task was I/O-bound.
    pub wasted: u64,
}

/// Summary of a set of response times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Summary {
    /// Summarises samples; `None` if there are none. Percentiles are nearest-rank.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let max = *sorted.last()?;
        let count = u64::try_from(sorted.len()).unwrap_or(u64::MAX);
        let mean = sorted.iter().sum::<f64>() / float(count);
        let [p50, p95, p99] = [50, 95, 99].map(|percent| quantile(&sorted, percent).unwrap_or(max));
        Some(Summary { count, mean, p50, p95, p99, max })
    }
}

/// Percentiles of a latency, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// The bar of a check.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// The value must not be above this.
    AtMost(f64),
    /// The value must not be below this.
    AtLeast(f64),
}

impl Bar {
    /// The bar that one of two limits is; `None` if there is none, or two.
    pub(crate) fn of(at_most: Option<f64>, at_least: Option<f64>) -> Option<Bar> {
        match (at_most, at_least) {
            (Some(limit), None) => Some(Bar::AtMost(limit)),
            (None, Some(limit)) => Some(Bar::AtLeast(limit)),
            _ => None,
        }
    }

    /// Whether `value` reaches the bar. A value that is not a number does not.
    #[must_use]
    pub fn reached_by(self, value: f64) -> bool {
        match self {
            Bar::AtMost(limit) => value <= limit,
            Bar::AtLeast(limit) => value >= limit,
        }
    }
}

/// One bar, what was measured, and whether it was reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// What is measured, for a reader.
    pub name: String,
    /// What was measured: the median over the repeats; absent if nothing was.
    pub value: Option<f64>,
    /// Lowest and highest value over the repeats, where it was measured more than once.
    pub spread: Option<(f64, f64)>,
    /// The bar.
    pub bar: Bar,
    /// Whether the bar was reached.
    pub pass: bool,
}

impl Check {
    /// A check of the median of `values` (one per repeat) against `bar`. Values that are not finite count as
    /// not measured; a check without a measured value is not passed.
    #[must_use]
    pub fn median(name: impl Into<String>, values: &[f64], bar: Bar) -> Check {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let value = median(sorted.iter().copied());
        let spread = (sorted.len() > 1).then(|| (sorted[0], sorted[sorted.len() - 1]));
        Check {
            name: name.into(),
            value,
            spread,
            bar,
            pass: value.is_some_and(|value| bar.reached_by(value)),
        }
    }

    /// A check of each of `values`: the worst is judged. One that is not finite counts as not measured, and
    /// then the check is not passed.
    #[must_use]
    pub fn each(name: impl Into<String>, values: &[f64], bar: Bar) -> Check {
        let median = Check::median(name, values, bar);
        let worst = match bar {
            Bar::AtMost(_) => values.iter().copied().reduce(f64::max),
            Bar::AtLeast(_) => values.iter().copied().reduce(f64::min),
        };
        let value = worst.filter(|_| values.iter().all(|value| value.is_finite()));
        Check { value, pass: value.is_some_and(|value| bar.reached_by(value)), ..median }
    }
}
