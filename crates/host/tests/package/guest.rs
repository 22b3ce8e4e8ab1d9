//! What is inside the VMs of the trials, and what frontdesk is to do for them. A guest is a firmware that
//! does what makes a desktop: one task reads from the disk, and another computes.

use crate::{
    host::{run_for_output, status_of},
    init::HOME,
    support::eventually,
};
use anyhow::{Context as _, Result, anyhow, ensure};
use frontdesk_linux::sched::{self, Attributes, Policy};
use procfs::process::{Process, Stat};
use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
    os::unix::fs::MetadataExt as _,
    thread,
    time::{Duration, Instant},
};

/// Who runs VMs under libvirt.
pub(crate) const USER: &str = "libvirt-qemu";

/// The network device of the VM and its hardware address.
pub(crate) const TAP: &str = "vm-tap";
pub(crate) const HARDWARE: &str = "52:54:00:00:00:02";
/// The host's address on it, and the guest's. Nobody answers there: that something comes is enough.
const OURS: &str = "10.99.0.1";
pub(crate) const THEIRS: &str = "10.99.0.2";
/// To which packets are sent.
pub(crate) const PORT: u16 = 7;

/// What boosts any task for any packet, and for as long as that can be: however slow the machine is, and
/// whatever was believed of the task before, which was no less than the -100 of the default.
pub(crate) const CONFIGURATION: &str = "\
tavs.correlation = false
tavs.io_threshold = '1s'
tavs.negative_evidence = 0
tavs.belief_min = -200
tavs.belief_threshold = -200
tavs.pb_ratio = 1.0
tavs.patience = '1s'
tavs.max_boost = '1s'
";

/// A boost shows for as long as the guest takes to answer it. It is looked this often.
const LOOK: Duration = Duration::from_micros(200);
/// Ahead of boosts and of the daemon, but not of its guardian.
const AHEAD: u32 = 55;
const PATIENCE: Duration = Duration::from_secs(300);

/// Writes the firmware and the disk of a guest, and makes its network device.
pub(crate) fn prepare() -> Result<()> {
    fs::write(format!("{HOME}/firmware"), firmware())?;
    fs::write(format!("{HOME}/disk"), [0; 1 << 16])?;
    make_tap(TAP, OURS, THEIRS)
}

/// Makes a network device for VMs, with the host's address on it and the guest's.
pub(crate) fn make_tap(tap: &str, ours: &str, theirs: &str) -> Result<()> {
    // As udev has it where it runs.
    run_for_output("chmod", &["666", "/dev/net/tun"])?;
    for command in [
        format!("tuntap add dev {tap} mode tap user {USER}"),
        format!("addr add {ours}/24 dev {tap}"),
        format!("link set {tap} up"),
        format!("neigh add {theirs} lladdr {HARDWARE} dev {tap}"),
    ] {
        run_for_output("ip", &command.split(' ').collect::<Vec<_>>())?;
    }
    Ok(())
}

/// A VM with such a guest.
pub(crate) struct Guest {
    pub(crate) name: &'static str,
    pub(crate) pid: u32,
}

impl Guest {
    /// Waits until it is followed, and returns what is told of it.
    pub(crate) fn is_followed(&self) -> Result<serde_json::Value> {
        self.becomes("it is followed", |told| {
            told["pid"] == self.pid && told["trouble"].is_null() && told["identity"].is_object()
        })
    }

    /// Waits until what is told of it is so, and returns it.
    pub(crate) fn becomes(
        &self,
        what: &str,
        is_so: impl Fn(&serde_json::Value) -> bool,
    ) -> Result<serde_json::Value> {
        let mut last = serde_json::Value::Null;
        let result = eventually(what, || {
            last = status_of(self.name).unwrap_or_default();
            is_so(&last)
        });
        result.with_context(|| format!("{}: {last:#}", self.name))?;
        Ok(last)
    }

    /// frontdesk sees all that there is to see of it: its tasks, its reads by the probes in QEMU, and packets
    /// on the network device. And it boosts.
    pub(crate) fn is_seen_and_boosted(&self) -> Result<()> {
        self.is_seen_and_boosted_at(THEIRS)
    }

