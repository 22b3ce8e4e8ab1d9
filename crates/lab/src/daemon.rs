//! The daemon as a process of its own, as an operator runs it.

use frontdesk_control_protocol::{BY_REAL_TIME, EJECTED, NOT_ACTING};
use frontdesk_engine::Config;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Its control socket in the folder of the run.
pub(crate) const SOCKET: &str = "control.sock";
/// The daemon restores every VM within this when it is told to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The daemon did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum DaemonProcessError {
    /// It could not be started.
    #[error("cannot {what}: {source}")]
    Start {
        /// What was tried.
        what: String,
        /// What failed.
        source: std::io::Error,
    },
    /// It ended too early or with an error.
    #[error("the daemon ended ({status}): {log}")]
    Ended {
        /// How.
        status: String,
        /// The last it said.
        log: String,
    },
    /// It did not follow all VMs, or not all the time.
    #[error("the daemon does not follow all VMs: {said}")]
    Incomplete {
        /// What it said.
        said: String,
    },
    /// It did not end when it was told to.
    #[error("the daemon did not end within {STOP_TIMEOUT:?}: {log}")]
    Stuck {
        /// The last it said.
        log: String,
    },
}

/// What a daemon does with VMs.
pub(crate) struct Following<'a> {
    /// The QMP sockets of those that it follows.
    pub(crate) sockets: &'a [&'a Path],
    /// It runs on these CPUs.
    pub(crate) cpus: &'a [u16],
    /// Whether it acts, or only watches.
    pub(crate) act: bool,
    /// Its log is beside it.
    pub(crate) recording: PathBuf,
}

/// Where the log of a daemon is that makes this recording.
pub(crate) fn log_beside(recording: &Path) -> PathBuf {
    let mut log = recording.as_os_str().to_owned();
    log.push(".log");
    log.into()
}

/// A running daemon. Dropping it kills it, and its guardian restores the VMs.
pub(crate) struct DaemonProcess {
    child: Child,
    recording: PathBuf,
    log: PathBuf,
}

impl DaemonProcess {
    /// Starts the daemon for VMs and waits until it follows them. `settings` are tables of its configuration.
    pub(crate) fn start(
        frontdesk: &Path,
        run_dir: &Path,
        policy: &Config,
        settings: &str,
        following: Following<'_>,
    ) -> Result<DaemonProcess, DaemonProcessError> {
        let Following { sockets, cpus, act, recording } = following;
        let mut arguments: Vec<OsString> = vec!["--record".into(), recording.as_os_str().into()];
        arguments.extend(sockets.iter().flat_map(|socket| ["--qmp".into(), socket.as_os_str().into()]));
        arguments.extend(cpus.iter().flat_map(|cpu| ["--cpu".into(), cpu.to_string().into()]));
        arguments.extend((!act).then(|| "--observe".into()));
        let log = log_beside(&recording);
        let mut daemon = DaemonProcess::spawn(frontdesk, run_dir, policy, settings, log, &arguments)?;
        daemon.recording = recording;
        daemon.hear(&format!("following {} VMs:", sockets.len()))?;
        Ok(daemon)
    }

    /// Starts the daemon on a host without VMs. `settings` are tables of its configuration.
    pub(crate) fn start_for_processes(
        frontdesk: &Path,
        run_dir: &Path,
        policy: &Config,
        settings: &str,
    ) -> Result<DaemonProcess, DaemonProcessError> {
        let log = run_dir.join("daemon.log");
        let mut daemon = DaemonProcess::spawn(frontdesk, run_dir, policy, settings, log, &[])?;
        daemon.hear("following no VM")?;
        Ok(daemon)
    }

    fn spawn(
        frontdesk: &Path,
        run_dir: &Path,
        policy: &Config,
        settings: &str,
        log: PathBuf,
        arguments: &[OsString],
    ) -> Result<DaemonProcess, DaemonProcessError> {
        let config = run_dir.join("policy.toml");
        let policy = toml::to_string(policy)
            .map_err(|error| failed("write the policy")(std::io::Error::other(error)))?;
        // Whatever else runs on the host is no part of the experiment.
        let text = format!("{policy}\n[vms]\nlibvirt = false\n{settings}");
        std::fs::write(&config, text).map_err(failed("write the policy"))?;
        let stderr = File::create(&log).map_err(failed("write the daemon's log"))?;
        let mut command = Command::new(frontdesk);
        command.arg("run").arg("--config").arg(&config);
        // Its own, for the host may have a daemon that serves the usual one.
        command.arg("--socket").arg(run_dir.join(SOCKET)).args(arguments);
        // A group of its own: Ctrl-C is for the lab, which then ends the daemon.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).process_group(0);
        let child = command.spawn().map_err(failed("start the daemon"))?;
        Ok(DaemonProcess { child, recording: PathBuf::new(), log })
    }

    /// Waits for its first line, which is to begin with these words.
    fn hear(&mut self, words: &str) -> Result<(), DaemonProcessError> {
        let mut line = String::new();
        if let Some(stdout) = self.child.stdout.take() {
            // Its first line says that it follows the VMs; an end of file, that it failed.
            BufReader::new(stdout).read_line(&mut line).map_err(failed("hear from the daemon"))?;
        }
        if line.is_empty() {
            let status = self.child.wait().map_err(failed("wait for the daemon"))?;
            return Err(self.ended(status));
        }
        if !line.starts_with(words) {
            let said = format!("{}; {}", line.trim_end(), self.tail());
            return Err(DaemonProcessError::Incomplete { said });
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> i32 {
        // A process id always fits.
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }

    /// Checks that it still runs.
    pub(crate) fn check(&mut self) -> Result<(), DaemonProcessError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(status)),
            Err(source) => Err(DaemonProcessError::Start { what: "watch the daemon".to_owned(), source }),
        }
    }

    /// Ends it in order and gives the path of its recording.
    pub(crate) fn stop(mut self) -> Result<PathBuf, DaemonProcessError> {
        self.check()?;
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid()) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                .map_err(|errno| failed("end the daemon")(errno.into()))?;
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            match self.child.try_wait().map_err(failed("end the daemon"))? {
                Some(status) if status.success() => break,
                Some(status) => return Err(self.ended(status)),
                None if Instant::now() > deadline => {
                    return Err(DaemonProcessError::Stuck { log: self.tail() });
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        // Such a run measured something else.
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let other = [NOT_ACTING, BY_REAL_TIME, EJECTED];
        match log.lines().find(|line| other.iter().any(|words| line.contains(words))) {
            Some(line) => Err(DaemonProcessError::Incomplete { said: line.trim().to_owned() }),
            None => Ok(std::mem::take(&mut self.recording)),
        }
    }

    fn ended(&self, status: ExitStatus) -> DaemonProcessError {
        DaemonProcessError::Ended { status: status.to_string(), log: self.tail() }
    }

    /// The last lines of its log.
    fn tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

fn failed(what: &str) -> impl FnOnce(std::io::Error) -> DaemonProcessError {
    let what = what.to_owned();
    move |source| DaemonProcessError::Start { what, source }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
