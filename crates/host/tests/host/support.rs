//! What the tests against the real kernel share.

use anyhow::{Context as _, Result, ensure};
use frontdesk_guardian::Guardian;
use frontdesk_linux::sched::ThreadId;
use libtest_mimic::{Failed, Trial};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::{
    env,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(crate) fn trial(name: &'static str, test: fn() -> Result<()>) -> Trial {
    Trial::test(name, move || test().map_err(|e| Failed::from(format!("{e:?}"))))
}

pub(crate) fn start_guardian() -> Result<Guardian> {
    Ok(Guardian::start(&env::current_exe()?, "guardian")?)
}

/// Takes from the calling thread, and from those that it starts, the right to signal other users' processes.
pub(crate) fn give_up_signals() -> Result<()> {
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::KILL);
    Ok(set_capabilities(None, sets)?)
}

/// A process that does nothing, ended with the value.
pub(crate) struct Idler(pub(crate) Child);

impl Idler {
    pub(crate) fn start() -> Result<Idler> {
        Idler::of(0)
    }

    /// One of another user: of nobody.
    pub(crate) fn of_another_user() -> Result<Idler> {
        Idler::of(65534)
    }

    fn of(user: u32) -> Result<Idler> {
        let mut command = Command::new("sleep");
        Ok(Idler(command.arg("600").uid(user).stdin(Stdio::null()).spawn().context("start sleep")?))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    pub(crate) fn thread(&self) -> Result<ThreadId> {
        ThreadId::of(self.pid(), self.pid()).context("sleep has ended")
    }
}

impl Drop for Idler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for something another process is about to do.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        ensure!(start.elapsed() < Duration::from_secs(120), "not within 120 s: {what}");
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
