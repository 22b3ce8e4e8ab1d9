//! The virtio-serial port to the host.

use frontdesk_guest_protocol::{Decoder, HostMessage, MAGIC, PORT_NAME};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Why the port cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    #[error(
        "there is no {path}: give the VM the port, for example with the QEMU options `-device virtio-serial \
         -chardev socket,id=tasks,path=/run/NAME.tasks,server=on,wait=off -device virtserialport,chardev=tasks,name={PORT_NAME}`, \
         or load the module virtio_console; without udev, give the port's device, /dev/vportNpM, with --port"
    )]
    Missing { path: PathBuf },
    #[error("{path} is in use: another reporter runs already")]
    Busy { path: PathBuf },
    #[error("not allowed to open {path}: run as root")]
    Denied { path: PathBuf },
    #[error("{path}: {what}: {source}")]
    Io { path: PathBuf, what: &'static str, source: io::Error },
}

/// The port, open.
pub(crate) struct Port {
    path: PathBuf,
    device: OwnedFd,
    decoder: Decoder,
}

impl Port {
    /// Opens it.
    pub(crate) fn open(path: &Path) -> Result<Port, PortError> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let path = path.to_owned();
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(device) => Ok(Port { path, device, decoder: Decoder::default() }),
            Err(Errno::NOENT | Errno::NXIO) => Err(PortError::Missing { path }),
            Err(Errno::BUSY) => Err(PortError::Busy { path }),
            Err(Errno::ACCESS | Errno::PERM) => Err(PortError::Denied { path }),
            Err(error) => Err(PortError::Io { path, what: "opening it", source: error.into() }),
        }
    }

    fn failed(&self, what: &'static str, error: Errno) -> PortError {
        // The port is gone when its device is unplugged.
        match error {
            Errno::NODEV => PortError::Missing { path: self.path.clone() },
            _ => PortError::Io { path: self.path.clone(), what, source: error.into() },
        }
    }

    /// Whether somebody listens.
    pub(crate) fn has_host(&self) -> Result<bool, PortError> {
        let mut fds = [PollFd::new(&self.device, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).map_err(|error| self.failed("waiting", error))?;
        Ok(!fds[0].revents().contains(PollFlags::HUP))
    }

    /// Reads what the host says; whether it asks to begin. `Ok(None)`: nobody is there.
    pub(crate) fn read(&mut self) -> Result<Option<bool>, PortError> {
        let mut begin = false;
        let mut buffer = [0; 256];
        match rustix::io::read(&self.device, &mut buffer) {
            Ok(0) => return Ok(None),
            Ok(length) => self.decoder.feed(&buffer[..length], |request| {
                // To a host of another version this one tells its own, and the host decides.
                begin |= matches!(request, Some(HostMessage::Start { magic: MAGIC, .. }));
            }),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(self.failed("reading", error)),
        }
        Ok(Some(begin))
    }

    /// Sends a report; whether it was taken, as a whole.
    pub(crate) fn write(&self, report: &[u8]) -> Result<bool, PortError> {
        match rustix::io::write(&self.device, report) {
            Ok(length) => Ok(length == report.len()),
            // The host does not read, or has gone, which the next poll tells.
            Err(Errno::AGAIN | Errno::INTR | Errno::PIPE) => Ok(false),
            Err(error) => Err(self.failed("writing", error)),
        }
    }
}
