//! How recordings hear of reservations: what dispatchers were told and what they decided, from the threads
//! that dispatch to the daemon's loop, each by a ring that neither ever waits for.
//!
//! The rings are made when a recording begins and emptied at each turn of the loop. A decision goes into one
//! as a whole, after it has been carried out, as moves within memory that is there already: no system call,
//! no allocation. One that does not fit is counted as lost, and when there is room again the dispatcher's
//! whole state is told, from which a replay goes on.

use frontdesk_engine::Time;
use frontdesk_engine::reservation::{
    Dispatch, Dispatcher, Member, Reading, ReservationEvent, ReservationEventKind,
};
use frontdesk_record::Record;
use rtrb::{Consumer, Producer, RingBuffer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Entries of the ring: at 20,000 decisions a second, each with two readings and two dispatches, enough for a
/// sixth of a second. The loop comes every 80 ms at least.
const ENTRIES: usize = 1 << 14;

enum TraceEntry {
    /// The dispatcher as it is now: the copy is made once for a recording, and after a loss.
    State(Box<Dispatcher>),
    /// So many decisions did not fit.
    Lost(u64),
    /// Belongs to the event that comes next.
    Reading(Member, Reading),
    /// Belongs to the event that comes next.
    Dispatch(Dispatch),
    /// An event, after its readings and what was decided.
    Event(Time, ReservationEventKind),
}

/// The filling end of the ring, with what did not fit.
struct Filling {
    ring: Producer<TraceEntry>,
    lost: u64,
}

#[derive(Default)]
struct TraceShared {
    /// Recordings begun so far.
    begun: AtomicU64,
    ends: Mutex<Ends>,
}

#[derive(Default)]
struct Ends {
    /// Whether anything is recorded.
    recording: bool,
    /// CPUs that have had a dispatcher.
    cpus: BTreeSet<u16>,
    /// The filling ends that no thread has, by the CPU whose dispatcher is to have them.
    idle: BTreeMap<u16, Filling>,
    /// The other ends of rings that the loop does not have yet.
    fresh: Vec<(u16, Consumer<TraceEntry>)>,
}

impl Ends {
    fn make_ring(&mut self, cpu: u16) {
        let (mut producer, mut consumer) = RingBuffer::new(ENTRIES);
        // Its pages are there before they are first needed.
        while producer.push(TraceEntry::Lost(0)).is_ok() {}
        while consumer.pop().is_ok() {}
        self.idle.insert(cpu, Filling { ring: producer, lost: 0 });
        self.fresh.push((cpu, consumer));
    }
}

/// What threads that dispatch get their end from.
#[derive(Clone, Default)]
pub(crate) struct TraceSource(Arc<TraceShared>);

impl TraceSource {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the thread that dispatches for a CPU from now on.
    pub(super) fn writer(&self, cpu: u16) -> TraceWriter {
        let mut ends = self.ends();
        if ends.cpus.insert(cpu) && ends.recording {
            ends.make_ring(cpu);
        }
        drop(ends);
        TraceWriter { source: self.clone(), cpu, begun: 0, filling: None, state_due: false }
    }
}

/// The end of the daemon's loop.
#[derive(Default)]
pub(crate) struct TraceReader {
    source: TraceSource,
    rings: Vec<(u16, Consumer<TraceEntry>)>,
}

impl TraceReader {
    /// Where the other ends are had from.
    pub(crate) fn source(&self) -> TraceSource {
        self.source.clone()
    }

    /// A recording begins: it is to hear of each dispatcher's state as soon as there is one, and then of each
    /// of its decisions.
    pub(crate) fn begin(&mut self) {
        let mut ends = self.source.ends();
        if !std::mem::replace(&mut ends.recording, true) {
            ends.cpus.clone().into_iter().for_each(|cpu| ends.make_ring(cpu));
        }
        self.source.0.begun.fetch_add(1, Ordering::Release);
    }

    /// The last recording has ended.
    pub(crate) fn end(&mut self) {
        let mut ends = self.source.ends();
        if std::mem::take(&mut ends.recording) {
            ends.idle.clear();
            ends.fresh.clear();
            self.rings.clear();
        }
    }

    /// Takes what is in the rings, each in order.
    pub(crate) fn drain(&mut self, mut record: impl FnMut(Record)) {
        self.rings.append(&mut self.source.ends().fresh);
        for (cpu, ring) in &mut self.rings {
            let Ok(chunk) = ring.read_chunk(ring.slots()) else { continue };
            let (mut readings, mut dispatches) = (Vec::new(), Vec::new());
            for entry in chunk {
                match entry {
                    TraceEntry::State(state) => record(Record::Dispatcher { cpu: *cpu, state }),
                    TraceEntry::Lost(decisions) => record(Record::DecisionsLost { decisions }),
                    TraceEntry::Reading(member, reading) => readings.push((member, reading)),
                    TraceEntry::Dispatch(dispatch) => dispatches.push(dispatch),
                    TraceEntry::Event(at, kind) => {
                        let event = ReservationEvent { at, readings: std::mem::take(&mut readings), kind };
                        let dispatches = std::mem::take(&mut dispatches);
                        record(Record::Decision { cpu: *cpu, event, dispatches });
                    }
                }
            }
        }
    }
}

/// The end of the thread that dispatches.
pub(super) struct TraceWriter {
    source: TraceSource,
    cpu: u16,
    /// Recordings begun so far, as far as we know.
    begun: u64,
    filling: Option<Filling>,
    /// Whether the state is to be told.
    state_due: bool,
}

impl TraceWriter {
    /// Tells the dispatcher's state if somebody needs it. To be called between two events.
    pub(super) fn tell_state(&mut self, dispatcher: &Dispatcher) {
        let begun = self.source.0.begun.load(Ordering::Acquire);
        // The loop holds it for an instant: the next time.
        if begun != self.begun
            && let Ok(mut ends) = self.source.0.ends.try_lock()
        {
            self.begun = begun;
            self.state_due = true;
            if let Some(filling) = ends.idle.remove(&self.cpu) {
                self.filling = Some(filling);
            }
        }
        let Some(Filling { ring, lost }) = self.filling.as_mut().filter(|_| self.state_due) else { return };
        // After a loss, when there is room for more than the next few.
        if *lost > 0 && ring.slots() < ENTRIES / 2 {
            return;
        }
        if let Ok(chunk) = ring.write_chunk_uninit(2) {
            let told = (*lost > 0).then_some(TraceEntry::Lost(*lost));
            chunk.fill_from_iter(told.into_iter().chain([TraceEntry::State(Box::new(dispatcher.clone()))]));
            *lost = 0;
            self.state_due = false;
        }
    }

    /// Tells what the dispatcher was told, and what it decided.
    pub(super) fn tell(&mut self, event: &ReservationEvent, dispatches: &[Dispatch]) {
        let Some(Filling { ring, lost }) = &mut self.filling else { return };
        if ring.is_abandoned() {
            self.filling = None;
            return;
        }
        let entries = event.readings.len() + dispatches.len() + 1;
        match ring.write_chunk_uninit(entries) {
            Ok(chunk) if *lost == 0 => {
                let readings =
                    event.readings.iter().map(|(member, reading)| TraceEntry::Reading(*member, *reading));
                let dispatches = dispatches.iter().copied().map(TraceEntry::Dispatch);
                chunk.fill_from_iter(
                    readings.chain(dispatches).chain([TraceEntry::Event(event.at, event.kind)]),
                );
            }
            _ => {
                *lost = lost.saturating_add(1);
                self.state_due = true;
            }
        }
    }
}

impl Drop for TraceWriter {
    /// Leaves the ring to the thread that dispatches there next.
    fn drop(&mut self) {
        let mut ends = self.source.ends();
        if let Some(filling) = self.filling.take().filter(|filling| !filling.ring.is_abandoned()) {
            ends.idle.entry(self.cpu).or_insert(filling);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_engine::reservation::{Reservation, TargetId};

    const MS: u64 = 1_000_000;

    /// Dispatches for one member, as the controller does.
    struct Dispatching {
        dispatcher: Dispatcher,
        writer: TraceWriter,
        now: u64,
    }

    impl Dispatching {
        fn start(source: &TraceSource) -> Dispatching {
            Dispatching { dispatcher: Dispatcher::new(7), writer: source.writer(CPU), now: 0 }
        }

        fn tell(&mut self, kind: ReservationEventKind) -> (ReservationEvent, Vec<Dispatch>) {
            self.now += MS;
            let reading = Reading { ran_ns: self.now / 2, ready: true, woken: Time(0) };
            let event = ReservationEvent { at: Time(self.now), readings: vec![(MEMBER, reading)], kind };
            self.writer.tell_state(&self.dispatcher);
            self.dispatcher.on_event(&event);
            let dispatches: Vec<Dispatch> = std::iter::from_fn(|| self.dispatcher.poll_action()).collect();
            self.writer.tell(&event, &dispatches);
            (event, dispatches)
        }

        fn decide(&mut self) -> (ReservationEvent, Vec<Dispatch>) {
            self.tell(ReservationEventKind::Decide { tolerance_ns: 0 })
        }

        fn reserve(&mut self) -> (ReservationEvent, Vec<Dispatch>) {
            let (period_ns, slice_ns) = (10 * MS, 2 * MS);
            let reservation = Reservation { period_ns, slice_ns, hard: true, phase_ns: None };
            self.tell(ReservationEventKind::Set { member: MEMBER, cpu: 0, reservation, since: None })
        }
    }

    const CPU: u16 = 3;
    const MEMBER: Member = Member { target: TargetId(1), index: 0 };

    fn drained(reader: &mut TraceReader) -> Vec<Record> {
        let mut records = Vec::new();
        reader.drain(|record| records.push(record));
        records
    }

    fn bytes<T: serde::Serialize>(of: &T) -> Vec<u8> {
        postcard::to_stdvec(of).unwrap()
    }

    /// Decisions among the records, each as the dispatcher made it, and what else there is.
    fn decisions(records: &[Record]) -> Vec<(ReservationEvent, Vec<Dispatch>)> {
        let decision = |record: &Record| match record {
            Record::Decision { cpu: CPU, event, dispatches } => Some((event.clone(), dispatches.clone())),
            _ => None,
        };
        records.iter().filter_map(decision).collect()
    }

    fn state(record: &Record) -> Vec<u8> {
        let Record::Dispatcher { cpu: CPU, state } = record else { panic!("{record:?}") };
        bytes(state)
    }

    #[test]
    fn a_recording_hears_of_the_state_and_then_of_each_decision() {
        let mut reader = TraceReader::default();
        let mut thread = Dispatching::start(&reader.source());
        thread.reserve();
        thread.decide();
        assert!(drained(&mut reader).is_empty(), "nobody has asked");
        reader.begin();
        let begun = bytes(&thread.dispatcher);
        let told: Vec<_> = (0..20).map(|_| thread.decide()).collect();
        assert!(told.iter().any(|(_, dispatches)| !dispatches.is_empty()));
        let records = drained(&mut reader);
        assert_eq!(state(&records[0]), begun);
        assert_eq!(decisions(&records[1..]), told);
        // Another recording begins: it needs the state, and the first one needs all that is between.
        reader.begin();
        let told = thread.decide();
        let records = drained(&mut reader);
        assert_eq!((records.len(), decisions(&records)), (2, vec![told]));
        reader.end();
        thread.decide();
        assert!(thread.writer.filling.is_none(), "its memory is given back");
        reader.begin();
        thread.decide();
        assert_eq!(drained(&mut reader).len(), 2);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_then_the_state_is_told_again() {
        let mut reader = TraceReader::default();
        let mut thread = Dispatching::start(&reader.source());
        reader.begin();
        thread.reserve();
        let decisions_that_fit = ENTRIES / 2;
        for _ in 0..ENTRIES {
            thread.decide();
        }
        let records = drained(&mut reader);
        let kept = decisions(&records).len();
        assert!(
            records.len() == kept + 1 && kept < decisions_that_fit && kept > decisions_that_fit / 2,
            "{kept}"
        );
        let so_far = bytes(&thread.dispatcher);
        let told = thread.decide();
        let records = drained(&mut reader);
        let lost = u64::try_from(ENTRIES + 1 - kept).unwrap();
        assert!(
            matches!(records[0], Record::DecisionsLost { decisions } if decisions == lost),
            "{:?}",
            records[0]
        );
        assert_eq!(state(&records[1]), so_far);
        assert_eq!((records.len(), decisions(&records)), (3, vec![told]));
    }

    #[test]
    fn each_cpu_has_a_ring_whenever_its_dispatcher_comes() {
        let mut reader = TraceReader::default();
        let source = reader.source();
        let mut first = Dispatching::start(&source);
        reader.begin();
        let mut second = Dispatching { writer: source.writer(CPU + 1), ..Dispatching::start(&source) };
        first.reserve();
        second.reserve();
        let of = |record: &Record| match record {
            Record::Dispatcher { cpu, .. } => (*cpu, true),
            Record::Decision { cpu, .. } => (*cpu, false),
            _ => panic!("{record:?}"),
        };
        let told: Vec<_> = drained(&mut reader).iter().map(of).collect();
        assert_eq!(told, [(CPU, true), (CPU, false), (CPU + 1, true), (CPU + 1, false)]);
    }

    #[test]
    fn the_next_thread_that_dispatches_goes_on_with_the_same_ring() {
        let mut reader = TraceReader::default();
        reader.begin();
        let mut told = Vec::new();
        let mut states = 0;
        for _ in 0..3 {
            let mut thread = Dispatching::start(&reader.source());
            told.extend([thread.reserve(), thread.decide()]);
            states += 1;
        }
        let records = drained(&mut reader);
        assert_eq!(decisions(&records), told);
        assert_eq!(records.len(), told.len() + states);
        // A ring of the former recording does not come in the way of the next one's.
        let mut thread = Dispatching::start(&reader.source());
        thread.reserve();
        reader.end();
        reader.begin();
        drop(thread);
        let mut thread = Dispatching::start(&reader.source());
        thread.reserve();
        assert_eq!(drained(&mut reader).len(), 2);
    }
}
