//! Process 1 of a lab VM. It sleeps unless there is something to do, so that it does not disturb what is
//! measured.

use crate::network::{self, NetworkError};
use crate::workload::READY;
use frontdesk_lab_guest::{
    CONTROL_PORT, IP_PARAMETER, MODULES, MODULES_ORDER, Measurement, Message, Op, Request,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, pidfd_send_signal, waitid,
};
use rustix::system::{RebootCommand, finit_module, reboot, uname};
use std::fs::File;
use std::io::{self, PipeReader, Read, Write, pipe};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why init gives up. The VM powers off after one of these.
#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("kernel parameter {IP_PARAMETER}={0}: must be ADDRESS/PREFIX, like 10.77.0.2/24")]
    Address(String),
    #[error("no virtio-serial port is called {CONTROL_PORT}: is the device there?")]
    NoControlPort,
    #[error("unknown request {line:?}: {source}")]
    Request { line: String, source: serde_json::Error },
}

fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> InitError {
    move |source| InitError::Io { what: what.into(), source: source.into() }
}

/// Init's life.
pub(crate) fn main() -> ! {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("init: {panic}");
        power_off();
    }));
    if let Err(error) = run() {
        eprintln!("init: {error}");
    }
    power_off()
}

fn power_off() -> ! {
    // If even that fails, the end of process 1 panics the kernel, which the host sees.
    let _ = reboot(RebootCommand::PowerOff);
    std::process::exit(1)
}

fn run() -> Result<(), InitError> {
    for (kind, target) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/tmp")] {
        // It may be in the initramfs.
        let _ = rustix::fs::mkdir(target, Mode::from(0o755));
        match mount(kind, target, kind, MountFlags::empty(), None) {
            // The kernel may have mounted devtmpfs.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => return Err(failed(format!("mounting {target}"))(error)),
        }
    }
    load_modules()?;
    network::up("lo", None)?;
    if let Some(address) = address_parameter()? {
        network::up("eth0", Some(address))?;
    }
    let port = control_port()?;
    let control =
        File::options().read(true).write(true).open(&port).map_err(failed(port.display().to_string()))?;
    Init { control, children: Vec::new() }.serve()
}

fn load_modules() -> Result<(), InitError> {
    let folder = Path::new(MODULES);
    let order = std::fs::read_to_string(folder.join(MODULES_ORDER)).map_err(failed("the list of modules"))?;
    for name in order.lines() {
        let file = File::open(folder.join(name)).map_err(failed(format!("module {name}")))?;
        finit_module(file, c"", 0).map_err(failed(format!("loading module {name}")))?;
    }
    Ok(())
}

fn address_parameter() -> Result<Option<(Ipv4Addr, u8)>, InitError> {
    let cmdline = std::fs::read_to_string("/proc/cmdline").map_err(failed("the kernel's parameters"))?;
    let value =
        cmdline.split_whitespace().find_map(|word| word.strip_prefix(IP_PARAMETER)?.strip_prefix('='));
    let Some(value) = value else { return Ok(None) };
    value
        .split_once('/')
        .and_then(|(address, prefix)| Some((address.parse().ok()?, prefix.parse().ok()?)))
        .filter(|(_, prefix)| *prefix <= 32)
        .map(Some)
        .ok_or_else(|| InitError::Address(value.to_owned()))
}

fn control_port() -> Result<PathBuf, InitError> {
    let ports =
        std::fs::read_dir("/sys/class/virtio-ports").map_err(failed("looking for virtio-serial ports"))?;
    for port in ports.flatten() {
        if std::fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == CONTROL_PORT) {
            return Ok(Path::new("/dev").join(port.file_name()));
        }
    }
    Err(InitError::NoControlPort)
}

/// A process that init started.
struct Child {
    purpose: Purpose,
    pidfd: OwnedFd,
    /// Both its output streams, read when it has ended: our programs print no more than the pipe holds.
    output: PipeReader,
}

enum Purpose {
    Workload { name: String },
    Work { request: u64 },
}

impl Child {
    /// Starts this program as `workload JSON` or `work JSON` and waits until it is ready.
    fn start(purpose: Purpose, role: &str, what: &impl serde::Serialize) -> Result<Child, String> {
        let json = serde_json::to_string(what).map_err(|error| error.to_string())?;
        let started = (|| {
            let (output, output_end) = pipe()?;
            let child = Command::new("/proc/self/exe")
                .args([role, &json])
                .stdout(output_end.try_clone()?)
                .stderr(output_end)
                .spawn()?;
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
            Ok(Child { purpose, pidfd, output })
        })();
        let mut child = started.map_err(|error: io::Error| format!("can not start it: {error}"))?;
        let mut line = [0; READY.len() + 1];
        if child.output.read_exact(&mut line).is_ok() && line.starts_with(READY.as_bytes()) {
            return Ok(child);
        }
        let status = child.kill().map_err(|error| error.to_string())?;
        let begin = String::from_utf8_lossy(&line);
        Err(format!("it did not start ({status}): {}{}", begin.trim_matches('\0'), child.rest()))
    }

