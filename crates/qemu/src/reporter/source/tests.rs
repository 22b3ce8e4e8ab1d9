use super::*;
use crate::reporter::{Reporters, clock};
use frontdesk_engine::TaskId;
use frontdesk_guest_protocol::{GuestMessage, HEARTBEAT, MAGIC, MAX_MESSAGES_PER_SECOND, Name};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use tempfile::TempDir;

const VM: VmId = VmId(3);
const MS: u64 = 1_000_000;

/// A QEMU with a guest that says what a test wants. Time stands still unless the test says so.
struct Fake {
    home: TempDir,
    listener: UnixListener,
    stream: UnixStream,
    source: ReporterSource,
    now_ns: u64,
}

impl Fake {
    fn new() -> Fake {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("x.tasks");
        let listener = UnixListener::bind(&path).unwrap();
        let own = std::process::id().cast_signed();
        let source = ReporterSource::new(path, own, 2, Duration::ZERO, Time(1)).unwrap();
        let stream = listener.accept().unwrap().0;
        let mut fake = Fake { home, listener, stream, source, now_ns: 1_000 * MS };
        assert_eq!(fake.asked(), 1, "a host that connects asks");
        fake
    }

    fn now(&self) -> HostTime {
        HostTime { monotonic: Time(self.now_ns), raw_ns: self.now_ns }
    }

    fn pass(&mut self, time: Duration) {
        self.now_ns += u64::try_from(time.as_nanos()).unwrap();
    }

    /// How often the host has asked to begin since the last call.
    fn asked(&mut self) -> usize {
        let mut bytes = [0; 1000];
        self.stream.set_nonblocking(true).unwrap();
        let length = self.stream.read(&mut bytes).unwrap_or(0);
        let mut count = 0;
        Decoder::default().feed(&bytes[..length], |request| {
            assert_eq!(request, Some(HostMessage::start()));
            count += 1;
        });
        count
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.set_nonblocking(false).unwrap();
        for chunk in bytes.chunks(CHUNK) {
            // The host may hang up.
            if self.stream.write_all(chunk).is_err() {
                return;
            }
            self.source.receive(self.now());
        }
    }

    fn say(&mut self, messages: &[GuestMessage]) {
        let mut bytes = Vec::new();
        for message in messages {
            assert!(encode(message, usize::MAX, &mut bytes));
        }
        self.write(&bytes);
    }

    /// Ends a report now. The guest's clock is the host's.
    fn sent(&mut self) {
        self.say(&[GuestMessage::Sent { at_ns: self.now_ns }]);
    }

    fn hello(&mut self) {
        self.say(&[GuestMessage::Hello { magic: MAGIC, version: VERSION, vcpus: 2 }]);
        self.sent();
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.source.drain(VM, Time(self.now_ns), &mut events);
        events
    }

    fn kinds(&mut self) -> Vec<EventKind> {
        self.events().into_iter().map(|event| event.kind).collect()
    }

    fn failure(&self) -> &ReporterError {
        match self.source.state() {
            ReporterState::Failed(error) => error,
            other => panic!("{other:?}"),
        }
    }
}

fn switch(vcpu: u16, task: u64) -> EventKind {
    EventKind::TaskSwitch { vm: VM, vcpu, task: TaskId(task) }
}

const LOST: EventKind = EventKind::Lost { vm: Some(VM), count: 1 };

#[test]
fn what_a_guest_tells_becomes_events() {
    let mut fake = Fake::new();
    fake.hello();
    assert!(fake.source.is_live());
    let at_ns = fake.now_ns;
    fake.say(&[
        GuestMessage::Name { task: 50, name: Name::from_comm(b"firefox") },
        GuestMessage::Run { vcpu: 0, at_ns, task: 50 },
        GuestMessage::Idle { vcpu: 1, at_ns },
    ]);
    assert_eq!(fake.kinds(), [], "the report is not complete");
    fake.sent();
    assert_eq!(
        fake.events(),
        [
            Event { at: Time(at_ns), kind: switch(0, 50) },
            Event { at: Time(at_ns), kind: EventKind::Halt { vm: VM, vcpu: 1 } },
        ]
    );
    assert_eq!(fake.source.name(50), Some("firefox"));
    assert_eq!(fake.source.name(51), None);
    assert_eq!(fake.source.stats(), ReporterStats { changes: 2, lost: 0, refused: 0 });
}

