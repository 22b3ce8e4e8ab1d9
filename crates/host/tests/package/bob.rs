//! A VM of another user, under QEMU with the plugin. Its guest is a firmware that does what makes a desktop:
//! one task reads from the disk, and another computes.

use crate::{
    init::HOME,
    package_trial::{run_for_output, status_of},
    support::eventually,
};
use anyhow::{Context as _, Result, anyhow, ensure};
use frontdesk_linux::{
    Stat,
    sched::{self, Attributes, Policy},
};
use std::{
    fs,
    net::UdpSocket,
    os::unix::fs::chown,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Who runs VMs under libvirt.
const USER: &str = "libvirt-qemu";

/// Its network device, the host's address on it and the guest's, and the guest's hardware address. Nobody
/// answers there: that something comes is enough.
const TAP: &str = "bob-tap";
const OURS: &str = "10.99.0.1";
const THEIRS: &str = "10.99.0.2";
const HARDWARE: &str = "52:54:00:00:00:02";

/// What boosts any task for any packet, and for as long as that can be.
pub(crate) const CONFIGURATION: &str = "\
tavs.correlation = false
tavs.negative_evidence = 0
tavs.belief_threshold = -1
tavs.pb_ratio = 1.0
tavs.patience = '1s'
tavs.max_boost = '1s'
";

/// A boost shows for as long as the guest takes to answer it. It is looked this often.
const LOOK: Duration = Duration::from_micros(200);
/// Ahead of boosts and of the daemon, but not of its guardian.
const AHEAD: u32 = 55;
const PATIENCE: Duration = Duration::from_secs(60);

/// The VM, killed with the value.
pub(crate) struct Bob(Child);

impl Bob {
    /// What is to be there before: his user, a network device that is his, and his files.
    pub(crate) fn prepare() -> Result<()> {
        run_for_output("useradd", &["--system", "--no-create-home", "--home-dir", "/nonexistent", USER])?;
        let ids = |flag| -> Result<u32> { Ok(run_for_output("id", &[flag, USER])?.parse()?) };
        let (user, group) = (Some(ids("-u")?), Some(ids("-g")?));
        let home = home();
        fs::create_dir(&home)?;
        fs::write(format!("{home}/firmware"), firmware())?;
        fs::write(format!("{home}/disk"), [0; 1 << 16])?;
        for path in [home.clone(), format!("{home}/disk")] {
            chown(path, user, group)?;
        }
        // As udev has it where it runs.
        run_for_output("chmod", &["666", "/dev/net/tun"])?;
        for command in [
            format!("tuntap add dev {TAP} mode tap user {USER}"),
            format!("addr add {OURS}/24 dev {TAP}"),
            format!("link set {TAP} up"),
            format!("neigh add {THEIRS} lladdr {HARDWARE} dev {TAP}"),
        ] {
            run_for_output("ip", &command.split(' ').collect::<Vec<_>>())?;
        }
        Ok(())
    }

    pub(crate) fn start() -> Result<Bob> {
        let home = home();
        let mut command = Command::new("systemd-run");
        command.args(["--quiet", "--scope", "--unit=bob", "--property=CPUWeight=100"]);
        command.arg(format!("--uid={USER}")).arg("qemu-system-x86_64");
        for (option, value) in [
            ("-name", "bob,debug-threads=on".to_owned()),
            ("-machine", "pc".into()),
            ("-cpu", "EPYC".into()),
            ("-accel", "tcg,thread=multi".into()),
            ("-m", "32".into()),
            ("-display", "none".into()),
            ("-bios", format!("{home}/firmware")),
            ("-drive", format!("file={home}/disk,format=raw,if=ide")),
            ("-netdev", format!("tap,id=net,ifname={TAP},script=no,downscript=no,vhost=off")),
            ("-device", format!("virtio-net-pci,netdev=net,mac={HARDWARE},romfile=")),
            ("-qmp", format!("unix:{home}/bob.qmp,server=on,wait=off")),
            ("-plugin", "/usr/lib/frontdesk/libfrontdesk_tcg_plugin.so".into()),
        ] {
            command.arg(option).arg(value);
        }
        command.args(["-nodefaults", "-no-user-config"]).stdin(Stdio::null());
        Ok(Bob(command.spawn().context("start systemd-run")?))
    }

    /// frontdesk sees all that there is to see of it: tasks by the plugin, reads by the probes in QEMU, and
    /// packets on the network device. And it boosts.
    pub(crate) fn is_followed_and_boosted(&self) -> Result<()> {
        let told = |what: &str, is_so: &dyn Fn(&serde_json::Value) -> bool| {
            let mut last = serde_json::Value::Null;
            let result = eventually(what, || {
                last = status_of("bob").unwrap_or_default();
                is_so(&last)
            });
            result.with_context(|| format!("{last:#}"))
        };
        told("bob is followed", &|bob| bob["pid"] == self.0.id() && bob["trouble"].is_null())?;
        told("the plugin is heard", &|bob| {
            bob["identity"]["exact"] == true && bob["engine"]["task_count"].as_u64() >= Some(2)
        })?;
        told("reads are heard of", &|bob| sum(&bob["recent"]["reads"]) > 0)?;
        let user = fs::metadata(format!("/proc/{}", self.0.id()))?;
        ensure!(std::os::unix::fs::MetadataExt::uid(&user) != 0, "it runs as root");
        let vcpu = self.vcpu()?;
        let boosted = thread::spawn(move || sees_a_boost(vcpu)).join();
        boosted.map_err(|_| anyhow!("it panicked"))??;
        told("packets are heard of", &|bob| {
            let boosts = bob["engine"]["vcpus"][0]["boosts"].as_u64();
            sum(&bob["recent"]["packets"][0]["outcomes"]) > 0 && boosts > Some(0)
        })
    }

    /// A reservation holds, and so do a pause and its end.
    pub(crate) fn is_reserved_paused_and_released(&self) -> Result<()> {
        let vcpu = self.vcpu()?;
        run_for_output("frontdesk", &["reserve", "bob", "--period", "100ms", "--slice", "20ms"])?;
        eventually("bob is reserved for", || {
            let policy = sched::get(vcpu).map(|found| found.policy);
            let kept =
                matches!(policy, Ok(Policy::Fifo { .. } | Policy::RoundRobin { .. } | Policy::Idle { .. }));
            kept && sched::affinity(vcpu).is_ok_and(|cpus| cpus.len() == 1)
        })?;
        let stopped = || Stat::of_process(vcpu).is_some_and(|stat| stat.state == 'T');
        let said = run_for_output("frontdesk", &["pause", "bob"])?;
        ensure!(said.contains("paused"), "{said}");
        eventually("bob is paused", stopped)?;
        run_for_output("frontdesk", &["resume", "bob"])?;
        eventually("bob goes on", || !stopped())?;
        run_for_output("frontdesk", &["release", "bob"])?;
        eventually("bob is released", || self.is_untouched().is_ok())
    }

    /// It runs, and is scheduled as it was.
    pub(crate) fn is_untouched(&self) -> Result<()> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).context("the VM has ended")?;
        for task in tasks {
            let tid = task?.file_name().to_string_lossy().parse()?;
            let Attributes { policy, .. } = sched::get(tid)?;
            ensure!(matches!(policy, Policy::Other { nice: 0, .. }), "thread {tid}: {policy:?}");
        }
        Ok(())
    }

    fn vcpu(&self) -> Result<i32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id()))?.flatten();
        let mut tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        let is_vcpu = |tid: &i32| Stat::of_process(*tid).is_some_and(|stat| stat.name.starts_with("CPU 0/"));
        tids.find(is_vcpu).context("bob has no vCPU")
    }
}

