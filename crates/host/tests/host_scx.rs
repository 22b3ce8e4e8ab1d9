//! The sched_ext mechanism of `frontdesk-host`, on kernels that have sched_ext.
//!
//! The host that runs the tests may have none. So this program boots VMs with itself as init, and does the
//! trials in there. It is also the guardian, the work that stands for VMs, and the owner of a scheduler that
//! is killed.
//!
//! What `--nocapture` prints as "measured" is what `docs/sched-ext.md` tells.

mod inside;
mod scx;
#[allow(dead_code)] // The trials here use only a part of it.
#[path = "host/support.rs"]
mod support;
#[allow(dead_code)]
#[path = "host/wire.rs"]
mod wire;

use inside::INSIDE;
use libtest_mimic::{Arguments, ColorSetting};
use std::{
    env,
    process::{self, ExitCode},
};
use support::trial;

fn main() -> ExitCode {
    if process::id() == 1 {
        inside::init();
    }
    match env::args().nth(1).as_deref() {
        Some("guardian") => return frontdesk_guardian::run(),
        Some(scx::work::WORK) => return scx::work::run(),
        Some(scx::OWNER) => return scx::owner(),
        Some(INSIDE) => return trials(),
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    // One VM at a time is load enough.
    arguments.test_threads = Some(1);
    // The first has no server that keeps ordinary threads from starving those of sched_ext, the second has.
    let trials = vec![
        trial("scx_trials_pass_on_linux_6_16", || inside::trials_pass("6.16-cloud", 2, 512, &["scx_"])),
        trial("scx_trials_pass_on_linux_7_3", || inside::trials_pass("7.3-cloud", 2, 512, &["scx_"])),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The trials themselves, in a VM.
fn trials() -> ExitCode {
    inside::log();
    let arguments =
        Arguments { test_threads: Some(1), color: Some(ColorSetting::Never), ..Arguments::default() };
    libtest_mimic::run(&arguments, scx::trials()).exit_code()
}
