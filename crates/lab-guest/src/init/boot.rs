//! Makes a system of what the kernel leaves to init.

use super::error::{InitError, failed};
use crate::parameter::{self, Address};
use crate::{network, ports};
use frontdesk_lab_guest::{
    CONTROL_PORT, DATA, DATA_PARAMETER, DEBIAN, DEBIAN_PARAMETER, DILATION_PARAMETER, HANDOVER,
    HANDOVER_PARAMETER, MODULES, MODULES_ORDER, TIME_SLICE_PARAMETER,
};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_move};
use rustix::process::{Resource, Rlimit, chdir, chroot, setrlimit};
use rustix::system::{finit_module, sethostname};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where the records of children are.
pub(super) const RUN: &str = "/run";

/// Where the control groups are.
pub(super) const GROUPS: &str = "/sys/fs/cgroup";

/// Descriptors that a process can have: tasks that message each other need thousands.
const DESCRIPTORS: u64 = 1 << 16;

/// Where the kernel's debugfs is.
const DEBUG: &str = "/sys/kernel/debug";

/// How long disks and ports may take to appear: on an emulated host everything takes long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sets everything up and opens the control port.
pub(super) fn boot() -> Result<File, InitError> {
    for (kind, target) in
        [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys"), ("cgroup2", GROUPS), ("tmpfs", RUN)]
    {
        mount_at(kind, target, kind, MountFlags::empty(), c"")?;
    }
    let limit = Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) };
    setrlimit(Resource::Nofile, limit).map_err(failed("raising the limit of descriptors"))?;
    sethostname(b"guest").map_err(failed("the host name"))?;
    if let Some(nanos) = parameter::value(TIME_SLICE_PARAMETER)? {
        // It is dilated already.
        set_time_slice(&nanos)?;
    } else if let Some(times) = parameter::value(DILATION_PARAMETER)? {
        dilate_slices(&times)?;
    }
    load_modules()?;
    network::up("lo", None)?;
    if let Some(address) = Address::of_guest()? {
        network::up("eth0", Some(address))?;
    }
    if let Some(device) = disk(DATA_PARAMETER)? {
        // Some can be written.
        let name = device.trim_start_matches("/dev/");
        let read_only =
            std::fs::read_to_string(format!("/sys/block/{name}/ro")).is_ok_and(|ro| ro.trim() == "1");
        let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        mount_at(&device, DATA, "ext4", flags, c"")?;
    }
    if let Some(device) = disk(DEBIAN_PARAMETER)? {
        mount_at(&device, DEBIAN, "ext4", MountFlags::empty(), c"")?;
        furnish_debian()?;
    }
    if let Some(device) = disk(HANDOVER_PARAMETER)? {
        mount_at(&device, &format!("{DEBIAN}{HANDOVER}"), "ext4", MountFlags::empty(), c"")?;
        return Err(hand_over());
    }
    let port = control_port()?;
    File::options().read(true).write(true).open(&port).map_err(failed(port.display().to_string()))
}

/// Sets the shortest time slice of the kernel's scheduler.
fn set_time_slice(nanos: &str) -> Result<(), InitError> {
    mount_at("debugfs", DEBUG, "debugfs", MountFlags::empty(), c"")?;
    let set = |name: &str, value: &str| {
        let path = format!("{DEBUG}/sched/{name}");
        std::fs::write(&path, value).map_err(failed(format!("writing {value} to {path}")))
    };
    if Path::new(DEBUG).join("sched/base_slice_ns").exists() {
        return set("base_slice_ns", nanos);
    }
    // Before Linux 6.6: the time in which each of up to eight tasks has its turn, and its eighth.
    let latency = nanos.parse::<u64>().map_or(0, |nanos| nanos.saturating_mul(8));
    set("latency_ns", &latency.to_string())?;
    set("min_granularity_ns", nanos)
}

