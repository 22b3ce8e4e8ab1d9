//! What ran where and when, from a recording.

use crate::{ReplayError, Rerun};
use frontdesk_engine::{ActionKind, Boost, BoostTarget, Event, EventKind, Time, VmId, nanos};
use frontdesk_record::{Record, Recording};
use frontdesk_scenario::{Timeline, Tracer};
use std::collections::HashMap;
use std::io::Read;
use std::time::Duration;

/// Slices and marks of a timeline, at most: a million takes about 300 MB, and ui.perfetto.dev does not take
/// many more.
const MAX_MARKS: usize = 2_000_000;

/// What a recording says about one interval.
#[derive(Debug, Default)]
pub struct Examined {
    /// What ran where and when. Whether a boost was a hit is what the engine thought.
    pub timeline: Timeline,
    /// From each packet to the boosts that it led to, in microseconds.
    pub decisions_us: Vec<f64>,
    /// Events lost before they reached the engine, in the whole recording.
    pub lost_events: u64,
}

/// What a recording says about an interval that begins so long after its first event, and lasts so long, or
/// to the end.
///
/// # Errors
/// The recording cannot be read to the end of the interval, has no events, or too much happens in the
/// interval.
pub fn timeline<R: Read>(
    recording: &mut Recording<R>,
    from: Duration,
    length: Option<Duration>,
) -> Result<Examined, ReplayError> {
    let mut before = Vec::new();
    let mut builder: Option<TimelineBuilder> = None;
    let mut end = Time(u64::MAX);
    while let Some(record) = recording.next().transpose()? {
        if let (None, Record::Event(Event { at, .. })) = (&builder, &record) {
            let from = at.plus(nanos(from));
            end = length.map_or(end, |length| from.plus(nanos(length)));
            let begun = builder.insert(TimelineBuilder::new(from, end));
            before.drain(..).try_for_each(|record| begun.add(&record))?;
        }
        match &mut builder {
            // What comes before the first event is names and parameters.
            None if record.is_about_reservations() => {}
            None => before.push(record),
            Some(builder) => {
                builder.add(&record)?;
                if builder.marks() > MAX_MARKS {
                    return Err(ReplayError::TooMany { name: recording.name().to_owned(), most: MAX_MARKS });
                }
                if matches!(record, Record::Event(event) if event.at > end) {
                    break;
                }
            }
        }
    }
    let builder = builder.ok_or_else(|| ReplayError::NoEvents { name: recording.name().to_owned() })?;
    Ok(builder.finish())
}

/// Goes through a recording and builds the timeline of one interval.
#[derive(Debug, Default)]
pub struct TimelineBuilder {
    rerun: Rerun,
    tracer: Tracer,
    /// The latest event.
    last: Time,
    examined: Examined,
    boosted: HashMap<(VmId, u16), Time>,
    /// The engine's own count of hits, as of the last boost that ended.
    hits: HashMap<(VmId, u16), u64>,
    /// When a packet was queued last, per VM.
    packet_at: HashMap<VmId, Time>,
}

impl TimelineBuilder {
    /// A timeline between two points in time, of which the first is its zero.
    #[must_use]
    pub fn new(from: Time, to: Time) -> TimelineBuilder {
        TimelineBuilder { tracer: Tracer::new(from, to), last: from, ..TimelineBuilder::default() }
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// The recording does not begin as it should, or its parameters are refused.
    pub fn add(&mut self, record: &Record) -> Result<(), ReplayError> {
        if let Record::Event(event) = record {
            self.tracer.sample(event.at, self.rerun.engine());
        }
        self.rerun.tell(record)?;
        match record {
            Record::Event(event) => self.event(event),
            Record::Applied { action, latency_ns } => self.applied(action.at, action.kind, *latency_ns),
            Record::Vm { vm, name } => self.tracer.add_vm(*vm, name),
            _ => {}
        }
        while self.rerun.poll_action().is_some() {}
        Ok(())
    }

    /// Slices, marks and points so far: a measure of the memory that they take.
    #[must_use]
    pub fn marks(&self) -> usize {
        self.tracer.marks()
    }

    fn event(&mut self, event: &Event) {
        self.last = self.last.max(event.at);
        self.tracer.event(event, self.rerun.engine());
        match event.kind {
            EventKind::Packet { vm, .. } => drop(self.packet_at.insert(vm, event.at)),
            EventKind::Lost { count, .. } => {
                self.examined.lost_events = self.examined.lost_events.saturating_add(count);
            }
            _ => {}
        }
    }

    fn applied(&mut self, at: Time, kind: ActionKind, latency_ns: u64) {
        if let ActionKind::Weight { vm, vcpu, permille } = kind {
            self.tracer.weight(vm, vcpu, permille, at);
        }
        let ActionKind::Boost { vm, target: BoostTarget::Vcpu(vcpu), level } = kind else { return };
        if level > Boost::None {
            self.boosted.entry((vm, vcpu)).or_insert(at);
            if self.tracer.within(at) && self.packet_at.get(&vm) == Some(&at) {
                #[allow(clippy::cast_precision_loss)]
                self.examined.decisions_us.push(latency_ns as f64 / 1000.0);
            }
            return;
        }
        let hits = self.rerun.engine().and_then(|engine| engine.boost_hits(vm, vcpu)).unwrap_or(0);
        let before = self.hits.insert((vm, vcpu), hits).unwrap_or(0);
        if let Some(since) = self.boosted.remove(&(vm, vcpu)) {
            self.tracer.boost(vm, vcpu, since, at, hits > before);
        }
    }

    /// The timeline, up to the end of the interval or of the recording.
    #[must_use]
    pub fn finish(self) -> Examined {
        let threshold = self.rerun.engine().map_or(0, |engine| engine.config().tavs.belief_threshold);
        Examined { timeline: self.tracer.finish(self.last, threshold), ..self.examined }
    }
}
