//! Programs of the Debian system. The workload's own process looks after the program.

use super::process::{WorkloadError, describe, failed, ready};
use crate::report::ReportRecorder;
use frontdesk_lab_guest::{DEBIAN, StampKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::process::{
    Pid, PidfdFlags, WaitOptions, WaitStatus, chroot, getpid, pidfd_open, set_child_subreaper, wait,
};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long a server has to show that it does not end at once.
const PROOF: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// Runs a program again and again.
pub(super) fn repeat(
    command: &[String],
    cold: bool,
    mut recorder: ReportRecorder,
) -> Result<Infallible, WorkloadError> {
    let program = Program::new(command, cold)?;
    ready();
    loop {
        program.drop_caches()?;
        recorder.stamp(StampKind::Begin)?;
        let status = wait_for(program.start()?)?;
        if status.exit_status() != Some(0) {
            return Err(program.ended("failed", status));
        }
        recorder.stamp(StampKind::End)?;
        recorder.count(1, 0)?;
    }
}

/// Runs a program that does not end by itself.
pub(super) fn keep(command: &[String], cold: bool) -> Result<Infallible, WorkloadError> {
    let program = Program::new(command, cold)?;
    program.drop_caches()?;
    let pid = program.start()?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    if poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&PROOF))? == 0 {
        ready();
    }
    let status = wait_for(pid)?;
    Err(program.ended("ended, which a server must not do", status))
}

/// Makes the Debian system the root of this process, for a program.
pub(super) fn enter_debian(program: &str) -> Result<(), WorkloadError> {
    let debian = Path::new(DEBIAN);
    if !debian.join("usr").is_dir() {
        return Err(
            format!("there is no Debian system at {DEBIAN}: {program} needs a VM that has one").into()
        );
    }
    chroot(debian).map_err(failed(format!("making {DEBIAN} the root")))?;
    Ok(std::env::set_current_dir("/").map_err(failed(format!("entering {DEBIAN}")))?)
}

/// A program that can be run.
struct Program<'a> {
    name: &'a str,
    arguments: &'a [String],
    /// Where to write to drop the page cache, if it is to be dropped.
    caches: Option<File>,
    output: Arc<Output>,
    output_end: PipeWriter,
}

impl Program<'_> {
    /// Makes the Debian system the root of this process and looks for the program.
    fn new(command: &[String], cold: bool) -> Result<Program<'_>, WorkloadError> {
        let [name, arguments @ ..] = command else {
            return Err("the command of the program is empty".into());
        };
        // Here, because the Debian system may be without /proc.
        let caches = cold
            .then(|| File::options().write(true).open("/proc/sys/vm/drop_caches"))
            .transpose()
            .map_err(failed("/proc/sys/vm/drop_caches"))?;
        enter_debian(name)?;
        if !exists(name) {
            return Err(format!("not found in the Debian system: {name}").into());
        }
        // What the program leaves behind becomes a child of this process, which cleans up after it.
        set_child_subreaper(Some(getpid()))?;
        let (pipe, output_end) = pipe()?;
        let output = Output::keep(pipe)?;
        Ok(Program { name, arguments, caches, output, output_end })
    }

    fn drop_caches(&self) -> Result<(), String> {
        let Some(mut caches) = self.caches.as_ref() else { return Ok(()) };
        // Only what is on disk can be dropped.
        rustix::fs::sync();
        caches.write_all(b"3").map_err(failed("dropping the page cache"))
    }

    /// Starts it, for [`wait_for`].
    fn start(&self) -> Result<Pid, WorkloadError> {
        let child = Command::new(self.name)
            .args(self.arguments)
            .env_clear()
            .envs([("PATH", PATH), ("HOME", "/root"), ("LANG", "C.UTF-8")])
            .stdin(Stdio::null())
            .stdout(self.output_end.try_clone()?)
            .stderr(self.output_end.try_clone()?)
            .spawn()
            .map_err(failed(format!("starting {}", self.name)))?;
        Ok(Pid::from_raw(child.id().try_into()?).ok_or("a process has the number 0")?)
    }

    /// Says how it ended, and why.
    fn ended(&self, how: &str, status: WaitStatus) -> WorkloadError {
        let output = self.output.last();
        let mut message = self.name.to_owned();
        for argument in self.arguments {
            message = message + " " + argument;
        }
        let output = if output.is_empty() { "it printed nothing" } else { &output };
        format!("{message} {how} ({}): {output}", describe(status)).into()
    }
}

/// Whether there is such a program.
fn exists(program: &str) -> bool {
    let executable = |file: &Path| file.is_file() && access(file, Access::EXEC_OK).is_ok();
    match program.contains('/') {
        true => executable(Path::new(program)),
        false => PATH.split(':').any(|folder| executable(&Path::new(folder).join(program))),
    }
}

/// Waits for the end of a child, and cleans up after others that end before.
fn wait_for(child: Pid) -> io::Result<WaitStatus> {
    loop {
        if let Some((pid, status)) = wait(WaitOptions::empty())?
            && pid == child
        {
            return Ok(status);
        }
    }
}

/// What the program printed last. All else is thrown away, so that it can print as much as it wants.
struct Output {
    pipe: PipeReader,
    last: Mutex<Vec<u8>>,
}

impl Output {
    /// Bytes that are kept.
    const KEPT: usize = 2048;

    /// What a pipe holds.
    const PIPE: usize = 64 << 10;

    /// Takes what comes out of `pipe`, in a thread of its own.
    fn keep(pipe: PipeReader) -> io::Result<Arc<Output>> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let output = Arc::new(Output { pipe, last: Mutex::default() });
        let kept = Arc::clone(&output);
        thread::Builder::new().spawn(move || {
            while poll(&mut [PollFd::new(&kept.pipe, PollFlags::IN)], None).is_ok() {
                kept.take();
            }
        })?;
        Ok(output)
    }

    /// Takes what is in the pipe.
    fn take(&self) -> Vec<u8> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = vec![0; Output::PIPE];
        // Nothing, if another thread was faster.
        if let Ok(length) = (&self.pipe).read(&mut buffer) {
            last.extend_from_slice(&buffer[..length]);
            let surplus = last.len().saturating_sub(Output::KEPT);
            last.drain(..surplus);
        }
        last.clone()
    }

    fn last(&self) -> String {
        String::from_utf8_lossy(&self.take()).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_where_the_system_has_them() {
        for program in ["sh", "/bin/sh"] {
            assert!(exists(program), "{program}");
        }
        for program in ["no-such-program", "/bin", "/etc/passwd", "sh/", ""] {
            assert!(!exists(program), "{program}");
        }
    }

    #[test]
    fn the_last_output_is_kept() {
        let (pipe, mut end) = pipe().unwrap();
        let output = Output::keep(pipe).unwrap();
        assert_eq!(output.last(), "");
        for _ in 0..1000 {
            end.write_all(&[b'.'; 1000]).unwrap();
        }
        end.write_all(b"the end\n").unwrap();
        let last = output.last();
        assert_eq!(last.len(), Output::KEPT - 1);
        assert!(last.ends_with("...the end"), "{last}");
    }
}
