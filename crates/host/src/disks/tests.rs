use super::*;
use frontdesk_disk_protocol::{ApplicationReport, DiskReport, FromDaemon, MAX_APPLICATIONS};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;

struct Bench {
    _server: DiskServer,
    news: Receiver<Notification>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn bench(access: DiskAccess) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.disk");
    let (mailbox, news) = Mailbox::new().unwrap();
    let server = DiskServer::start(&path, access, mailbox).unwrap();
    Bench { _server: server, news, path, _folder: folder }
}

impl Bench {
    fn news(&self) -> (u32, DiskNews) {
        match self.news.recv().unwrap() {
            Notification::Disk(number, news) => (number, news),
            other => panic!("{other:?}"),
        }
    }
}

fn nobody() -> DiskAccess {
    DiskAccess(None)
}

fn own() -> i32 {
    std::process::id().cast_signed()
}

fn attached(thread: i32) -> FromDisk {
    FromDisk::Attached { disk: 3, name: "alice".into(), thread }
}

#[test]
fn a_back_end_is_heard_until_it_is_gone() {
    let bench = bench(nobody());
    let disk = Channel::connect(&bench.path).unwrap();
    let (number, DiskNews::Come(channel)) = bench.news() else { panic!() };
    channel.send(&FromDaemon::Alive {}, None).unwrap();
    // The other end of QEMU's connection, which is ourselves here.
    let (connection, _qemu) = UnixStream::pair().unwrap();
    disk.send(&attached(own()), Some(connection.as_fd())).unwrap();
    let (from, DiskNews::Attached { disk: 3, name, qemu, thread }) = bench.news() else { panic!() };
    assert_eq!(
        (from, name.as_str(), qemu, thread.tid),
        (number, "alice", ThreadId::of(own(), own()).unwrap(), own())
    );
    disk.send(&FromDisk::ReadDone { disk: 3, request: 9 }, None).unwrap();
    assert!(matches!(bench.news().1, DiskNews::Read { disk: 3, request: 9, done: true }));
    drop(disk);
    assert!(matches!(bench.news(), (gone, DiskNews::Gone) if gone == number));
    let _again = Channel::connect(&bench.path).unwrap();
    assert!(matches!(bench.news(), (again, DiskNews::Come(_)) if again != number));
}

#[test]
fn who_may_serve_disks_is_a_matter_of_the_user() {
    let access = DiskAccess(Some(77));
    assert!(access.allows(0) && access.allows(77) && access.allows(rustix::process::geteuid().as_raw()));
    assert!(!access.allows(78) && !nobody().allows(77));
    assert!(DiskAccess::new("there-is-no-such-user").0.is_none());
}

#[test]
fn what_cannot_be_so_is_not_passed_on() {
    let connection = || Some(OwnedFd::from(UnixStream::pair().unwrap().0));
    let file = || Some(OwnedFd::from(tempfile::tempfile().unwrap()));
    let long = |applications| {
        let application =
            ApplicationReport { task: None, name: None, interactive: true, post: 1, pre: 1, served: [0; 3] };
        let applications = vec![application; applications];
        FromDisk::Report { disk: 0, report: DiskReport { applications, ..DiskReport::default() } }
    };
    let named = |name: &str| FromDisk::Attached { disk: 0, name: name.into(), thread: own() };
    assert!(look_through(named("alice"), connection(), own()).is_ok());
    assert!(look_through(long(MAX_APPLICATIONS), None, own()).is_ok());
    let notifiers = |eventfds| FromDisk::Notifiers { disk: 0, eventfds: vec![7; eventfds] };
    assert!(look_through(notifiers(MAX_NOTIFIERS), None, own()).is_ok());
    for (message, descriptor, why) in [
        (named("alice"), None, "no connection"),
        (named("alice"), file(), "is none"),
        (named(&"x".repeat(65)), connection(), "too long"),
        (named("a\nb"), connection(), "printed"),
        (attached(1), connection(), "not its own"),
        (FromDisk::Detached { disk: MAX_DISKS }, None, "it can have"),
        (long(MAX_APPLICATIONS + 1), None, "too long"),
        (notifiers(MAX_NOTIFIERS + 1), None, "too many"),
        (FromDisk::Notifiers { disk: MAX_DISKS, eventfds: Vec::new() }, None, "it can have"),
    ] {
        let refused = look_through(message, descriptor, own()).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn who_talks_nonsense_is_heard_no_more_and_there_are_not_too_many() {
    let bench = bench(nobody());
    let liar = Channel::connect(&bench.path).unwrap();
    let (number, DiskNews::Come(_)) = bench.news() else { panic!() };
    liar.send(&"nonsense", None).unwrap();
    assert!(matches!(bench.news(), (gone, DiskNews::Gone) if gone == number));
    assert!(matches!(liar.send(&FromDisk::Detached { disk: 0 }, None), Err(ChannelError::Gone)));
    let many: Vec<Channel> = (0..MAX_BACK_ENDS).map(|_| Channel::connect(&bench.path).unwrap()).collect();
    many.iter().for_each(|_| assert!(matches!(bench.news().1, DiskNews::Come(_))));
    let one_more = Channel::connect(&bench.path).unwrap();
    // It is turned away.
    while !matches!(one_more.receive::<FromDaemon>(), Err(ChannelError::Gone)) {
        let _ = poll(&mut [PollFd::new(&one_more, PollFlags::IN)], None);
    }
}

#[test]
fn who_floods_is_heard_later() {
    let (channel, now) = (Arc::new(Channel::connect(&bench(nobody()).path).unwrap()), Instant::now());
    let mut back_end = BackEnd { channel, pid: own(), since: now, messages: MESSAGES - 1 };
    assert!(back_end.may_speak(now));
    back_end.messages += 1;
    assert!(!back_end.may_speak(now + READS_PERIOD / 2));
    assert!(back_end.may_speak(now + READS_PERIOD), "the next period");
}