/// Whoever ran last in a report that could not tell all did so for no time that is known.
#[test]
fn what_was_cut_off_names_nobody() {
    let mut fake = Fake::new();
    fake.hello();
    let at_ns = fake.now_ns;
    let run = |at_ns, task| GuestMessage::Run { vcpu: 0, at_ns, task };
    fake.say(&[run(at_ns, 50), run(at_ns + 1, 51), GuestMessage::Lost { count: 9 }]);
    fake.sent();
    let of = |fake: &mut Fake, vcpu| {
        let told = fake.source.take_told(Time(fake.now_ns)).filter(|told| told.vcpu == vcpu);
        told.map(|told| told.task).collect::<Vec<_>>()
    };
    assert_eq!(of(&mut fake, 0), [None, Some(50), None], "what was before may have ended, too");
    fake.say(&[run(at_ns + 2, 52)]);
    fake.sent();
    assert_eq!(of(&mut fake, 0), [Some(52)], "the next report is whole");
    fake.say(&[run(at_ns + 3, 53), GuestMessage::Lost { count: 1 }]);
    fake.sent();
    assert_eq!(of(&mut fake, 1), [None], "the other vCPU may have changed what it runs");
    assert_eq!(fake.source.stats().changes, 4);
}

#[test]
fn a_report_of_several_changes_keeps_the_time_between_them() {
    let mut fake = Fake::new();
    fake.hello();
    let begin = fake.now_ns;
    fake.say(&[
        GuestMessage::Run { vcpu: 0, at_ns: begin, task: 1 },
        GuestMessage::Run { vcpu: 0, at_ns: begin + 300_000, task: 2 },
    ]);
    fake.pass(Duration::from_millis(1));
    fake.sent();
    let now = fake.now_ns;
    assert_eq!(fake.events(), [Event { at: Time(now), kind: switch(0, 1) }]);
    assert_eq!(fake.source.next_due(), Some(Time(now + 300_000)));
    assert_eq!(fake.source.hold(), Duration::from_millis(1));
    fake.pass(Duration::from_micros(400));
    assert_eq!(fake.events(), [Event { at: Time(now + 300_000), kind: switch(0, 2) }]);
    assert_eq!(fake.source.next_due(), None);
}

#[test]
fn silence_means_that_the_reporter_is_gone() {
    let mut fake = Fake::new();
    fake.hello();
    for _ in 0..5 {
        fake.pass(2 * HEARTBEAT);
        fake.sent();
        assert_eq!(fake.kinds(), []);
    }
    fake.say(&[GuestMessage::Run { vcpu: 0, at_ns: fake.now_ns, task: 1 }]);
    fake.pass(3 * HEARTBEAT + Duration::from_nanos(1));
    assert_eq!(fake.kinds(), [LOST]);
    assert!(!fake.source.is_live());
    assert!(matches!(fake.source.state(), ReporterState::Silent));
    // It was paused, and goes on as if nothing had been.
    fake.pass(10 * HEARTBEAT);
    assert_eq!(fake.asked(), 0);
    fake.sent();
    fake.sent();
    assert_eq!(fake.asked(), 1);
    assert_eq!(fake.kinds(), [], "what it said before is void, and what it says now not yet complete");
    fake.hello();
    assert!(fake.source.is_live());
}

#[test]
fn half_a_message_spoils_only_itself() {
    let mut fake = Fake::new();
    fake.hello();
    let mut bytes = Vec::new();
    encode(&GuestMessage::Run { vcpu: 0, at_ns: 1, task: 1 }, 100, &mut bytes);
    fake.write(&bytes[..bytes.len() / 2]);
    // Another reporter begins.
    fake.write(&[0]);
    fake.hello();
    fake.say(&[GuestMessage::Run { vcpu: 0, at_ns: fake.now_ns, task: 2 }]);
    fake.sent();
    assert_eq!(fake.kinds(), [switch(0, 2)]);
    assert_eq!(fake.source.stats().refused, 1);
}

