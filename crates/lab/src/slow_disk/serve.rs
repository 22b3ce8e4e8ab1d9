//! The process that is the disk: this program again, with [`SLOW_DISK_ARGUMENT`]. It answers what the kernel
//! asks, after the time that the model takes, and ends with whoever started it.

use super::device::LoopDevice;
use super::model::{Access, Arm};
use super::protocol::{REPORT, Serving, Setup};
use frontdesk_linux::{monotonic_ns, realtime};
use frontdesk_scenario::DiskServed;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, WriteFlags,
};
use memmap2::{Advice, MmapMut, MmapOptions};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The first argument of this program when it is to be a disk. [`serve`] takes the other.
pub const SLOW_DISK_ARGUMENT: &str = "lab-slow-disk";

/// The file that is the disk, in a folder that only this process sees.
const NAME: &str = "disk";
const INODE: INodeNo = INodeNo(2);
/// Images begin at multiples of this: what is before the first looks like no partition table.
const ALIGNED: u64 = 1 << 20;
/// Bytes of a request, at most.
const MOST_BYTES: u32 = 1 << 20;
/// The kernel is to hold back none of the requests.
const BACKGROUND: u16 = 512;
/// What the kernel need not ask again.
const FOREVER: Duration = Duration::from_secs(86_400);
/// Priority of the thread that takes requests; that of the arm is the next.
const PRIORITY: u32 = 5;
/// Requests of which it is remembered how late they were answered.
const MOST_REMEMBERED: usize = 1 << 20;

