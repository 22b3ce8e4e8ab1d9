//! What the tests against the real kernel share.

use anyhow::{Context as _, Result, ensure};
use frontdesk_guardian::Guardian;
use frontdesk_linux::sched::ThreadId;
use libtest_mimic::{Failed, Trial};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::{
    env, fs, io, mem,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    ptr, thread,
    time::{Duration, Instant},
};

pub(crate) fn trial(name: &'static str, test: fn() -> Result<()>) -> Trial {
    Trial::test(name, move || test().map_err(|e| Failed::from(format!("{e:?}"))))
}

pub(crate) fn start_guardian() -> Result<Guardian> {
    Ok(Guardian::start(&env::current_exe()?, "guardian")?)
}

/// Whether this is a machine that a test made, with the test as its init: an emulated one.
pub(crate) fn is_emulated() -> bool {
    env::current_exe().is_ok_and(|program| fs::read_link("/proc/1/exe").is_ok_and(|init| init == program))
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

/// Starts a process that does nothing and has the number that another one had, from which it can be told: one
/// that starts in the same tick of the clock cannot.
pub(crate) fn with_the_number_of(former: ThreadId) -> Result<Stranger> {
    loop {
        let stranger = with_the_number(former.pid)?;
        if ThreadId::of(former.pid, former.pid) != Some(former) {
            return Ok(stranger);
        }
    }
}

/// Starts a process that does nothing and has this number.
pub(crate) fn with_the_number(pid: i32) -> Result<Stranger> {
    let (sleep, argument) = (c"/bin/sleep", c"600");
    let (arguments, numbers) = ([sleep.as_ptr(), argument.as_ptr(), ptr::null()], [pid]);
    // SAFETY: all zeros are no options.
    let mut options: libc::clone_args = unsafe { mem::zeroed() };
    options.exit_signal = libc::SIGCHLD.unsigned_abs().into();
    (options.set_tid, options.set_tid_size) = (numbers.as_ptr().expose_provenance() as u64, 1);
    // SAFETY: without flags this is a fork; the child calls nothing but what is safe in a signal handler.
    let started = unsafe {
        let started = libc::syscall(libc::SYS_clone3, &raw const options, size_of_val(&options));
        if started == 0 {
            libc::execv(sleep.as_ptr(), arguments.as_ptr());
            libc::_exit(1);
        }
        started
    };
    ensure!(started == i64::from(pid), "no process with the number {pid}: {}", io::Error::last_os_error());
    Ok(Stranger(Pid::from_raw(pid).context("pid")?))
}

/// Ended with the value.
pub(crate) struct Stranger(Pid);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// Waits for something another process is about to do.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        ensure!(start.elapsed() < Duration::from_secs(300), "not within 300 s: {what}");
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
