//! A front end with one queue, that of another library, so that both sides are not wrong alike; and a back
//! end in this process.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(dead_code, reason = "no program uses all of it")]

use frontdesk_disk::{ServeConfig, VmDisk, serve};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};
use vmm_sys_util::eventfd::EventFd;

/// Generous: nothing here is about speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) const SIZE: u64 = 1 << 20;
pub(crate) const MEMORY: u64 = MEMORY_BYTES as u64;
const MEMORY_BYTES: usize = 1 << 20;
/// Where things are in the guest's memory.
pub(crate) const TABLE: u64 = 0;
pub(crate) const AVAILABLE: u64 = 0x1000;
pub(crate) const USED: u64 = 0x2000;
pub(crate) const HEADER: u64 = 0x3000;
pub(crate) const STATUS: u64 = 0x4000;
pub(crate) const DATA: u64 = 0x8000;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const READ_REQUEST: u32 = 0;
pub(crate) const WRITE_REQUEST: u32 = 1;
pub(crate) const FLUSH_REQUEST: u32 = 4;
/// The back end needs no kick.
const NO_NOTIFY: u16 = 1;

/// A back end in this process.
pub(crate) struct Server {
    pub(crate) folder: TempDir,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// For two VMs, each with an image of its own.
    pub(crate) fn start() -> Server {
        let folder = tempfile::tempdir().unwrap();
        let images = ["alice", "bob"].map(|name| {
            let image = folder.path().join(name);
            File::create(&image).unwrap().set_len(SIZE).unwrap();
            image
        });
        let [alice, bob] = images.map(|image| (image, false));
        Server::of(folder, [("alice", alice), ("bob", bob)])
    }

