//! A front end, and a guest, that mean no good: the back end refuses what makes no sense, and goes on for
//! others. The front end is that of another library, so that both sides are not wrong alike.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use frontdesk_disk::{VmDisk, serve};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap, MmapRegion,
};
use vmm_sys_util::eventfd::EventFd;

/// Generous: nothing here is about speed.
const PATIENCE: Duration = Duration::from_secs(60);

const SIZE: u64 = 1 << 20;
const MEMORY: u64 = MEMORY_BYTES as u64;
const MEMORY_BYTES: usize = 1 << 20;
const ENTRIES: u16 = 8;
/// Where things are in the guest's memory.
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADER: u64 = 0x3000;
const STATUS: u64 = 0x4000;
const DATA: u64 = 0x8000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const READ_REQUEST: u32 = 0;
const WRITE_REQUEST: u32 = 1;

/// A back end with two VMs, in this process.
struct Server {
    folder: TempDir,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start() -> Server {
        let folder = tempfile::tempdir().unwrap();
        let disks = ["alice", "bob"].map(|name| {
            let image = folder.path().join(name);
            File::create(&image).unwrap().set_len(SIZE).unwrap();
            VmDisk { name: name.into(), image, read_only: false }
        });
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (end, sockets) = (stop.try_clone().unwrap(), folder.path().to_owned());
        let thread = thread::spawn(move || serve(&disks, &sockets, &sockets.join("none"), 4, end).unwrap());
        Server { folder, stop, thread: Some(thread) }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.sock"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).unwrap();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "the back end panicked");
    }
}

/// A front end with one queue.
struct Guest {
    front_end: Frontend,
    memory: GuestMemoryMmap,
    kick: EventFd,
    call: EventFd,
    inflight: (VhostUserInflight, File),
    available: u16,
}

impl Guest {
    fn connect(server: &Server, name: &str) -> Guest {
        let memory = tempfile::tempfile().unwrap();
        memory.set_len(MEMORY).unwrap();
        Guest::with(server, name, memory, None, 0)
    }

