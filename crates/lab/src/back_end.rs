//! `frontdesk disk` as a process of its own, as an operator runs it.

use crate::command::die_with_this_thread;
use frontdesk_disk_protocol::TracedWork;
use frontdesk_engine::Time;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// It serves within this.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The back end did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum BackEndError {
    /// It could not be started.
    #[error("cannot start `frontdesk disk`: {0}")]
    Start(#[from] io::Error),
    /// It did not serve.
    #[error("`frontdesk disk` does not serve: {0}")]
    Ended(String),
}

/// A running back end. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct BackEnd {
    process: Child,
    trace: PathBuf,
}

impl BackEnd {
    /// Starts it for these VMs and images, and waits until it serves. Its sockets
    /// are in `folder`, where the daemon's is as well. It is told whether the disk has an `arm`, and runs on
    /// these CPUs.
    pub(crate) fn start<'a>(
        frontdesk: &Path,
        folder: &Path,
        images: impl Iterator<Item = (&'a String, &'a PathBuf)>,
        arm: bool,
        cpus: &[u16],
    ) -> Result<BackEnd, BackEndError> {
        let (log, trace) = (folder.join("disk.log"), folder.join("disk.trace"));
        let mut command = Command::new(frontdesk);
        command.arg("disk").arg("--socket-dir").arg(folder).arg("--daemon").arg(folder.join("control.disk"));
        command.arg("--trace").arg(&trace);
        command.args(arm.then_some("--arm"));
        for (vm, image) in images {
            command.arg("--vm").arg(format!("{vm}={}", image.display()));
        }
        // A group of its own: Ctrl-C is for the lab.
        command.stdin(Stdio::null()).stderr(File::create(&log)?).process_group(0);
        let cpus = cpus.to_vec();
        // SAFETY: between fork and exec the hook makes only a system call.
        unsafe { command.pre_exec(move || frontdesk_linux::realtime::pin(&cpus).map_err(io::Error::other)) };
        let mut back_end = BackEnd { process: die_with_this_thread(&mut command).spawn()?, trace };
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let said = std::fs::read_to_string(&log)?;
            if said.contains("serving") {
                return Ok(back_end);
            }
            if back_end.process.try_wait()?.is_some() || Instant::now() > deadline {
                return Err(BackEndError::Ended(said));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What the disk did between two points in time, but for the last tenth of a second perhaps.
    pub(crate) fn work(&self, from: Time, to: Time) -> io::Result<Vec<TracedWork>> {
        let mut all = Vec::new();
        for line in BufReader::new(File::open(&self.trace)?).lines() {
            // The last one may be half written.
            let Ok(work) = serde_json::from_str::<TracedWork>(&line?) else { break };
            if work.asked_ns >= from.0 && work.done_ns <= to.0 {
                all.push(work);
            }
        }
        Ok(all)
    }

    pub(crate) fn pid(&self) -> i32 {
        // A process id always fits.
        i32::try_from(self.process.id()).unwrap_or(i32::MAX)
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
