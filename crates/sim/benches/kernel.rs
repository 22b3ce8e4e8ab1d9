//! The eevdf model against this kernel: the same hogs and sleepers as processes in control groups, and as vCPUs of the model.

#[path = "kernel/case.rs"]
mod case;
#[path = "kernel/kernel.rs"]
mod kernel;
#[path = "kernel/model.rs"]
mod model;
#[path = "kernel/worker.rs"]
mod worker;

use anyhow::Result;
use frontdesk_host::GUARDIAN_ARGUMENT;
use frontdesk_host::guardian::{self, Guardian};

fn main() -> Result<()> {
    let argument = std::env::args().nth(1).unwrap_or_default();
    if argument == GUARDIAN_ARGUMENT {
        std::process::exit(i32::from(guardian::run() != std::process::ExitCode::SUCCESS));
    }
    if argument == worker::ARGUMENT {
        return worker::main();
    }
    let guardian = Guardian::start(&std::env::current_exe()?, GUARDIAN_ARGUMENT)?;
    let mut all = Vec::new();
    for case in case::cases() {
        let first = if case.cpus == 1 { 1 } else { 0 };
        let modelled = model::run(&case, 2)?;
        println!("{} MODEL", case.name);
        for (group, latency) in modelled.cpu.iter().zip(&modelled.latency_us) {
            for (cpu, latency) in group.iter().zip(latency) {
                let mut sorted = latency.clone();
                sorted.sort_by(f64::total_cmp);
                let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
                let at = |q: f64| sorted.get((sorted.len() as f64 * q) as usize).copied().unwrap_or(0.0);
                println!("  {:.4}  n {} mean {mean:.0} p50 {:.0} p95 {:.0} p99 {:.0}", cpu, sorted.len(), at(0.5), at(0.95), at(0.99));
            }
        }
        if argument == "model" { continue; }
        let measured = kernel::run(&case, first, &guardian)?;
        println!("{}", case.name);
        for (group, latency) in measured.cpu.iter().zip(&measured.latency_us) {
            for (cpu, latency) in group.iter().zip(latency) {
                let mut sorted = latency.clone();
                sorted.sort_by(f64::total_cmp);
                let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
                let at = |q: f64| sorted.get((sorted.len() as f64 * q) as usize).copied().unwrap_or(0.0);
                println!("  {:.4}  n {} mean {mean:.0} p50 {:.0} p95 {:.0} p99 {:.0}", cpu, sorted.len(), at(0.5), at(0.95), at(0.99));
            }
        }
        all.push((case, measured));
    }
    guardian.finish()?;
    std::fs::write("/tmp/s2/kernel.json", serde_json::to_string(&all)?)?;
    Ok(())
}