    /// With memory and requests in flight that are there already.
    fn with(
        server: &Server,
        name: &str,
        file: File,
        kept: Option<(VhostUserInflight, File)>,
        base: u16,
    ) -> Guest {
        let deadline = Instant::now() + PATIENCE;
        let mut front_end = loop {
            match Frontend::connect(server.socket(name), 1) {
                Ok(front_end) => break front_end,
                Err(e) => assert!(Instant::now() < deadline, "{e}"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        let mapping =
            MmapRegion::from_file(FileOffset::new(file.try_clone().unwrap(), 0), MEMORY_BYTES).unwrap();
        let host = mapping.as_ptr() as u64;
        let region = GuestRegionMmap::new(mapping, GuestAddress(0)).unwrap();
        let memory = GuestMemoryMmap::from_regions(vec![region]).unwrap();
        front_end.set_owner().unwrap();
        let features = front_end.get_features().unwrap();
        assert!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0);
        let protocol = front_end.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK;
        assert!(protocol.contains(wanted));
        front_end.set_protocol_features(wanted).unwrap();
        front_end.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        // VERSION_1 and what it needs; no event index.
        front_end.set_features(1 << 32 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()).unwrap();
        let inflight = kept.unwrap_or_else(|| {
            let new = VhostUserInflight::new(0, 0, 1, ENTRIES);
            front_end.get_inflight_fd(&new).unwrap()
        });
        front_end.set_inflight_fd(&inflight.0, inflight.1.as_raw_fd()).unwrap();
        let table = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: host,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        front_end.set_mem_table(&[table]).unwrap();
        front_end.set_vring_num(0, ENTRIES).unwrap();
        front_end.set_vring_base(0, base).unwrap();
        let place = VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: 0,
            desc_table_addr: host + TABLE,
            used_ring_addr: host + USED,
            avail_ring_addr: host + AVAILABLE,
            log_addr: None,
        };
        front_end.set_vring_addr(0, &place).unwrap();
        let [kick, call] = [(); 2].map(|()| EventFd::new(libc::EFD_NONBLOCK).unwrap());
        front_end.set_vring_kick(0, &kick).unwrap();
        front_end.set_vring_call(0, &call).unwrap();
        front_end.set_vring_enable(0, true).unwrap();
        let available = memory.read_obj(GuestAddress(AVAILABLE + 2)).unwrap();
        Guest { front_end, memory, kick, call, inflight, available }
    }

    fn descriptor(&self, number: u64, (address, len, flags, next): (u64, u32, u16, u16)) {
        let at = TABLE + 16 * number;
        self.memory.write_obj(address, GuestAddress(at)).unwrap();
        self.memory.write_obj(len, GuestAddress(at + 8)).unwrap();
        self.memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
        self.memory.write_obj(next, GuestAddress(at + 14)).unwrap();
    }

    /// Descriptors 0 to 2 for a request at this sector.
    fn request(&self, kind: u32, sector: u64, data: (u64, u32)) {
        self.memory.write_obj(kind, GuestAddress(HEADER)).unwrap();
        self.memory.write_obj(sector, GuestAddress(HEADER + 8)).unwrap();
        self.memory.write_obj(0xee_u8, GuestAddress(STATUS)).unwrap();
        self.descriptor(0, (HEADER, 16, NEXT, 1));
        let flags = if kind == READ_REQUEST { NEXT | WRITE } else { NEXT };
        self.descriptor(1, (data.0, data.1, flags, 2));
        self.descriptor(2, (STATUS, 1, WRITE, 0));
    }

    fn offer(&mut self, head: u16) {
        let at = AVAILABLE + 4 + 2 * u64::from(self.available % ENTRIES);
        self.memory.write_obj(head, GuestAddress(at)).unwrap();
        self.available = self.available.wrapping_add(1);
        self.memory.write_obj(self.available, GuestAddress(AVAILABLE + 2)).unwrap();
        self.kick.write(1).unwrap();
    }

    fn used(&self) -> u16 {
        self.memory.read_obj(GuestAddress(USED + 2)).unwrap()
    }

    /// Offers request 0, and returns the status that comes.
    fn answer(&mut self) -> u8 {
        let before = self.used();
        self.offer(0);
        let deadline = Instant::now() + PATIENCE;
        while self.used() == before {
            assert!(Instant::now() < deadline, "no answer");
            let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
            // SAFETY: the descriptor is open as long as the guest is.
            let call = unsafe { std::os::fd::BorrowedFd::borrow_raw(self.call.as_raw_fd()) };
            poll(&mut [PollFd::new(&call, PollFlags::IN)], Some(&timeout)).unwrap();
        }
        self.memory.read_obj(GuestAddress(STATUS)).unwrap()
    }

    fn works(&mut self) {
        self.request(WRITE_REQUEST, 8, (DATA, 4096));
        self.memory.write_slice(&[0x5a; 4096], GuestAddress(DATA)).unwrap();
        assert_eq!(self.answer(), 0);
        self.memory.write_slice(&[0; 4096], GuestAddress(DATA)).unwrap();
        self.request(READ_REQUEST, 8, (DATA, 4096));
        assert_eq!(self.answer(), 0);
        let mut data = [0; 4096];
        self.memory.read_slice(&mut data, GuestAddress(DATA)).unwrap();
        assert!(data.iter().all(|byte| *byte == 0x5a));
    }
}

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
    let slot = AVAILABLE + 4 + 2 * u64::from(guest.available % ENTRIES);
    guest.memory.write_obj(0_u16, GuestAddress(slot)).unwrap();
    guest.memory.write_obj(guest.available.wrapping_add(1), GuestAddress(AVAILABLE + 2)).unwrap();
    let (told, kept) = (guest.inflight.0, guest.inflight.1.try_clone().unwrap());
    drop(guest);
    kept.write_all_at(&[1], 16).unwrap();
    let guest = Guest::with(&server, "alice", file, Some((told, kept)), used);
    let deadline = Instant::now() + PATIENCE;
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
    let config = guest.front_end.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
    assert_eq!(config.1[..8], (SIZE / 512).to_le_bytes());
    assert!(guest.front_end.set_vring_num(0, 3).is_err(), "a queue that runs is not changed");
    guest.works();
}
