//! What every workload's process has: how it says that it is ready, what it computes, how it ends.

use crate::parameter::Address;
use frontdesk_lab_guest::IP_PARAMETER;
use rustix::process::WaitStatus;
use std::error::Error;
use std::hint::black_box;
use std::io;
use std::process::Command;

/// The first line of a workload's output: it is ready to do its work.
pub(crate) const READY: &str = "ready";

// First arguments of tasks that workloads start.
/// Ends at once.
pub(crate) const NOTHING: &str = "nothing";
/// Computes a little and ends.
pub(crate) const BRIEF: &str = "brief";
/// The other task of a storm of switches.
pub(crate) const BOUNCE: &str = "bounce";

/// What ends a workload or a task.
pub(crate) type WorkloadError = Box<dyn Error>;

/// The address of this VM.
pub(crate) fn address() -> Result<Address, WorkloadError> {
    let none = || format!("the VM has no network: kernel parameter {IP_PARAMETER} is not set");
    Ok(Address::of_guest()?.ok_or_else(none)?)
}

/// Tells init that the workload is ready to do its work.
pub(crate) fn ready() {
    println!("{READY}");
}

pub(crate) fn spin(steps: u64) {
    let mut state = 1;
    for _ in 0..steps {
        state = xorshift(state);
    }
    black_box(state);
}

/// The next number of a generator that starts anywhere but at 0: each needs the one before, so it cannot be
/// optimised away.
pub(crate) fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state
}

/// A task of a workload: this program, in another role.
pub(crate) fn task(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(role);
    command
}

/// How a process ended.
pub(crate) fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown end".to_owned(),
    }
}

/// Adds to an error what was tried.
pub(crate) fn failed<E: Into<io::Error>>(what: impl std::fmt::Display) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {}", error.into())
}
