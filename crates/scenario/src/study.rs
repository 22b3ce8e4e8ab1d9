//! The other kind of scenario file: a study of reservations on processes of this host, without VMs (VSched §4
//! and §6).

use crate::Bar;
use crate::allowed::{Violation, name, one_of, period, quoted, range, require, seconds};
use humantime_serde::Serde;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::time::Duration;

/// Shortest and longest period that may be asked for.
const PERIODS: [Duration; 2] = [Duration::from_micros(100), Duration::from_secs(24 * 3600)];

/// A study of reservations: processes that compute, reservations for them in several ways, and what they got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// Name: letters, digits and `-`.
    pub name: String,
    /// What it shows, in a sentence.
    pub description: String,
    /// Repeats of each arm, interleaved. 1 to 100.
    pub repeats: u32,
    /// Measured time of each case of an arm. 100 ms to 10 min.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// The physical CPUs on which reservations are made. At least one, each once.
    pub cpus: Vec<u16>,
    /// What is tried.
    pub study: StudyKind,
    /// The ways to enforce a reservation, in the order in which they run. At least one; names of letters,
    /// digits and `-`.
    pub arms: IndexMap<String, StudyArm>,
    /// Bars to reach.
    #[serde(default, rename = "check")]
    pub checks: Vec<StudyCheck>,
}

/// A period and a slice of it, as `["10ms", "2ms"]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[Serde<Duration>; 2]", into = "[Serde<Duration>; 2]")]
pub struct PeriodSlice {
    /// 100 us to a day.
    pub period: Duration,
    /// Above 0, at most the period.
    pub slice: Duration,
}

impl From<[Serde<Duration>; 2]> for PeriodSlice {
    fn from([period, slice]: [Serde<Duration>; 2]) -> Self {
        PeriodSlice { period: period.into_inner(), slice: slice.into_inner() }
    }
}

impl From<PeriodSlice> for [Serde<Duration>; 2] {
    fn from(of: PeriodSlice) -> Self {
        [of.period, of.slice].map(Serde::from)
    }
}

impl std::fmt::Display for PeriodSlice {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", duration_text(self.period), duration_text(self.slice))
    }
}

/// A time as in a scenario file, in its largest units: `1ms500us`.
#[must_use]
pub fn duration_text(time: Duration) -> String {
    humantime::format_duration(time).to_string().replace(' ', "")
}

/// What is tried in each arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum StudyKind {
    /// What one process gets in each period, for these periods and slices, beside a process that computes on
    /// every CPU.
    Delivered {
        /// At least one, each once.
        cases: Vec<PeriodSlice>,
    },
    /// The same for every period with every utilisation (VSched §4.3).
    Sweep {
        /// At least one.
        periods: Vec<Serde<Duration>>,
        /// Slice over period of each. Above 0, at most 1.
        utilisations: Vec<f64>,
    },
    /// Several processes at once with random periods and slices (VSched §4.2): the same ones in every arm and
    /// repeat.
    Random {
        /// How many sets. 1 to 1000.
        cases: u32,
        /// Fewest and most processes of a set. 1 to 16.
        targets: [u16; 2],
        /// Shortest and longest period.
        periods: Box<[Serde<Duration>; 2]>,
        /// Lowest and highest total utilisation; the sets cover the range evenly.
        utilisation: [f64; 2],
        /// What the sets are drawn with.
        seed: u64,
    },
    /// How soon a changed reservation holds.
    Change {
        /// The reservation goes from one to the other. Long periods with short slices: each change is asked
        /// for when the slice is over, so that what the process then gets first is due to the change.
        between: [PeriodSlice; 2],
    },
    /// What it costs to keep many reservations.
    Load {
        /// Processes. 1 to 200.
        targets: u16,
        /// The reservation of each.
        each: PeriodSlice,
    },
    /// Processes that compute, exchange data all with all, and begin again (BSP, VSched §6).
    Bsp {
        /// Processes. 2 to 16.
        workers: u16,
        /// CPU time of a computation. 10 us to 100 ms.
        compute: Serde<Duration>,
        /// Bytes to each other process. 1 to 65536.
        bytes: u32,
        /// Reservations of each worker that are tried with nothing beside (VSched Fig. 12).
        cases: Vec<PeriodSlice>,
        /// Processes that compute on the CPU of the first worker, on average, while each worker has the first
        /// reservation of `cases` (VSched Fig. 13). 0 to 8.
        contention: Vec<f64>,
    },
}

/// A way to enforce reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyArm {
    /// Who does.
    #[serde(default)]
    pub by: Enforcer,
    /// Whether targets get nothing beyond their slices. Only with frontdesk.
    #[serde(default)]
    pub hard: bool,
}

/// Who enforces reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcer {
    /// frontdesk's daemon, asked over its control socket.
    #[default]
    Frontdesk,
    /// The kernel: each process is made `SCHED_DEADLINE`.
    SchedDeadline,
    /// Nobody: the kernel's fair scheduler, with weights in the ratio of the slices.
    Weights,
}

