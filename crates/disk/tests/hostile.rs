//! A front end, and a guest, that mean no good: the back end refuses what makes no sense, and goes on for
//! others. The front end is that of another library, so that both sides are not wrong alike.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod front_end;

use front_end::{
    AVAILABLE, DATA, Guest, HEADER, MEMORY, NEXT, READ_REQUEST, SIZE, SMALL, Server, WRITE, WRITE_REQUEST,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};
use vhost::VhostBackend;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

#[test]
fn data_that_is_not_aligned_goes_to_its_place() {
    let server = Server::start();
    let mut guest = Guest::connect(&server, "alice");
    guest.works();
    // Memory at an odd address, and one sector amid others.
    guest.memory.write_slice(&[0xa5; 512], GuestAddress(DATA + 3)).unwrap();
    guest.request(WRITE_REQUEST, 10, (DATA + 3, 512));
    assert_eq!(guest.answer(), 0);
    guest.request(READ_REQUEST, 9, (DATA + 8193, 1536));
    assert_eq!(guest.answer(), 0);
    let mut data = [0; 1536];
    guest.memory.read_slice(&mut data, GuestAddress(DATA + 8193)).unwrap();
    let wanted = [[0x5a; 512], [0xa5; 512], [0x5a; 512]].concat();
    assert!(data[..] == wanted[..]);
    let mut image = [0; 4096];
    File::open(server.folder.path().join("alice")).unwrap().read_exact_at(&mut image, 4096).unwrap();
    assert!(
        image[1024..1536] == [0xa5; 512] && image[..1024] == [0x5a; 1024] && image[1536..] == [0x5a; 2560]
    );
}

/// The first line is there at once, others within a tenth of a second.
#[test]
fn what_the_disk_does_is_traced() {
    let server = Server::start();
    Guest::connect(&server, "bob").works();
    let trace = std::fs::read_to_string(server.folder.path().join("trace")).unwrap();
    let work: frontdesk_disk_protocol::TracedWork =
        serde_json::from_str(trace.lines().next().unwrap()).unwrap();
    assert_eq!((work.vm.as_str(), work.class.as_str()), ("bob", "common"), "{trace}");
    assert_eq!((work.why.as_str(), work.task), ("nobody is known to wait for it", None), "{trace}");
    assert!(work.asked_ns <= work.begun_ns && work.begun_ns < work.done_ns, "{trace}");
}

#[test]
fn requests_that_make_no_sense_are_errors_and_no_more() {
    let server = Server::start();
    let mut guest = Guest::connect(&server, "alice");
    for (what, sector, data) in [
        ("behind the end", SIZE / 512, (DATA, 512)),
        ("over the end", SIZE / 512 - 1, (DATA, 1024)),
        ("no such sector", u64::MAX, (DATA, 512)),
        ("no such memory", 0, (MEMORY, 512)),
        ("huge", 0, (DATA, u32::MAX)),
        ("no sector", 0, (DATA, 100)),
    ] {
        for kind in [READ_REQUEST, WRITE_REQUEST] {
            guest.request(kind, sector, data);
            assert_eq!(guest.answer(), 1, "{what}");
        }
    }
    guest.request(77, 0, (DATA, 512));
    assert_eq!(guest.answer(), 2, "unknown");
    guest.works();
}

#[test]
fn a_queue_that_makes_no_sense_is_stopped_for_its_vm_alone() {
    let server = Server::start();
    let mut bob = Guest::connect(&server, "bob");
    let wrongs: [fn(&mut Guest); 5] = [
        |guest| guest.descriptor(0, (HEADER, 16, NEXT, 0)),
        |guest| guest.descriptor(0, (HEADER, 16, NEXT, 99)),
        |guest| guest.descriptor(0, (0, 16, 4, 0)),
        |guest| guest.descriptor(2, (MEMORY, 1, WRITE, 0)),
        // More requests than the queue has entries.
        |guest| guest.available = guest.available.wrapping_add(1000),
    ];
    for wrong in wrongs {
        let mut alice = Guest::connect(&server, "alice");
        alice.request(READ_REQUEST, 0, (DATA, 512));
        wrong(&mut alice);
        let before = alice.used();
        alice.offer(0);
        bob.works();
        // It is heard, and nothing came of it.
        alice.front_end.get_vring_base(0).unwrap();
        assert_eq!(alice.used(), before);
    }
    // Set up anew, it is served.
    Guest::connect(&server, "alice").works();
}

#[test]
fn requests_in_flight_are_done_by_the_next_back_end() {
    let server = Server::start();
    let mut guest = Guest::connect(&server, "alice");
    guest.works();
    let region = guest.memory.iter().next().unwrap();
    let file = region.file_offset().unwrap().file().try_clone().unwrap();
    let used = guest.used();
    // As if it had been killed: request 0 was taken, and is not in the used ring.
    guest.memory.write_slice(&[0x77; 512], GuestAddress(DATA)).unwrap();
    guest.request(WRITE_REQUEST, 1, (DATA, 512));
    let slot = AVAILABLE + 4 + 2 * u64::from(guest.available % SMALL.entries);
    guest.memory.write_obj(0_u16, GuestAddress(slot)).unwrap();
    guest.memory.write_obj(guest.available.wrapping_add(1), GuestAddress(AVAILABLE + 2)).unwrap();
    let (told, kept) = guest.inflight.take().unwrap();
    drop(guest);
    kept.write_all_at(&[1], 16).unwrap();
    let guest = Guest::with(&server.socket("alice"), SMALL, file, Some((told, kept)), used);
    let deadline = Instant::now() + front_end::PATIENCE;
    while guest.used() != used.wrapping_add(1) {
        assert!(Instant::now() < deadline, "it is not done");
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(50));
    assert_eq!(guest.used(), used.wrapping_add(1), "once");
    let mut image = [0; 512];
    File::open(server.folder.path().join("alice")).unwrap().read_exact_at(&mut image, 512).unwrap();
    assert_eq!(image, [0x77; 512]);
}

#[test]
fn front_ends_that_talk_rubbish_are_turned_away() {
    let server = Server::start();
    drop(Guest::connect(&server, "alice"));
    // Nothing, half a message, and no message at all.
    for rubbish in [&[][..], &[1, 0, 0, 0, 1], &[0xff; 4000]] {
        let mut stream = UnixStream::connect(server.socket("alice")).unwrap();
        std::io::Write::write_all(&mut stream, rubbish).unwrap();
    }
    let mut guest = Guest::connect(&server, "alice");
    assert_eq!(guest.capacity(), SIZE);
    assert!(guest.front_end.set_vring_num(0, 3).is_err(), "a queue that runs is not changed");
    guest.works();
}