    /// For these VMs: names, and the images that they have, perhaps only to read.
    pub(crate) fn of<const VMS: usize>(folder: TempDir, vms: [(&str, (PathBuf, bool)); VMS]) -> Server {
        let disks = vms.map(|(name, (image, read_only))| VmDisk { name: name.into(), image, read_only });
        let config = ServeConfig {
            daemon: folder.path().join("none"),
            depth: 4,
            trace: Some(folder.path().join("trace")),
            ..ServeConfig::new(&disks, folder.path())
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let end = stop.try_clone().unwrap();
        let thread = thread::spawn(move || serve(&config, end).unwrap());
        Server { folder, stop, thread: Some(thread) }
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
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

/// What a front end has: bytes of memory, and entries of its queue.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) memory: usize,
    pub(crate) entries: u16,
}

/// What is enough for one request at a time.
pub(crate) const SMALL: Shape = Shape { memory: MEMORY_BYTES, entries: 8 };

/// A front end with one queue.
pub(crate) struct Guest {
    pub(crate) front_end: Frontend,
    pub(crate) memory: GuestMemoryMmap,
    kick: EventFd,
    call: EventFd,
    /// If the back end keeps it.
    pub(crate) inflight: Option<(VhostUserInflight, File)>,
    pub(crate) available: u16,
    entries: u16,
}

impl Guest {
    pub(crate) fn connect(server: &Server, name: &str) -> Guest {
        Guest::at(&server.socket(name), SMALL)
    }

    /// At a socket that is there, or will be.
    pub(crate) fn at(socket: &Path, shape: Shape) -> Guest {
        let memory = tempfile::tempfile().unwrap();
        memory.set_len(shape.memory as u64).unwrap();
        Guest::with(socket, shape, memory, None, 0)
    }

    /// With memory and requests in flight that are there already.
    pub(crate) fn with(
        socket: &Path,
        shape: Shape,
        file: File,
        kept: Option<(VhostUserInflight, File)>,
        base: u16,
    ) -> Guest {
        let deadline = Instant::now() + PATIENCE;
        let mut front_end = loop {
            match Frontend::connect(socket, 1) {
                Ok(front_end) => break front_end,
                Err(e) => assert!(Instant::now() < deadline, "{e}"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        let mapping =
            MmapRegion::from_file(FileOffset::new(file.try_clone().unwrap(), 0), shape.memory).unwrap();
        let host = mapping.as_ptr() as u64;
        let region = GuestRegionMmap::new(mapping, GuestAddress(0)).unwrap();
        let memory = GuestMemoryMmap::from_regions(vec![region]).unwrap();
        front_end.set_owner().unwrap();
        let features = front_end.get_features().unwrap();
        assert!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0);
        let protocol = front_end.get_protocol_features().unwrap();
        let needed = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK;
        assert!(protocol.contains(needed));
        let wanted = protocol & (needed | VhostUserProtocolFeatures::INFLIGHT_SHMFD);
        front_end.set_protocol_features(wanted).unwrap();
        front_end.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        // VERSION_1 and what it needs; no event index.
        front_end.set_features(1 << 32 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()).unwrap();
        let mut inflight = kept;
        if wanted.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            let new = VhostUserInflight::new(0, 0, 1, shape.entries);
            let kept = inflight.take().unwrap_or_else(|| front_end.get_inflight_fd(&new).unwrap());
            front_end.set_inflight_fd(&kept.0, kept.1.as_raw_fd()).unwrap();
            inflight = Some(kept);
        }
        let table = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: shape.memory as u64,
            userspace_addr: host,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        front_end.set_mem_table(&[table]).unwrap();
        front_end.set_vring_num(0, shape.entries).unwrap();
        front_end.set_vring_base(0, base).unwrap();
        let place = VringConfigData {
            queue_max_size: shape.entries,
            queue_size: shape.entries,
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
        Guest { front_end, memory, kick, call, inflight, available, entries: shape.entries }
    }

    pub(crate) fn descriptor(&self, number: u64, (address, len, flags, next): (u64, u32, u16, u16)) {
        let at = TABLE + 16 * number;
        self.memory.write_obj(address, GuestAddress(at)).unwrap();
        self.memory.write_obj(len, GuestAddress(at + 8)).unwrap();
        self.memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
        self.memory.write_obj(next, GuestAddress(at + 14)).unwrap();
    }

    /// Descriptors 0 to 2 for a request at this sector.
    pub(crate) fn request(&self, kind: u32, sector: u64, data: (u64, u32)) {
        self.memory.write_obj(0xee_u8, GuestAddress(STATUS)).unwrap();
        self.request_in(0, kind, sector, data);
    }

    /// Three descriptors from `3 * slot` on for a request at this sector. Its header and status are the
    /// slot's, too.
    pub(crate) fn request_in(&self, slot: u16, kind: u32, sector: u64, data: (u64, u32)) {
        let (first, number) = (3 * slot, u64::from(slot));
        let header = HEADER + 16 * number;
        self.memory.write_obj(kind, GuestAddress(header)).unwrap();
        self.memory.write_obj(sector, GuestAddress(header + 8)).unwrap();
        self.descriptor(u64::from(first), (header, 16, NEXT, first + 1));
        let flags = if kind == READ_REQUEST { NEXT | WRITE } else { NEXT };
        self.descriptor(u64::from(first) + 1, (data.0, data.1, flags, first + 2));
        self.descriptor(u64::from(first) + 2, (STATUS + number, 1, WRITE, 0));
    }

    /// Makes a chain available, and says so.
    pub(crate) fn offer(&mut self, head: u16) {
        self.make_available(head);
        self.kick.write(1).unwrap();
    }

    fn make_available(&mut self, head: u16) {
        let at = AVAILABLE + 4 + 2 * u64::from(self.available % self.entries);
        self.memory.write_obj(head, GuestAddress(at)).unwrap();
        self.available = self.available.wrapping_add(1);
        self.memory.store(self.available, GuestAddress(AVAILABLE + 2), Ordering::Release).unwrap();
    }

    /// Makes chains available, and says so if the back end wants to know, as a driver does.
    pub(crate) fn offer_all(&mut self, heads: &[u16]) {
        for head in heads {
            self.make_available(*head);
        }
        fence(Ordering::SeqCst);
        let flags: u16 = self.memory.load(GuestAddress(USED), Ordering::Acquire).unwrap();
        if flags & NO_NOTIFY == 0 {
            self.kick.write(1).unwrap();
        }
    }

    /// The chains that were used after the first `seen`. Waits for one.
    pub(crate) fn used_after(&self, seen: u16) -> Vec<u16> {
        let deadline = Instant::now() + PATIENCE;
        while self.used() == seen {
            assert!(Instant::now() < deadline, "no answer");
            self.wait();
        }
        let mut heads = Vec::new();
        let mut next = seen;
        while next != self.used() {
            let at = USED + 4 + 8 * u64::from(next % self.entries);
            let head: u32 = self.memory.read_obj(GuestAddress(at)).unwrap();
            heads.push(u16::try_from(head).unwrap());
            next = next.wrapping_add(1);
        }
        heads
    }

    /// The status of a slot.
    pub(crate) fn status_of(&self, slot: u16) -> u8 {
        self.memory.read_obj(GuestAddress(STATUS + u64::from(slot))).unwrap()
    }

    /// Until the back end interrupts, or a second is over.
    fn wait(&self) {
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        // SAFETY: the descriptor is open as long as the guest is.
        let call = unsafe { std::os::fd::BorrowedFd::borrow_raw(self.call.as_raw_fd()) };
        poll(&mut [PollFd::new(&call, PollFlags::IN)], Some(&timeout)).unwrap();
        // Read, so that the next wait waits. It is empty if it was the time that is over.
        let _ = self.call.read();
    }

    /// Bytes of the disk, as the back end tells them.
    pub(crate) fn capacity(&mut self) -> u64 {
        let config = self.front_end.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
        u64::from_le_bytes(config.1[..8].try_into().unwrap()) * 512
    }

    /// Carries out one request, and returns its status.
    pub(crate) fn ask(&mut self, kind: u32, sector: u64, len: u32) -> u8 {
        self.request(kind, sector, (DATA, len));
        self.answer()
    }

    pub(crate) fn used(&self) -> u16 {
        self.memory.load(GuestAddress(USED + 2), Ordering::Acquire).unwrap()
    }

    /// Offers request 0, and returns the status that comes.
    pub(crate) fn answer(&mut self) -> u8 {
        let before = self.used();
        self.offer(0);
        let deadline = Instant::now() + PATIENCE;
        while self.used() == before {
            assert!(Instant::now() < deadline, "no answer");
            self.wait();
        }
        self.memory.read_obj(GuestAddress(STATUS)).unwrap()
    }

    pub(crate) fn works(&mut self) {
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
