//! Discovery of a real QEMU, started paused and without a guest.

use crate::fake_qemu::FakeQemu;
use crate::support::{Idler, eventually, trial, with_the_number};
use crate::wire::{Link, ethernet, ipv4, udp};
use anyhow::{Context as _, Result, ensure};
use frontdesk_engine::{EventKind, Protocol, Thread, VmId};
use frontdesk_linux::{Peer, Tap};
use frontdesk_probes::bpf::BpfSource;
use frontdesk_qemu::{DiscoverError, QemuVm, QmpError, Unheard, discover};
use frontdesk_testing::{Need, leave_out};
use libtest_mimic::Trial;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{FdFlags, fcntl_setfd},
};
use std::{
    collections::HashSet,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{
            fs::MetadataExt as _,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

const QEMU: &str = "qemu-system-x86_64";
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("qemu_must_be_one", must_be_one),
        trial("peer_is_not_who_has_its_number", peer_is_not_who_has_its_number),
    ];
    if Command::new(QEMU).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
    {
        trials.push(trial("qemu_is_discovered", is_discovered));
        trials.push(trial("qemu_busy_socket_is_told", busy_socket_is_told));
        trials.push(trial("qemu_paths_of_packets_are_heard_or_told", paths_of_packets_are_heard_or_told));
        trials.push(trial("bpf_hears_reads_of_a_disk", || {
            hears_reads(&["-drive", "if=virtio,format=raw,file=IMAGE"])
        }));
        trials.push(trial("bpf_hears_reads_by_an_io_thread", || {
            let disk = ["-device", "virtio-blk-pci,drive=disk0,iothread=io0"];
            hears_reads_by_an_io_thread("threads", &disk)
        }));
        trials.push(trial("bpf_hears_reads_by_io_uring", || {
            let disk = ["-device", "virtio-blk-pci,drive=disk0,iothread=io0"];
            hears_reads_by_an_io_thread("io_uring", &disk)
        }));
        trials.push(trial("bpf_hears_reads_by_virtio_scsi", || {
            let disk = ["-device", "virtio-scsi-pci,iothread=io0", "-device", "scsi-hd,drive=disk0"];
            hears_reads_by_an_io_thread("io_uring", &disk)
        }));
    } else {
        trials.push(trial("qemu_is_there", || {
            leave_out("qemu_*, bpf_hears_reads_*", Need::Qemu, format_args!("{QEMU} does not run"));
            Ok(())
        }));
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

/// Runs a test on a thread with a network namespace of its own, of this number. What QEMU makes in there ends
/// with QEMU.
fn in_own_network(test: fn(u32) -> Result<()>) -> Result<()> {
    let own = thread::spawn(move || {
        // SAFETY: changes only which network namespace the calling thread is in.
        ensure!(unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0, "new network namespace");
        test(u32::try_from(fs::metadata("/proc/thread-self/ns/net")?.ino())?)
    });
    own.join().unwrap_or_else(|_| anyhow::bail!("the test's thread panicked"))
}

fn is_discovered() -> Result<()> {
    in_own_network(|netns| {
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
        ensure!(
            found.disks.iter().any(|d| d.device == "disk0" && d.file.as_deref() == image.to_str()),
            "{found:?}"
        );
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
}

fn ip(arguments: &str) -> Result<()> {
    let status = Command::new("ip").args(arguments.split(' ')).status().context("run ip")?;
    ensure!(status.success(), "ip {arguments}: {status}");
    Ok(())
}

/// A macvtap, which is open for whoever is started, and its descriptor's number.
fn open_macvtap() -> Result<(File, i32)> {
    ip("link add fdveth0 type veth peer name fdveth1")?;
    ip("link add link fdveth0 name fdmacvtap type macvtap mode bridge")?;
    let told = Command::new("ip").args(["-o", "link", "show", "fdmacvtap"]).output()?;
    let told = String::from_utf8(told.stdout)?;
    let (index, _) = told.split_once(':').context("no index")?;
    let path = format!("/dev/tap{index}");
    eventually("the macvtap's device is there", || Path::new(&path).exists())?;
    let file = File::options().read(true).write(true).open(path)?;
    fcntl_setfd(&file, FdFlags::empty())?;
    let descriptor = file.as_raw_fd();
    Ok((file, descriptor))
}

/// A tap with two queues, one in a bridge, a macvtap and a backend that is no device: one VM has them all.
fn paths_of_packets_are_heard_or_told() -> Result<()> {
    in_own_network(|netns| {
        let home = tempfile::tempdir()?;
        let socket = home.path().join("qmp");
        let (_macvtap, descriptor) = open_macvtap()?;
        let by_descriptor = format!("tap,id=net2,fd={descriptor}");
        #[rustfmt::skip]
        let vm = start(&socket, &[
            "-netdev", "tap,id=net0,ifname=fdqueues,queues=2,script=no,downscript=no",
            "-device", "virtio-net-pci,netdev=net0,mq=on,romfile=",
            "-netdev", "tap,id=net1,ifname=fdbridged,script=no,downscript=no", "-device", "virtio-net-pci,netdev=net1,romfile=",
            "-netdev", &by_descriptor, "-device", "virtio-net-pci,netdev=net2,romfile=",
            "-netdev", "user,id=net3", "-device", "virtio-net-pci,netdev=net3,romfile=",
        ])?;
        let found = discover(&socket, PATIENCE)?;
        let taps = ["fdbridged", "fdqueues"].map(|ifname| Tap { netns, ifname: ifname.into() });
        ensure!(found.taps == taps, "{:?}", found.taps);
        let unheard = [Unheard::Macvtap, Unheard::Backend("user".into())];
        ensure!(found.unheard == unheard, "{:?}", found.unheard);
        let told = frontdesk_host::doctor::examine();
        for path in &unheard {
            let vm = format!("process {}", vm.pid());
            let mut of_it = told.iter().filter(|finding| finding.advice.as_deref() == Some(path.instead()));
            ensure!(
                of_it.any(|finding| finding.found.contains(&vm) && finding.found.ends_with(&path.what())),
                "doctor does not tell {path} of {vm}: {told:?}"
            );
        }

        let mut source = BpfSource::open()?;
        source.follow(VmId(7), &[], &found.taps)?;
        ip("link add fdbridge type bridge")?;
        ip("link set fdbridged master fdbridge up")?;
        for (interface, port) in [("fdqueues", 7), ("fdbridge", 9)] {
            Link::up(interface)?.send(&ethernet(0x0800, &ipv4(17, 0, &udp(port))))?;
        }
        let mut events = Vec::new();
        eventually("both packets are heard of", || {
            let _ = source.drain(&mut events);
            events.len() >= 2
        })?;
        let packet = |port| EventKind::Packet { vm: VmId(7), protocol: Protocol::Udp, port };
        let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
        ensure!(kinds == [packet(7), packet(9)], "{kinds:?}");
        Ok(())
    })
}

fn hears_reads_by_an_io_thread(by: &str, disk: &[&str]) -> Result<()> {
    let drive = format!("if=none,id=disk0,format=raw,aio={by},file=IMAGE");
    hears_reads(&[&["-object", "iothread,id=io0", "-drive", &drive][..], disk].concat())
}

/// The firmware looks at the first block of the disk for something to boot. In `disk`, IMAGE is a file.
fn hears_reads(disk: &[&str]) -> Result<()> {
    let home = tempfile::tempdir()?;
    let (socket, image) = (home.path().join("qmp"), home.path().join("disk.raw"));
    fs::write(&image, vec![0; 1 << 20])?;
    let disk: Vec<String> =
        disk.iter().map(|word| word.replace("IMAGE", &image.display().to_string())).collect();
    let _vm = start(&socket, &disk.iter().map(String::as_str).collect::<Vec<_>>())?;
    let found = discover(&socket, PATIENCE)?;
    let io_threads = disk.iter().filter(|word| word.starts_with("iothread")).count();
    ensure!(found.emulators.len() == 1 + io_threads && found.unheard.is_empty(), "{found:?}");
    let mut source = BpfSource::open()?;
    let id = VmId(7);
    let threads: Vec<_> = (0..).zip(&found.emulators).map(|(i, t)| (t.tid, Thread::Emulator(i))).collect();
    let set = source.qemu_probes();
    source.follow(id, &threads, &[])?;
    source.follow_process(id, found.pid, set.attach(found.pid))?;
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
    let unknown = source.follow_process(id, found.pid, set.attach(found.pid));
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

/// Who listened has ended, and somebody else has its number.
fn peer_is_not_who_has_its_number() -> Result<()> {
    let home = tempfile::tempdir()?;
    let socket = home.path().join("qmp");
    let mut listener = FakeQemu::start(home.path())?;
    listener.order(&format!("listen {} gone", socket.display()))?;
    eventually("it listens", || socket.exists())?;
    let client = UnixStream::connect(&socket)?;
    let pid = listener.pid().cast_signed();
    drop(listener);
    let stranger = with_the_number(pid)?;
    let peer = Peer::of(&client)?;
    ensure!(peer.pid == pid, "{peer:?}");
    // On newer kernels it is still told, as one that has ended.
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let lives =
        |process| poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).is_ok_and(|n| n == 0);
    ensure!(!peer.process.as_ref().is_some_and(lives), "it is taken for who has its number");
    drop(stranger);
    Ok(())
}
