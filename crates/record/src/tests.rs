mod specification;

use super::frame::{MAJOR, MAX_BLOCK, MINOR, header};
use super::{Ending, Record, RecordError, Recorder, Recording, Recordings, codec, fuzzing, read_recording};
use frontdesk_engine::reservation::{self, Dispatch, Dispatcher, Member, Reading, Reservation, TargetId};
use frontdesk_engine::{Config, Engine, Event, EventKind, Protocol, TaskId, Thread, Time, VmId};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::io::{Read as _, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

const VM: VmId = VmId(7);

/// A sink that can be looked into.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn switch(n: u64) -> Record {
    let kind = EventKind::TaskSwitch { vm: VM, vcpu: 0, task: TaskId(n * 0x9e37_79b9_7f4a_7c15) };
    Record::Event(Event { at: Time(n), kind })
}

/// A recording of so many events; every 300 of them are a frame.
fn recording(events: u64) -> Vec<u8> {
    let sink = Shared::default();
    let mut recorder = Recorder::start(sink.clone(), "test".to_owned()).unwrap();
    recorder.push(&Record::Config(Config::default()));
    for n in 0..events {
        recorder.push(&switch(n));
        if n % 300 == 299 {
            recorder.tick(Time(n * 1_000_000_000));
        }
    }
    recorder.finish().unwrap();
    sink.bytes()
}

