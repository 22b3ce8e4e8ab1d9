//! Tests against the real kernel. They need root and run in a process of their own, which is also the
//! guardian and the owner that the guardian's tests start; hence no standard harness.
//!
//! `host_v2.rs` runs those on scheduling and control groups once more, in VMs whose kernels have control
//! groups of version 2.

mod askers;
mod attacks;
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
mod others;
mod qemu;
mod reserve;
mod support;
mod threads;
mod wire;

use anyhow::Context as _;
use frontdesk_linux::cgroup::{Hierarchy, RealTimeRule, Version};
use frontdesk_probes::kvm::Method;
use frontdesk_testing::{Need, leave_out};
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
        Some(askers::ARGUMENT) => return askers::back_end(),
        Some("fake-qemu") => return fake_qemu::main(),
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    // Scheduling and control groups belong to the whole process, or host.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    if rustix::process::geteuid().is_root() {
        trials.extend(askers::trials());
        trials.extend(bpf::trials());
        trials.extend(display::trials());
        trials.extend(input::trials());
        trials.extend(guardian::trials());
        trials.extend(kills::trials());
        trials.extend(cgroup::trials());
        trials.extend(threads::trials());
        trials.extend(qemu::trials());
        trials.extend(attacks::trials());
        trials.extend(daemon::trials());
        trials.extend(many::trials());
        trials.extend(others::trials());
        trials.extend(reserve::trials());
        trials.extend(fair::trials());
        trials.extend(trials_with_kvm());
        trials.extend(control_groups_left_out());
    } else {
        trials.push(left_out(
            "root_is_there",
            "all trials of host",
            Need::Root,
            "they change the kernel's state",
        ));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Those with guests under KVM, by the method that this host allows. `host_kvm.rs` runs them in VMs.
fn trials_with_kvm() -> Vec<Trial> {
    match kvm_method() {
        Ok(method) => {
            let mut trials = kvm::trials(&[method]);
            if method == Method::Switch {
                let why = "KVM in software does not tell when it enters a guest";
                trials.push(left_out("kvm_tells_entries", "kvm_interrupts", Need::Kvm, why));
            } else {
                trials.extend(kvm_interrupts::trials(&[method]));
            }
            if Path::new("/dev/vhost-net").exists() {
                trials.extend(kvm_vhost::trials());
            } else {
                let why = "no /dev/vhost-net (modprobe vhost_net)";
                trials.push(left_out("vhost_net_is_there", "kvm_vhost", Need::VhostNet, why));
            }
            trials
        }
        Err(e) => {
            let all = "kvm_*, kvm_interrupts and kvm_vhost on this machine itself";
            vec![left_out("kvm_is_there", all, Need::Kvm, &format!("{e:#}"))]
        }
    }
}

/// Trials on control groups that this host does not have. Those of version 2 are made by `host_v2.rs`, too.
fn control_groups_left_out() -> Option<Trial> {
    match Hierarchy::detect() {
        Err(e) => Some(left_out("control_groups_are_there", "cgroup_*", Need::Cgroups, &e.to_string())),
        Ok(found) if found.version() == Version::V1 && found.real_time() == RealTimeRule::Budget => None,
        Ok(found) => {
            let why = format!("{:?} asks for none", found.version());
            Some(left_out("budgets_are_there", "cgroup_budget_*", Need::Budgets, &why))
        }
    }
}

/// A trial in place of those that something is missing for: it fails unless that may be missing.
fn left_out(name: &'static str, trials: &'static str, need: Need, why: &str) -> Trial {
    let why = why.to_owned();
    Trial::test(name, move || {
        leave_out(trials, need, why);
        Ok(())
    })
}

fn kvm_method() -> anyhow::Result<Method> {
    let method = frontdesk_probes::kvm::probe()?;
    // KVM in software may not take a guest in 32-bit mode.
    let guest = Guest::new(Program::Steps(Between::Nothing), &[], Halts::InUserSpace(1))?;
    guest.begin()?;
    guest.wait().context("run a tiny guest")?;
    Ok(method)
}
