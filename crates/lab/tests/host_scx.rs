//! sched_ext trials.
#[allow(dead_code)]
mod inside;
#[path = "../../host/tests/host/support.rs"]
#[allow(dead_code)]
mod support;

use anyhow::Result;
use frontdesk_host::scx::{self, Scx};
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
        Some("guardian") => return frontdesk_host::guardian::run(),
        Some(INSIDE) => return trials(),
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = vec![
        trial("scx_trials_pass_on_linux_6_16", || inside::trials_pass("6.16-cloud", 2, 512, &["scx_"])),
        trial("scx_trials_pass_on_linux_7_3", || inside::trials_pass("7.3-cloud", 2, 512, &["scx_"])),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials() -> ExitCode {
    // The console is shown only if something fails: then what the verifier says is wanted.
    tracing_subscriber::fmt().with_env_filter("debug").with_ansi(false).init();
    let arguments =
        Arguments { test_threads: Some(1), color: Some(ColorSetting::Never), ..Arguments::default() };
    libtest_mimic::run(&arguments, vec![trial("scx_loads", loads)]).exit_code()
}

fn loads() -> Result<()> {
    scx::probe()?;
    let scx = Scx::load()?;
    println!("state {}", std::fs::read_to_string("/sys/kernel/sched_ext/state")?);
    println!("{:?}", Scx::load().err().map(|e| e.to_string()));
    println!("{:?}", scx.ejected());
    Ok(())
}