/// Makes all that the kernel's scheduler calls short so many times as long.
fn dilate_slices(times: &str) -> Result<(), InitError> {
    let number = |text: &str, of: &str| {
        let parsed = text.trim().parse::<f64>();
        parsed
            .map_err(|error| failed(format!("{of}: {text:?}"))(io::Error::new(ErrorKind::InvalidData, error)))
    };
    let times = number(times, DILATION_PARAMETER)?;
    mount_at("debugfs", DEBUG, "debugfs", MountFlags::empty(), c"")?;
    // The first since Linux 6.6, the others before it.
    for name in ["base_slice_ns", "latency_ns", "min_granularity_ns", "wakeup_granularity_ns"] {
        let path = format!("{DEBUG}/sched/{name}");
        if Path::new(&path).exists() {
            let own = std::fs::read_to_string(&path).map_err(failed(path.clone()))?;
            let value = format!("{:.0}", number(&own, &path)? * times);
            std::fs::write(&path, &value).map_err(failed(format!("writing {value} to {path}")))?;
        }
    }
    Ok(())
}

/// Gives the Debian system what it would get from its own init.
fn furnish_debian() -> Result<(), InitError> {
    for (kind, folder, data) in [
        ("proc", "proc", c""),
        ("sysfs", "sys", c""),
        ("devtmpfs", "dev", c""),
        ("devpts", "dev/pts", c"mode=620,ptmxmode=666"),
        ("tmpfs", "dev/shm", c""),
        ("tmpfs", "tmp", c""),
        ("tmpfs", "run", c""),
    ] {
        mount_at(kind, &format!("{DEBIAN}/{folder}"), kind, MountFlags::empty(), data)?;
    }
    // Shells need these.
    for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        let link = format!("{DEBIAN}/dev/{name}");
        symlink(format!("/proc/self/fd{target}"), &link).map_err(failed(link))?;
    }
    Ok(())
}

/// Makes the Debian system the root and the program on the disk process 1. Comes back only if that fails.
fn hand_over() -> InitError {
    // As switch_root(8) does it.
    let moved = chdir(DEBIAN).and_then(|()| mount_move(".", "/")).and_then(|()| chroot("."));
    if let Err(error) = moved.and_then(|()| chdir("/")) {
        return failed("making the Debian system the root")(error);
    }
    let program = format!("{HANDOVER}/init");
    failed(program.clone())(Command::new(program).exec())
}

fn mount_at(device: &str, target: &str, kind: &str, flags: MountFlags, data: &CStr) -> Result<(), InitError> {
    // It may be there.
    let _ = rustix::fs::mkdir(target, Mode::from(0o755));
    match mount(device, target, kind, flags, data) {
        // The kernel may have mounted devtmpfs.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(error) => Err(failed(format!("mounting {device} at {target} as {kind}"))(error)),
    }
}

fn load_modules() -> Result<(), InitError> {
    let folder = Path::new(MODULES);
    let order = std::fs::read_to_string(folder.join(MODULES_ORDER)).map_err(failed("the list of modules"))?;
    for line in order.lines() {
        let (name, parameters) = line.split_once(' ').unwrap_or((line, ""));
        let file = File::open(folder.join(name)).map_err(failed(format!("module {name}")))?;
        let parameters = CString::new(parameters).map_err(failed(format!("parameters of module {name}")))?;
        finit_module(file, &parameters, 0).map_err(failed(format!("loading module {name}")))?;
    }
    Ok(())
}

/// The port by which the lab tells what to do, when it is there.
fn control_port() -> Result<PathBuf, InitError> {
    let begin = Instant::now();
    // The host tells of its ports while init goes on.
    loop {
        match ports::find(CONTROL_PORT).map_err(failed("looking for virtio-serial ports"))? {
            Some(port) => return Ok(port),
            None if begin.elapsed() > PATIENCE => return Err(InitError::NoControlPort),
            None => sleep(Duration::from_millis(10)),
        }
    }
}

/// The block device that a parameter names, when it is there.
fn disk(parameter: &'static str) -> Result<Option<String>, InitError> {
    let Some(name) = parameter::value(parameter)? else { return Ok(None) };
    let device = format!("/dev/{name}");
    let begin = Instant::now();
    // Linux looks for disks while init goes on.
    while !Path::new(&device).exists() {
        if begin.elapsed() > PATIENCE {
            return Err(InitError::NoDisk { parameter, name, device, seconds: PATIENCE.as_secs() });
        }
        sleep(Duration::from_millis(10));
    }
    Ok(Some(device))
}
