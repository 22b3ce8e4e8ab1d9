//! A block device over a file: a loop device, its partitions, and how it is scheduled.

use crate::command;
use frontdesk_guardian::{Guardian, Undo};
use frontdesk_scenario::{ArmDisk, IoScheduler};
use linux_raw_sys::loop_device::{
    LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO, LO_FLAGS_PARTSCAN, LOOP_CONFIGURE, LOOP_CTL_GET_FREE, loop_config,
};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What Linux's partitions are told in.
const SECTOR: u64 = 512;
/// Requests that the modelled disk is given at a time: few, so that they wait where they are scheduled.
const DEPTH: u32 = 4;
/// Bytes of a request in KiB, at most.
const MOST_KIB: u32 = 1024;
/// Others may take a free device first.
const ATTEMPTS: u32 = 20;

/// A loop device, with direct I/O. It is gone as soon as nobody has it open, its partitions neither: the
/// kernel sees to that, whoever dies.
#[derive(Debug)]
pub(super) struct LoopDevice {
    _open: File,
    pub(super) path: PathBuf,
}

impl LoopDevice {
    /// Makes one over a file, with a partition of each of these ranges of bytes, which are whole sectors.
    pub(super) fn over(file: &Path, partitions: &[Range<u64>]) -> io::Result<(LoopDevice, Vec<PathBuf>)> {
        let direct = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(file)?;
        let device = LoopDevice::attach(&direct)?;
        let mut paths = Vec::new();
        for (number, range) in (1..).zip(partitions) {
            let words = [number, range.start / SECTOR, (range.end - range.start) / SECTOR];
            let words = words.map(|word: u64| word.to_string());
            command::run(Command::new("addpart").arg(&device.path).args(words), |_| ())
                .map_err(io::Error::other)?;
            paths.push(PathBuf::from(format!("{}p{number}", device.path.display())));
        }
        Ok((device, paths))
    }

    fn attach(file: &File) -> io::Result<LoopDevice> {
        let control = File::options().read(true).write(true).open("/dev/loop-control")?;
        // SAFETY: plain numbers, for which all zeroes mean nothing.
        let mut config: loop_config = unsafe { std::mem::zeroed() };
        config.fd = file.as_raw_fd().unsigned_abs();
        config.info.lo_flags =
            LO_FLAGS_AUTOCLEAR as u32 | LO_FLAGS_DIRECT_IO as u32 | LO_FLAGS_PARTSCAN as u32;
        for _ in 0..ATTEMPTS {
            // SAFETY: this request has no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE.into()) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let open = File::options().read(true).write(true).open(&path)?;
            // SAFETY: the kernel reads a `loop_config`, which outlives the call.
            if unsafe { libc::ioctl(open.as_raw_fd(), LOOP_CONFIGURE.into(), &raw const config) } == 0 {
                return Ok(LoopDevice { _open: open, path });
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(error);
            }
        }
        Err(io::Error::other("each loop device that was free was taken by somebody else"))
    }
}

/// Has the kernel schedule a device as an arm says. Nothing may be in flight. The guardian puts back what it
/// was: a loop device keeps that for whoever has its number next.
pub(super) fn schedule(device: &Path, disk: &ArmDisk, has_arm: bool, guardian: &Guardian) -> io::Result<()> {
    let name = device.file_name().unwrap_or_default();
    let queue = Path::new("/sys/block").join(name).join("queue");
    // Put back in reverse: the scheduler goes first, for the depth is only the device's own without one.
    for file in ["nr_requests", "max_sectors_kb", "rotational", "scheduler"] {
        let path = queue.join(file);
        let text = std::fs::read_to_string(&path)?;
        // Of schedulers all are listed, and this one is in brackets.
        let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(name, _)| name);
        let content = chosen.unwrap_or(text.trim()).to_owned();
        guardian.record(Undo::File { path, content }).map_err(io::Error::other)?;
    }
    let set = |file: &str, value: String| {
        let path = queue.join(file);
        let because = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        std::fs::write(&path, value).map_err(because)
    };
    // The depth of the device can be set while there is no scheduler, and then stays.
    set("scheduler", IoScheduler::None.name().to_owned())?;
    set("nr_requests", DEPTH.to_string())?;
    set("max_sectors_kb", MOST_KIB.to_string())?;
    set("rotational", u8::from(has_arm).to_string())?;
    if disk.scheduler != IoScheduler::None {
        set("scheduler", disk.scheduler.name().to_owned())?;
    }
    if disk.scheduler == IoScheduler::Bfq {
        set("iosched/low_latency", u8::from(disk.low_latency).to_string())?;
    }
    Ok(())
}
