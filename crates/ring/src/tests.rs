use crate::consumer::{Cursor, ask, take};
use crate::layout::{Geometry, MAGIC, Mapping, VERSION};
use crate::producer::append;
use crate::{AttachError, Consumer, Entry, EntryKind, Interest, Producer, find, fuzzing};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

fn attach(producer: &Producer, capacity: u32) -> Consumer {
    Consumer::with_capacity(producer.as_fd().try_clone_to_owned().unwrap().into(), capacity).unwrap()
}

fn drained(consumer: &mut Consumer, vcpu: u16) -> Vec<Entry> {
    let mut entries = Vec::new();
    consumer.drain(vcpu, usize::MAX, |entry| entries.push(entry));
    entries
}

/// Wake-ups so far, by way of the number that the consumer would use.
fn wakes(eventfd: i32) -> u64 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{eventfd}")).unwrap();
    let count = info.lines().find_map(|line| line.strip_prefix("eventfd-count:")).unwrap();
    u64::from_str_radix(count.trim(), 16).unwrap()
}

fn kind() -> impl Strategy<Value = EntryKind> {
    prop_oneof![
        (1..=u64::MAX).prop_map(|task| EntryKind::Switch { task }),
        Just(EntryKind::Halt),
        Just(EntryKind::Resume),
        any::<(u64, u8)>().prop_map(|(to, vector)| EntryKind::Ipi { to, vector }),
        any::<u8>().prop_map(|vector| EntryKind::Interrupt { vector }),
        Just(EntryKind::IpiTaken),
        any::<(bool, bool)>().prop_map(|(sound, in_interrupt)| EntryKind::Access { sound, in_interrupt }),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Push(u16, Entry),
    Drain(u16),
    Arm(u16, Interest),
    Disarm(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let entry = (any::<u64>(), kind()).prop_map(|(at_ns, kind)| Entry { at_ns, kind });
    prop_oneof![
        8 => (0..3u16, entry).prop_map(|(vcpu, entry)| Step::Push(vcpu, entry)),
        1 => (0..3u16).prop_map(Step::Drain),
        1 => (0..3u16, any::<(bool, bool)>())
            .prop_map(|(vcpu, (tasks, interrupts))| Step::Arm(vcpu, Interest { tasks, interrupts })),
        1 => (0..3u16).prop_map(Step::Disarm),
    ]
}

#[derive(Default)]
struct ModelLane {
    entries: VecDeque<Entry>,
    current: Option<u64>,
    dropped: u64,
    armed: Interest,
}

proptest! {
    #[test]
    fn behaves_like_bounded_queues(steps in prop::collection::vec(step(), 0..200)) {
        // Steps name three vCPUs, the ring has two: the third is ignored.
        let producer = Producer::with_capacity(2, 8).unwrap();
        let mut consumer = attach(&producer, 8);
        let mut model = [ModelLane::default(), ModelLane::default()];
        let mut woken = 0;
        for step in steps {
            match step {
                Step::Push(vcpu, entry) => {
                    producer.push(vcpu, entry);
                    let Some(lane) = model.get_mut(usize::from(vcpu)) else { continue };
                    let tells_tasks =
                        matches!(entry.kind, EntryKind::Switch { .. } | EntryKind::Halt | EntryKind::Resume);
                    let capacity = if tells_tasks { 8 } else { 4 };
                    if lane.entries.len() < capacity { lane.entries.push_back(entry) } else { lane.dropped += 1 }
                    if let EntryKind::Switch { task } = entry.kind { lane.current = Some(task) }
                    let wakes = match entry.kind {
                        EntryKind::Switch { .. } | EntryKind::Halt => lane.armed.tasks,
                        EntryKind::Resume | EntryKind::Access { .. } => false,
                        _ => lane.armed.interrupts,
                    };
                    if wakes {
                        lane.armed = Interest::default();
                        woken += 1;
                    }
                }
                Step::Drain(vcpu) => {
                    let lane = model.get_mut(usize::from(vcpu));
                    let expected: Vec<_> = lane.map(|lane| lane.entries.drain(..).collect()).unwrap_or(vec![]);
                    prop_assert_eq!(drained(&mut consumer, vcpu), expected);
                }
                Step::Arm(vcpu, interest) => {
                    consumer.arm(vcpu, interest);
                    if let Some(lane) = model.get_mut(usize::from(vcpu)) { lane.armed = interest }
                }
                Step::Disarm(vcpu) => {
                    consumer.disarm(vcpu);
                    if let Some(lane) = model.get_mut(usize::from(vcpu)) { lane.armed = Interest::default() }
                }
            }
            prop_assert_eq!(wakes(consumer.eventfd()), woken);
            for (vcpu, lane) in (0..).zip(&model) {
                prop_assert_eq!(consumer.current_task(vcpu), lane.current);
                prop_assert_eq!(consumer.dropped(vcpu), lane.dropped);
            }
        }
    }

    /// Garbage in the lanes is survived.
    #[test]
    fn fuzz_lanes(
        garbage in prop::collection::vec(prop_oneof![any::<u64>(), 0..16u64], 64..256),
    ) {
        fuzzing::lanes(&garbage);
    }

    /// Garbage in the header is refused or survived.
    #[test]
    fn fuzz_header(
        header in prop::array::uniform8(prop_oneof![Just(MAGIC), Just(VERSION), 0..70u64, any::<u64>()]),
        size in 0..20_000u64,
    ) {
        fuzzing::header(header, size);
    }
}

#[test]
fn nothing_is_lost_or_reordered_between_threads() {
    let producer = Producer::with_capacity(1, 64).unwrap();
    let mut consumer = attach(&producer, 64);
    const TOTAL: u64 = 200_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=TOTAL {
                producer.push(0, Entry { at_ns: n, kind: EntryKind::Switch { task: n } });
            }
        });
        let (mut last, mut seen) = (0, 0);
        while seen + consumer.dropped(0) < TOTAL {
            consumer.drain(0, usize::MAX, |entry| {
                assert!(entry.at_ns > last, "{} after {last}", entry.at_ns);
                assert_eq!(entry.kind, EntryKind::Switch { task: entry.at_ns }, "torn entry");
                (last, seen) = (entry.at_ns, seen + 1);
            });
        }
        assert_eq!(seen + consumer.dropped(0), TOTAL);
    });
}

