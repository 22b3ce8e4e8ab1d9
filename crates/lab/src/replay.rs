//! Goes through a recording again: what the engine believed and when, and how fast it is.

use frontdesk_engine::{Config, ConfigError, Engine, Event, TaskId, Time};
use frontdesk_record::Record;
use frontdesk_replay::{Examined, ReplayError, Rerun, TimelineBuilder};
use frontdesk_scenario::{Follow, RequestBoosts, RequestTimes, Summary, TaskSlice, Timeline, float};
use indexmap::IndexMap;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// The engine is timed for at least this long.
const TIMING: Duration = Duration::from_millis(500);

/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// Frame rates that the timeline has of a second in which there was a player all the time, at least.
const SAMPLES: usize = 9;

/// What a recording says about one measured interval.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) boosts: u64,
    pub(crate) hits: u64,
    pub(crate) request_boosts: RequestBoosts,
    /// From each packet to its boost, in microseconds.
    pub(crate) decisions_us: Vec<f64>,
    pub(crate) lost_events: u64,
    pub(crate) follow: Option<Follow>,
    pub(crate) timeline: Timeline,
}

/// What the workloads of a VM know of their own I/O.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// When an I/O-bound task woke from I/O, in order.
    pub(crate) wakes: Vec<Time>,
    /// The requests to I/O-bound tasks.
    pub(crate) requests: Vec<RequestTimes>,
    /// The tasks that change their character.
    pub(crate) shifts: Vec<Shift>,
}

/// A task that changes its character.
#[derive(Debug, Default)]
pub(crate) struct Shift {
    /// When it woke from I/O, in order.
    pub(crate) wakes: Vec<Time>,
    /// When it became I/O-bound (true) or CPU-bound.
    pub(crate) changes: Vec<(Time, bool)>,
}

impl Findings {
    /// By how much the engine's estimate of a VM's frames is wrong, as a fraction of those that were `shown`
    /// second by second: in the seconds in which it knew of a player all the time; `None` if there were none.
    pub(crate) fn estimate_error(&self, vm: &str, shown: &[f64]) -> Option<f64> {
        let vm = self.timeline.vms.iter().position(|name| name == vm)?;
        // By time: several players at one time are one sum.
        let mut samples: BTreeMap<u64, f64> = BTreeMap::new();
        for point in self.timeline.frame_rates.iter().filter(|point| point.vm == vm) {
            *samples.entry(point.at).or_default() += point.rate;
        }
        let (mut estimated, mut real) = (0.0, 0.0);
        for (second, shown) in (0u64..).zip(shown) {
            let within: Vec<f64> =
                samples.range(second * SECOND..(second + 1) * SECOND).map(|(_, rate)| *rate).collect();
            if within.len() >= SAMPLES {
                estimated +=
                    within.iter().sum::<f64>() / float(u64::try_from(within.len()).unwrap_or(u64::MAX));
                real += shown;
            }
        }
        (real > 0.0).then(|| (estimated / real - 1.0).abs())
    }
}

impl Truth {
    fn woke_between(&self, from: Time, to: Time) -> bool {
        let next = self.wakes.partition_point(|wake| *wake < from);
        self.wakes.get(next).is_some_and(|wake| *wake <= to)
    }
}

/// Reads a recording for the interval between two points in time. `truth` is by name of the VM.
pub(crate) fn examine(
    records: &[Record],
    from: Time,
    to: Time,
    truth: &IndexMap<String, Truth>,
) -> Result<Findings, ReplayError> {
    let mut builder = TimelineBuilder::new(from, to);
    records.iter().try_for_each(|record| builder.add(record))?;
    let Examined { mut timeline, decisions_us, lost_events } = builder.finish();
    for boost in &mut timeline.boosts {
        // What the guest says is nearer to the truth than what the engine thought.
        if let Some(truth) = timeline.vms.get(boost.vm).and_then(|vm| truth.get(vm)) {
            boost.hit = truth.woke_between(from.plus(boost.start), from.plus(boost.end));
        }
    }
    let boosts = timeline.boosts.len() as u64;
    let hits = timeline.boosts.iter().filter(|boost| boost.hit).count() as u64;
    let request_boosts = request_boosts(&timeline, from, truth);
    let follow = follow(records, &timeline, from, to, truth)?;
    Ok(Findings { boosts, hits, request_boosts, decisions_us, lost_events, follow, timeline })
}

/// The boosts for requests, of all VMs that know theirs.
fn request_boosts(timeline: &Timeline, from: Time, truth: &IndexMap<String, Truth>) -> RequestBoosts {
    let mut all = RequestBoosts::default();
    for (vm, name) in timeline.vms.iter().enumerate() {
        let Some(truth) = truth.get(name) else { continue };
        let boosts = timeline.boosts.iter().filter(|boost| boost.vm == vm);
        let boosts: Vec<_> = boosts.map(|boost| (from.plus(boost.start).0, from.plus(boost.end).0)).collect();
        all.add(RequestBoosts::of(&boosts, &truth.requests));
    }
    all
}

