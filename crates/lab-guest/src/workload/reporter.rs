//! frontdesk's reporter, as an operator would install it.

use super::process::{WorkloadError, failed, ready};
use crate::ports;
use frontdesk_lab_guest::REPORTER_PORT;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::Command;

const TRACEFS: &str = "/sys/kernel/tracing";

/// Becomes the reporter.
pub(super) fn run(program: &str, isolate: bool) -> Result<Infallible, WorkloadError> {
    match mount("tracefs", TRACEFS, "tracefs", MountFlags::empty(), c"") {
        Ok(()) | Err(Errno::BUSY) => {}
        Err(error) => return Err(failed(format!("mounting tracefs at {TRACEFS}"))(error).into()),
    }
    let port = ports::find(REPORTER_PORT)?.ok_or(format!("there is no port {REPORTER_PORT}"))?;
    ready();
    let mut command = Command::new(program);
    command.arg("--port").arg(port).args(isolate.then_some("--isolate"));
    Err(failed(format!("starting {program}"))(command.exec()).into())
}