/// The same without shared memory, for Miri: each entry is whole and in its order, is taken or counted as
/// dropped, and who asks for a wake-up and then finds nothing is woken for what comes.
#[test]
fn the_protocol_of_a_lane_loses_nothing() {
    const TOTAL: u64 = 120;
    let geometry = Geometry { vcpus: 1, capacity: 8 };
    let words: Vec<AtomicU64> = (0..geometry.words()).map(|_| AtomicU64::new(0)).collect();
    let woken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let lane = geometry.lane(&words, 0).unwrap();
            for n in 1..=TOTAL {
                let entry = Entry { at_ns: n, kind: EntryKind::Switch { task: n } };
                woken.fetch_add(append(&lane, geometry, entry).into(), SeqCst);
            }
        });
        let lane = geometry.lane(&words, 0).unwrap();
        let (mut cursor, mut last, mut seen) = (Cursor::default(), 0, 0);
        while seen + lane.dropped.load(Relaxed) < TOTAL {
            let wakes = woken.load(SeqCst);
            ask(&lane, Interest::TASKS);
            let before = seen;
            take(&lane, &mut cursor, geometry, usize::MAX, |entry| {
                assert!(entry.at_ns > last, "{} after {last}", entry.at_ns);
                assert_eq!(entry.kind, EntryKind::Switch { task: entry.at_ns }, "torn entry");
                (last, seen) = (entry.at_ns, seen + 1);
            });
            // Nothing was there after asking: the next one wakes.
            while seen == before && woken.load(SeqCst) == wakes && seen + lane.dropped.load(Relaxed) < TOTAL {
                std::thread::yield_now();
            }
        }
        assert_eq!((seen + lane.dropped.load(Relaxed), cursor.unreadable), (TOTAL, 0));
    });
}

#[test]
fn a_consumer_starts_with_what_happens_next() {
    let producer = Producer::with_capacity(1, 4).unwrap();
    for n in 1..=9 {
        producer.push(0, Entry { at_ns: n, kind: EntryKind::Switch { task: n } });
    }
    let mut consumer = attach(&producer, 4);
    assert_eq!((consumer.current_task(0), consumer.dropped(0)), (Some(9), 0));
    assert_eq!(drained(&mut consumer, 0), []);
    let halt = Entry { at_ns: 10, kind: EntryKind::Halt };
    producer.push(0, halt);
    assert_eq!(drained(&mut consumer, 0), [halt]);
}

