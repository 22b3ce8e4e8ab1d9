//! Tests against the real kernel. They need root and run in a process of their own, which is also the guardian and
//! the owner that the guardian's tests start; hence no standard harness.
//!
//! `frontdesk-lab` runs those on scheduling and control groups once more, in VMs whose kernels have control groups of
//! version 2 (`host_v2.rs` there).

mod boost;
mod bpf;
mod cgroup;
mod daemon;
mod fake_qemu;
mod guardian;
mod qemu;
mod support;

use libtest_mimic::Arguments;
use std::{env, process::ExitCode};

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some("guardian") => return frontdesk_host::guardian::run(),
        Some("owner") => return guardian::owner(),
        Some("fake-qemu") => return fake_qemu::main(),
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
        trials.extend(daemon::trials());
    } else {
        eprintln!("skipping the tests against the real kernel: they need root");
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
