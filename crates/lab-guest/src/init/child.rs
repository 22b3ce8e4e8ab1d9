//! A process that init started, and all that it started in turn.

use super::boot::{GROUPS, RUN};
use crate::report::Records;
use crate::workload::process::{READY, describe};
use crate::workload::{JOB, WORK};
use frontdesk_lab_guest::{Job, Work, WorkloadReport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open, setpriority_process, waitpid};
use std::fs::{self, File};
use std::io::{self, ErrorKind, PipeReader, Read, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How long a child that did not start may take to end, and one that was killed.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// What a child is for.
pub(super) enum Purpose {
    Job { name: String, job: Job },
    Work { request: u64, work: Work },
}

/// A process that init started.
pub(super) struct Child {
    purpose: Purpose,
    pid: Pid,
    pidfd: OwnedFd,
    /// Set if it is known already.
    status: Option<WaitStatus>,
    /// Both its output streams, read when it has ended: our programs print no more than the pipe holds.
    output: PipeReader,
    group: WorkloadGroup,
    records: Records,
}

impl Child {
    /// Starts this program and waits until it is ready. `number` is one that no child had before.
    pub(super) fn start(number: u64, purpose: Purpose) -> Result<Child, String> {
        let path = PathBuf::from(format!("{RUN}/{number}"));
        let mut child =
            Child::spawn(number, &path, purpose).map_err(|error| format!("cannot start it: {error}"))?;
        let mut line = [0; READY.len() + 1];
        let is_ready = child.output.read_exact(&mut line).is_ok() && line.starts_with(READY.as_bytes());
        // Who needs the file has opened it by now.
        let _ = fs::remove_file(&path);
        if is_ready {
            return Ok(child);
        }
        // It is about to end by itself, which tells more than if it is killed.
        let _ = poll(&mut [PollFd::new(&child.pidfd, PollFlags::IN)], Some(&PATIENCE));
        let status = child.stop().map_err(|error| error.to_string())?;
        let begin = String::from_utf8_lossy(&line);
        Err(format!("it did not start ({status}): {}{}", begin.trim_matches('\0'), child.output()))
    }

    fn spawn(number: u64, path: &Path, purpose: Purpose) -> io::Result<Child> {
        let (role, json) = match &purpose {
            Purpose::Job { job, .. } => (JOB, serde_json::to_string(job)?),
            Purpose::Work { work, .. } => (WORK, serde_json::to_string(work)?),
        };
        let records = Records::create(path)?;
        let group = WorkloadGroup::create(number)?;
        let (output, output_end) = pipe()?;
        let process = Command::new("/proc/self/exe")
            .args([role, &json])
            .args([path, &group.file("procs")])
            .stdout(output_end.try_clone()?)
            .stderr(output_end)
            .spawn()?;
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Child { purpose, pid, pidfd, status: None, output, group, records })
    }

    pub(super) fn purpose(&self) -> &Purpose {
        &self.purpose
    }

    pub(super) fn into_purpose(self) -> Purpose {
        self.purpose
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Can be read when it has ended.
    pub(super) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Keeps how it ended, which can be asked only once.
    pub(super) fn has_ended(&mut self, status: WaitStatus) {
        self.status = Some(status);
    }

    /// What it recorded since the last report.
    pub(super) fn report(&mut self) -> io::Result<WorkloadReport> {
        self.records.take()
    }

    /// Kills it, if it has not ended, and all that it started; waits until they are gone and says how it
    /// ended.
    pub(super) fn stop(&mut self) -> io::Result<String> {
        self.group.kill()?;
        let status = match self.status {
            Some(status) => Some(status),
            None => waitpid(Some(self.pid), WaitOptions::empty())?.map(|(_, status)| status),
        };
        Ok(status.map_or_else(String::new, describe))
    }

    /// Gives all its threads, and those of all that it started, this nice value.
    pub(super) fn set_nice(&self, nice: i8) -> io::Result<()> {
        self.group.set_nice(nice)
    }

    /// What it printed, after its end.
    pub(super) fn output(&mut self) -> String {
        let mut output = Vec::new();
        // What can be read will do.
        let _ = self.output.read_to_end(&mut output);
        String::from_utf8_lossy(&output).trim_end().to_owned()
    }
}

/// A control group: a process and all its descendants, whatever they do to become independent.
struct WorkloadGroup(PathBuf);

impl WorkloadGroup {
    fn create(number: u64) -> io::Result<WorkloadGroup> {
        let folder = PathBuf::from(format!("{GROUPS}/{number}"));
        fs::create_dir(&folder)?;
        Ok(WorkloadGroup(folder))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("cgroup.{name}"))
    }

    fn set_nice(&self, nice: i8) -> io::Result<()> {
        for thread in fs::read_to_string(self.file("threads"))?.lines() {
            match setpriority_process(thread.parse().ok().and_then(Pid::from_raw), nice.into()) {
                // It has ended.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Kills all processes and waits until they are gone. They are stopped first: Linux kills one after the
    /// other, and none may do something about the end of another.
    fn kill(&self) -> io::Result<()> {
        fs::write(self.file("freeze"), "1")?;
        fs::write(self.file("kill"), "1")?;
        let events = File::open(self.file("events"))?;
        loop {
            let mut text = [0; 256];
            let length = events.read_at(&mut text, 0)?;
            if String::from_utf8_lossy(&text[..length]).contains("populated 0") {
                return Ok(());
            }
            // Linux tells of each change after the last read.
            if poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&PATIENCE))? == 0 {
                let seconds = PATIENCE.tv_sec;
                let message = format!("it was killed but is still there after {seconds} s");
                return Err(io::Error::new(ErrorKind::TimedOut, message));
            }
        }
    }
}

impl Drop for WorkloadGroup {
    fn drop(&mut self) {
        // One that is left disturbs nobody.
        let _ = fs::remove_dir(&self.0);
    }
}
