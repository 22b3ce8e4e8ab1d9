//! The virtio-serial port to the host.

use crate::isolation::EpisodeOrder;
use frontdesk_guest_protocol::{Decoder, HostMessage, MAGIC, MAX_BACKGROUND, PORT_NAME};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    /// Background tasks that the host told since the last episode.
    told: BTreeSet<u32>,
}

/// What the host wants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// That all begins anew.
    pub(crate) begin: bool,
    /// That reports come no more often.
    pub(crate) interval: Option<Duration>,
    /// That an episode begins, or (`None`) that none goes on.
    pub(crate) episode: Option<Option<EpisodeOrder>>,
}

impl Wanted {
    /// Takes a message, or `None` for what is none.
    fn take(&mut self, request: Option<HostMessage>, told: &mut BTreeSet<u32>) {
        match request {
            // To a host of another version this one tells its own, and the host decides.
            Some(HostMessage::Start { magic: MAGIC, .. }) => {
                (self.begin, self.episode) = (true, Some(None));
                // At once, unless it says otherwise right after.
                self.interval = Some(Duration::ZERO);
                told.clear();
            }
            Some(HostMessage::Pace { interval_ms }) => {
                self.interval = Some(Duration::from_millis(interval_ms.into()));
            }
            Some(HostMessage::Background { task }) => {
                if told.len() < MAX_BACKGROUND {
                    told.insert(task);
                }
            }
            Some(HostMessage::Episode { left_ms, tasks, sound }) => {
                let told = std::mem::take(told);
                if told.len() == usize::from(tasks) {
                    let left = Duration::from_millis(left_ms.into());
                    self.episode = Some(Some(EpisodeOrder { tasks: told, left, sound }));
                }
            }
            Some(HostMessage::EpisodeOver) => self.episode = Some(None),
            Some(HostMessage::Start { .. }) | None => {}
        }
    }
}

/// Readable when the host says something, and when it goes.
impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Port {
    /// Opens it.
    pub(crate) fn open(path: &Path) -> Result<Port, PortError> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let path = path.to_owned();
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(device) => Ok(Port { path, device, decoder: Decoder::default(), told: BTreeSet::new() }),
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

    /// Reads what the host says. `Ok(None)`: nobody is there.
    pub(crate) fn read(&mut self) -> Result<Option<Wanted>, PortError> {
        let mut wanted = Wanted::default();
        let mut buffer = [0; 256];
        match rustix::io::read(&self.device, &mut buffer) {
            Ok(0) => return Ok(None),
            Ok(length) => {
                let told = &mut self.told;
                self.decoder.feed(&buffer[..length], |request| wanted.take(request, told));
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(self.failed("reading", error)),
        }
        Ok(Some(wanted))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn episode(wanted: &Wanted) -> Option<Option<Vec<u32>>> {
        let order = wanted.episode.as_ref()?;
        Some(order.as_ref().map(|order| order.tasks.iter().copied().collect()))
    }

    #[test]
    fn an_episode_has_the_tasks_that_were_told_or_is_none() {
        let (mut wanted, mut told) = (Wanted::default(), BTreeSet::new());
        let mut take = |message| {
            wanted.take(Some(message), &mut told);
            episode(&wanted)
        };
        let begin = |tasks| HostMessage::Episode { left_ms: 100, tasks, sound: false };
        assert_eq!(take(HostMessage::Background { task: 7 }), None);
        assert_eq!(take(HostMessage::Background { task: 8 }), None);
        assert_eq!(take(begin(2)), Some(Some(vec![7, 8])));
        // Of another one a part was lost.
        take(HostMessage::Background { task: 9 });
        assert_eq!(take(begin(2)), Some(Some(vec![7, 8])));
        assert_eq!(take(HostMessage::EpisodeOver), Some(None));
        (0..1000).for_each(|task| {
            take(HostMessage::Background { task });
        });
        assert_eq!(take(begin(255)), Some(None), "more than there may be");
        take(HostMessage::Background { task: 9 });
        assert_eq!(take(begin(1)), Some(Some(vec![9])));
        // Whoever listens anew knows of none.
        assert_eq!(take(HostMessage::start()), Some(None));
    }
}