#[test]
fn lies_about_vcpus_times_and_names_are_harmless() {
    let mut fake = Fake::new();
    fake.hello();
    let now = fake.now_ns;
    fake.say(&[
        GuestMessage::Run { vcpu: 2, at_ns: now, task: 1 },
        GuestMessage::Idle { vcpu: u16::MAX, at_ns: now },
        GuestMessage::Run { vcpu: 0, at_ns: u64::MAX, task: 2 },
        GuestMessage::Run { vcpu: 0, at_ns: 0, task: 3 },
        GuestMessage::Lost { count: u32::MAX },
        GuestMessage::Sent { at_ns: 0 },
    ]);
    fake.pass(Duration::from_nanos(clock::USUAL_HOLD_NS));
    let events = fake.events();
    assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), [switch(0, 2), switch(0, 3)]);
    assert!(events.iter().all(|event| event.at.0 >= now && event.at.0 <= fake.now_ns));
    assert_eq!(fake.source.stats(), ReporterStats { changes: 2, lost: u32::MAX.into(), refused: 2 });

    // Name { task: 2, name: "a\x1b[31m" }, which no honest reporter sends.
    fake.write(b"\x0a\x01\x02\x06a\x1b[31m\x00");
    assert_eq!(fake.source.name(2), Some("a?[31m"));
    // More names than are kept.
    for task in 10..2_000 {
        fake.say(&[GuestMessage::Name { task, name: Name::default() }]);
    }
    assert_eq!(fake.source.name(2), None);
}

#[test]
fn a_report_is_bounded_however_long_it_is() {
    let mut fake = Fake::new();
    fake.hello();
    let run = GuestMessage::Run { vcpu: 0, at_ns: fake.now_ns, task: 2 };
    fake.say(&vec![run; 50_000]);
    fake.sent();
    assert!(fake.kinds().len() < 1_000);
    assert!(fake.source.is_live());
}

#[test]
fn a_flood_is_not_listened_to_for_longer_each_time() {
    let mut fake = Fake::new();
    let flood = vec![GuestMessage::Lost { count: 1 }; MAX_MESSAGES_PER_SECOND as usize + 1];
    let mut pauses = Vec::new();
    for _ in 0..8 {
        fake.hello();
        assert!(fake.source.is_live());
        fake.say(&flood);
        assert!(matches!(fake.failure(), ReporterError::Flood));
        assert_eq!(fake.kinds(), [LOST]);
        assert!(!fake.source.is_live());
        let began = fake.now_ns;
        while matches!(fake.source.state(), ReporterState::Failed(_)) {
            fake.pass(Duration::from_secs(1));
            assert_eq!(fake.kinds(), []);
        }
        pauses.push((fake.now_ns - began) / 1_000_000_000);
        fake.stream = fake.listener.accept().unwrap().0;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64]);
}

#[test]
fn a_guest_that_wakes_the_host_without_end_is_not_listened_to() {
    let mut fake = Fake::new();
    fake.hello();
    let mut wakes = 0;
    while fake.source.is_live() {
        fake.write(&[1]);
        wakes += 1;
    }
    assert!(matches!(fake.failure(), ReporterError::Flood));
    assert!((2_000..10_000).contains(&wakes), "{wakes}");
}

