//! A real VM: QEMU without hardware help, and the control of what runs inside.

use crate::clock::{GuestClock, host_tsc};
use frontdesk_lab_guest::{
    Answer, CONTROL_PORT, DATA_PARAMETER, DEBIAN_PARAMETER, IP_PARAMETER, Measurement, Message, Op,
    REPORTER_PORT, Report, Request, TIME_SLICE_PARAMETER, Work, Workload,
};
use rustix::fs::OFlags;
use rustix::io::FdFlags;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program that runs a VM, found in `PATH`.
const QEMU: &str = "qemu-system-x86_64";

/// How long the guest may take for a request that is not a piece of work. Beside busy VMs it is not fast.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What a VM is made of.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// Name: letters, digits and `-`. Unique in its run folder.
    pub name: String,
    /// vCPUs, at least 1. With more than one, the guest's interrupts between them go by x2APIC, where the
    /// plugin sees them.
    pub vcpus: u16,
    /// Memory in MiB, at least 96.
    pub memory_mib: u32,
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initramfs.
    pub initrd: PathBuf,
    /// Its network, if any.
    pub tap: Option<TapConfig>,
    /// Its disks, at most 26. The initramfs must be one for disks.
    pub disks: Vec<DiskConfig>,
    /// Whether it has a port for frontdesk's reporter, at the socket [`Vm::reporter`].
    pub reporter: bool,
    /// The TCG plugin to load, if any.
    pub plugin: Option<PathBuf>,
    /// Shortest time slice of the guest's scheduler, if not the kernel's.
    pub time_slice: Option<Duration>,
    /// Physical CPUs that all its threads are pinned to; empty for no pinning.
    pub cpus: Vec<u16>,
    /// Folder for its sockets and logs; must exist. Its path must be short, or the sockets' addresses are too
    /// long.
    pub run_dir: PathBuf,
    /// Files called `cgroup.procs` or `tasks` of the control groups that QEMU joins before it starts.
    pub cgroup_procs: Vec<PathBuf>,
}

/// A virtio disk. Other VMs may have the same image at the same time.
///
/// The host's page cache is passed by, as on a host where many VMs share a fast disk, unless the image is on a file system that has no
/// direct I/O, like many a tmpfs. That is logged: reading is then as fast as memory from the second time on.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// File with its content, which stays as it is.
    pub image: PathBuf,
    /// What is on it.
    pub kind: DiskKind,
}

/// What is on a disk, which is how the guest uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// Files to read. The guest can not write to it.
    Data,
    /// A Debian system. What the guest writes goes to a temporary file, and is gone with the VM.
    Debian,
}

impl DiskKind {
    /// The kernel parameter that tells the guest which disk it is.
    fn parameter(self) -> &'static str {
        match self {
            DiskKind::Data => DATA_PARAMETER,
            DiskKind::Debian => DEBIAN_PARAMETER,
        }
    }
}

/// A virtio network card on a tap interface of the host.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// Name of the tap interface; must exist and be up.
    pub ifname: String,
    /// The guest's MAC address.
    pub mac: String,
    /// The guest's IPv4 address.
    pub guest_ip: Ipv4Addr,
    /// Length of its prefix in bits.
    pub prefix: u8,
}

/// What can go wrong with a VM. The texts end with the last lines of its console and of QEMU's output.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// QEMU, or what it needs, could not be set up.
    #[error("VM {name}: {what}: {source}")]
    Setup {
        /// Name of the VM.
        name: String,
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// QEMU ended: the guest panicked or powered off, or QEMU refused its arguments.
    #[error("VM {name} ended ({status}) while it was asked to {what}{tail}")]
    Ended {
        /// Name of the VM.
        name: String,
        /// What it should have done.
        what: String,
        /// QEMU's exit status.
        status: String,
        /// The last lines of its logs.
        tail: String,
    },
    /// The guest did not answer in time.
    #[error("VM {name} did not {what} within {timeout:?}{tail}")]
    Timeout {
        /// Name of the VM.
        name: String,
        /// What it should have done.
        what: String,
        /// How long it had.
        timeout: Duration,
        /// The last lines of its logs.
        tail: String,
    },
    /// The guest said no.
    #[error("VM {name} could not {what}: {error}")]
    Refused {
        /// Name of the VM.
        name: String,
        /// What it should have done.
        what: String,
        /// What it said.
        error: String,
    },
    /// A workload ended although nobody stopped it.
    #[error("VM {name}: workload {workload} ended ({status}): {output}")]
    WorkloadEnded {
        /// Name of the VM.
        name: String,
        /// Name of the workload.
        workload: String,
        /// How it ended.
        status: String,
        /// The last it printed.
        output: String,
    },
    /// The guest said something that is not in the protocol.
    #[error("VM {name} said {line:?}: {source}")]
    Protocol {
        /// Name of the VM.
        name: String,
        /// What it said.
        line: String,
        /// Why that is not understood.
        source: serde_json::Error,
    },
}