    /// The same with another address than that of the first network device.
    pub(crate) fn is_seen_and_boosted_at(&self, address: &'static str) -> Result<()> {
        self.has_tasks()?;
        self.becomes("reads are heard of", |told| sum(&told["recent"]["reads"]) > 0)?;
        let vcpu = self.vcpu()?;
        let boosted = thread::spawn(move || sees_a_boost(vcpu, address)).join();
        let told = || format!("{:#}", status_of(self.name).unwrap_or_default());
        boosted.map_err(|_| anyhow!("it panicked"))?.with_context(told)?;
        self.becomes("packets are heard of", |told| {
            let boosts = told["vcpus"][0]["boosts"].as_u64();
            sum(&told["recent"]["packets"][0]["outcomes"]) > 0 && boosts > Some(0)
        })?;
        Ok(())
    }

    /// Its two tasks are told apart.
    pub(crate) fn has_tasks(&self) -> Result<()> {
        self.becomes("its tasks are seen", |told| told["task_count"].as_u64() >= Some(2))?;
        Ok(())
    }

    /// A reservation holds, and so do a pause and its end. `tell` has an operator's command done.
    pub(crate) fn is_reserved_paused_and_released(
        &self,
        mut tell: impl FnMut(&str) -> Result<String>,
    ) -> Result<()> {
        let (name, vcpu) = (self.name, self.vcpu()?);
        tell(&format!("frontdesk reserve {name} --period 100ms --slice 20ms"))?;
        eventually("it is reserved for", || {
            let policy = sched::get(vcpu).map(|found| found.policy);
            matches!(policy, Ok(Policy::Fifo { .. } | Policy::RoundRobin { .. } | Policy::Idle { .. }))
        })?;
        let all = tell("frontdesk list")?;
        ensure!(all.contains(name), "{all}");
        let stopped = || stat_of(vcpu).is_ok_and(|stat| stat.state == 'T');
        let said = tell(&format!("frontdesk pause {name}"))?;
        ensure!(said.contains("paused"), "{said}");
        eventually("it is paused", stopped)?;
        tell(&format!("frontdesk resume {name}"))?;
        eventually("it goes on", || !stopped())?;
        tell(&format!("frontdesk release {name}"))?;
        eventually("it is released", || self.is_untouched().is_ok())
    }

    /// It runs as another user, and is scheduled as it was.
    pub(crate) fn is_untouched(&self) -> Result<()> {
        let owner = fs::metadata(format!("/proc/{}", self.pid)).context("the VM has ended")?;
        ensure!(owner.uid() != 0, "it runs as root");
        for task in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let tid = task?.file_name().to_string_lossy().parse()?;
            let Attributes { policy, .. } = sched::get(tid)?;
            ensure!(matches!(policy, Policy::Other { nice: 0, .. }), "thread {tid}: {policy:?}");
        }
        Ok(())
    }

    fn vcpu(&self) -> Result<i32> {
        first_vcpu(self.pid)
    }
}

/// The thread of a QEMU's first vCPU.
pub(crate) fn first_vcpu(pid: u32) -> Result<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    let mut tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    let is_vcpu = |tid: &i32| stat_of(*tid).is_ok_and(|stat| stat.comm.starts_with("CPU 0/"));
    tids.find(is_vcpu).context("it has no vCPU")
}

/// What the kernel tells of a process or thread.
fn stat_of(tid: i32) -> Result<Stat> {
    Ok(Process::new(tid)?.stat()?)
}

