//! A slow disk for all VMs of a run: a model behind a block device of this machine, so that the kernel's
//! schedulers, QEMU and `frontdesk disk` all meet the same one.
//!
//! A process of its own serves a FUSE file, over which it has a loop device. Whatever ends, the kernel takes
//! both back: the file is mounted where only that process sees it, and the loop device is gone when nobody
//! has it open.

mod device;
mod model;
mod protocol;
mod serve;

pub use serve::{SLOW_DISK_ARGUMENT, serve};

use crate::command::die_with_this_thread;
use frontdesk_guardian::Guardian;
use frontdesk_scenario::{ArmDisk, DiskModel, DiskServed};
use protocol::{REPORT, Serving, Setup};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A disk that does not answer the lab for so long is ended: whoever waits for it could not even be killed.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked.
const LOOK: Duration = Duration::from_secs(1);

/// There is no slow disk.
#[derive(Debug, thiserror::Error)]
pub enum SlowDiskError {
    /// Its process could not be started.
    #[error("cannot start the process that is the modelled disk: {0}")]
    Start(io::Error),
    /// Its process is not able to serve it.
    #[error(
        "the modelled disk is not there: {0}. It needs root, FUSE (`modprobe fuse`), loop devices \
         (`modprobe loop`) and `addpart` (tools/setup.sh vms)"
    )]
    Failed(String),
    /// Its process does not answer any more, or has ended.
    #[error("the modelled disk ended, or did not answer within {PATIENCE:?}")]
    Gone,
    /// The kernel does not schedule it as it should.
    #[error(
        "the modelled disk cannot be scheduled by {scheduler}: {source} (modprobe {scheduler}-iosched, modprobe bfq)"
    )]
    Scheduler {
        /// The scheduler.
        scheduler: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// A slow disk. Dropping it ends it; who still has it open gets errors from then on.
#[derive(Debug)]
pub struct SlowDisk {
    child: Child,
    pipes: Arc<Mutex<Pipes>>,
    device: PathBuf,
    partitions: Vec<PathBuf>,
    has_arm: bool,
    watchdog: Option<(Sender<()>, JoinHandle<()>)>,
}

#[derive(Debug)]
struct Pipes {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl SlowDisk {
    /// Starts a disk that has these images, one after the other. It ends when the *thread* that called this
    /// ends, however it ends.
    ///
    /// `program` is frontdesk itself, `folder` one that exists, and `cpus` are those that the disk uses.
    ///
    /// # Errors
    /// [`SlowDiskError`] says what this machine lacks.
    pub fn start(
        program: &Path,
        model: DiskModel,
        images: &[PathBuf],
        folder: &Path,
        cpus: &[u16],
    ) -> Result<SlowDisk, SlowDiskError> {
        let setup = Setup { model, images: images.to_vec(), folder: folder.to_owned(), cpus: cpus.to_vec() };
        let setup = serde_json::to_string(&setup).map_err(|error| SlowDiskError::Start(error.into()))?;
        let mut command = Command::new(program);
        command.arg(SLOW_DISK_ARGUMENT).arg(setup);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = die_with_this_thread(&mut command).spawn().map_err(SlowDiskError::Start)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(SlowDiskError::Gone);
        };
        let mut from = BufReader::new(from);
        let mut line = String::new();
        let heard = from.read_line(&mut line).and_then(|_| Ok(serde_json::from_str::<Serving>(&line)?));
        let Ok(Serving { device, partitions }) = heard else {
            drop(to);
            let said = child.wait_with_output().map(|of| String::from_utf8_lossy(&of.stderr).into_owned());
            let said = said.unwrap_or_else(|error| error.to_string());
            return Err(SlowDiskError::Failed(said.trim().to_owned()));
        };
        let pipes = Arc::new(Mutex::new(Pipes { to, from }));
        let watchdog = Some(watch(child.id(), Arc::clone(&pipes)));
        Ok(SlowDisk { child, pipes, device, partitions, has_arm: model.has_arm(), watchdog })
    }

    /// The partitions with the images, in their order.
    #[must_use]
    pub fn partitions(&self) -> &[PathBuf] {
        &self.partitions
    }

    /// The whole device.
    #[must_use]
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Process id of what serves it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        // A process id always fits.
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }

    /// Has the kernel schedule it as an arm says, until the guardian puts that back.
    ///
    /// # Errors
    /// [`SlowDiskError::Scheduler`] if the kernel refuses.
    pub fn schedule(&self, disk: &ArmDisk, guardian: &Guardian) -> Result<(), SlowDiskError> {
        device::schedule(&self.device, disk, self.has_arm, guardian)
            .map_err(|source| SlowDiskError::Scheduler { scheduler: disk.scheduler.name(), source })
    }

    /// What it did since the last report.
    ///
    /// # Errors
    /// [`SlowDiskError::Gone`] if it does not answer.
    pub fn report(&self) -> Result<DiskServed, SlowDiskError> {
        let line = self.pipes.lock().unwrap_or_else(PoisonError::into_inner).ask(REPORT);
        let report = line.and_then(|line| Ok(serde_json::from_str(&line)?));
        report.map_err(|_| SlowDiskError::Gone)
    }
}

impl Pipes {
    /// The answer to a line.
    fn ask(&mut self, line: &str) -> io::Result<String> {
        writeln!(self.to, "{line}")?;
        let mut fds = [PollFd::new(self.from.get_ref(), PollFlags::IN)];
        let patience = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
        if poll(&mut fds, Some(&patience))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut answer = String::new();
        match self.from.read_line(&mut answer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer),
        }
    }
}

/// Ends the disk's process when it does not answer, until the sender is dropped.
fn watch(process: u32, pipes: Arc<Mutex<Pipes>>) -> (Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = channel();
    let thread = std::thread::spawn(move || {
        while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            if pipes.lock().unwrap_or_else(PoisonError::into_inner).ask("").is_err() {
                // Not waited for yet: the number is still its own.
                let process = i32::try_from(process).ok().and_then(Pid::from_raw);
                process.map(|process| kill_process(process, Signal::KILL));
                return;
            }
        }
    });
    (stop, thread)
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.watchdog.take() {
            drop(stop);
            // It does not panic.
            let _ = thread.join();
        }
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