/// How the belief followed tasks that changed their character; `None` if none did.
fn follow(
    records: &[Record],
    timeline: &Timeline,
    from: Time,
    to: Time,
    truth: &IndexMap<String, Truth>,
) -> Result<Option<Follow>, ReplayError> {
    let (mut to_io, mut to_cpu, mut missed, mut wasted) = (Vec::new(), Vec::new(), 0, 0);
    let shifts = truth.iter().flat_map(|(name, truth)| truth.shifts.iter().map(move |shift| (name, shift)));
    for (name, shift) in shifts {
        let Some(vm) = timeline.vms.iter().position(|vm| vm == name) else { continue };
        let within = |at: &Time| *at >= from && *at <= to;
        wasted +=
            timeline.boosts.iter().filter(|boost| boost.vm == vm && !boost.hit).fold(0, |wasted, boost| {
                let at = from.plus(boost.start);
                let last = shift.changes.iter().rev().find(|(change, _)| *change <= at);
                wasted + u64::from(last.is_some_and(|(_, io_bound)| !io_bound))
            });
        let Some(task) = task_that_woke(timeline, vm, &shift.wakes, from) else {
            missed += shift.changes.iter().filter(|(at, _)| within(at)).count() as u64;
            continue;
        };
        let beliefs = beliefs(records, name, task)?;
        let ends = shift.changes.iter().skip(1).map(|(at, _)| *at).chain([to]);
        for ((at, io_bound), end) in shift.changes.iter().zip(ends).filter(|((at, _), _)| within(at)) {
            match beliefs.iter().find(|(when, believed)| when >= at && believed == io_bound) {
                Some((when, _)) if *when <= end => {
                    let lag = Duration::from_nanos(when.since(*at)).as_secs_f64() * 1000.0;
                    if *io_bound { &mut to_io } else { &mut to_cpu }.push(lag);
                }
                // The last change may be followed after the end.
                _ if end == to => {}
                _ => missed += 1,
            }
        }
    }
    let median = |lags: &[f64]| Summary::of(lags).map(|summary| summary.p50);
    let changed = !to_io.is_empty() || !to_cpu.is_empty() || missed > 0;
    Ok(changed.then(|| Follow { to_io_ms: median(&to_io), to_cpu_ms: median(&to_cpu), missed, wasted }))
}

/// The task that was on a vCPU most often at these times.
fn task_that_woke(timeline: &Timeline, vm: usize, wakes: &[Time], from: Time) -> Option<TaskId> {
    let mut slices: Vec<&TaskSlice> = timeline.tasks.iter().filter(|slice| slice.vm == vm).collect();
    slices.sort_by_key(|slice| slice.start);
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for wake in wakes.iter().filter(|wake| **wake >= from) {
        let at = wake.since(from);
        let next = slices.partition_point(|slice| slice.start <= at);
        let slice = next.checked_sub(1).map(|index| slices[index]).filter(|slice| slice.end >= at);
        if let Some(slice) = slice {
            *counts.entry(slice.task.as_str()).or_default() += 1;
        }
    }
    let (task, _) = counts.into_iter().max_by_key(|(task, count)| (*count, *task))?;
    u64::from_str_radix(task.strip_prefix("0x")?, 16).ok().map(TaskId)
}

/// Each time at which a task began or ceased to be believed I/O-bound.
fn beliefs(records: &[Record], vm: &str, task: TaskId) -> Result<Vec<(Time, bool)>, ReplayError> {
    let mut rerun = Rerun::new();
    let id = records.iter().find_map(|record| match record {
        Record::Vm { vm: id, name } if name == vm => Some(*id),
        _ => None,
    });
    let Some(id) = id else { return Ok(Vec::new()) };
    let mut beliefs = Vec::new();
    let mut believed = false;
    for record in records {
        rerun.tell(record)?;
        while rerun.poll_action().is_some() {}
        let (Record::Event(Event { at, .. }) | Record::Deadline(at), Some(engine)) = (record, rerun.engine())
        else {
            continue;
        };
        let threshold = engine.config().tavs.belief_threshold;
        let now = engine.belief(id, task).is_some_and(|belief| belief > threshold);
        if now != believed {
            beliefs.push((*at, now));
            believed = now;
        }
    }
    Ok(beliefs)
}

fn config(records: &[Record]) -> Config {
    let config = records.iter().find_map(|record| match record {
        Record::Config(config) => Some(config.clone()),
        _ => None,
    });
    config.unwrap_or_default()
}

/// Events per second of the engine on one core, over the events of a recording.
pub(crate) fn engine_speed(records: &[Record]) -> Result<f64, ConfigError> {
    let config = config(records);
    let events: Vec<&Event> = records
        .iter()
        .filter_map(|record| match record {
            Record::Event(event) => Some(event),
            _ => None,
        })
        .collect();
    let mut handled = 0u64;
    let mut spent = Duration::ZERO;
    while spent < TIMING && !events.is_empty() {
        let mut engine = Engine::new(config.clone())?;
        let start = Instant::now();
        for event in &events {
            engine.on_event(event);
            while engine.poll_action().is_some() {}
        }
        spent += start.elapsed();
        handled += events.len() as u64;
    }
    #[allow(clippy::cast_precision_loss)]
    let handled = handled as f64;
    Ok(if spent.is_zero() { 0.0 } else { handled / spent.as_secs_f64() })
}
