//! Discovery of a real QEMU, started paused and without a guest.

use crate::support::{Idler, eventually, trial};
use anyhow::{Context as _, Result, ensure};
use frontdesk_engine::{EventKind, Thread, VmId};
use frontdesk_linux::Tap;
use frontdesk_probes::bpf::BpfSource;
use frontdesk_qemu::{DiscoverError, QemuVm, QmpError, discover};
use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::HashSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{
        fs::MetadataExt as _,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

const QEMU: &str = "qemu-system-x86_64";
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![trial("qemu_must_be_one", must_be_one)];
    if Command::new(QEMU).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
    {
        trials.push(trial("qemu_is_discovered", is_discovered));
        trials.push(trial("qemu_busy_socket_is_told", busy_socket_is_told));
        trials.push(trial("bpf_hears_reads_of_a_disk", hears_reads_of_a_disk));
    } else {
        eprintln!("skipping the tests with QEMU: {QEMU} does not run");
    }
    trials
}

fn start(socket: &Path, more: &[&str]) -> Result<Idler> {
    let vm = Command::new(QEMU)
        .args(["-S", "-nodefaults", "-display", "none", "-m", "16", "-accel", "tcg,thread=multi", "-qmp"])
        .arg(format!("unix:{},server=on,wait=off", socket.display()))
        .args(more)
        .stdin(Stdio::null())
        .spawn()?;
    let vm = Idler(vm);
    eventually("QEMU listens", || UnixStream::connect(socket).is_ok())?;
    Ok(vm)
}

fn is_discovered() -> Result<()> {
    // A thread with a network namespace of its own, where QEMU makes its tap: both end with QEMU.
    thread::spawn(|| -> Result<()> {
        // SAFETY: changes only which network namespace the calling thread is in.
        ensure!(unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0, "new network namespace");
        let netns = u32::try_from(fs::metadata("/proc/thread-self/ns/net")?.ino())?;
        let home = tempfile::tempdir()?;
        let (socket, image) = (home.path().join("qmp"), home.path().join("disk.raw"));
        fs::write(&image, vec![0; 1 << 20])?;
        let drive = format!("if=virtio,id=disk0,format=raw,file={}", image.display());
        #[rustfmt::skip]
        let mut vm = start(&socket, &[
            "-name", "frontdesk test", "-smp", "2", "-object", "iothread,id=io0", "-drive", &drive,
            "-netdev", "tap,id=net0,ifname=fdtest1,script=no,downscript=no", "-device", "virtio-net-pci,netdev=net0,romfile=",
        ])?;
        let found = discover(&socket, PATIENCE)?;
        ensure!(found.name.as_deref() == Some("frontdesk test") && found.pid == vm.pid(), "{found:?}");
        ensure!(matches!(found.status.as_deref(), Some("prelaunch" | "paused")), "{:?}", found.status);
        let indices: Vec<u16> = found.vcpus.iter().map(|&(index, _)| index).collect();
        ensure!(indices == [0, 1], "{indices:?}");
        ensure!(found.emulators.len() >= 2 && found.emulators[0] == vm.thread()?, "{:?}", found.emulators);
        let mut threads: Vec<i32> = found.vcpus.iter().map(|(_, t)| t.tid).collect();
        threads.extend(found.emulators.iter().map(|t| t.tid));
        threads.sort_unstable();
        threads.dedup();
        ensure!(threads.len() == found.vcpus.len() + found.emulators.len(), "a thread twice: {found:?}");
        ensure!(found.disks.iter().any(|d| d.device == "disk0" && d.file.as_deref() == image.to_str()), "{found:?}");
        ensure!(found.taps == [Tap { netns, ifname: "fdtest1".into() }], "{:?}", found.taps);
        discover(&socket, PATIENCE).context("a second time: the socket must be free again")?;
        ensure!(!ended(&found)?);
        vm.0.kill()?;
        vm.0.wait()?;
        ensure!(ended(&found)?);
        let gone = discover(&socket, PATIENCE).err().context("not refused")?;
        ensure!(matches!(gone, DiscoverError::Qmp { source: QmpError::Connect(_), .. }), "{gone}");
        Ok(())
    })
    .join()
    .unwrap_or_else(|_| anyhow::bail!("the test's thread panicked"))
}

/// The firmware looks at the first block of the disk for something to boot.
fn hears_reads_of_a_disk() -> Result<()> {
    let home = tempfile::tempdir()?;
    let (socket, image) = (home.path().join("qmp"), home.path().join("disk.raw"));
    fs::write(&image, vec![0; 1 << 20])?;
    let _vm = start(&socket, &["-drive", &format!("if=virtio,format=raw,file={}", image.display())])?;
    let found = discover(&socket, PATIENCE)?;
    let mut source = BpfSource::open()?;
    let id = VmId(7);
    let threads: Vec<_> = (0..).zip(&found.emulators).map(|(i, t)| (t.tid, Thread::Emulator(i))).collect();
    let set = source.read_probes();
    source.follow(id, &threads, &[])?;
    source.follow_reads(id, found.pid, set.attach(found.pid)?)?;
    let mut qmp = UnixStream::connect(&socket)?;
    qmp.write_all(b"{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"cont\"}\n")?;
    let mut events = Vec::new();
    let mut in_flight = HashSet::new();
    let mut ended = 0;
    eventually("reads end", || {
        let _ = source.drain(&mut events);
        for event in events.drain(..) {
            match event.kind {
                EventKind::BlockRead { vm, request } if vm == id => assert!(in_flight.insert(request)),
                EventKind::BlockDone { vm, request } if vm == id => {
                    assert!(in_flight.remove(&request), "a read ends that did not begin");
                    ended += 1;
                }
                _ => {}
            }
        }
        ended > 0 && in_flight.is_empty()
    })?;
    ensure!(source.stats()?.reads >= ended);
    source.unfollow(id);
    // Last, for the kernel takes its time to remove probes.
    let unknown = source.follow_reads(id, found.pid, set.attach(found.pid)?);
    ensure!(unknown.is_err(), "reads of a VM that is not followed");
    Ok(())
}

fn ended(vm: &QemuVm) -> Result<bool> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(&vm.pidfd(), PollFlags::IN)], Some(&at_once))? > 0)
}

fn busy_socket_is_told() -> Result<()> {
    let home = tempfile::tempdir()?;
    let socket = home.path().join("qmp");
    let _vm = start(&socket, &["-machine", "none"])?;
    let mut holder = UnixStream::connect(&socket)?;
    let mut greeting = String::new();
    BufReader::new(holder.try_clone()?).read_line(&mut greeting)?;
    holder.write_all(b"{\"execute\":\"qmp_capabilities\"}\n")?;
    let error = discover(&socket, Duration::from_millis(300)).err().context("not refused")?;
    ensure!(matches!(error, DiscoverError::Qmp { source: QmpError::Busy, .. }), "{error}");
    Ok(())
}

fn must_be_one() -> Result<()> {
    let home = tempfile::tempdir()?;
    let socket = home.path().join("qmp");
    let _listener = UnixListener::bind(&socket)?;
    let error = discover(&socket, PATIENCE).err().context("not refused")?;
    ensure!(matches!(error, DiscoverError::NotQemu { .. }), "{error}");
    Ok(())
}
