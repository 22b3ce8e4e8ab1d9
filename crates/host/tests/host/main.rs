//! Tests against the real kernel. They need root and run in a process of their own, which is also the guardian and
//! the owner that the guardian's tests start; hence no standard harness.

mod boost;
mod bpf;
mod cgroup;
mod guardian;
mod qemu;

use anyhow::{Context as _, Result};
use frontdesk_host::{guardian::Guardian, sched::ThreadId};
use libtest_mimic::{Arguments, Failed, Trial};
use std::{
    env,
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

fn trial(name: &'static str, test: fn() -> Result<()>) -> Trial {
    Trial::test(name, move || test().map_err(|e| Failed::from(format!("{e:?}"))))
}

fn start_guardian() -> Result<Guardian> {
    Ok(Guardian::start(&env::current_exe()?, "guardian")?)
}

/// A process that does nothing, ended with the value.
struct Idler(Child);

impl Idler {
    fn start() -> Result<Idler> {
        Ok(Idler(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().context("start sleep")?))
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    fn thread(&self) -> Result<ThreadId> {
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
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        anyhow::ensure!(start.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some("guardian") => return frontdesk_host::guardian::run(),
        Some("owner") => return guardian::owner(),
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    // Scheduling and control groups belong to the whole process, or host.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    if rustix::process::geteuid().is_root() {
        trials.extend(bpf::trials());
        trials.extend(guardian::trials());
        trials.extend(cgroup::trials());
        trials.extend(boost::trials());
        trials.extend(qemu::trials());
    } else {
        eprintln!("skipping the tests against the real kernel: they need root");
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