#[test]
fn an_unknown_kind_is_skipped_and_counted() {
    let producer = Producer::with_capacity(1, 4).unwrap();
    let mut consumer = attach(&producer, 4);
    let geometry = Geometry { vcpus: 1, capacity: 4 };
    producer.push(0, Entry { at_ns: 1, kind: EntryKind::Halt });
    producer.push(0, Entry { at_ns: 2, kind: EntryKind::Resume });
    let mapping = Mapping::new(&producer, geometry.words()).unwrap();
    mapping.lane(geometry, 0).unwrap().entry(0)[1].store(99, Relaxed);
    assert_eq!(drained(&mut consumer, 0), [Entry { at_ns: 2, kind: EntryKind::Resume }]);
    assert_eq!(consumer.dropped(0), 1);
}

#[test]
fn a_file_that_can_shrink_is_refused() {
    let memfd = memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memfd, 1 << 20).unwrap();
    assert!(matches!(Consumer::attach(memfd.into()), Err(AttachError::NotSealed)));
}

/// Beyond a limit, what is lost is the oldest, and counted.
#[test]
fn at_most_so_many_at_a_time() {
    let producer = Producer::with_capacity(1, 64).unwrap();
    let mut consumer = attach(&producer, 64);
    for n in 1..=10 {
        producer.push(0, Entry { at_ns: n, kind: EntryKind::Halt });
    }
    let mut times = Vec::new();
    consumer.drain(0, 3, |entry| times.push(entry.at_ns));
    assert_eq!((times, consumer.dropped(0)), (vec![8, 9, 10], 7));
    assert_eq!(drained(&mut consumer, 0), []);
}

/// What lies at a capacity of their own choice is memory that we would be charged with.
#[test]
fn a_ring_of_another_capacity_is_refused() {
    for capacity in [8, 1 << 13, 1 << 16] {
        let producer = Producer::with_capacity(1, capacity).unwrap();
        let file = producer.as_fd().try_clone_to_owned().unwrap().into();
        let refused = matches!(Consumer::attach(file), Err(AttachError::Header { what: "the capacity", .. }));
        assert!(refused, "{capacity}");
    }
}

/// A name that says nothing, with a lease that nobody gives up: whoever opens it would wait for 45 s.
#[test]
fn a_file_with_a_lease_is_not_waited_for() {
    let path = |file: &dyn AsFd| format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let open = |file: &dyn AsFd| crate::consumer::open_memory(path(file).as_ref());
    let memfd = memfd_create("leased", MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(open(&memfd).is_ok());
    // The kernel would tell of it by a signal that ends this process.
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    // A memfd as it was made counts as not open.
    let holder = std::fs::OpenOptions::new().read(true).write(true).open(path(&memfd)).unwrap();
    // SAFETY: touches no memory.
    let leased = unsafe { libc::fcntl(holder.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
    assert_eq!(open(&memfd).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let file = tempfile::tempfile().unwrap();
    assert_eq!(open(&file).unwrap_err().kind(), std::io::ErrorKind::InvalidInput, "on a disk");
}

#[test]
fn the_ring_is_found_by_process() {
    let pid = i32::try_from(std::process::id()).unwrap();
    // Other tests of this process have rings too, so only the attaching can be checked.
    let _producer = Producer::create(3).unwrap();
    assert!(find(pid).unwrap().is_some());
    // Init is no QEMU.
    assert!(find(1).unwrap().is_none());
}

#[test]
fn who_notified_a_disk_is_where_others_are_told_to_look() {
    let producer = Producer::create(2).unwrap();
    let file = std::fs::File::from(producer.as_fd().try_clone_to_owned().unwrap());
    let words = Consumer::attach(file.try_clone().unwrap()).unwrap().task_words();
    let word = |first: u64, vcpu: u64| {
        let mut bytes = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, first + vcpu * words.stride).unwrap();
        u64::from_ne_bytes(bytes)
    };
    producer.push(1, Entry { at_ns: 1, kind: EntryKind::Switch { task: 7 } });
    producer.notifies_disk(1, false);
    producer.push(1, Entry { at_ns: 2, kind: EntryKind::Switch { task: 8 } });
    producer.notifies_disk(9, false);
    assert_eq!([word(words.current, 1), word(words.notified, 1)], [8, 7]);
    assert_eq!([word(words.current, 0), word(words.notified, 0)], [0, 0]);
    producer.notifies_disk(1, true);
    assert_eq!([word(words.notified, 1), word(words.notifications, 1)], [0, 2], "nobody's");
}