/// Each of them says less than one may. Who says little is heard, whatever they do.
#[test]
fn guests_that_say_too_much_all_together_are_not_listened_to() {
    let home = tempfile::tempdir().unwrap();
    let own = std::process::id().cast_signed();
    let mut reporters = Reporters::new(Duration::from_micros(500)).unwrap();
    let mut streams: Vec<UnixStream> = (0..9)
        .map(|number| {
            let path = home.path().join(number.to_string());
            let listener = UnixListener::bind(&path).unwrap();
            assert!(reporters.follow(VmId(number), (own, Some(&path)), 1, Duration::ZERO, Time(1)).unwrap());
            listener.accept().unwrap().0
        })
        .collect();
    let now = HostTime { monotonic: Time(1_000 * MS), raw_ns: 1_000 * MS };
    let said = |message, count| {
        let mut bytes = Vec::new();
        (0..count).for_each(|_| assert!(encode(&message, usize::MAX, &mut bytes)));
        bytes
    };
    let hello =
        said(GuestMessage::Hello { magic: MAGIC, version: frontdesk_guest_protocol::VERSION, vcpus: 1 }, 1);
    let much = said(GuestMessage::Lost { count: 1 }, 1_000);
    for stream in &mut streams {
        stream.write_all(&hello).unwrap();
    }
    reporters.receive(now).unwrap();
    let live = |reporters: &Reporters| -> Vec<u32> {
        (0..9).filter(|vm| reporters.get(VmId(*vm)).unwrap().is_live()).collect()
    };
    assert_eq!(live(&reporters).len(), 9);
    // Eight say 20,000 each, which is enough for each, and then 20,000 more.
    for (until, left) in [(20, 9), (40, 3)] {
        for _ in until - 20..until {
            for stream in &mut streams[1..] {
                // The host may have hung up.
                let _ = stream.write_all(&much);
            }
            while streams_wait(&reporters) {
                reporters.receive(now).unwrap();
            }
        }
        let live = live(&reporters);
        assert!(live.contains(&0) && live.len() == left, "{live:?}");
    }
}

fn streams_wait(reporters: &Reporters) -> bool {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(reporters.fd(), rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
}

#[test]
fn another_version_is_told() {
    let mut fake = Fake::new();
    fake.say(&[GuestMessage::Hello { magic: MAGIC, version: 9, vcpus: 2 }]);
    assert!(fake.failure().to_string().contains("version 9"), "{}", fake.failure());
    assert_eq!(fake.kinds(), [], "nothing is lost that was not there");
}

#[test]
fn qemu_may_hang_up_or_be_somebody_else() {
    let mut fake = Fake::new();
    fake.hello();
    let other = UnixStream::pair().unwrap().0;
    drop(std::mem::replace(&mut fake.stream, other));
    fake.source.receive(fake.now());
    assert!(matches!(fake.failure(), ReporterError::Closed));
    assert_eq!(fake.kinds(), [LOST]);

    let path = fake.home.path().join("x.tasks");
    let stranger = ReporterSource::new(path, 1, 2, Duration::ZERO, Time(1)).unwrap();
    let ReporterState::Failed(error) = stranger.state() else { panic!("{stranger:?}") };
    let own = std::process::id();
    assert!(error.to_string().contains(&format!("process {own} listens")), "{error}");

    let nobody = ReporterSource::new(fake.home.path().join("nobody"), 1, 2, Duration::ZERO, Time(1)).unwrap();
    let ReporterState::Failed(error) = nobody.state() else { panic!("{nobody:?}") };
    assert!(error.to_string().contains("cannot connect"), "{error}");
}

#[test]
fn only_vms_with_the_port_are_listened_to() {
    let mut reporters = Reporters::new(Duration::from_micros(500)).unwrap();
    let own = std::process::id().cast_signed();
    assert!(!reporters.follow(VM, (own, None), 1, Duration::ZERO, Time(1)).unwrap());
    assert!(reporters.get(VM).is_none());
    reporters.receive(HostTime::now()).unwrap();
    assert_eq!(reporters.next_due(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_comes_is_survived(
        chunks in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..300), 0u64..2_000), 1..30)
    ) {
        let mut fake = Fake::new();
        fake.hello();
        let mut last = Time(0);
        for (bytes, pause) in chunks {
            fake.write(&bytes);
            fake.pass(Duration::from_millis(pause));
            for event in fake.events() {
                prop_assert!(event.at <= Time(fake.now_ns) && event.at >= last);
                last = event.at;
            }
        }
    }
}

/// What the host has ordered since the last call.
fn orders(fake: &mut Fake) -> Vec<HostMessage> {
    let (mut bytes, mut orders) = ([0; 4000], Vec::new());
    fake.stream.set_nonblocking(true).unwrap();
    let length = fake.stream.read(&mut bytes).unwrap_or(0);
    Decoder::default().feed(&bytes[..length], |order: Option<HostMessage>| orders.extend(order));
    orders
}

