//! Tests against the real kernel. They need root and run in a process of their own, which is also the
//! guardian and the owner that the guardian's tests start; hence no standard harness.
//!
//! `host_v2.rs` runs those on scheduling and control groups once more, in VMs whose kernels have control
//! groups of version 2.

mod bpf;
mod cgroup;
mod daemon;
mod display;
mod fair;
mod fake_qemu;
mod guardian;
mod input;
mod kills;
mod kvm;
mod kvm_guest;
mod kvm_interrupts;
mod kvm_pair;
mod kvm_vhost;
mod many;
mod qemu;
mod reserve;
mod support;
mod threads;
mod wire;

use anyhow::Context as _;
use frontdesk_probes::kvm::Method;
use kvm_guest::{Between, Guest, Halts, Program};
use libtest_mimic::{Arguments, Trial};
use std::{env, path::Path, process::ExitCode};

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some("guardian") => return frontdesk_guardian::run(),
        Some("owner") => return guardian::owner(),
        Some("steps") => return kills::steps(),
        Some(word) if word.starts_with("kill-") => return kills::killer(word),
        Some("reserving") => return reserve::main(),
        Some("target") => return reserve::target(),
        Some("fake-qemu") => return fake_qemu::main(),
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    // Scheduling and control groups belong to the whole process, or host.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    if rustix::process::geteuid().is_root() {
        trials.extend(bpf::trials());
        trials.extend(display::trials());
        trials.extend(input::trials());
        trials.extend(guardian::trials());
        trials.extend(kills::trials());
        trials.extend(cgroup::trials());
        trials.extend(threads::trials());
        trials.extend(qemu::trials());
        trials.extend(daemon::trials());
        trials.extend(many::trials());
        trials.extend(reserve::trials());
        trials.extend(fair::trials());
        trials.extend(trials_with_kvm());
    } else {
        eprintln!("skipping the tests against the real kernel: they need root");
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Those with guests under KVM, by the method that this host allows. `host_kvm.rs` runs them in VMs.
fn trials_with_kvm() -> Vec<Trial> {
    match kvm_method() {
        Ok(method) => {
            let mut trials = kvm::trials(&[method]);
            // KVM in software does not tell when it enters a guest.
            if method != Method::Switch {
                trials.extend(kvm_interrupts::trials(&[method]));
            }
            if Path::new("/dev/vhost-net").exists() {
                trials.extend(kvm_vhost::trials());
            }
            trials
        }
        Err(e) => {
            eprintln!("skipping the tests with guests under KVM: {e:#}");
            Vec::new()
        }
    }
}

fn kvm_method() -> anyhow::Result<Method> {
    let method = frontdesk_probes::kvm::probe()?;
    // KVM in software may not take a guest in 32-bit mode.
    let guest = Guest::new(Program::Steps(Between::Nothing), &[], Halts::InUserSpace(1))?;
    guest.begin()?;
    guest.wait().context("run a tiny guest")?;
    Ok(method)
}
