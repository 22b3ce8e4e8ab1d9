//! VMs without libvirt, started by hand.

use crate::{
    guest::{Guest, HARDWARE, USER},
    host::run_for_output,
    init::HOME,
};
use anyhow::{Context as _, Result};
use procfs::process::Process;
use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// With which QEMU's monitor says that it has done what it was told.
const PROMPT: &[u8] = b"(qemu) ";
/// Generous: an emulated system on a busy machine is slow.
const ANSWER: Duration = Duration::from_secs(300);

/// A guest that does nothing but leave for KVM: `cpuid`, again and again, from the first instruction on.
pub(crate) const FLOOD: &str = "flood";

/// Makes the folder for the sockets and the disk of VMs, and the firmware of that guest.
pub(crate) fn prepare() -> Result<()> {
    run_for_output("install", &["-d", "-o", USER, &format!("{HOME}/vms")])?;
    run_for_output("install", &["-o", USER, &format!("{HOME}/disk"), &format!("{HOME}/vms")])?;
    let mut image = vec![0; 0x1_0000];
    image[0xfff0..][..4].copy_from_slice(&[0x0f, 0xa2, 0xeb, 0xfc]);
    Ok(fs::write(format!("{HOME}/{FLOOD}"), image)?)
}

/// The VM, and its process, which is killed with the value.
pub(crate) struct Plain(pub(crate) Guest, Child);

impl Plain {
    /// Starts it under KVM, as libvirt's user, in a scope of its own.
    pub(crate) fn start(name: &'static str, options: &[&str]) -> Result<Plain> {
        // systemd-run becomes the process that it starts.
        let mut command = Command::new("systemd-run");
        command.args(["--quiet", "--scope", "--property=CPUWeight=100"]);
        command.args([&format!("--unit={name}"), &format!("--uid={USER}"), "qemu-system-x86_64"]);
        command.args([
            "-name",
            &format!("{name},debug-threads=on"),
            "-accel",
            "kvm",
            "-cpu",
            "host",
            "-m",
            "32",
        ]);
        command.args(["-display", "none", "-nodefaults", "-no-user-config"]).args(options);
        let child = command.stdin(Stdio::null()).spawn().context("start systemd-run")?;
        Ok(Plain(Guest { name, pid: child.id() }, child))
    }

    /// Whether one of its threads has had a second of CPU time.
    pub(crate) fn computes(&self) -> bool {
        let tasks = Process::new(self.0.pid.cast_signed()).and_then(|process| process.tasks());
        let times = tasks.into_iter().flatten().flatten().filter_map(|task| task.stat().ok());
        times.into_iter().any(|stat| stat.utime + stat.stime > procfs::ticks_per_second())
    }

    /// Starts one that is worked in, on this network device, with sockets for QMP and a monitor. It may take
    /// over the state of another one, from this address.
    pub(crate) fn start_desktop(name: &'static str, tap: &str, incoming: Option<&str>) -> Result<Plain> {
        let socket = |kind| format!("unix:{HOME}/vms/{name}.{kind},server=on,wait=off");
        let (qmp, monitor) = (socket("qmp"), socket("monitor"));
        let (firmware, disk) =
            (format!("{HOME}/firmware"), format!("file={HOME}/vms/disk,format=raw,if=ide"));
        let network = format!("tap,id=net,ifname={tap},script=no,downscript=no");
        let card = format!("virtio-net-pci,netdev=net,mac={HARDWARE},romfile=");
        let mut options = vec!["-bios", &firmware, "-drive", &disk, "-netdev", &network, "-device", &card];
        options.extend(["-qmp", &qmp, "-monitor", &monitor]);
        options.extend(incoming.into_iter().flat_map(|from| ["-incoming", from]));
        Plain::start(name, &options)
    }

    /// Has the monitor of one that is worked in do something, and waits until that is done: a monitor whose
    /// reader hangs up may drop what it has not read.
    pub(crate) fn tell(&self, command: &str) -> Result<()> {
        let monitor = format!("{HOME}/vms/{}.monitor", self.0.name);
        let mut stream = UnixStream::connect(monitor).context("its monitor")?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut told = Vec::new();
        let mut until_prompt = |stream: &mut UnixStream| -> Result<()> {
            while !told.ends_with(PROMPT) {
                let mut byte = [0];
                let read = stream.read_exact(&mut byte);
                read.with_context(|| format!("its monitor told {:?}", String::from_utf8_lossy(&told)))?;
                told.extend(byte);
            }
            told.clear();
            Ok(())
        };
        until_prompt(&mut stream)?;
        writeln!(stream, "{command}")?;
        until_prompt(&mut stream)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.1.kill();
        let _ = self.1.wait();
    }
}
