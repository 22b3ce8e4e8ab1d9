//! A real VM: QEMU without hardware help, and the control of what runs inside.

mod config;
mod error;
mod qemu;

pub use config::{DiskConfig, DiskKind, TapConfig, VmConfig};
pub use error::VmError;

use crate::clock::{GuestClock, host_tsc};
use frontdesk_lab_guest::{Job, LabAnswer, LabMessage, LabRequest, Measurement, Op, Work, WorkloadReport};
use qemu::{Files, arguments, has_direct_io};
use rustix::io::FdFlags;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program that runs a VM, found in `PATH`.
const QEMU: &str = "qemu-system-x86_64";

/// A guest says no more at once: a full report takes 2 MiB.
const MAX_MESSAGE: usize = 8 << 20;

/// How long the guest may take for a request that is not a piece of work. Beside busy VMs it is not fast.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A running VM. Dropping it kills it.
#[derive(Debug)]
pub struct RunningVm {
    name: String,
    files: Files,
    qemu: Child,
    control: UnixStream,
    received: Vec<u8>,
    last_id: u64,
    clock: GuestClock,
}

impl RunningVm {
    /// Starts QEMU; does not wait for the guest.
    ///
    /// QEMU is killed when the *thread* that called this ends, however it ends, so that no VM outlives the
    /// lab: call it from a thread that stays.
    ///
    /// # Errors
    /// [`VmError::Setup`] if QEMU cannot be started. What QEMU itself refuses shows in
    /// [`wait_ready`](Self::wait_ready).
    pub fn boot(config: &VmConfig) -> Result<RunningVm, VmError> {
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
        Ok(RunningVm {
            name: config.name.clone(),
            files,
            qemu,
            control,
            received: Vec::new(),
            last_id: 0,
            clock,
        })
    }

