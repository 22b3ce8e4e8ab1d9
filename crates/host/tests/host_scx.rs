//! The sched_ext mechanism of `frontdesk-host`, on kernels that have sched_ext.
//!
//! The host that runs the tests may have none. So this program boots VMs with itself as init, and does the
//! trials in there. It is also the guardian, the work that stands for VMs, and the owner of a scheduler that
//! is killed.
//!
//! What `--nocapture` prints as "measured" is what `docs/sched-ext.md` tells.

#[allow(dead_code)] // The trials here use only a part of it.
mod inside;
mod scx;
#[allow(dead_code)]
#[path = "host/support.rs"]
mod support;
#[allow(dead_code)]
#[path = "host/wire.rs"]
mod wire;

use std::process::ExitCode;
use support::trial;

fn main() -> ExitCode {
    let role = |word: &str| match word {
        "guardian" => Some(frontdesk_guardian::run()),
        scx::work::WORK => Some(scx::work::run()),
        scx::OWNER => Some(scx::owner()),
        _ => None,
    };
    // The first has no server that keeps ordinary threads from starving those of sched_ext, the second has.
    // The first: by night.
    let outside = vec![
        trial("scx_trials_pass_on_linux_6_16", || inside::trials_pass("6.16-cloud", 2, 512, &["scx_"]))
            .with_ignored_flag(true),
        trial("scx_trials_pass_on_linux_7_3", || inside::trials_pass("7.3-cloud", 2, 512, &["scx_"])),
    ];
    inside::main(role, scx::trials, outside)
}