impl Enforcer {
    fn key(self) -> &'static str {
        match self {
            Enforcer::Frontdesk => "frontdesk",
            Enforcer::SchedDeadline => "sched-deadline",
            Enforcer::Weights => "weights",
        }
    }
}

/// A bar on what an arm of a study gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyCheck {
    /// What is measured, for a reader.
    pub name: String,
    /// What.
    pub measure: StudyMeasure,
    /// Of which arm.
    pub arm: String,
    /// Of which case, as PERIOD/SLICE; if absent, the worst of all.
    pub case: Option<String>,
    /// Divided by the same of this arm.
    pub over: Option<String>,
    /// The bar; this or the other.
    pub at_most: Option<f64>,
    /// The bar; this or the other.
    pub at_least: Option<f64>,
}

impl StudyCheck {
    /// The bar; `None` if there is not exactly one.
    #[must_use]
    pub fn bar(&self) -> Option<Bar> {
        Bar::of(self.at_most, self.at_least)
    }
}

/// What a study measures of each case of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StudyMeasure {
    /// How far the median of what was delivered in a period is from the slice, in % of the slice.
    MedianError,
    /// What 1 % of the periods lack at least, in % of the slice.
    Shortfall,
    /// What 1 % of the periods have too much at least, in % of the slice.
    Overrun,
    /// Deadlines missed, in %, without those during a stall of the machine.
    MissRate,
    /// Deadlines missed during a stall of the machine, in %.
    StallRate,
    /// The most that was missing at a deadline, in % of the slice; without stalls of the machine.
    MissTime,
    /// From the request to the first run under the changed reservation, 99th percentile in ms.
    Reaction,
    /// CPU time of frontdesk's daemon, in % of one CPU.
    DaemonCpu,
    /// The lowest rate under contention over that without any.
    Kept,
}

impl StudyMeasure {
    const DELIVERED: &'static [StudyMeasure] = &[
        StudyMeasure::MedianError,
        StudyMeasure::Shortfall,
        StudyMeasure::Overrun,
        StudyMeasure::MissRate,
        StudyMeasure::StallRate,
        StudyMeasure::MissTime,
    ];

    /// As it is written in a scenario file.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            StudyMeasure::MedianError => "median-error",
            StudyMeasure::Shortfall => "shortfall",
            StudyMeasure::Overrun => "overrun",
            StudyMeasure::MissRate => "miss-rate",
            StudyMeasure::StallRate => "stall-rate",
            StudyMeasure::MissTime => "miss-time",
            StudyMeasure::Reaction => "reaction",
            StudyMeasure::DaemonCpu => "daemon-cpu",
            StudyMeasure::Kept => "kept",
        }
    }
}

impl StudyKind {
    /// What it measures.
    #[must_use]
    pub fn measures(&self) -> &'static [StudyMeasure] {
        match self {
            StudyKind::Delivered { .. } | StudyKind::Sweep { .. } | StudyKind::Random { .. } => {
                StudyMeasure::DELIVERED
            }
            StudyKind::Change { .. } => &[StudyMeasure::Reaction],
            StudyKind::Load { .. } => &[StudyMeasure::DaemonCpu],
            StudyKind::Bsp { .. } => &[StudyMeasure::Kept],
        }
    }

    fn validate(&self) -> Result<(), Violation> {
        match self {
            StudyKind::Delivered { cases } => validate_cases(cases),
            StudyKind::Sweep { periods, utilisations } => {
                require(!periods.is_empty(), "study.periods", "[]", "at least one period")?;
                for (index, length) in periods.iter().enumerate() {
                    period(format!("study.periods.{index}"), length.into_inner(), PERIODS[0]..=PERIODS[1])?;
                }
                require(!utilisations.is_empty(), "study.utilisations", "[]", "at least one")?;
                for (index, utilisation) in utilisations.iter().enumerate() {
                    range(format!("study.utilisations.{index}"), *utilisation, 0.001..=1.0)?;
                }
                Ok(())
            }
            StudyKind::Random { cases, targets, periods, utilisation, .. } => {
                range("study.cases", *cases, 1..=1000)?;
                range("study.targets.1", targets[1], 1..=16)?;
                range("study.targets.0", targets[0], 1..=targets[1])?;
                period("study.periods.1", periods[1].into_inner(), PERIODS[0]..=PERIODS[1])?;
                period("study.periods.0", periods[0].into_inner(), PERIODS[0]..=periods[1].into_inner())?;
                range("study.utilisation.1", utilisation[1], 0.01..=1.0)?;
                range("study.utilisation.0", utilisation[0], 0.01..=utilisation[1])
            }
            StudyKind::Change { between } => {
                for (index, of) in between.iter().enumerate() {
                    validate_reservation(&format!("study.between.{index}"), *of)?;
                    let long = of.period >= Duration::from_millis(50) && of.slice * 10 <= of.period;
                    let allowed = "a period of at least 50ms and a slice of at most a tenth of it";
                    require(long, format!("study.between.{index}"), of, allowed)?;
                }
                require(between[0] != between[1], "study.between.1", between[1], "another than the first")
            }
            StudyKind::Load { targets, each } => {
                range("study.targets", *targets, 1..=200)?;
                validate_reservation("study.each", *each)
            }
            StudyKind::Bsp { workers, compute, bytes, cases, contention } => {
                range("study.workers", *workers, 2..=16)?;
                let allowed = Duration::from_micros(10)..=Duration::from_millis(100);
                period("study.compute", compute.into_inner(), allowed)?;
                range("study.bytes", *bytes, 1..=65_536)?;
                for (index, of) in contention.iter().enumerate() {
                    range(format!("study.contention.{index}"), *of, 0.0..=8.0)?;
                }
                let allowed = "at least 0, without any, and one above";
                require(contention.first() == Some(&0.0), "study.contention", "another beginning", allowed)?;
                validate_cases(cases)
            }
        }
    }

    /// The names that a check may give a case; `None` if cases have none.
    fn case_names(&self) -> Option<Vec<String>> {
        match self {
            StudyKind::Delivered { cases } => Some(cases.iter().map(ToString::to_string).collect()),
            _ => None,
        }
    }
}