impl Drop for Bob {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn home() -> String {
    format!("{HOME}/bob")
}

/// Sends packets until the vCPU is seen in real time.
fn sees_a_boost(vcpu: i32) -> Result<()> {
    // A boosted vCPU computes, and this machine has one CPU.
    sched::set(0, Attributes::fifo(AHEAD))?;
    let socket = UdpSocket::bind((OURS, 0))?;
    let begin = Instant::now();
    let mut sent = None;
    while begin.elapsed() < PATIENCE {
        if sent.is_none_or(|at: Instant| at.elapsed() > Duration::from_millis(50)) {
            socket.send_to(b"?", (THEIRS, 7))?;
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
fn sum(counts: &serde_json::Value) -> u64 {
    counts.as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

/// In real mode, in the last segment of 64 KiB, at whose end the processor begins.
fn firmware() -> Vec<u8> {
    const LOOP: [u8; 70] = [
        0x66, 0xb8, 0x00, 0x00, 0x10, 0x00, 0x0f, 0x22, 0xd8, // mov cr3, 0x100000: the task that reads
        0xba, 0xf6, 0x01, 0xb0, 0xe0, 0xee, // the first disk, by its block's number
        0xba, 0xf2, 0x01, 0xb0, 0x01, 0xee, // one block,
        0x42, 0xb0, 0x00, 0xee, 0x42, 0xee, 0x42, 0xee, // number 0
        0xba, 0xf7, 0x01, 0xb0, 0x20, 0xee, // read it
        0xec, 0xa8, 0x08, 0x74, 0xfb, // wait until it is there
        0xba, 0xf0, 0x01, 0xb9, 0x00, 0x01, 0xed, 0xe2, 0xfd, // fetch its 256 words
        0x66, 0xb8, 0x00, 0x00, 0x20, 0x00, 0x0f, 0x22,
        0xd8, // mov cr3, 0x200000: the task that computes
        0x66, 0xb9, 0x00, 0x00, 0x04, 0x00, 0x66, 0x49, 0x75, 0xfc, // count down from 0x40000
        0xeb, 0xba, // again
    ];
    const RESET: [u8; 3] = [0xe9, 0x1d, 0x00]; // jmp 0x10
    let mut image = vec![0; 0x1_0000];
    image[0x10..][..LOOP.len()].copy_from_slice(&LOOP);
    image[0xfff0..][..RESET.len()].copy_from_slice(&RESET);
    image
}