/// A running VM. Dropping it kills it.
#[derive(Debug)]
pub struct Vm {
    name: String,
    files: Files,
    qemu: Child,
    control: UnixStream,
    received: Vec<u8>,
    last_id: u64,
    clock: GuestClock,
}

/// Where its sockets and logs are.
#[derive(Debug)]
struct Files {
    qmp: PathBuf,
    reporter: PathBuf,
    console: PathBuf,
    stderr: PathBuf,
}

impl Files {
    fn of(config: &VmConfig) -> Files {
        let file = |suffix| config.run_dir.join(format!("{}.{suffix}", config.name));
        Files {
            qmp: file("qmp"),
            reporter: file("tasks"),
            console: file("console.log"),
            stderr: file("qemu.log"),
        }
    }
}

impl Vm {
    /// Starts QEMU; does not wait for the guest.
    ///
    /// QEMU is killed when the *thread* that called this ends, however it ends, so that no VM outlives the
    /// lab: call it from a thread that stays.
    ///
    /// # Errors
    /// [`VmError::Setup`] if QEMU can not be started. What QEMU itself refuses shows in
    /// [`wait_ready`](Self::wait_ready).
    pub fn boot(config: &VmConfig) -> Result<Vm, VmError> {
        let failed = |what: &str| {
            let (name, what) = (config.name.clone(), what.to_owned());
            move |source| VmError::Setup { name, what, source }
        };
        let files = Files::of(config);
        // A socket pair, not a socket in the file system: it is there before QEMU is.
        let (control, guest_end) = UnixStream::pair().map_err(failed("control socket"))?;
        let guest_end = OwnedFd::from(guest_end);
        let mut disks = Vec::new();
        for disk in &config.disks {
            let what = format!("disk image {}", disk.image.display());
            disks.push((disk, has_direct_io(&disk.image).map_err(failed(&what))?));
        }
        let stderr = File::create(&files.stderr).map_err(failed("QEMU's log"))?;
        let mut groups = Vec::new();
        for path in &config.cgroup_procs {
            let group = File::options().write(true).open(path);
            groups.push(group.map_err(failed(&format!("control group {}", path.display())))?);
        }
        let mut cpus = CpuSet::new();
        for cpu in &config.cpus {
            if usize::from(*cpu) >= CpuSet::MAX_CPU {
                return Err(failed("CPU pinning")(io::Error::other(format!("there is no CPU {cpu}"))));
            }
            cpus.set(usize::from(*cpu));
        }

        let mut command = Command::new(QEMU);
        command
            .args(arguments(config, &disks, &files, &guest_end))
            .stdin(Stdio::null())
            .stdout(stderr.try_clone().map_err(failed("QEMU's log"))?)
            .stderr(stderr)
            .process_group(0);
        let pinned = !config.cpus.is_empty();
        // SAFETY: between fork and exec the hook makes only system calls, on what was made ready before.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                if pinned {
                    sched_setaffinity(None, &cpus)?;
                }
                for group in &groups {
                    // 0 is the process that writes.
                    rustix::io::write(group, b"0")?;
                }
                // Only this descriptor is for QEMU.
                Ok(rustix::io::fcntl_setfd(&guest_end, FdFlags::empty())?)
            });
        }
        let clock = GuestClock::default();
        let qemu = command.spawn().map_err(failed(&format!("starting {QEMU}")))?;
        Ok(Vm { name: config.name.clone(), files, qemu, control, received: Vec::new(), last_id: 0, clock })
    }

    /// Waits until the guest takes requests, at most `timeout`, and returns the release of its kernel.
    ///
    /// # Errors
    /// [`VmError`] if QEMU or the guest fails, or the time is over.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<String, VmError> {
        match self.receive("become ready", timeout)? {
            Message::Ready { kernel } => Ok(kernel),
            other => Err(self.unexpected("become ready", &other)),
        }
    }

    /// Starts a workload and waits until it is ready to do its work.
    ///
    /// # Errors
    /// [`VmError`] if the guest refuses or fails.
    pub fn start(&mut self, name: &str, workload: Workload) -> Result<(), VmError> {
        self.request(Op::Start { name: name.to_owned(), workload }, REQUEST_TIMEOUT).map(drop)
    }

    /// Kills a workload and waits until it is gone.
    ///
    /// # Errors
    /// [`VmError`] if no such workload runs or the guest fails.
    pub fn stop(&mut self, name: &str) -> Result<(), VmError> {
        self.request(Op::Stop { name: name.to_owned() }, REQUEST_TIMEOUT).map(drop)
    }

    /// Does a piece of work in the guest, which may take `timeout`, and returns what it took.
    ///
    /// # Errors
    /// [`VmError`] if the work or the guest fails, or the time is over.
    pub fn run(&mut self, work: Work, timeout: Duration) -> Result<Measurement, VmError> {
        match self.request(Op::Run { work }, timeout)? {
            Answer::Measurement(measurement) => Ok(measurement),
            other => Err(self.senseless(&format!("run {work:?}"), &other)),
        }
    }

    /// What a workload has done since it was started, and its stamps since the last report.
    ///
    /// # Errors
    /// [`VmError`] if no such workload runs or the guest fails.
    pub fn report(&mut self, name: &str) -> Result<Report, VmError> {
        match self.request(Op::Report { name: name.to_owned() }, REQUEST_TIMEOUT)? {
            Answer::Report(report) => Ok(report),
            other => Err(self.senseless(&format!("report on {name}"), &other)),
        }
    }

    /// Checks that the VM is alive, answers, and that no workload ended by itself.
    ///
    /// # Errors
    /// [`VmError`] says what is wrong.
    pub fn check(&mut self) -> Result<(), VmError> {
        let before = host_tsc();
        match self.request(Op::Ping, REQUEST_TIMEOUT)? {
            Answer::Clock(guest) => {
                self.clock.learn(before, guest, host_tsc());
                Ok(())
            }
            other => Err(self.senseless("tell its clock", &other)),
        }
    }

    /// Where its time stamp counter lies on the host's, as far as the checks so far tell.
    pub(crate) fn clock(&self) -> GuestClock {
        self.clock
    }

    /// Name of the VM.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id of QEMU.
    #[must_use]
    pub fn pid(&self) -> i32 {
        // A process id always fits.
        i32::try_from(self.qemu.id()).unwrap_or(i32::MAX)
    }

    /// Whether QEMU still runs.
    #[must_use]
    pub fn is_alive(&mut self) -> bool {
        matches!(self.qemu.try_wait(), Ok(None))
    }

    /// Its QMP socket, for the daemon.
    #[must_use]
    pub fn qmp(&self) -> &Path {
        &self.files.qmp
    }

    /// The socket of its port for frontdesk's reporter, if it has one.
    #[must_use]
    pub fn reporter(&self) -> &Path {
        &self.files.reporter
    }

    /// The file that takes what the guest prints on its serial console.
    #[must_use]
    pub fn console(&self) -> &Path {
        &self.files.console
    }

    /// Powers the VM off and waits for its end; kills it if it does not obey within `timeout`.
    ///
    /// # Errors
    /// [`VmError`] if the guest did not take the request; the VM is gone then, too.
    pub fn shutdown(mut self, timeout: Duration) -> Result<(), VmError> {
        self.request(Op::Shutdown, timeout)?;
        let deadline = Instant::now() + timeout;
        while self.is_alive() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn request(&mut self, op: Op, timeout: Duration) -> Result<Answer, VmError> {
        let what = format!("do {op:?}");
        self.last_id += 1;
        let request = Request { id: self.last_id, op };
        let sent = serde_json::to_string(&request)
            .map_err(io::Error::from)
            .and_then(|line| self.control.write_all(format!("{line}\n").as_bytes()));
        match sent {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(self.ended(&what)),
            sent => sent.map_err(|source| self.setup(&what, source))?,
        }
        match self.receive(&what, timeout)? {
            Message::Done { id, answer } if id == self.last_id => Ok(answer),
            Message::Failed { id, error } if id == self.last_id => {
                Err(VmError::Refused { name: self.name.clone(), what, error })
            }
            other => Err(self.unexpected(&what, &other)),
        }
    }

    /// The next message, which is the answer to `what` unless a workload ended.
    fn receive(&mut self, what: &str, timeout: Duration) -> Result<Message, VmError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|source| VmError::Protocol {
                    name: self.name.clone(),
                    line: String::from_utf8_lossy(&line).into_owned(),
                    source,
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(VmError::Timeout {
                    name: self.name.clone(),
                    what: what.to_owned(),
                    timeout,
                    tail: self.tail(),
                });
            }
            let mut buffer = [0; 4096];
            let read =
                self.control.set_read_timeout(Some(left)).and_then(|()| self.control.read(&mut buffer));
            match read {
                Ok(0) => return Err(self.ended(what)),
                Ok(length) => self.received.extend_from_slice(&buffer[..length]),
                // The deadline is checked above.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(self.ended(what)),
                Err(source) => return Err(self.setup(what, source)),
            }
        }
    }

    fn senseless(&self, what: &str, answer: &Answer) -> VmError {
        let (name, what) = (self.name.clone(), what.to_owned());
        VmError::Refused { name, what, error: format!("it answered {answer:?}") }
    }

    fn setup(&self, what: &str, source: io::Error) -> VmError {
        VmError::Setup { name: self.name.clone(), what: what.to_owned(), source }
    }

    /// QEMU closed its end of the control socket.
    fn ended(&mut self, what: &str) -> VmError {
        // It closes it shortly before it ends.
        let status = self.qemu.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        VmError::Ended { name: self.name.clone(), what: what.to_owned(), status, tail: self.tail() }
    }

    fn unexpected(&self, what: &str, message: &Message) -> VmError {
        let name = self.name.clone();
        match message {
            Message::Exited { name: workload, status, output } => VmError::WorkloadEnded {
                name,
                workload: workload.clone(),
                status: status.clone(),
                output: output.clone(),
            },
            other => {
                VmError::Refused { name, what: what.to_owned(), error: format!("it answered {other:?}") }
            }
        }
    }

    /// The last lines of the console and of QEMU's output.
    fn tail(&self) -> String {
        let mut text = String::new();
        for (title, path) in [("console", &self.files.console), ("QEMU", &self.files.stderr)] {
            let log = std::fs::read(path).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            // QEMU says of each feature of the CPU model that it can not emulate it, always.
            let noise = |line: &str| line.trim().is_empty() || line.contains("TCG doesn't support");
            let lines: Vec<&str> = log.lines().filter(|line| !noise(line)).collect();
            // A kernel panic with its call trace.
            for line in &lines[lines.len().saturating_sub(25)..] {
                text += &format!("\n  {title}: {}", line.trim_end());
            }
        }
        text
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Whether a file can be read past the page cache.
fn has_direct_io(image: &Path) -> io::Result<bool> {
    // Also tells whether it is there and may be read.
    if !File::open(image)?.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    // Flags are bits: the sign has no meaning.
    let direct = OFlags::DIRECT.bits().cast_signed();
    let has = File::options().read(true).custom_flags(direct).open(image).is_ok();
    if !has {
        tracing::warn!(
            "{} is on a file system without direct I/O: its VM reads from memory",
            image.display()
        );
    }
    Ok(has)
}

/// QEMU's arguments. `disks` are those of `config`, each with whether it has direct I/O; `control` is the guest's end of the control
/// socket.
fn arguments(
    config: &VmConfig,
    disks: &[(&DiskConfig, bool)],
    files: &Files,
    control: &OwnedFd,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: &str| arguments.extend([format!("-{option}").into(), value.into()]);
    add("name", &format!("{},debug-threads=on", config.name));
    if config.vcpus > 1 {
        // Interrupts between vCPUs are to be writes of a model-specific register, which the plugin sees:
        // x2APIC, which Linux uses only if interrupts can be remapped.
        add("machine", "q35");
        add("cpu", "EPYC,+x2apic");
        add("device", "intel-iommu,intremap=on,eim=on");
    } else {
        add("machine", "pc");
        add("cpu", "EPYC");
    }
    add("accel", "tcg,thread=multi");
    add("smp", &config.vcpus.to_string());
    add("m", &format!("{}M", config.memory_mib));
    add("display", "none");
    add("kernel", &config.kernel.to_string_lossy());
    add("initrd", &config.initrd.to_string_lossy());
    // A guest that must wait for its CPU while it boots may find that its timer does not tick, and panic: it is not to look.
    let mut parameters = "mitigations=off quiet panic=-1 no_timer_check console=ttyS0".to_owned();
    if let Some(tap) = &config.tap {
        parameters += &format!(" {IP_PARAMETER}={}/{}", tap.guest_ip, tap.prefix);
    }
    if let Some(slice) = config.time_slice {
        parameters += &format!(" {TIME_SLICE_PARAMETER}={}", slice.as_nanos());
    }
    // The guest numbers its disks as they come.
    for ((disk, _), letter) in disks.iter().zip('a'..='z') {
        parameters += &format!(" {}=vd{letter}", disk.kind.parameter());
    }
    add("append", &parameters);
    add("chardev", &format!("file,id=console,path={}", escaped(&files.console)));
    add("serial", "chardev:console");
    add("qmp", &format!("unix:{},server=on,wait=off", escaped(&files.qmp)));
    add("device", "virtio-serial-pci");
    add("chardev", &format!("socket,id=control,fd={}", control.as_raw_fd()));
    add("device", &format!("virtserialport,chardev=control,name={CONTROL_PORT}"));
    if config.reporter {
        add("chardev", &format!("socket,id=tasks,path={},server=on,wait=off", escaped(&files.reporter)));
        add("device", &format!("virtserialport,chardev=tasks,name={REPORTER_PORT}"));
    }
    if let Some(tap) = &config.tap {
        let ifname = &tap.ifname;
        add("netdev", &format!("tap,id=net,ifname={ifname},script=no,downscript=no,vhost=off"));
        // No boot ROM: it would only slow the boot.
        add("device", &format!("virtio-net-pci,netdev=net,mac={},romfile=", tap.mac));
    }
    for (number, (disk, direct)) in disks.iter().enumerate() {
        let image = escaped(&disk.image);
        let change = match disk.kind {
            DiskKind::Data => "readonly=on",
            DiskKind::Debian => "snapshot=on",
        };
        let mode = if *direct { "cache=none,aio=native" } else { "cache=writeback,aio=threads" };
        add("drive", &format!("file={image},format=raw,if=none,id=disk{number},{change},{mode}"));
        add("device", &format!("virtio-blk-pci,drive=disk{number}"));
    }
    if let Some(plugin) = &config.plugin {
        add("plugin", &escaped(plugin));
    }
    arguments.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(OsString::from));
    arguments
}