fn validate_cases(cases: &[PeriodSlice]) -> Result<(), Violation> {
    require(!cases.is_empty(), "study.cases", "[]", "at least one, as in [[\"10ms\", \"2ms\"]]")?;
    let mut seen = HashSet::new();
    for (index, case) in cases.iter().enumerate() {
        let key = format!("study.cases.{index}");
        validate_reservation(&key, *case)?;
        require(seen.insert((case.period, case.slice)), key, case, "each once")?;
    }
    Ok(())
}

pub(crate) fn validate_reservation(key: &str, of: PeriodSlice) -> Result<(), Violation> {
    period(format!("{key}.0"), of.period, PERIODS[0]..=PERIODS[1])?;
    period(format!("{key}.1"), of.slice, Duration::from_micros(10)..=of.period)
}

impl Study {
    /// Checks every value against its documented range and against the others.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn validate(&self) -> Result<(), Violation> {
        name("name", &self.name)?;
        range("repeats", self.repeats, 1..=100)?;
        period("duration", self.duration, Duration::from_millis(100)..=seconds(600))?;
        require(!self.cpus.is_empty(), "cpus", "[]", "at least one CPU")?;
        let mut seen = HashSet::new();
        let unique = self.cpus.iter().all(|cpu| seen.insert(cpu));
        require(unique, "cpus", format!("{:?}", self.cpus), "each CPU once")?;
        self.study.validate()?;
        require(!self.arms.is_empty(), "arms", "{}", "at least one arm")?;
        for (arm_name, arm) in &self.arms {
            name(&format!("arms.{arm_name}"), arm_name)?;
            let allowed = "only with by = \"frontdesk\"";
            require(
                !arm.hard || arm.by == Enforcer::Frontdesk,
                format!("arms.{arm_name}.hard"),
                "true",
                allowed,
            )?;
            let (can, allowed) = match self.study {
                StudyKind::Load { .. } => {
                    (arm.by == Enforcer::Frontdesk, "\"frontdesk\" where its cost is measured")
                }
                StudyKind::Change { .. } => {
                    (arm.by != Enforcer::Weights, "an enforcer that can change a reservation")
                }
                _ => (true, ""),
            };
            require(can, format!("arms.{arm_name}.by"), quoted(arm.by.key()), allowed)?;
        }
        self.checks.iter().enumerate().try_for_each(|(index, check)| self.validate_check(index, check))
    }

    fn validate_check(&self, index: usize, check: &StudyCheck) -> Result<(), Violation> {
        let key = |field: &str| format!("check.{index}.{field}");
        let measures = self.study.measures();
        let known = one_of(measures.iter().map(|measure| measure.key()));
        require(measures.contains(&check.measure), key("measure"), quoted(check.measure.key()), known)?;
        for (field, arm) in [("arm", Some(&check.arm)), ("over", check.over.as_ref())] {
            let Some(arm) = arm else { continue };
            require(self.arms.contains_key(arm), key(field), quoted(arm), one_of(self.arms.keys()))?;
        }
        if let Some(case) = &check.case {
            let names = self.study.case_names().unwrap_or_default();
            require(names.contains(case), key("case"), quoted(case), one_of(&names))?;
        }
        let given = format!("{} and {}", shown(check.at_most), shown(check.at_least));
        require(check.bar().is_some(), key("at_most"), given, "either `at_most` or `at_least`")
    }

    /// Whether a machine has the CPUs.
    ///
    /// # Errors
    /// It has not.
    pub fn fits(&self, cpus_online: &[u16]) -> Result<(), Violation> {
        let here = self.cpus.iter().all(|cpu| cpus_online.contains(cpu));
        let allowed = format!("the CPUs of this machine, {cpus_online:?}");
        require(here, "cpus", format!("{:?}", self.cpus), allowed)
    }
}

fn shown(bar: Option<f64>) -> String {
    bar.map_or_else(|| "nothing".to_owned(), |bar| bar.to_string())
}
