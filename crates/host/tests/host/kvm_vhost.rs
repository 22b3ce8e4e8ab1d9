//! A guest's doorbell for a device that the kernel emulates: what a vhost worker is woken by.

use crate::{
    kvm_guest::{Between, Guest, Halts, Program, STEP_PORT, TASKS, pinned},
    support::{eventually, trial},
};
use anyhow::{Context as _, Result, ensure};
use frontdesk_engine::{Event, EventKind, Thread, VmId};
use frontdesk_probes::bpf::BpfSource;
use frontdesk_qemu::examine_libvirt;
use libtest_mimic::Trial;
use rustix::thread::gettid;
use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd as _,
    sync::mpsc::channel,
    thread,
    time::Duration,
};
use vmm_sys_util::eventfd::EventFd;

const VM: VmId = VmId(7);
const VCPU: u16 = 3;
const WORKER: Thread = Thread::Emulator(2);

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
        const SET_OWNER: libc::c_ulong = 0xaf01;
        const SET_VRING_KICK: libc::c_ulong = 0x4008_af20;
        const TRANSMIT: u32 = 1;
        #[repr(C)]
        struct Vring {
            index: u32,
            fd: i32,
        }
        let device =
            File::options().read(true).write(true).open("/dev/vhost-net").context("/dev/vhost-net")?;
        let done =
            |result, what| if result < 0 { Err(io::Error::last_os_error()).context(what) } else { Ok(()) };
        // SAFETY: takes no argument.
        done(unsafe { libc::ioctl(device.as_raw_fd(), SET_OWNER, 0) }, "own a vhost device")?;
        let vring = Vring { index: TRANSMIT, fd: kick.as_raw_fd() };
        // SAFETY: reads a struct vhost_vring_file, which this is.
        let kicked = unsafe { libc::ioctl(device.as_raw_fd(), SET_VRING_KICK, &raw const vring) };
        done(kicked, "set its doorbell")?;
        Ok(Vhost { _device: device, worker: worker()? })
    }
}

/// The worker that the calling thread has just made: a thread of this process since Linux 6.4, before that
/// one of the kernel's.
fn worker() -> Result<i32> {
    let name = format!("vhost-{}", gettid().as_raw_nonzero());
    let threads = ["/proc/self/task", "/proc"].into_iter().filter_map(|folder| fs::read_dir(folder).ok());
    let named = threads.flatten().flatten().find(|thread| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    let thread = named.with_context(|| format!("no thread is called {name}"))?.file_name();
    Ok(thread.to_string_lossy().parse()?)
}

/// This process stands for a QEMU. The worker belongs to the VM whichever of its threads made it, whether the
/// worker is a thread of it or of the kernel's.
fn worker_is_found() -> Result<()> {
    let ((start, started), (end, ended)) = (channel(), channel::<()>());
    let vcpu = thread::Builder::new().name("CPU 0/KVM".into()).spawn(move || {
        let _ = start.send(());
        let _ = ended.recv();
    })?;
    started.recv()?;
    let vhost = Vhost::new(&EventFd::new(libc::EFD_NONBLOCK)?)?;
    let found = examine_libvirt(std::process::id().cast_signed())?;
    let emulators: Vec<i32> = found.emulators.iter().map(|thread| thread.tid).collect();
    ensure!(emulators.contains(&vhost.worker), "{} is none of {emulators:?}", vhost.worker);
    drop(end);
    ensure!(vcpu.join().is_ok());
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
