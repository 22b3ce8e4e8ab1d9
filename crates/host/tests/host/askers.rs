//! Memory of the tasks of a VM's vCPUs, handed to a process without any rights, as a back end of disks is.

use crate::support::trial;
use anyhow::{Context as _, Result, bail, ensure};
use frontdesk_disk_protocol::{AskersError, AskersMemory, Channel, FromDaemon, Layout, MAX_VCPUS, listen};
use frontdesk_engine::TaskId;
use frontdesk_probes::kvm::TaskMemory;
use frontdesk_ring::TaskWords;
use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, chmod};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::env;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// With it, this program is the process without rights.
pub(crate) const ARGUMENT: &str = "back-end-of-disks";

/// The user nobody.
const NOBODY: u32 = 65534;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("askers_are_read_by_who_may_change_nothing", read_by_who_may_change_nothing)]
}

/// What is seen of a vCPU.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) current: Option<TaskId>,
    pub(crate) notified: Option<TaskId>,
    pub(crate) notifications: u64,
}

impl Seen {
    pub(crate) fn of(memory: &AskersMemory, vcpu: u16) -> Seen {
        let (current, notified) = (memory.current(vcpu), memory.notified(vcpu));
        Seen { current, notified, notifications: memory.notifications(vcpu) }
    }
}

/// Where the tasks are in such memory.
pub(crate) fn layout() -> Layout {
    let TaskWords { current, notified, notifications, stride } = TaskMemory::words();
    Layout { current, notified, notifications, stride }
}

fn read_by_who_may_change_nothing() -> Result<()> {
    let memory = TaskMemory::new()?;
    seen_by_another(&memory, 0, &Seen { current: None, notified: None, notifications: 0 })
}

/// Another process is handed the memory, sees that of a vCPU, and can do no more than that.
pub(crate) fn seen_by_another(memory: &TaskMemory, vcpu: u16, seen: &Seen) -> Result<()> {
    let folder = tempfile::tempdir()?;
    chmod(folder.path(), Mode::from_raw_mode(0o755))?;
    let socket = folder.path().join("disk");
    let listener = listen(&socket, Some(NOBODY))?;
    let mut other = Command::new("/proc/self/exe");
    other.arg(ARGUMENT).arg(&socket).arg(vcpu.to_string()).uid(NOBODY).gid(NOBODY);
    let other = other.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // Whoever cannot connect does not come.
    let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
    ensure!(poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&patience))? == 1, "nobody connects");
    let channel = Channel::accept(&listener)?;
    ensure!(channel.peer()?.1 == NOBODY, "it is {:?}", channel.peer()?);
    let message = FromDaemon::Askers { disk: 0, vcpus: MAX_VCPUS, layout: layout() };
    channel.send(&message, Some(memory.as_fd()))?;
    let output = other.wait_with_output()?;
    let (told, failed) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    ensure!(output.status.success(), "{}: {failed}", output.status);
    ensure!(told.trim_end() == format!("{seen:?}"), "it saw {told}");
    Ok(())
}

/// Is the process without rights.
pub(crate) fn back_end() -> ExitCode {
    match look() {
        Ok(seen) => {
            println!("{seen:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

fn look() -> Result<Seen> {
    let (socket, vcpu) = (env::args().nth(2).context("no socket")?, env::args().nth(3).context("no vCPU")?);
    let daemon = Channel::connect(Path::new(&socket))?;
    poll(&mut [PollFd::new(&daemon, PollFlags::IN)], None)?;
    let (message, memory) = daemon.receive()?.context("nothing came")?;
    let FromDaemon::Askers { vcpus, layout, .. } = message else { bail!("{message:?}") };
    let memory = memory.context("no memory came")?;
    changes_nothing(&memory)?;
    // As large as it is, and no larger.
    let beyond = Layout { stride: 2 * layout.stride, ..layout };
    let refused = AskersMemory::map(&memory, vcpus, beyond).err().context("mapped beyond its end")?;
    ensure!(matches!(refused, AskersError::Layout { .. }), "{refused}");
    let mapped = AskersMemory::map(&memory, vcpus, layout)?;
    // It is there whoever else holds it.
    drop(memory);
    Ok(Seen::of(&mapped, vcpu.parse()?))
}

fn changes_nothing(memory: &OwnedFd) -> Result<()> {
    for protection in [ProtFlags::WRITE, ProtFlags::READ | ProtFlags::WRITE] {
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
        let mapped = unsafe { mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, memory, 0) };
        ensure!(mapped.is_err(), "mapped for writing");
    }
    ensure!(update(memory).is_err(), "written to by the kernel's interface");
    let again = format!("/proc/self/fd/{}", memory.as_raw_fd());
    ensure!(std::fs::File::options().write(true).open(again).is_err(), "opened again");
    Ok(())
}

/// Sets the first element of a BPF array, if the kernel lets us.
fn update(map: &OwnedFd) -> io::Result<()> {
    const MAP_UPDATE_ELEM: libc::c_long = 2;
    #[repr(C)]
    struct Update {
        map: u64,
        key: *const u32,
        value: *const [u8; 64],
        flags: u64,
    }
    let (key, value) = (0_u32, [1_u8; 64]);
    let update = Update {
        map: u64::try_from(map.as_raw_fd()).unwrap_or(0),
        key: &raw const key,
        value: &raw const value,
        flags: 0,
    };
    // SAFETY: reads a union bpf_attr of this size, whose part for this command this is, and what that points
    // to.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, MAP_UPDATE_ELEM, &raw const update, size_of::<Update>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