    /// Waits until the guest takes requests, at most `timeout`, and returns the release of its kernel.
    ///
    /// # Errors
    /// [`VmError`] if QEMU or the guest fails, or the time is over.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<String, VmError> {
        match self.receive("become ready", timeout)? {
            LabMessage::Ready { kernel } => Ok(kernel),
            other => Err(self.unexpected("become ready", &other)),
        }
    }

    /// Starts a workload, or another job, and waits until it is ready to do its work.
    ///
    /// # Errors
    /// [`VmError`] if the guest refuses or fails.
    pub fn start(&mut self, name: &str, job: impl Into<Job>) -> Result<(), VmError> {
        self.request(Op::Start { name: name.to_owned(), job: job.into() }, REQUEST_TIMEOUT).map(drop)
    }

    /// Kills a workload and waits until it is gone.
    ///
    /// # Errors
    /// [`VmError`] if no such workload runs or the guest fails.
    pub fn stop(&mut self, name: &str) -> Result<(), VmError> {
        self.request(Op::Stop { name: name.to_owned() }, REQUEST_TIMEOUT).map(drop)
    }

    /// Gives all threads of a workload this nice value, -20 to 19.
    ///
    /// # Errors
    /// [`VmError`] if no such workload runs or the guest fails.
    pub fn set_nice(&mut self, name: &str, nice: i8) -> Result<(), VmError> {
        self.request(Op::Nice { name: name.to_owned(), nice }, REQUEST_TIMEOUT).map(drop)
    }

    /// Does a piece of work in the guest, which may take `timeout`, and returns what it took.
    ///
    /// # Errors
    /// [`VmError`] if the work or the guest fails, or the time is over.
    pub fn run(&mut self, work: Work, timeout: Duration) -> Result<Measurement, VmError> {
        match self.request(Op::Run { work }, timeout)? {
            LabAnswer::Measurement(measurement) => Ok(measurement),
            other => Err(self.senseless(&format!("run {work:?}"), &other)),
        }
    }

    /// What a workload has done since it was started, and its stamps since the last report.
    ///
    /// # Errors
    /// [`VmError`] if no such workload runs or the guest fails.
    pub fn report(&mut self, name: &str) -> Result<WorkloadReport, VmError> {
        match self.request(Op::Report { name: name.to_owned() }, REQUEST_TIMEOUT)? {
            LabAnswer::Report(report) => Ok(report),
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
            LabAnswer::Clock(guest) => {
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

    /// The socket of its VNC server, if it is a desktop.
    #[must_use]
    pub fn vnc(&self) -> &Path {
        &self.files.vnc
    }

    /// The socket of its keyboard, if it has one.
    pub(crate) fn keyboard(&self) -> &Path {
        &self.files.keyboard
    }

    /// The file that takes what the guest prints on its serial console.
    #[must_use]
    pub fn console(&self) -> &Path {
        &self.files.console
    }

    /// Ends the VM at once.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
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

    fn request(&mut self, op: Op, timeout: Duration) -> Result<LabAnswer, VmError> {
        let what = format!("do {op:?}");
        self.last_id += 1;
        let request = LabRequest { id: self.last_id, op };
        let sent = serde_json::to_string(&request)
            .map_err(io::Error::from)
            .and_then(|line| self.control.write_all(format!("{line}\n").as_bytes()));
        match sent {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(self.ended(&what)),
            sent => sent.map_err(|source| self.setup(&what, source))?,
        }
        match self.receive(&what, timeout)? {
            LabMessage::Done { id, answer } if id == self.last_id => Ok(answer),
            LabMessage::Failed { id, error } if id == self.last_id => {
                Err(VmError::Refused { name: self.name.clone(), what, error })
            }
            other => Err(self.unexpected(&what, &other)),
        }
    }

    /// The next message, which is the answer to `what` unless a workload ended.
    fn receive(&mut self, what: &str, timeout: Duration) -> Result<LabMessage, VmError> {
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
                return Err(self.stuck(what, timeout));
            }
            let mut buffer = [0; 4096];
            let read =
                self.control.set_read_timeout(Some(left)).and_then(|()| self.control.read(&mut buffer));
            match read {
                Ok(0) => return Err(self.ended(what)),
                Ok(_) if self.received.len() > MAX_MESSAGE => {
                    let source = io::Error::new(io::ErrorKind::InvalidData, "a message without end");
                    return Err(self.setup(what, source));
                }
                Ok(length) => self.received.extend_from_slice(&buffer[..length]),
                // The deadline is checked above.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(self.ended(what)),
                Err(source) => return Err(self.setup(what, source)),
            }
        }
    }

    fn senseless(&self, what: &str, answer: &LabAnswer) -> VmError {
        let (name, what) = (self.name.clone(), what.to_owned());
        VmError::Refused { name, what, error: format!("it answered {answer:?}") }
    }

    fn setup(&self, what: &str, source: io::Error) -> VmError {
        VmError::Setup { name: self.name.clone(), what: what.to_owned(), source }
    }

    /// It did not do what it was to do in this time.
    pub(crate) fn stuck(&self, what: &str, timeout: Duration) -> VmError {
        VmError::Timeout { name: self.name.clone(), what: what.to_owned(), timeout, tail: self.tail() }
    }

    /// QEMU has ended, or closed its end of the control socket, before that.
    pub(crate) fn ended(&mut self, what: &str) -> VmError {
        // It closes it shortly before it ends.
        let status = self.qemu.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        VmError::Ended { name: self.name.clone(), what: what.to_owned(), status, tail: self.tail() }
    }

    fn unexpected(&self, what: &str, message: &LabMessage) -> VmError {
        let name = self.name.clone();
        match message {
            LabMessage::Exited { name: workload, status, output } => VmError::WorkloadEnded {
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
            // QEMU says of each feature of the CPU model that it cannot emulate it, always.
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

impl Drop for RunningVm {
    fn drop(&mut self) {
        self.kill();
    }
}
