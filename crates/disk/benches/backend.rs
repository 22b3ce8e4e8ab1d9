//! The back end against QEMU's block layer with `io_uring`, which are driven alike by a front end of this
//! program: `qemu-storage-daemon` exports the same image by the same protocol. Below is what is below
//! QEMU's own virtio-blk, its block layer; what takes requests from the queue is the code of its exports,
//! not that of the device, which cannot be driven without a guest. Where guests are emulated, their CPU is
//! the limit.
//!
//! Of each load: bytes or requests a second, and the CPU time that the back end's process takes for a
//! request. Repeats of all loads and back ends are in turn, and the ratios are those within one repeat.

#![allow(clippy::unwrap_used)] // A benchmark that panics fails.
#![allow(clippy::cast_precision_loss)] // Of counts.

#[path = "../tests/front_end/mod.rs"]
mod front_end;

use front_end::{DATA, Guest, READ_REQUEST, Shape, WRITE_REQUEST};
use frontdesk_disk::{ServeConfig, VmDisk, serve};
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

/// The argument that makes this program a back end: image, and folder of the socket.
const ROLE: &str = "serve-disk";
/// Bytes of the image, which is written before.
const IMAGE: u64 = 1 << 30;
/// How long each load runs, after a tenth of that.
const TIME: Duration = Duration::from_millis(700);
const REPEATS: usize = 9;
const SHAPE: Shape = Shape { memory: 32 << 20, entries: 128 };

/// What it is to reach: of QEMU's throughput, and of its CPU time.
const RATE_BAR: f64 = 0.95;
const CPU_BAR: f64 = 1.1;

struct Load {
    name: &'static str,
    kind: u32,
    bytes: u32,
    depth: u16,
    random: bool,
}

const LOADS: [Load; 6] = [
    Load { name: "read 4 KiB, depth 1", kind: READ_REQUEST, bytes: 4 << 10, depth: 1, random: true },
    Load { name: "read 4 KiB, depth 32", kind: READ_REQUEST, bytes: 4 << 10, depth: 32, random: true },
    Load { name: "write 4 KiB, depth 1", kind: WRITE_REQUEST, bytes: 4 << 10, depth: 1, random: true },
    Load { name: "write 4 KiB, depth 32", kind: WRITE_REQUEST, bytes: 4 << 10, depth: 32, random: true },
    Load {
        name: "read 512 KiB in turn, depth 8",
        kind: READ_REQUEST,
        bytes: 512 << 10,
        depth: 8,
        random: false,
    },
    Load {
        name: "write 512 KiB in turn, depth 8",
        kind: WRITE_REQUEST,
        bytes: 512 << 10,
        depth: 8,
        random: false,
    },
];

#[derive(Clone, Copy)]
enum Kind {
    Frontdesk,
    /// Requests are handled in its main loop, as of a VM without I/O threads.
    Qemu,
    /// And in a thread of their own, which looks for more for some time before it sleeps.
    QemuThread,
}

const KINDS: [(Kind, &str); 3] =
    [(Kind::Frontdesk, "frontdesk disk"), (Kind::Qemu, "QEMU"), (Kind::QemuThread, "QEMU, I/O thread")];

/// A back end, killed when dropped.
struct BackEnd {
    process: Child,
    socket: PathBuf,
}

impl BackEnd {
    fn start(kind: Kind, image: &Path, folder: &Path) -> BackEnd {
        let socket = folder.join("disk.sock");
        let _ = fs::remove_file(&socket);
        let mut command = match kind {
            Kind::Frontdesk => {
                let mut command = Command::new(env::current_exe().unwrap());
                command.args([ROLE.as_ref(), image, folder]);
                command
            }
            Kind::Qemu | Kind::QemuThread => {
                let mut command = Command::new("qemu-storage-daemon");
                let file = format!(
                    "driver=file,node-name=disk,filename={},cache.direct=on,aio=io_uring",
                    image.display()
                );
                let mut export = format!(
                    "type=vhost-user-blk,id=disk,node-name=disk,writable=on,addr.type=unix,addr.path={}",
                    socket.display()
                );
                if matches!(kind, Kind::QemuThread) {
                    command.args(["--object", "iothread,id=thread"]);
                    export += ",iothread=thread";
                }
                command.args(["--blockdev", &file, "--export", &export]);
                command
            }
        };
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        BackEnd { process: process.expect("start the back end; QEMU's is in Debian's qemu-utils"), socket }
    }