fn order(fake: &mut Fake, order: Option<&EpisodeOrder>) -> Vec<HostMessage> {
    let now = Time(fake.now_ns);
    fake.source.order(order, now);
    orders(fake)
}

/// What the engine is told.
fn isolated(fake: &mut Fake) -> Vec<u64> {
    let mut events = Vec::new();
    let now = Time(fake.now_ns);
    fake.source.drain_isolation(VM, now, &mut events);
    let slow = |event: &Event| match event.kind {
        EventKind::Isolated { vm: VM, slow } => slow,
        other => panic!("{other:?}"),
    };
    events.iter().map(slow).collect()
}

fn divided(slow: u64) -> GuestMessage {
    GuestMessage::Isolation(Isolation::Divided { slow, background: 1, others: 1 })
}

#[test]
fn who_takes_orders_is_told_of_an_episode_once() {
    let mut fake = Fake::new();
    let episode = |at: u64, tasks: &[u32]| EpisodeOrder {
        since: Time(at),
        until: Time(at + 5000 * MS),
        tasks: tasks.to_vec(),
        sound: false,
    };
    let first = episode(fake.now_ns, &[50, 60]);
    let told = [
        HostMessage::Background { task: 50 },
        HostMessage::Background { task: 60 },
        HostMessage::Episode { left_ms: 5000, tasks: 2, sound: false },
    ];
    fake.hello();
    assert_eq!(order(&mut fake, Some(&first)), [], "it takes none");
    fake.say(&[GuestMessage::Isolation(Isolation::Ready)]);
    assert_eq!(order(&mut fake, Some(&first)), told);
    assert_eq!(order(&mut fake, Some(&first)), []);
    fake.say(&[divided(0b10)]);
    assert_eq!((isolated(&mut fake), isolated(&mut fake)), (vec![2], vec![]));
    // Others come soon, but not at once.
    let mut many = episode(fake.now_ns, &(0..1000).collect::<Vec<u32>>());
    many.until = Time(u64::MAX);
    assert_eq!(order(&mut fake, Some(&many)), []);
    fake.pass(Duration::from_millis(100));
    let longest = HostMessage::Episode { left_ms: u16::MAX, tasks: 64, sound: false };
    let told_many = order(&mut fake, Some(&many));
    assert_eq!((told_many.len(), told_many.last()), (65, Some(&longest)));
    // One that begins anew knows of nothing.
    fake.pass(Duration::from_secs(1));
    fake.hello();
    assert_eq!(isolated(&mut fake), [0]);
    fake.say(&[GuestMessage::Isolation(Isolation::Ready)]);
    assert_eq!(order(&mut fake, Some(&many)).len(), 65);
    fake.say(&[divided(0b01)]);
    assert_eq!(isolated(&mut fake), [1]);
    assert_eq!(order(&mut fake, None), [HostMessage::EpisodeOver]);
    assert_eq!((order(&mut fake, None), isolated(&mut fake)), (vec![], vec![0]));
}

#[test]
fn an_extension_that_lies_or_goes_silent_is_not_believed() {
    let mut fake = Fake::new();
    fake.hello();
    fake.say(&[divided(0b10)]);
    assert!(isolated(&mut fake).is_empty(), "nobody has told it to");
    let now = Time(fake.now_ns);
    let episode = EpisodeOrder { since: now, until: now.plus(1), tasks: vec![1], sound: true };
    order(&mut fake, Some(&episode));
    assert_eq!(isolated(&mut fake), [2]);
    // vCPUs that it has not, all, or none.
    for slow in [0b100, u64::MAX, 0b11, 0] {
        fake.say(&[divided(slow)]);
        assert!(isolated(&mut fake).is_empty());
    }
    assert_eq!(fake.source.stats().refused, 4);
    fake.pass(3 * HEARTBEAT + Duration::from_nanos(1));
    fake.events();
    assert_eq!((isolated(&mut fake), fake.source.isolation()), (vec![0], Isolation::Off));
}
