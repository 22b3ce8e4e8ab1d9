//! A guest's doorbell for a device that the kernel emulates: what a vhost worker is woken by.

use crate::{
    fake_qemu::{FakeQemu, vhost_device},
    kvm_guest::{Between, Guest, Halts, Program, STEP_PORT, TASKS, pinned},
    support::{eventually, trial},
};
use anyhow::{Context as _, Result, ensure};
use frontdesk_engine::{Event, EventKind, Thread, VmId};
use frontdesk_probes::bpf::BpfSource;
use frontdesk_qemu::discover;
use libtest_mimic::Trial;
use rustix::thread::gettid;
use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd as _,
    thread,
    time::Duration,
};
use vmm_sys_util::eventfd::EventFd;

const VM: VmId = VmId(7);
const VCPU: u16 = 3;
const WORKER: Thread = Thread::Emulator(2);
/// How long a QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("kvm_vhost_doorbell_wakes_its_worker", || pinned(doorbell_wakes_its_worker)),
        trial("kvm_vhost_worker_is_found", worker_is_found),
    ]
}

/// As QEMU has it with vhost=on, but that no network is behind it: the worker looks at the queue when it is
/// kicked, and sleeps again.
struct Vhost {
    _device: File,
    worker: i32,
}

impl Vhost {
    fn new(kick: &EventFd) -> Result<Vhost> {
        const SET_VRING_KICK: libc::c_ulong = 0x4008_af20;
        const TRANSMIT: u32 = 1;
        #[repr(C)]
        struct Vring {
            index: u32,
            fd: i32,
        }
        let device = vhost_device().context("own /dev/vhost-net")?;
        let vring = Vring { index: TRANSMIT, fd: kick.as_raw_fd() };
        // SAFETY: reads a struct vhost_vring_file, which this is.
        let kicked = unsafe { libc::ioctl(device.as_raw_fd(), SET_VRING_KICK, &raw const vring) };
        ensure!(kicked >= 0, "set its doorbell: {}", io::Error::last_os_error());
        let own = gettid().as_raw_nonzero().get();
        Ok(Vhost { _device: device, worker: worker("/proc/self/task", own)? })
    }
}

/// The worker that a thread has made: one of the threads of its process, which are in the folder, since Linux
/// 6.4, before that one of the kernel's.
fn worker(threads: &str, owner: i32) -> Result<i32> {
    let name = format!("vhost-{owner}");
    let threads = [threads, "/proc"].into_iter().filter_map(|folder| fs::read_dir(folder).ok());
    let named = threads.flatten().flatten().find(|thread| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    let thread = named.with_context(|| format!("no thread is called {name}"))?.file_name();
    Ok(thread.to_string_lossy().parse()?)
}

/// The worker belongs to the VM, whether it is a thread of QEMU or of the kernel's.
fn worker_is_found() -> Result<()> {
    let home = tempfile::tempdir()?;
    let socket = home.path().join("qmp");
    let mut qemu = FakeQemu::start(home.path())?;
    qemu.order("vhost")?;
    qemu.order(&format!("listen {} alice", socket.display()))?;
    eventually("it listens", || socket.exists())?;
    let pid = qemu.pid().cast_signed();
    let worker = worker(&format!("/proc/{pid}/task"), pid)?;
    let found = discover(&socket, PATIENCE)?;
    let emulators: Vec<i32> = found.emulators.iter().map(|thread| thread.tid).collect();
    ensure!(emulators.contains(&worker), "{worker} is none of {emulators:?}");
    Ok(())
}

fn doorbell_wakes_its_worker() -> Result<()> {
    const ROUNDS: u32 = 10;
    let guest = Guest::new(Program::Steps(Between::Out), &TASKS[..1], Halts::InKvm)?;
    let kick = EventFd::new(libc::EFD_NONBLOCK)?;
    guest.ring(STEP_PORT, &kick)?;
    let vhost = Vhost::new(&kick)?;
    let mut source = BpfSource::open()?;
    source.follow(VM, &[(guest.tid, Thread::Vcpu(VCPU)), (vhost.worker, WORKER)], &[])?;
    guest.begin()?;
    for round in 1..=ROUNDS {
        // It rings once, and halts.
        eventually("the guest halts", || guest.halts() == round)?;
        // The worker has time to go to sleep.
        thread::sleep(Duration::from_millis(2));
        if round == ROUNDS {
            guest.command(0);
        }
        guest.wake()?;
    }
    guest.wait()?;
    let mut events: Vec<Event> = Vec::new();
    source.drain(&mut events)?;
    let by = |event: &Event| match event.kind {
        EventKind::Wake { vm: VM, thread: WORKER, by } => Some(by),
        _ => None,
    };
    let wakes: Vec<_> = events.iter().filter_map(by).collect();
    ensure!(wakes.iter().all(|by| *by == Some(VCPU)), "woken by {wakes:?}");
    ensure!(wakes.len() == usize::try_from(ROUNDS)?, "{ROUNDS} doorbells woke {} times", wakes.len());
    Ok(())
}