/// Is the disk until its standard input ends. `setup` is a [`Setup`] as JSON.
#[must_use]
pub fn serve(setup: &str) -> ExitCode {
    match serve_until_told(setup) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("frontdesk: {SLOW_DISK_ARGUMENT}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_until_told(setup: &str) -> io::Result<()> {
    let Setup { model, images, folder, cpus } = serde_json::from_str(setup)?;
    let mut content = Content::default();
    images.iter().try_for_each(|image| content.add(image))?;
    // What is mounted here nobody else sees, and is gone with this process.
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;

    let (size, ranges) = (content.size, content.ranges());
    let served = Arc::new(Mutex::new(Served::default()));
    let (requests, waiting) = channel();
    let mut options = fuser::Config::default();
    options.mount_options = vec![MountOption::FSName("frontdesk-slow-disk".to_owned())];
    let session = Session::new(Disk { size, requests }, &folder, &options)?;
    let at = cpus.clone();
    std::thread::spawn(move || realtime::enter(PRIORITY, &at).map_err(io::Error::other).and(session.run()));
    let (told, arm) = (Arc::clone(&served), Arm::new(model, size));
    std::thread::spawn(move || {
        // Without it, requests are late, which is told.
        let _ = realtime::enter(PRIORITY + 1, &cpus);
        move_arm(arm, content, &waiting, &told);
    });
    let (device, partitions) = LoopDevice::over(&folder.join(NAME), &ranges)?;

    let say = |line: String| writeln!(io::stdout(), "{line}");
    say(serde_json::to_string(&Serving { device: device.path.clone(), partitions })?)?;
    for line in io::stdin().lock().lines() {
        let mut served = served.lock().unwrap_or_else(PoisonError::into_inner);
        let report = line? == REPORT;
        let since = if report { std::mem::take(&mut *served) } else { Served::default() };
        drop(served);
        say(serde_json::to_string(&since.report())?)?;
    }
    // The kernel answers what is still asked with errors, and takes the rest back.
    std::process::exit(0)
}

/// What is on the disk: images, one after the other. What is written stays in memory.
#[derive(Default)]
struct Content {
    images: Vec<(u64, MmapMut)>,
    size: u64,
}

impl Content {
    fn add(&mut self, image: &std::path::Path) -> io::Result<()> {
        let file = File::open(image)?;
        // SAFETY: images are in a cache that replaces files and does not change them.
        let bytes = unsafe { MmapOptions::new().map_copy(&file)? };
        // The arm is not to wait for another disk.
        bytes.advise(Advice::PopulateRead)?;
        let begin = self.size + ALIGNED;
        self.size = (begin + bytes.len() as u64).next_multiple_of(ALIGNED);
        self.images.push((begin, bytes));
        Ok(())
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        self.images.iter().map(|(begin, bytes)| *begin..begin + bytes.len() as u64).collect()
    }

    /// The part of the image that has this range of the disk; nothing if no image has.
    fn part(&mut self, offset: u64, bytes: usize) -> Option<&mut [u8]> {
        let index = self.images.partition_point(|(begin, _)| *begin <= offset).checked_sub(1)?;
        let (begin, image) = &mut self.images[index];
        let at = usize::try_from(offset - *begin).ok()?;
        image.get_mut(at..at.checked_add(bytes)?)
    }
}

/// What the kernel asked.
struct Asked {
    what: What,
    offset: u64,
    arrived_ns: u64,
}

enum What {
    Read(u32, ReplyData),
    Write(Vec<u8>, ReplyWrite),
    Flush(ReplyEmpty),
}

/// What was served since the last report.
#[derive(Default)]
struct Served {
    requests: u64,
    busy: Duration,
    late_us: Vec<u32>,
}

impl Served {
    fn report(mut self) -> DiskServed {
        self.late_us.sort_unstable();
        let last = self.late_us.len().saturating_sub(1);
        let ms = |index: usize| self.late_us.get(index).map_or(0.0, |us| f64::from(*us) / 1000.0);
        let p99 = self.late_us.len() * 99 / 100;
        DiskServed {
            requests: self.requests,
            busy_s: self.busy.as_secs_f64(),
            late_p99_ms: ms(p99.min(last)),
            late_max_ms: ms(last),
        }
    }
}

/// Serves requests, one at a time.
fn move_arm(mut arm: Arm, mut content: Content, waiting: &Receiver<Asked>, served: &Mutex<Served>) {
    for Asked { what, offset, arrived_ns } in waiting {
        let (access, bytes) = match &what {
            What::Read(bytes, _) => (Access::Read, u64::from(*bytes)),
            What::Write(data, _) => (Access::Write, data.len() as u64),
            What::Flush(_) => (Access::Flush, 0),
        };
        let (done, took) = arm.serve(access, offset, bytes, Duration::from_nanos(arrived_ns));
        sleep_until(done);
        let late = Duration::from_nanos(monotonic_ns()).saturating_sub(done);
        match what {
            What::Read(bytes, reply) => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                match content.part(offset, bytes) {
                    Some(data) => reply.data(data),
                    // Between images.
                    None => reply.data(&vec![0; bytes]),
                }
            }
            What::Write(data, reply) => match content.part(offset, data.len()) {
                Some(part) => {
                    part.copy_from_slice(&data);
                    reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
                }
                None => reply.error(Errno::EIO),
            },
            What::Flush(reply) => reply.ok(),
        }
        let mut served = served.lock().unwrap_or_else(PoisonError::into_inner);
        served.requests += 1;
        served.busy += took;
        if served.late_us.len() < MOST_REMEMBERED {
            served.late_us.push(u32::try_from(late.as_micros()).unwrap_or(u32::MAX));
        }
    }
}

fn sleep_until(time: Duration) {
    let at = TimeSpec::from_duration(time);
    // Again if a signal came.
    while clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &at).is_err() {}
}

/// The file system that has the disk as its only file.
struct Disk {
    size: u64,
    requests: Sender<Asked>,
}

impl Disk {
    fn ask(&self, what: What, offset: u64) {
        // The other end lives as long as this process.
        let _ = self.requests.send(Asked { what, offset, arrived_ns: monotonic_ns() });
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_disk = ino == INODE;
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino,
            size: if is_disk { self.size } else { 0 },
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if is_disk { FileType::RegularFile } else { FileType::Directory },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Disk {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let missing = |_| io::Error::other("the kernel's FUSE is too old for several requests at a time");
        // Without it, the loop device waits for each request.
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(missing)?;
        let refused = |most: u64| io::Error::other(format!("the kernel's FUSE takes {most} at most"));
        config.set_max_write(MOST_BYTES).map_err(|most| refused(most.into()))?;
        config.set_max_background(BACKGROUND).map_err(|most| refused(most.into()))?;
        config.set_congestion_threshold(BACKGROUND).map_err(|most| refused(most.into()))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&FOREVER, &self.attributes(INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.ask(What::Read(size, reply), offset);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.ask(What::Write(data.to_vec(), reply), offset);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.ask(What::Flush(reply), 0);
    }
}
