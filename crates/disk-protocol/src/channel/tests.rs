use super::*;
use crate::{FromDaemon, FromDisk};
use proptest::prelude::*;
use rustix::net::send;
use std::fs;

/// Both ends, at a socket in the file system.
fn pair() -> (Channel, Channel) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let listener = listen(&path, None).unwrap();
    let disk = Channel::connect(&path).unwrap();
    (Channel::accept(&listener).unwrap(), disk)
}

fn attached(name: &str) -> FromDisk {
    FromDisk::Attached { disk: 3, name: name.to_owned(), thread: 42 }
}

#[test]
fn messages_and_descriptors_arrive_whole() {
    let (daemon, disk) = pair();
    let own = (std::process::id().cast_signed(), rustix::process::getuid().as_raw());
    assert_eq!((daemon.peer().unwrap(), disk.peer().unwrap()), (own, own));
    assert!(daemon.receive::<FromDisk>().unwrap().is_none(), "nothing was said");
    let file = tempfile::tempfile().unwrap();
    disk.send(&attached("alice"), Some(file.as_fd())).unwrap();
    disk.send(&FromDisk::Detached { disk: 3 }, None).unwrap();
    let (message, descriptor) = daemon.receive::<FromDisk>().unwrap().unwrap();
    assert_eq!(message, attached("alice"));
    let same = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
    assert_eq!(same(descriptor.unwrap().as_fd()), same(file.as_fd()));
    let (message, descriptor) = daemon.receive::<FromDisk>().unwrap().unwrap();
    assert!(message == FromDisk::Detached { disk: 3 } && descriptor.is_none());
    drop(disk);
    assert!(matches!(daemon.receive::<FromDisk>(), Err(ChannelError::Gone)));
    assert!(matches!(daemon.send(&FromDaemon::Alive {}, None), Err(ChannelError::Gone)));
}

#[test]
fn what_is_too_long_or_no_message_is_an_error() {
    for bytes in [&b"{"[..], b"\0", b"{\"stop\":{}}", b"{\"detached\":{\"disk\":70000}}", &[b' '; 9000]] {
        let (daemon, disk) = pair();
        send(&disk.0, bytes, SendFlags::empty()).unwrap();
        let heard = daemon.receive::<FromDisk>();
        assert!(matches!(heard, Err(ChannelError::Nonsense(_))), "{heard:?}");
    }
}

#[test]
fn who_does_not_read_is_not_waited_for() {
    let (daemon, _disk) = pair();
    let full = (0..100_000).find_map(|_| daemon.send(&FromDaemon::Alive {}, None).err());
    assert!(matches!(full, Some(ChannelError::Full)), "{full:?}");
}

#[test]
fn what_a_killed_daemon_left_is_replaced_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    drop(listen(&path, None).unwrap());
    assert!(Channel::connect(&path).is_err(), "nobody listens");
    let _listener = listen(&path, None).unwrap();
    Channel::connect(&path).unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "data").unwrap();
    assert!(listen(&file, None).unwrap_err().to_string().contains("no socket"));
    assert_eq!(fs::read(&file).unwrap(), b"data");
}

/// A stranger costs the daemon, whose thread is real-time, nothing: the kernel refuses it.
#[test]
fn nobody_else_can_connect() {
    use std::os::unix::fs::MetadataExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let own = rustix::process::geteuid().as_raw();
    let user = if own == 0 { 65534 } else { own };
    let _listener = listen(&path, Some(user)).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.mode() & 0o777, found.uid()), (0o600, user));
}

proptest! {
    #[test]
    fn fuzz_messages_of_a_back_end(text in "\\{\"(attached|detached|notifiers|report|read_done)\":\\{\"disk\":[0-9]{1,6},?(\"(name|thread|eventfds|report)\":[-0-9\"a-z{}\\[\\]]{0,9})?\\}\\}") {
        crate::fuzzing::message(text.as_bytes());
    }
}