/// A path as a value in a QEMU option: commas doubled.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(run_dir: &Path, disks: Vec<DiskConfig>) -> VmConfig {
        VmConfig {
            name: "test".into(),
            vcpus: 1,
            memory_mib: 128,
            kernel: "/kernel".into(),
            initrd: "/initrd".into(),
            tap: None,
            disks,
            time_slice: None,
            reporter: false,
            plugin: None,
            cpus: Vec::new(),
            run_dir: run_dir.into(),
            cgroup_procs: Vec::new(),
        }
    }

    #[test]
    fn the_guest_is_told_its_disks_in_their_order() {
        let disk = |image: &str, kind| DiskConfig { image: image.into(), kind };
        let disks = vec![disk("/a,b.img", DiskKind::Debian), disk("/data.img", DiskKind::Data)];
        let config = config(Path::new("/run"), disks);
        let (control, _) = UnixStream::pair().unwrap();
        let disks = [(&config.disks[0], true), (&config.disks[1], false)];
        let arguments = arguments(&config, &disks, &Files::of(&config), &control.into());
        let values = |option: &str| {
            let pairs = arguments.windows(2).filter(|pair| pair[0] == option);
            pairs.map(|pair| pair[1].to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert!(values("-append")[0].ends_with(" frontdesk.debian=vda frontdesk.data=vdb"));
        let wanted = [
            "file=/a,,b.img,format=raw,if=none,id=disk0,snapshot=on,cache=none,aio=native",
            "file=/data.img,format=raw,if=none,id=disk1,readonly=on,cache=writeback,aio=threads",
        ];
        assert_eq!(values("-drive"), wanted);
        let devices = values("-device");
        assert!(
            devices.ends_with(&["virtio-blk-pci,drive=disk0".into(), "virtio-blk-pci,drive=disk1".into()])
        );
    }

    #[test]
    fn an_image_that_can_not_be_read_is_told() {
        let run_dir = tempfile::tempdir().unwrap();
        for (image, why) in
            [(run_dir.path().join("gone.img"), "No such file"), (run_dir.path().into(), "not a file")]
        {
            let disk = DiskConfig { image: image.clone(), kind: DiskKind::Data };
            let error = Vm::boot(&config(run_dir.path(), vec![disk])).unwrap_err().to_string();
            assert!(
                error.contains(&format!("disk image {}", image.display())) && error.contains(why),
                "{error}"
            );
        }
    }
}
