//! The client, and the thread that types.

use super::config::{ClientEnd, EditConfig, Signals};
use super::session::EditorSession;
use crate::load::{LoadError, Sample};
use std::io::{self, PipeReader, PipeWriter, pipe};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// The editor, with nothing on its screen but the text. On a terminal of this kind it shows a letter at the
/// end of a line by that letter alone.
const EDITOR: [&str; 8] =
    ["env", "TERM=vt100", "LINES=24", "COLUMNS=80", "nano", "--ignorercfiles", "--restricted", "--zero"];

/// Options of `ssh`. None of the user's settings; and letters go out when they are typed, which newer
/// versions would not do.
const SSH_OPTIONS: [&str; 11] = [
    "StrictHostKeyChecking=no",
    "UserKnownHostsFile=/dev/null",
    "BatchMode=yes",
    "LogLevel=ERROR",
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "EscapeChar=none",
    // Its server may just be starting; one attempt a second.
    "ConnectionAttempts=100",
    "ConnectTimeout=100",
    "IgnoreUnknown=ObscureKeystrokeTiming",
    "ObscureKeystrokeTiming=no",
];

/// A running client. Dropping it ends it and its ssh.
pub(crate) struct EditClient {
    signals: Arc<Signals>,
    /// Closed to wake the thread.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<Result<Vec<Sample>, LoadError>>>,
}

impl EditClient {
    /// Begins; does not wait until the guest's editor runs, so that several can start at the same time.
    pub(crate) fn start(config: EditConfig) -> Result<EditClient, LoadError> {
        let vm = config.vm.clone();
        let failed = |error: io::Error| LoadError::Setup { vm: vm.clone(), reason: error.to_string() };
        let (wakes, wake) = pipe().map_err(failed)?;
        let signals = Arc::new(Signals::default());
        let thread = std::thread::spawn({
            let signals = Arc::clone(&signals);
            move || run(&config, &signals, wakes)
        });
        Ok(EditClient { signals, wake: Some(wake), thread: Some(thread) })
    }

    /// Whether the editor runs and the first letter was typed.
    pub(crate) fn is_typing(&self) -> bool {
        self.signals.typing.load(Ordering::Relaxed)
    }

    /// Whether the client ended before it was told to.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the client after the letter it is in.
    pub(crate) fn finish(mut self) -> Result<Vec<Sample>, LoadError> {
        self.wake = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Vec::new()),
        }
    }
}

impl Drop for EditClient {
    fn drop(&mut self) {
        self.signals.abandon.store(true, Ordering::Relaxed);
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // Nobody wants its result.
            let _ = thread.join();
        }
    }
}

fn run(config: &EditConfig, signals: &Signals, wakes: PipeReader) -> Result<Vec<Sample>, LoadError> {
    let setup = |reason: String| LoadError::Setup { vm: config.vm.clone(), reason };
    // The client stands for a separate machine: what runs beside it here must not delay its clock.
    frontdesk_linux::realtime::run_ahead(&config.cpus).map_err(|error| setup(error.to_string()))?;
    let mut session = EditorSession::open(ssh(config), signals, wakes)
        .map_err(|error| setup(format!("starting ssh (Debian package openssh-client): {error}")))?;
    let mut samples = Vec::new();
    match session.edit(config, &mut samples) {
        ClientEnd::Asked => Ok(samples),
        ClientEnd::Failed(reason) => Err(LoadError::Editor {
            vm: config.vm.clone(),
            server: config.server,
            reason,
            output: session.recent.escape_ascii().to_string(),
        }),
    }
}

/// The command that runs the editor in the guest.
fn ssh(config: &EditConfig) -> Command {
    let mut command = Command::new("ssh");
    command.args(["-F", "/dev/null", "-tt", "-i"]).arg(&config.ssh_key);
    command.args(SSH_OPTIONS.iter().flat_map(|option| ["-o", option]));
    command.args(["-p", &config.server.port().to_string(), "-l", "root", &config.server.ip().to_string()]);
    command.args(EDITOR);
    command
}