    /// CPU time that the process has taken, with that of threads that have ended.
    fn cpu(&self) -> Duration {
        let mut clock = 0;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let pid = i32::try_from(self.process.id()).unwrap();
        // SAFETY: both calls only write to what they are given.
        let result =
            unsafe { libc::clock_getcpuclockid(pid, &mut clock) + libc::clock_gettime(clock, &mut time) };
        assert_eq!(result, 0, "the back end has ended");
        Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Requests a second, and CPU seconds of the back end for each.
#[derive(Clone, Copy, Default)]
struct Measured {
    rate: f64,
    cpu: f64,
}

/// Where the requests of a load go, and what became of them.
struct Driver<'a> {
    guest: Guest,
    load: &'a Load,
    random: u64,
    next: u64,
    seen: u16,
}

impl Driver<'_> {
    /// The requests of these slots begin anew.
    fn offer(&mut self, slots: impl Iterator<Item = u16>) {
        let Load { kind, bytes, random, .. } = *self.load;
        let places = IMAGE / u64::from(bytes);
        let heads: Vec<u16> = slots
            .map(|slot| {
                self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                self.next += 1;
                let place = if random { self.random >> 33 } else { self.next } % places;
                let data = (DATA + u64::from(slot) * u64::from(bytes), bytes);
                self.guest.request_in(slot, kind, place * u64::from(bytes) / 512, data);
                3 * slot
            })
            .collect();
        self.guest.offer_all(&heads);
    }

    /// Goes on for this long; returns how many were done.
    fn run(&mut self, time: Duration) -> u64 {
        let (end, mut done) = (Instant::now() + time, 0);
        while Instant::now() < end {
            let heads = self.guest.used_after(self.seen);
            for head in &heads {
                assert_eq!(self.guest.status_of(head / 3), 0, "an I/O error");
            }
            let count = u16::try_from(heads.len()).unwrap();
            self.seen = self.seen.wrapping_add(count);
            done += u64::from(count);
            self.offer(heads.into_iter().map(|head| head / 3));
        }
        done
    }
}

fn measure(back_end: &BackEnd, load: &Load, seed: u64) -> Measured {
    let guest = Guest::at(&back_end.socket, SHAPE);
    let mut driver = Driver { guest, load, random: seed, next: 0, seen: 0 };
    driver.offer(0..load.depth);
    driver.run(TIME / 10);
    let (before, begin) = (back_end.cpu(), Instant::now());
    let done = driver.run(TIME) as f64;
    let (took, cpu) = (begin.elapsed(), back_end.cpu() - before);
    // What is still under way is not to write into memory that is gone.
    let left = driver.seen.wrapping_add(load.depth);
    while driver.seen != left {
        let count = driver.guest.used_after(driver.seen).len();
        driver.seen = driver.seen.wrapping_add(u16::try_from(count).unwrap());
    }
    Measured { rate: done / took.as_secs_f64(), cpu: cpu.as_secs_f64() / done }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    if arguments.get(1).is_some_and(|role| role == ROLE) {
        let disk = VmDisk { name: "disk".into(), image: (&arguments[2]).into(), read_only: false };
        let never = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let folder = Path::new(&arguments[3]);
        let config = ServeConfig { daemon: folder.join("none"), ..ServeConfig::new(&[disk], folder) };
        serve(&config, never).unwrap();
        return ExitCode::SUCCESS;
    }
    // Beside what is built, for what is in memory has no direct I/O.
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("image");
    let mut file = File::create(&image).unwrap();
    let data: Vec<u8> = (0..1_u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for _ in 0..IMAGE / data.len() as u64 {
        file.write_all(&data).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);

    let mut measured = [[[Measured::default(); REPEATS]; KINDS.len()]; LOADS.len()];
    for repeat in 0..REPEATS {
        for turn in 0..KINDS.len() {
            // Each is first, second and last alike.
            let kind = (turn + repeat) % KINDS.len();
            let back_end = BackEnd::start(KINDS[kind].0, &image, folder.path());
            for (load, measured) in LOADS.iter().zip(&mut measured) {
                measured[kind][repeat] = measure(&back_end, load, repeat as u64);
            }
        }
    }
    let mut reached = true;
    for (load, measured) in LOADS.iter().zip(&measured) {
        println!("{}:", load.name);
        for ((_, name), repeats) in KINDS.iter().zip(measured) {
            let rate = spread(repeats.iter().map(|measured| measured.rate));
            let megabytes = rate[1] * f64::from(load.bytes) / 1e6;
            let cpu = spread(repeats.iter().map(|measured| measured.cpu * 1e6));
            println!(
                "  {name:17} {:8.0} requests/s ({:.0} to {:.0}), {megabytes:6.0} MB/s, {:6.1} us of CPU each ({:.1} to {:.1})",
                rate[1], rate[0], rate[2], cpu[1], cpu[0], cpu[2]
            );
        }
        let [ours, theirs, _] = measured;
        let pairs = || ours.iter().zip(theirs);
        let rate = spread(pairs().map(|(ours, theirs)| ours.rate / theirs.rate));
        let cpu = spread(pairs().map(|(ours, theirs)| ours.cpu / theirs.cpu));
        let good = rate[1] >= RATE_BAR && cpu[1] <= CPU_BAR;
        println!(
            "  frontdesk disk / QEMU: rate {:.3} ({:.3} to {:.3}, bar {RATE_BAR}), CPU {:.3} ({:.3} to {:.3}, bar {CPU_BAR}){}",
            rate[1],
            rate[0],
            rate[2],
            cpu[1],
            cpu[0],
            cpu[2],
            if good { "" } else { ": MISSED" }
        );
        reached &= good;
    }
    if reached { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The least, the median and the most.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}