fn read(bytes: &[u8]) -> (Vec<Record>, Result<Option<Ending>, RecordError>) {
    let mut recording = match Recording::new(bytes, "test".to_owned()) {
        Ok(recording) => recording,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let mut records = Vec::new();
    loop {
        match recording.next() {
            Some(Ok(record)) => records.push(record),
            Some(Err(error)) => {
                assert!(recording.next().is_none(), "after an error there is nothing");
                return (records, Err(error));
            }
            None => return (records, Ok(recording.ending())),
        }
    }
}

fn bytes_of(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    records.iter().for_each(|record| codec::encode(record, &mut bytes));
    bytes
}

#[test]
fn what_was_written_is_read() {
    let (records, ending) = read(&recording(5000));
    assert_eq!(ending.unwrap(), Some(Ending::Complete));
    let expected: Vec<Record> =
        std::iter::once(Record::Config(Config::default())).chain((0..5000).map(switch)).collect();
    assert_eq!(bytes_of(&records), bytes_of(&expected));
}

/// A dispatcher's life with one member, as a recording has it: a state, decisions, a loss.
fn dispatching(decisions: u64) -> Vec<Record> {
    let member = Member { target: TargetId(3), index: 1 };
    let mut dispatcher = Dispatcher::new(5);
    let target = Record::Target { target: member.target, name: "pid:4711".to_owned() };
    let state = |dispatcher: &Dispatcher| Record::Dispatcher { cpu: 1, state: Box::new(dispatcher.clone()) };
    let mut records = vec![target, state(&dispatcher)];
    let reservation =
        Reservation { period_ns: 10_000_000, slice_ns: 2_000_000, hard: true, phase_ns: Some(9) };
    for n in 0..decisions {
        let reading = Reading { ran_ns: n * 600_000, ready: n % 3 > 0, woken: Time(n) };
        let kind = match n % 50 {
            0 => reservation::ReservationEventKind::Set { member, cpu: 1, reservation, since: None },
            20 | 30 => reservation::ReservationEventKind::Pause { member, paused: n % 50 == 20 },
            40 => reservation::ReservationEventKind::Align { wall_offset_ns: n },
            49 => reservation::ReservationEventKind::Remove { member },
            _ => reservation::ReservationEventKind::Decide { tolerance_ns: n % 7 },
        };
        let event = reservation::ReservationEvent {
            at: Time(n * 1_000_000),
            readings: vec![(member, reading)],
            kind,
        };
        dispatcher.on_event(&event);
        let dispatches: Vec<Dispatch> = std::iter::from_fn(|| dispatcher.poll_action()).collect();
        records.push(Record::Decision { cpu: 1, event, dispatches });
    }
    records.push(Record::DecisionsLost { decisions: 17 });
    records.push(state(&dispatcher));
    records
}

#[test]
fn decisions_about_reservations_are_read_as_they_were_written() {
    let sink = Shared::default();
    let mut recorder = Recorder::start(sink.clone(), "test".to_owned()).unwrap();
    let written = dispatching(200);
    let dispatches = |record: &Record| match record {
        Record::Decision { dispatches, .. } => dispatches.len(),
        _ => 0,
    };
    assert!(written.iter().map(dispatches).sum::<usize>() > 20);
    written.iter().for_each(|record| recorder.push(record));
    recorder.finish().unwrap();
    let (records, ending) = read(&sink.bytes());
    assert_eq!(ending.unwrap(), Some(Ending::Complete));
    assert_eq!(bytes_of(&records), bytes_of(&written));
    assert!(records.iter().all(Record::is_about_reservations));
}

#[test]
fn a_recording_cut_anywhere_is_read_up_to_its_last_whole_frame() {
    let whole = recording(1000);
    let (all, _) = read(&whole);
    let mut lengths = BTreeSet::new();
    for length in header().len()..whole.len() {
        let (records, ending) = read(&whole[..length]);
        assert_eq!(bytes_of(&records), bytes_of(&all[..records.len()]));
        let Some(Ending::Cut { bytes }) = ending.unwrap() else { panic!("cut at {length}, and complete") };
        // Without the bytes that are of no use it is the same, and nothing is left over.
        let frames = length - usize::try_from(bytes).unwrap();
        let (again, ending) = read(&whole[..frames]);
        assert_eq!((again.len(), ending.unwrap()), (records.len(), Some(Ending::Cut { bytes: 0 })));
        lengths.insert(records.len());
    }
    assert!(lengths.len() >= 4, "{lengths:?}");
}

#[test]
fn a_last_frame_of_full_length_but_other_content_is_torn() {
    let mut bytes = recording(1000);
    let length = bytes.len();
    bytes[length - 1] ^= 1;
    assert!(matches!(read(&bytes).1, Ok(Some(Ending::Cut { bytes })) if bytes > 0));
}

#[test]
fn what_is_no_recording_of_this_version_is_refused_with_what_to_do() {
    let mut bytes = recording(10);
    for (version, words) in [
        (MAJOR + 1, "a later release recorded it; use that one"),
        (MAJOR - 1, "use the release that recorded it, or record anew"),
        (1, "use the release that recorded it, or record anew"),
    ] {
        bytes[8..10].copy_from_slice(&version.to_le_bytes());
        let error = read(&bytes).1.unwrap_err().to_string();
        let versions =
            format!("has format version {version}, and this frontdesk reads version {MAJOR}: {words}");
        assert!(error.contains(&versions), "{error}");
    }
    for other in [&b""[..], b"fdsk", b"{\"json\": true}", &[0; 64]] {
        assert!(matches!(read(other).1, Err(RecordError::NotARecording { .. })));
    }
}

/// A recording of one block, by a release with this minor version.
fn by_minor(minor: u16, block: &[u8]) -> Vec<u8> {
    let mut bytes = framed(&zstd::bulk::compress(block, 1).unwrap());
    bytes[10..12].copy_from_slice(&minor.to_le_bytes());
    bytes
}

fn text(text: &str) -> Vec<u8> {
    assert!(text.len() < 24);
    [&[0x60 + u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

#[test]
fn what_a_later_release_adds_is_left_out_and_what_it_does_not_change_is_read() {
    let at = [&text("at")[..], &[0x07]].concat();
    let halt = [&[0xa1][..], &text("Halt"), &[0xa2], &text("vm"), &[0x02], &text("vcpu"), &[0x03]].concat();
    let kind = [&text("kind")[..], &halt].concat();
    // {"Event": {"at": 7, "cause": [{}, null], "kind": {"Halt": {"vm": 2, "vcpu": 3}}}}
    let cause = [&text("cause")[..], &[0x82, 0xa0, 0xf6]].concat();
    let field = [&[0xa1][..], &text("Event"), &[0xa3], &at, &cause, &kind].concat();
    // {"Weather": {"at": 7}}, "Storm", and an event of an unknown kind.
    let record = [&[0xa1][..], &text("Weather"), &[0xa1], &at].concat();
    let event = [&[0xa1][..], &text("Event"), &[0xa2], &at, &text("kind"), &text("Thunder")].concat();
    let block = [&field[..], &record, &text("Storm"), &event, &field, &text("End")].concat();

    let bytes = by_minor(MINOR + 1, &block);
    let mut recording = Recording::new(&bytes[..], "test".to_owned()).unwrap();
    let records: Vec<Record> = recording.by_ref().map(Result::unwrap).collect();
    let expected = Event { at: Time(7), kind: EventKind::Halt { vm: VmId(2), vcpu: 3 } };
    assert_eq!(bytes_of(&records), bytes_of(&[Record::Event(expected), Record::Event(expected)]));
    assert_eq!((recording.left_out(), recording.records()), (3, 2));
    assert_eq!(recording.ending(), Some(Ending::Complete));

    // Of this release it would be damage, for it knows all that it writes.
    let (records, result) = read(&by_minor(MINOR, &block));
    assert_eq!(records.len(), 1);
    assert!(matches!(result, Err(RecordError::Damaged { records: 1, .. })), "{result:?}");
    // And what is no CBOR is damage in any.
    let broken = [&field[..], &[0xff], &field].concat();
    assert!(matches!(read(&by_minor(MINOR + 1, &broken)).1, Err(RecordError::Damaged { .. })));
}

#[test]
fn parameters_that_only_a_later_release_has_are_left_out() {
    let mut block = Vec::new();
    codec::encode(&Record::Config(Config::default()), &mut block);
    let tavs = block.windows(5).position(|bytes| bytes == b"\x64tavs").unwrap() + 5;
    assert_eq!(block[tavs], 0xb2, "a map of 18");
    block[tavs] += 1;
    block.splice(tavs + 1..tavs + 1, [&text("magic")[..], &[0xf5]].concat());
    block.extend(text("End"));
    let (records, ending) = read(&by_minor(MINOR + 1, &block));
    assert_eq!(ending.unwrap(), Some(Ending::Complete));
    assert!(matches!(&records[..], [Record::Config(config)] if *config == Config::default()));
}

/// Lengths that only are claimed, and nesting without end, take neither memory nor stack.
#[test]
fn a_record_that_claims_or_nests_too_much_is_refused() {
    let claims: [&[u8]; 3] =
        [&[0x9b, 0, 0, 0xff, 0, 0, 0, 0, 0], &[0xbb, 0, 0, 0xff, 0, 0, 0, 0, 0], &[0x7a, 0x70, 0, 0, 0]];
    let nested = [0x81, 0x9f, 0xc1].map(|byte| vec![byte; 1 << 20]);
    let nested = nested.iter().map(Vec::as_slice);
    for content in claims.into_iter().chain(nested) {
        for block in [
            content.to_vec(),
            [&[0xa1][..], &text("State"), content].concat(),
            [&[0xa1][..], &text("Event"), &[0xa1], &text("why"), content].concat(),
        ] {
            let (records, result) = read(&by_minor(MINOR + 1, &block));
            assert!(records.is_empty() && matches!(result, Err(RecordError::Damaged { .. })), "{result:?}");
        }
    }
}

#[test]
fn a_recording_that_is_not_complete_is_not_read_as_a_whole() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes = recording(1000);
    std::fs::write(file.path(), &bytes).unwrap();
    assert_eq!(read_recording(file.path()).unwrap().len(), 1001);
    std::fs::write(file.path(), &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(read_recording(file.path()), Err(RecordError::Incomplete { records: 901.., .. })));
}

/// A recording of a frame with this content, however large.
fn framed(compressed: &[u8]) -> Vec<u8> {
    let length = u32::try_from(compressed.len()).unwrap().to_le_bytes();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&length), compressed).to_le_bytes();
    [&header()[..], &length, &sum, compressed].concat()
}

/// The same, and something after it.
fn forged(compressed: &[u8]) -> Vec<u8> {
    [&framed(compressed)[..], b"more"].concat()
}

#[test]
fn a_block_that_grows_without_end_is_refused() {
    let bomb = zstd::bulk::compress(&vec![0; MAX_BLOCK + 1], 19).unwrap();
    assert!(bomb.len() < 20_000);
    let (records, result) = read(&forged(&bomb));
    assert!(records.is_empty());
    assert!(matches!(result, Err(RecordError::Damaged { at: 12, .. })), "{result:?}");
    // A frame that only claims to be large takes no memory either.
    let claim = [&header()[..], &u32::MAX.to_le_bytes(), &[0; 100]].concat();
    assert!(matches!(read(&claim).1, Err(RecordError::Damaged { .. })));
    let claim = [&header()[..], &(30u32 << 20).to_le_bytes(), &[0; 100]].concat();
    assert_eq!(read(&claim).1.unwrap(), Some(Ending::Cut { bytes: 104 }));
}

#[test]
fn an_engine_in_the_middle_of_its_life_begins_a_recording() {
    let mut engine = Engine::new(Config::default()).unwrap();
    engine.on_event(&Event { at: Time(5), kind: EventKind::VmAdded { vm: VM, vcpus: 2, weight: 100 } });
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut recordings = Recordings::default();
    let targets = [(TargetId(3), "vm:alice")].into_iter();
    recordings.begin(ours, &engine, [(VM, "alice")].into_iter(), targets).unwrap();
    recordings.push(|| switch(9));
    // The client wants no more.
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    let mut second = 0;
    while recordings.clients() > 0 {
        second += 1;
        recordings.tick(Time(second * 1_000_000_000));
        std::thread::yield_now();
    }
    let mut bytes = Vec::new();
    theirs.read_to_end(&mut bytes).unwrap();
    let (records, ending) = read(&bytes);
    assert_eq!(ending.unwrap(), Some(Ending::Complete));
    let vm = Record::Vm { vm: VM, name: "alice".to_owned() };
    let target = Record::Target { target: TargetId(3), name: "vm:alice".to_owned() };
    let expected = [Record::State(Box::new(engine)), vm, target, switch(9)];
    assert_eq!(bytes_of(&records), bytes_of(&expected));
}

/// A sink that takes nothing until it is told to, or hung up on.
struct Stuck(Receiver<()>, Shared);

fn stuck() -> (Sender<()>, Stuck, Shared) {
    let ((sender, receiver), shared) = (channel(), Shared::default());
    (sender, Stuck(receiver, shared.clone()), shared)
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.recv();
        self.1.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_sink_that_is_stuck_holds_nobody_up_and_its_recording_has_no_end() {
    let (release, sink, written) = stuck();
    let mut recorder = Recorder::start(sink, "slow".to_owned()).unwrap();
    let mut pushed = 0u64;
    while !recorder.has_ended() {
        recorder.push(&switch(pushed));
        pushed += 1;
        assert!(pushed < 100_000_000, "the queue has no bound");
    }
    drop(release);
    let error = recorder.result().unwrap_err();
    assert!(matches!(error, RecordError::Overflow { .. }), "{error}");
    // What was in the queue is still written, by a thread of its own.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        if let (records, Ok(Some(Ending::Cut { bytes: 0 }))) = read(&written.bytes())
            && records.len() as u64 > pushed * 9 / 10
        {
            assert!((records.len() as u64) < pushed);
            return;
        }
        assert!(std::time::Instant::now() < deadline, "the queue is not written");
        std::thread::yield_now();
    }
}

#[test]
fn a_reader_that_leaves_ends_its_recording_and_no_other() {
    let engine = Engine::new(Config::default()).unwrap();
    let own = Shared::default();
    let mut recordings = Recordings::new(Some(Recorder::start(own.clone(), "own".to_owned()).unwrap()));
    let (ours, theirs) = UnixStream::pair().unwrap();
    recordings.begin(ours, &engine, std::iter::empty(), std::iter::empty()).unwrap();
    drop(theirs);
    recordings.push(|| Record::Config(Config::default()));
    let mut second = 0;
    while recordings.clients() > 0 {
        recordings.push(|| switch(1));
        second += 1;
        recordings.tick(Time(second * 1_000_000_000));
        // The own one's thread has to keep up, on a busy machine, too.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    recordings.finish().unwrap();
    assert_eq!(read(&own.bytes()).1.unwrap(), Some(Ending::Complete));
}

#[test]
fn a_daemons_own_recording_that_fails_is_reported_at_its_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let mut recordings = Recordings::new(Some(Recorder::start(ours, "own".to_owned()).unwrap()));
    recordings.push(|| switch(1));
    assert!(matches!(recordings.finish(), Err(RecordError::Io { .. })));
}

/// A block with the state of an engine that has a VM, and events for it.
fn begun_in_the_middle() -> Vec<u8> {
    let mut engine = Engine::new(Config::default()).unwrap();
    let tell = |engine: &mut Engine, at, kind| engine.on_event(&Event { at: Time(at), kind });
    tell(&mut engine, 5, EventKind::VmAdded { vm: VM, vcpus: 2, weight: 100 });
    for n in 0..20 {
        let (packet, task) = (1_000_000 * n, TaskId(n % 3));
        tell(&mut engine, packet, EventKind::Run { vm: VM, thread: Thread::Emulator(0), pcpu: 0 });
        tell(&mut engine, packet + 1, EventKind::Packet { vm: VM, protocol: Protocol::Udp, port: 7 });
        tell(&mut engine, packet + 2, EventKind::BlockRead { vm: VM, request: n });
        tell(&mut engine, packet + 3, EventKind::Run { vm: VM, thread: Thread::Vcpu(1), pcpu: 1 });
        tell(&mut engine, packet + 4, EventKind::TaskSwitch { vm: VM, vcpu: 1, task });
        while engine.poll_action().is_some() {}
    }
    bytes_of(&[Record::State(Box::new(engine)), switch(30_000_000)])
}

proptest! {
    /// States with a right checksum, but with any bytes changed: what is read can be told events.
    #[test]
    fn fuzz_states(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        static WHOLE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(begun_in_the_middle);
        let mut block = WHOLE.clone();
        for (at, byte) in changes {
            *at.get_mut(&mut block) = byte;
        }
        fuzzing::recording(&by_minor(MINOR + 1, &block));
    }

    /// Any bits flipped: what is read before is right, and nothing panics. Another minor version may be true.
    #[test]
    fn fuzz_flipped_bits(flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u32), 1..4)) {
        static WHOLE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| recording(1000));
        let mut bytes = WHOLE.clone();
        for (at, bit) in flips {
            *at.get_mut(&mut bytes) ^= 1 << bit;
        }
        let (all, _) = read(&WHOLE);
        let (records, result) = read(&bytes);
        prop_assert_eq!(bytes_of(&records), bytes_of(&all[..records.len()]));
        let but_minor = |bytes: &[u8]| [&bytes[..10], &bytes[12..]].concat();
        let is_whole = but_minor(&bytes) == but_minor(&WHOLE);
        prop_assert!(is_whole || !matches!(result, Ok(Some(Ending::Complete))));
    }

    /// What is told of reservations, with a right checksum, but with any bytes changed: what is read can be
    /// told to a dispatcher.
    #[test]
    fn fuzz_decisions(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        static WHOLE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
            bytes_of(&dispatching(60))
        });
        let mut block = WHOLE.clone();
        for (at, byte) in changes {
            *at.get_mut(&mut block) = byte;
        }
        fuzzing::recording(&fuzzing::framed(&block));
    }

    /// Blocks with a right checksum, but any content.
    #[test]
    fn fuzz_blocks(
        block in prop::collection::vec(any::<u8>(), 0..2000),
        start in prop::sample::select(vec!["", "State", "Event", "Applied", "Dispatcher", "Decision", "Weather"]),
        minor in MINOR..=MINOR + 1,
    ) {
        // Kinds of records are few: some blocks begin as records do.
        let start = if start.is_empty() { Vec::new() } else { [&[0xa1][..], &text(start)].concat() };
        let (_, result) = read(&[&by_minor(minor, &[start, block].concat())[..], b"more"].concat());
        prop_assert!(!matches!(result, Ok(Some(Ending::Complete))));
    }

    /// Frames with any content.
    #[test]
    fn fuzz_frames(bytes in prop::collection::vec(any::<u8>(), 1..500)) {
        let _ = read(&forged(&bytes));
        let _ = read(&[&header()[..], &bytes].concat());
    }
}
