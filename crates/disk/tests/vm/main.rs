//! The disk on real VMs. This program is the back end, too, and the init of the VMs.
//!
//! It needs QEMU and the package tools that fetch kernels.

mod backend;
mod consistency;
mod guest;
#[path = "../../../host/tests/inside/own_init.rs"]
#[expect(dead_code, reason = "these VMs are looked at while they run, not when they have ended")]
mod own_init;
mod pattern;
mod stacked;
mod trials;

use libtest_mimic::Arguments;
use std::env;
use std::process::{self, ExitCode};

fn main() -> ExitCode {
    if process::id() == 1 {
        own_init::end(guest::main());
    }
    if env::args().nth(1).as_deref() == Some(backend::ROLE) {
        return backend::serve();
    }
    // One VM at a time is load enough.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trials = [trials::all(), consistency::all(), stacked::all()];
    let trials = trials.into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