    /// What it printed, after its end.
    fn rest(&mut self) -> String {
        let mut output = Vec::new();
        // What can be read will do.
        let _ = self.output.read_to_end(&mut output);
        String::from_utf8_lossy(&output).trim_end().to_owned()
    }

    /// Kills it, waits for its end and says how it ended.
    fn kill(&mut self) -> io::Result<String> {
        pidfd_send_signal(&self.pidfd, Signal::KILL)?;
        self.wait()
    }

    /// Waits for its end and says how it ended.
    fn wait(&mut self) -> io::Result<String> {
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        Ok(status.map_or_else(String::new, |status| describe(&status)))
    }
}

fn describe(status: &WaitIdStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown end".to_owned(),
    }
}

struct Init {
    control: File,
    children: Vec<Child>,
}

impl Init {
    fn serve(mut self) -> Result<(), InitError> {
        let kernel = uname().release().to_string_lossy().into_owned();
        self.say(&Message::Ready { kernel })?;
        let mut received = Vec::new();
        loop {
            let mut fds = vec![PollFd::new(&self.control, PollFlags::IN)];
            fds.extend(self.children.iter().map(|child| PollFd::new(&child.pidfd, PollFlags::IN)));
            poll(&mut fds, None).map_err(failed("poll"))?;
            let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();

            for index in (0..self.children.len()).rev() {
                if !events[1 + index].is_empty() {
                    let child = self.children.remove(index);
                    self.ended(child)?;
                }
            }
            if !events[0].is_empty() {
                let mut buffer = [0; 4096];
                let length = self.control.read(&mut buffer).map_err(failed("reading requests"))?;
                if length == 0 {
                    // The lab is gone, and with it the reason to run.
                    return Ok(());
                }
                received.extend_from_slice(&buffer[..length]);
                while let Some(end) = received.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = received.drain(..=end).collect();
                    let request = serde_json::from_slice(&line).map_err(|source| InitError::Request {
                        line: String::from_utf8_lossy(&line).into_owned(),
                        source,
                    })?;
                    self.answer(request)?;
                }
            }
        }
    }

    fn say(&mut self, message: &Message) -> Result<(), InitError> {
        let mut line = serde_json::to_vec(message).map_err(failed("a message"))?;
        line.push(b'\n');
        self.control.write_all(&line).map_err(failed("answering"))
    }

    fn answer(&mut self, Request { id, op }: Request) -> Result<(), InitError> {
        let result = match op {
            Op::Start { name, .. } if self.workload(&name).is_some() => {
                Err(format!("a workload called {name} runs already"))
            }
            Op::Start { name, workload } => Child::start(Purpose::Workload { name }, "workload", &workload)
                .map(|child| self.children.push(child)),
            Op::Stop { name } => match self.workload(&name) {
                Some(index) => {
                    self.children.remove(index).kill().map(drop).map_err(|error| error.to_string())
                }
                None => Err(format!("no workload called {name} runs")),
            },
            Op::Run { work } => match Child::start(Purpose::Work { request: id }, "work", &work) {
                Ok(child) => {
                    self.children.push(child);
                    // Answered when it ends.
                    return Ok(());
                }
                Err(error) => Err(error),
            },
            Op::Ping => Ok(()),
            Op::Shutdown => {
                self.say(&Message::Done { id, measurement: None })?;
                power_off();
            }
        };
        self.say(&match result {
            Ok(()) => Message::Done { id, measurement: None },
            Err(error) => Message::Failed { id, error },
        })
    }

    fn workload(&self, wanted: &str) -> Option<usize> {
        self.children
            .iter()
            .position(|child| matches!(&child.purpose, Purpose::Workload { name } if name == wanted))
    }

    /// Reports a child that ended by itself.
    fn ended(&mut self, mut child: Child) -> Result<(), InitError> {
        let status = child.wait().map_err(failed("waiting for a child"))?;
        let output = child.rest();
        let message = match child.purpose {
            Purpose::Workload { name } => Message::Exited { name, status, output },
            Purpose::Work { request: id } => match serde_json::from_str::<Measurement>(&output) {
                Ok(measurement) => Message::Done { id, measurement: Some(measurement) },
                Err(_) => Message::Failed { id, error: format!("the work failed ({status}): {output}") },
            },
        };
        self.say(&message)
    }
}
