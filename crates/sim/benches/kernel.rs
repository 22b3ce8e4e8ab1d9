//! The eevdf model against this kernel: the same hogs and sleepers as processes in control groups, and as
//! vCPUs of the model.
//!
//! Needs root, two CPUs and two minutes on a machine that does nothing else. Fails if a bar is missed.
//! `--record FILE` writes what was measured, `--svg FILE` the distributions of the wake-up latencies.

#![allow(
    unreachable_pub,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a program, not a library"
)]

#[path = "kernel/case.rs"]
mod case;
#[path = "kernel/compare.rs"]
mod compare;
#[path = "kernel/kernel.rs"]
mod kernel;
#[path = "kernel/model.rs"]
mod model;
#[path = "kernel/plot.rs"]
mod plot;
#[path = "kernel/worker.rs"]
mod worker;

use anyhow::{Context as _, Result};
use compare::Record;
use frontdesk_guardian::{self as guardian, GUARDIAN_ARGUMENT, Guardian};
use std::process::ExitCode;
use std::{env, fs};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(GUARDIAN_ARGUMENT) => return guardian::run(),
        Some(worker::ARGUMENT) => return report(worker::main().map(|()| true)),
        _ => {}
    }
    report(compare_all(&arguments))
}

fn report(outcome: Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn compare_all(arguments: &[String]) -> Result<bool> {
    let value = |option: &str| {
        let at = arguments.iter().position(|argument| argument == option)?;
        arguments.get(at + 1)
    };
    let cpus = u16::try_from(std::thread::available_parallelism()?.get())?;
    anyhow::ensure!(cpus >= 2, "two CPUs are needed, and there is one");
    let guardian = Guardian::start(&env::current_exe()?, GUARDIAN_ARGUMENT)?;
    let costs =
        case::costs(&kernel::run(&case::calibration(), 1, &guardian)?).context("the sleeper never woke")?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    println!(
        "kernel {release}, {cpus} CPUs; a wake-up takes {:.1} us and costs {:.1} us of CPU time",
        costs.wake_up_ns as f64 / 1000.0,
        costs.switch_ns as f64 / 1000.0
    );
    let mut record = Record { kernel: release, cpus, costs, measured: Vec::new() };
    let mut plots = Vec::new();
    let (mut kept, mut all) = (0, 0);
    for case in case::cases() {
        // A single CPU is the second one: the first has more to do for the system.
        let measured = kernel::run(&case, if case.cpus == 1 { 1 } else { 0 }, &guardian)?;
        let modelled = model::run(&case, cpus, costs)?;
        println!("\n{}\n  process  value       kernel    model      off", case.name);
        for row in compare::rows(&measured, &modelled) {
            println!(
                "  {:<8} {:<9} {:>8.3} {:>8.3} {:>+7.1} %{}",
                row.who,
                row.what,
                row.kernel,
                row.model,
                row.off() * 100.0,
                if row.passes() { "" } else { "  MISSED" }
            );
            kept += u32::from(row.passes());
            all += 1;
        }
        plots.push((case.name.clone(), measured.clone(), modelled));
        record.measured.push((case, measured));
    }
    guardian.finish()?;
    println!("\n{kept} of {all} values within their bars (shares 3 % or 0.3 points, latencies 25 %)");
    if let Some(path) = value("--record") {
        fs::write(path, serde_json::to_string(&record)?).with_context(|| format!("write {path}"))?;
    }
    if let Some(path) = value("--svg") {
        fs::write(path, plot::latencies(&plots)?).with_context(|| format!("write {path}"))?;
    }
    Ok(kept == all)
}
