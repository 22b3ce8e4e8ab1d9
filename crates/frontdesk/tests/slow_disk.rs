//! The lab's slow disk: what is far away takes longer, and nothing is left of it, however it ends; and what a
//! person waits for on it, in real VMs.
//!
//! Needs root, QEMU, FUSE, loop devices, and what `make build` makes. Times are compared within a run only.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_guardian::{GUARDIAN_ARGUMENT, Guardian};
use frontdesk_lab::SlowDisk;
use frontdesk_scenario::{ArmDisk, DiskModel, IoScheduler};
use rustix::fs::OFlags;
use serde_json::Value;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FRONTDESK: &str = env!("CARGO_BIN_EXE_frontdesk");
const PATIENCE: Duration = Duration::from_secs(600);
const BLOCK: usize = 4096;
/// Bytes of an image.
const IMAGE: u64 = 128 << 20;

fn model() -> DiskModel {
    let [seek, rotation] = [Duration::from_millis(17), Duration::from_millis(2)];
    DiskModel { seek, rotation, access: Duration::ZERO, mb_per_s: 100.0 }
}

/// A disk with two images; each block of the second holds its number.
fn disk(folder: &Path) -> SlowDisk {
    let images = ["first", "second"].map(|name| folder.join(name));
    File::create(&images[0]).unwrap().set_len(IMAGE).unwrap();
    let second = File::create(&images[1]).unwrap();
    second.set_len(IMAGE).unwrap();
    for block in 0..IMAGE / BLOCK as u64 {
        second.write_all_at(&block.to_le_bytes(), block * BLOCK as u64).unwrap();
    }
    SlowDisk::start(Path::new(FRONTDESK), model(), &images, folder, &[]).unwrap()
}

/// Reads a block of a file past the page cache; its first number.
fn read(file: &File, number: u64) -> io::Result<u64> {
    let mut room = vec![0; 2 * BLOCK];
    let at = room.as_ptr().align_offset(BLOCK);
    let block = &mut room[at..at + BLOCK];
    file.read_exact_at(block, number * BLOCK as u64)?;
    Ok(u64::from_le_bytes(block[..8].try_into().unwrap()))
}

fn open(path: &Path) -> File {
    File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path).unwrap()
}

/// What the kernel keeps of a loop device for whoever has its number next.
fn settings(device: &Path) -> Vec<String> {
    let queue = Path::new("/sys/block").join(device.file_name().unwrap()).join("queue");
    let files = ["scheduler", "nr_requests", "max_sectors_kb", "rotational"];
    files.map(|file| fs::read_to_string(queue.join(file)).unwrap()).to_vec()
}

/// Whether a loop device has a file, and which of its partitions there are.
fn left(device: &Path) -> Vec<PathBuf> {
    let name = device.file_name().unwrap().to_str().unwrap();
    let kernel = Path::new("/sys/block").join(name);
    let parts = [1, 2].map(|number| kernel.join(format!("{name}p{number}")));
    parts.into_iter().chain([kernel.join("loop/backing_file")]).filter(|path| path.exists()).collect()
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(pid: i32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

#[test]
fn what_is_far_away_takes_longer_and_a_killed_disk_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let disk = disk(folder.path());
    let file = open(&disk.partitions()[1]);
    let blocks = IMAGE / BLOCK as u64;
    disk.report().unwrap();
    let time = |numbers: &mut dyn Iterator<Item = u64>| {
        let begin = Instant::now();
        numbers.for_each(|number| assert_eq!(read(&file, number).unwrap(), number));
        begin.elapsed()
    };
    // Back and forth, at either distance.
    let near = time(&mut (0..60).map(|n| n % 2 * 8));
    let far = time(&mut (0..60).map(|n| n % 2 * (blocks - 1)));
    assert!(far > near * 2, "{far:?} far, {near:?} near");
    let served = disk.report().unwrap();
    assert_eq!(served.requests, 120);
    let took = (near + far).as_secs_f64();
    assert!(served.busy_s > 0.0 && served.busy_s <= took, "{served:?} in {took} s");
    assert!(served.late_p99_ms > 0.0 && served.late_p99_ms <= served.late_max_ms, "{served:?}");
    assert_eq!(disk.report().unwrap().requests, 0, "what was told is not told again");

    let name = disk.device().file_name().unwrap().to_str().unwrap().to_owned();
    let (before, guardian) =
        (settings(disk.device()), Guardian::start(Path::new(FRONTDESK), GUARDIAN_ARGUMENT).unwrap());
    for scheduler in [IoScheduler::None, IoScheduler::MqDeadline, IoScheduler::Bfq] {
        disk.schedule(&ArmDisk { scheduler, ..ArmDisk::default() }, &guardian).unwrap();
        let now = fs::read_to_string(format!("/sys/block/{name}/queue/scheduler")).unwrap();
        assert!(now.contains(&format!("[{}]", scheduler.name())), "{now}");
    }
    assert_eq!(left(disk.device()).len(), 3);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains("frontdesk-slow-disk"), "nobody else sees the file: {mounts}");

    signal(disk.pid(), "KILL");
    eventually("reads fail", || read(&file, blocks / 2).is_err());
    drop(file);
    eventually("nothing is left", || left(disk.device()).is_empty());
    assert_ne!(settings(disk.device()), before);
    assert!(guardian.finish().unwrap().failed.is_empty());
    assert_eq!(settings(disk.device()), before);
}

#[test]
fn a_disk_ends_with_whoever_started_it_and_if_it_hangs() {
    let folder = tempfile::tempdir().unwrap();
    // Its owner goes without a word.
    let (device, pid) = std::thread::scope(|scope| {
        let started = scope.spawn(|| {
            let disk = disk(folder.path());
            let of = (disk.device().to_owned(), disk.pid());
            std::mem::forget(disk);
            of
        });
        started.join().unwrap()
    });
    eventually("nothing is left", || left(&device).is_empty());
    // It is this test's to bury.
    let gone = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    eventually("its process has ended", gone);

    let disk = disk(folder.path());
    let file = open(&disk.partitions()[0]);
    signal(disk.pid(), "STOP");
    // Nothing else could end this read.
    assert!(read(&file, 0).is_err());
    assert!(disk.report().is_err());
    drop(file);
    eventually("nothing is left", || left(disk.device()).is_empty());
}

#[test]
fn a_disk_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let none = [folder.path().join("none")];
    let error = SlowDisk::start(Path::new(FRONTDESK), model(), &none, folder.path(), &[]).unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
}

#[test]
fn what_a_person_waits_for_is_read_first_on_a_slow_disk() {
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("result.json");
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/vsip/bursts.toml");
    let mut lab = Command::new(FRONTDESK);
    lab.arg("lab").arg(scenario).args(["--arms", "none,vsip", "--repeats", "1", "--duration", "10s"]);
    lab.args(["--set", "warmup=8s", "--json"]).arg(&result).stdin(Stdio::null());
    let output = lab.output().unwrap();
    assert!(result.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&fs::read(&result).unwrap()).unwrap();
    let mean = |arm: &str| result["arms"][arm]["response_ms"]["desk"]["mean"].as_f64().unwrap();
    let (none, vsip) = (mean("none"), mean("vsip"));
    assert!(vsip < none, "{vsip} ms with vsip, {none} ms without: {result}");
    let repeat = &result["arms"]["vsip"]["repeats"][0];
    assert!(repeat["rates"]["reader/read"]["per_s"].as_f64().unwrap() > 0.0, "nobody starves: {repeat}");
    assert!(repeat["disk"]["late_p99_ms"].as_f64().unwrap() <= 1.0, "{repeat}");
}
