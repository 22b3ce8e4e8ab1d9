use super::frame::{MAX_BLOCK, VERSION, header};
use super::writer::{Recorder, Recordings};
use super::{Ending, Record, RecordError, Recording, read_recording};
use frontdesk_engine::{Config, Engine, Event, EventKind, TaskId, Time, VmId};
use proptest::prelude::*;
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
    let mut recorder = Recorder::start(sink.clone(), "test".to_owned());
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
    postcard::to_stdvec(records).unwrap()
}

#[test]
fn what_was_written_is_read() {
    let (records, ending) = read(&recording(5000));
    assert_eq!(ending.unwrap(), Some(Ending::Complete));
    let expected: Vec<Record> =
        std::iter::once(Record::Config(Config::default())).chain((0..5000).map(switch)).collect();
    assert_eq!(bytes_of(&records), bytes_of(&expected));
}

#[test]
fn a_recording_cut_anywhere_is_read_up_to_its_last_whole_frame() {
    let whole = recording(1000);
    let (all, _) = read(&whole);
    let mut lengths = std::collections::BTreeSet::new();
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
fn what_is_no_recording_of_this_version_is_refused_with_both_versions() {
    let mut bytes = recording(10);
    bytes[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let error = read(&bytes).1.unwrap_err().to_string();
    assert!(error.contains(&format!("version {}", VERSION + 1)), "{error}");
    assert!(error.contains(&format!("reads version {VERSION}")), "{error}");
    for other in [&b""[..], b"fdsk", b"{\"json\": true}", &[0; 64]] {
        assert!(matches!(read(other).1, Err(RecordError::NotARecording { .. })));
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

/// A frame with this content, however large.
fn forged(compressed: &[u8]) -> Vec<u8> {
    let length = u32::try_from(compressed.len()).unwrap().to_le_bytes();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&length), compressed).to_le_bytes();
    [&header()[..], &length, &sum, compressed, b"more"].concat()
}

#[test]
fn a_block_that_grows_without_end_is_refused() {
    let bomb = zstd::bulk::compress(&vec![0; MAX_BLOCK + 1], 19).unwrap();
    assert!(bomb.len() < 10_000);
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
    recordings.begin(ours, &engine, [(VM, "alice")].into_iter()).unwrap();
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
    let expected = [Record::State(Box::new(engine)), vm, switch(9)];
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
    let mut recorder = Recorder::start(sink, "slow".to_owned());
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
    let mut recordings = Recordings::new(Some(Recorder::start(own.clone(), "own".to_owned())));
    let (ours, theirs) = UnixStream::pair().unwrap();
    recordings.begin(ours, &engine, std::iter::empty()).unwrap();
    drop(theirs);
    recordings.push(|| Record::Config(Config::default()));
    let mut second = 0;
    while recordings.clients() > 0 {
        recordings.push(|| switch(1));
        second += 1;
        recordings.tick(Time(second * 1_000_000_000));
        std::thread::yield_now();
    }
    recordings.finish().unwrap();
    assert_eq!(read(&own.bytes()).1.unwrap(), Some(Ending::Complete));
}

#[test]
fn a_daemons_own_recording_that_fails_is_reported_at_its_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let mut recordings = Recordings::new(Some(Recorder::start(ours, "own".to_owned())));
    recordings.push(|| switch(1));
    assert!(matches!(recordings.finish(), Err(RecordError::Io { .. })));
}

proptest! {
    /// Any bits flipped: what is read before is right, and nothing panics.
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
        prop_assert!(bytes == *WHOLE || !matches!(result, Ok(Some(Ending::Complete))));
    }

    /// Blocks with a right checksum, but any content.
    #[test]
    fn fuzz_blocks(
        block in prop::collection::vec(any::<u8>(), 0..2000),
        start in prop::sample::select(vec![None, Some(0u8), Some(1), Some(4), Some(6)]),
    ) {
        // Kinds of records are few, and states are long: some blocks begin as records do.
        let block: Vec<u8> = start.into_iter().chain(block).collect();
        let (_, result) = read(&forged(&zstd::bulk::compress(&block, 1).unwrap()));
        prop_assert!(!matches!(result, Ok(Some(Ending::Complete))));
    }

    /// Frames with any content.
    #[test]
    fn fuzz_frames(bytes in prop::collection::vec(any::<u8>(), 1..500)) {
        let _ = read(&forged(&bytes));
        let _ = read(&[&header()[..], &bytes].concat());
    }
}
