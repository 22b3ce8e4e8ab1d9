//! Bars to reach.

use super::{Arm, Daemon};
use crate::outcome::Bar;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// Bars to reach; each that is given becomes a check. A bar is a number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checks {
    /// Numbers of an arm, alone or against those of another.
    pub compare: Vec<Compare>,
    /// What one VM gains against what others lose.
    pub gain: Vec<Gain>,
    /// CPU time of each VM that wants its share against that share, in every arm in which the daemon acts,
    /// relative deviation: at most.
    pub share_error: Option<f64>,
    /// Fraction of the boosts for a request that ended before its answer was sent, over all repeats of each
    /// arm in which the daemon acts: at most.
    pub unanswered: Option<f64>,
    /// Fraction of boosts in which an I/O-bound task really ran, frontdesk arm: at least.
    pub pbhr: Option<f64>,
    /// From a packet in the kernel to the boost applied, frontdesk arm, 99th percentile in microseconds: at
    /// most.
    pub decision_p99_us: Option<f64>,
    /// CPU time of the daemon over wall-clock time, frontdesk arm: at most.
    pub daemon_cpu: Option<f64>,
    /// Slowdown of CPU-bound guest work by the plugin, relative: at most.
    pub plugin_cpu_slowdown: Option<f64>,
    /// Slowdown of fork-heavy guest work by the plugin, relative: at most.
    pub plugin_fork_slowdown: Option<f64>,
    /// Events per second of the engine on one core, over the events of this run: at least.
    pub engine_events_per_s: Option<f64>,
}

/// A key of [`Checks`] with a single bar.
pub(crate) struct CheckKey<'a> {
    pub(crate) key: &'static str,
    pub(crate) bar: &'a mut Option<f64>,
    needs: Needs,
}

/// What a check needs to be measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// No arm: it is measured apart from them.
    Nothing,
    /// An arm called "frontdesk".
    Frontdesk,
    /// An arm in which the daemon acts.
    Acting,
}

impl CheckKey<'_> {
    /// What it needs and some arms lack.
    pub(crate) fn lacks(&self, arms: &IndexMap<String, Arm>) -> Option<&'static str> {
        match self.needs {
            Needs::Frontdesk if !arms.contains_key("frontdesk") => Some("an arm called \"frontdesk\""),
            Needs::Acting if arms.values().all(|arm| arm.daemon != Daemon::Act) => {
                Some("an arm with daemon = \"act\"")
            }
            _ => None,
        }
    }
}

impl Checks {
    /// All checks with a single bar.
    pub(crate) fn keys(&mut self) -> [CheckKey<'_>; 8] {
        let key = |key, bar, needs| CheckKey { key, bar, needs };
        [
            key("share_error", &mut self.share_error, Needs::Acting),
            key("unanswered", &mut self.unanswered, Needs::Acting),
            key("pbhr", &mut self.pbhr, Needs::Frontdesk),
            key("decision_p99_us", &mut self.decision_p99_us, Needs::Frontdesk),
            key("daemon_cpu", &mut self.daemon_cpu, Needs::Frontdesk),
            key("plugin_cpu_slowdown", &mut self.plugin_cpu_slowdown, Needs::Nothing),
            key("plugin_fork_slowdown", &mut self.plugin_fork_slowdown, Needs::Nothing),
            key("engine_events_per_s", &mut self.engine_events_per_s, Needs::Frontdesk),
        ]
    }
}

/// A bar for a number of an arm, or for two of the same repeat against each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// What it says, for a reader.
    pub name: String,
    /// Which number.
    pub measure: Measure,
    /// The number that is judged.
    pub of: Subject,
    /// It is divided by this one.
    pub over: Option<Subject>,
    /// This one is subtracted from it. At most one of this and `over`.
    pub minus: Option<Subject>,
    /// How the repeats are taken together.
    #[serde(default, skip_serializing_if = "crate::allowed::is_default")]
    pub across: Across,
    /// The result must not be above this. Either this or `at_least`.
    pub at_most: Option<f64>,
    /// The result must not be below this.
    pub at_least: Option<f64>,
}

impl Compare {
    /// Its bar; `None` if there is none, or two.
    #[must_use]
    pub fn bar(&self) -> Option<Bar> {
        Bar::of(self.at_most, self.at_least)
    }
}

/// How the repeats of a comparison are taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Across {
    /// The median of the repeats is judged.
    #[default]
    Median,
    /// Each repeat is judged: the worst counts, and one in which nothing was measured fails.
    Each,
    /// The requests of all repeats are taken as one; of response times only.
    All,
}

/// A bar for relative gain over relative loss of throughput between two arms of the same repeat (TAVS §5.4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gain {
    /// What it says, for a reader.
    pub name: String,
    /// Whose throughput rises, and in which arm.
    pub of: Subject,
    /// The arm before.
    pub base: String,
    /// Whose throughput falls: a VM entry and a workload.
    pub loser: Loser,
    /// Gain over loss must not be below this. A loss of nothing counts as very small.
    pub at_least: f64,
}

/// Who pays for a [`Gain`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loser {
    /// Name of a VM entry.
    pub vm: String,
    /// Name of one of its workloads.
    pub workload: String,
}

/// A number of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Response times: arithmetic mean.
    Mean,
    /// Response times: median.
    P50,
    /// Response times: 95th percentile.
    P95,
    /// Response times: 99th percentile.
    P99,
    /// Response times: the slowest request.
    Max,
    /// Throughput of a workload: bytes per second if it moves bytes, else operations per second.
    Rate,
    /// Mean time of a workload's operations.
    Time,
    /// Frames of a workload that are shown, a second; the mean of those of an entry.
    Frames,
    /// Fraction of the frames of a workload that were too late and not shown.
    Dropped,
    /// Standard deviation of the time between frames of a workload, in milliseconds.
    Jitter,
    /// By how much the engine's estimate of a workload's frames is wrong, as a fraction of them.
    EstimateError,
    /// The longest time, in seconds, from a workload with `run = "shift"` of another VM that began to compute
    /// until a second held 95 % of the frames there were before it. On real VMs only.
    Recovery,
    /// CPU time of a VM over its fair share; the mean of those of an entry.
    Share,
    /// Fraction of boosts in which an I/O-bound task really woke.
    Pbhr,
    /// Fraction of the boosts for a request that ended before its answer was sent.
    Unanswered,
    /// Median time until the belief follows a change of a task's character, in milliseconds.
    Follow,
    /// Boosts of a task that is no longer I/O-bound, over all boosts.
    Wasted,
}

/// What a number is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// The arm.
    pub arm: String,
    /// Name of a VM entry (`share`: needed); without it, all VMs that have such a number, together.
    pub vm: Option<String>,
    /// Name of a workload (`rate`, `time` and those of frames: needed), or, of response times, of the
    /// workload asked.
    pub workload: Option<String>,
}