/// Sends packets until the vCPU is seen in real time.
pub(crate) fn sees_a_boost(vcpu: i32, address: &str) -> Result<()> {
    // A boosted vCPU computes, and this machine has one CPU.
    sched::set(0, Attributes::fifo(AHEAD))?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let begin = Instant::now();
    let mut sent = None;
    while begin.elapsed() < PATIENCE {
        if sent.is_none_or(|at: Instant| at.elapsed() > Duration::from_millis(50)) {
            socket.send_to(b"?", (address, PORT))?;
            sent = Some(Instant::now());
        }
        if matches!(sched::get(vcpu)?.policy, Policy::Fifo { .. }) {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    Err(anyhow!("the vCPU was never seen in real time"))
}

/// Of all the numbers in an object.
pub(crate) fn sum(counts: &serde_json::Value) -> u64 {
    counts.as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

/// In the last segment of 64 KiB, at whose end the processor begins. The plugin looks for tasks where kernels
/// are, in the upper half of 64-bit addresses: so that is where it goes first.
fn firmware() -> Vec<u8> {
    const CODE: [u8; 231] = [
        0xea, 0x15, 0x00, 0x00, 0xf0, // jmp 0xf000:0x15: where memory below 1 MiB has it, too
        0x31, 0xc0, 0x8e, 0xd8, // mov ds, 0
        0xbe, 0x00, 0x80, 0x66, 0xc7, 0x04, 0x03, 0x90, 0x00, 0x00, 0x66, 0xc7, 0x84, 0xf8, 0x0f, 0x03, 0x90,
        0x00, 0x00, // a root of page tables at 0x8000,
        0xbf, 0x00, 0xc0, 0x66, 0xc7, 0x05, 0x03, 0x90, 0x00, 0x00, 0x66, 0xc7, 0x85, 0xf8, 0x0f, 0x03, 0x90,
        0x00, 0x00, // and one at 0xc000,
        0xbb, 0x00, 0x90, 0x66, 0xc7, 0x07, 0x03, 0xa0, 0x00, 0x00, 0xbb, 0x00, 0xa0, 0x66, 0xc7, 0x07, 0x83,
        0x00, 0x00, 0x00, // both with memory at 0 and at the beginning of the last 512 GiB
        0x66, 0xb8, 0x20, 0x00, 0x00, 0x00, 0x0f, 0x22, 0xe0, // mov cr4, PAE
        0x66, 0x0f, 0xb7, 0xc6, 0x0f, 0x22, 0xd8, // mov cr3, 0x8000
        0x66, 0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32, 0x80, 0xcc, 0x01, 0x0f,
        0x30, // long mode by EFER
        0x2e, 0x66, 0x0f, 0x01, 0x16, 0xf1, 0x00, // lgdt
        0x66, 0xb8, 0x01, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0, // mov cr0, paging and protection
        0x66, 0xea, 0x88, 0x00, 0x0f, 0x00, 0x08, 0x00, // jmp to 64-bit code
        0x48, 0xb8, 0x94, 0x00, 0x0f, 0x00, 0x80, 0xff, 0xff, 0xff, 0xff,
        0xe0, // jmp to where kernels are
        0xb8, 0x00, 0x80, 0x00, 0x00, 0x0f, 0x22, 0xd8, // mov cr3, 0x8000: the task that reads
        0x66, 0xba, 0xf6, 0x01, 0xb0, 0xe0, 0xee, // of the first disk, by numbers of blocks,
        0x66, 0xba, 0xf2, 0x01, 0xb0, 0x01, 0xee, // one block,
        0xff, 0xc2, 0xb0, 0x00, 0xee, 0xff, 0xc2, 0xee, 0xff, 0xc2, 0xee, // number 0:
        0x66, 0xba, 0xf7, 0x01, 0xb0, 0x20, 0xee, // read it
        0xec, 0xa8, 0x08, 0x74, 0xfb, // wait until it is there
        0x66, 0xba, 0xf0, 0x01, 0xb9, 0x00, 0x01, 0x00, 0x00, 0x66, 0xed, 0xe2,
        0xfc, // fetch its 256 words
        0xb8, 0x00, 0xc0, 0x00, 0x00, 0x0f, 0x22, 0xd8, // mov cr3, 0xc000: the task that computes
        0xb9, 0x00, 0x00, 0x04, 0x00, 0xff, 0xc9, 0x75, 0xfc, // count down from 0x40000
        0xeb, 0xb3, // again
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x9b, 0x20,
        0x00, // no segment, and one of 64-bit code
        0x0f, 0x00, 0xe1, 0x00, 0x0f, 0x00, // where they are
    ];
    const RESET: [u8; 3] = [0xe9, 0x1d, 0x00]; // jmp 0x10
    let mut image = vec![0; 0x1_0000];
    image[0x10..][..CODE.len()].copy_from_slice(&CODE);
    image[0xfff0..][..RESET.len()].copy_from_slice(&RESET);
    image
}
