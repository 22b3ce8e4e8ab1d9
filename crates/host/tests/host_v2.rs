//! What `frontdesk-host` does to threads and control groups, on kernels that have control groups of version
//! 2.
//!
//! The host that runs the tests may have version 1 only. So this program boots VMs with itself as init, and
//! does the trials of `host` in there, which are built into it. They include this program being the guardian
//! and the owner of its changes.

#[path = "host/bpf.rs"]
mod bpf;
#[path = "host/cgroup.rs"]
mod cgroup;
#[path = "host/fair.rs"]
mod fair;
#[path = "host/guardian.rs"]
mod guardian;
mod inside;
#[path = "host/kills.rs"]
mod kills;
#[path = "host/lock_step.rs"]
mod lock_step;
#[path = "host/partner.rs"]
mod partner;
#[path = "host/reserve.rs"]
mod reserve;
#[path = "host/support.rs"]
mod support;
#[path = "host/threads.rs"]
mod threads;
#[path = "host/turns.rs"]
mod turns;
#[path = "host/wire.rs"]
mod wire;

use anyhow::Result;
use frontdesk_linux::cgroup::{Hierarchy, Version};
use libtest_mimic::Trial;
use std::process::ExitCode;
use support::trial;

/// Why trials are left out there: all after them would meet another kernel than they think.
const FAIR_SERVERS_OF_7_3: &str = "when a daemon that reserved 0.98 of a CPU by SCHED_DEADLINE was killed, the \
     kernel sometimes does not let its fair server have its time back";

fn main() -> ExitCode {
    let role = |word: &str| match word {
        "guardian" => Some(frontdesk_guardian::run()),
        "owner" => Some(guardian::owner()),
        "steps" => Some(kills::steps()),
        word if word.starts_with("kill-") => Some(kills::killer(word)),
        "reserving" => Some(reserve::main()),
        "target" => Some(reserve::target()),
        "turns" => Some(turns::main()),
        _ => None,
    };
    // Twenty minutes on each kernel, so by night; and by day two hosts for three minutes.
    let mut outside = vec![
        trial("host_trials_pass_on_linux_6_1", || host_trials_pass_on("6.1-cloud", &[])),
        trial("host_trials_pass_on_linux_6_12", || {
            host_trials_pass_on("6.12-cloud", &["fair_server_is", "fair_server_takes"])
        }),
        trial("host_trials_pass_on_linux_7_3", || {
            frontdesk_testing::left_out::tell("fair_server_* on Linux 7.3", FAIR_SERVERS_OF_7_3);
            host_trials_pass_on("7.3-cloud", &[])
        }),
    ];
    outside = outside.into_iter().map(|trial| trial.with_ignored_flag(true)).collect();
    outside.push(trial("lock_step_trials_pass_on_two_hosts", || {
        let hosts = ["first", "second"].map(|host| format!("{}={host}", lock_step::HOST));
        inside::trials_pass_on_two("6.12-cloud", 384, &hosts, &["lock_step_"])
    }));
    inside::main(role, trials, outside)
}

/// All there are run; of those with `more` prefixes, too, at least one.
fn host_trials_pass_on(kernel: &str, more: &[&str]) -> Result<()> {
    let prefixes = ["threads_", "bpf_", "cgroup_", "cgroup_v2_", "guardian_", "reserve_"];
    inside::trials_pass(kernel, 1, 384, &[&prefixes, more].concat())
}

/// The trials themselves, in a VM.
fn trials() -> Vec<Trial> {
    if let Some(trials) = lock_step::trials() {
        return trials;
    }
    let version = Hierarchy::detect().map(|hierarchy| hierarchy.version());
    assert!(matches!(version, Ok(Version::V2)), "not on control groups of version 2: {version:?}");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let fair = if release.starts_with("7.") { Vec::new() } else { fair::trials() };
    let trials = [
        threads::trials(),
        bpf::trials(),
        cgroup::trials(),
        guardian::trials(),
        kills::trials(),
        reserve::trials(),
        fair,
    ];
    // What takes a night is for the host itself.
    trials.into_iter().flatten().filter(|trial| !trial.has_ignored_flag()).collect()
}
