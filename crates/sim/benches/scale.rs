//! What many VMs take: memory, and time per simulated second, for up to 1008 VMs with 4 vCPUs each, eight VMs
//! on a physical CPU.
//!
//! The VMs, their load and the machine are those of `table1`: that of the lab (eevdf, emulator threads) and
//! that of the paper's machine (credit, a driver domain), with the engine acting. Prints both, fails if a bar
//! is missed, and with `--svg FILE` draws the times.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a program, not a library")]

mod chart;

use frontdesk_scenario::{Overrides, Scenario};
use plotters::prelude::*;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use std::{env, fs};

#[global_allocator]
static PEAK: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

/// Numbers of VMs: a third of them of each of the three kinds of `table1`.
const VMS: [u16; 6] = [120, 240, 480, 720, 864, 1008];
const VMS_ON_A_PCPU: u16 = 8;
/// Simulated time, of which a second is warm-up.
const SECONDS: f64 = 5.0;
/// Runs of each; the fastest counts, for only others' work makes one slower.
const RUNS: u32 = 3;
/// Memory that the most VMs may take, in MB.
const MEMORY: f32 = 1_000.0;
/// How much longer the most VMs may take for each VM than those in the middle, of which there are half as
/// many. Time that is linear gives 1, time that grows with the square 2; caches that the most VMs do not fit
/// into give something between.
const GROWTH: f64 = 2.0;

/// Scenario, arm, what it is, colour.
const CASES: [(&str, &str, &str, RGBColor); 2] = [
    ("papers/tavs-table1.toml", "tavs", "credit, driver domain", RGBColor(0xD5, 0x5E, 0x00)),
    ("tavs/table1.toml", "frontdesk", "eevdf, emulator threads", RGBColor(0x00, 0x72, 0xB2)),
];

fn main() -> ExitCode {
    let mut missed = false;
    let mut curves = Vec::new();
    println!("scenario                  VMs   s per simulated s   ms per VM   MB");
    for (file, arm, _, _) in CASES {
        let points: Vec<(u16, f64)> = VMS
            .iter()
            .map(|vms| {
                let (seconds, memory) = measure(&crowd(file, *vms), arm);
                let each = seconds * 1e3 / f64::from(*vms);
                println!("{file:<24} {vms:>4}   {seconds:>17.3}   {each:>9.3}   {memory:.0}");
                missed |= memory > MEMORY;
                (*vms, seconds)
            })
            .collect();
        let each = |(vms, seconds): (u16, f64)| seconds / f64::from(vms);
        let growth = each(points[VMS.len() - 1]) / each(points[VMS.len() / 2 - 1]);
        println!(
            "{file:<24} a VM of the most takes {growth:.2} times as long as one of {}",
            VMS[VMS.len() / 2 - 1]
        );
        missed |= growth > GROWTH;
        curves.push(points);
    }
    if let Some(path) = env::args().skip_while(|argument| argument != "--svg").nth(1) {
        fs::write(path, plot(&curves)).unwrap();
    }
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// `table1` with so many VMs of 4 vCPUs, and a client for each that answers.
fn crowd(file: &str, vms: u16) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(file);
    let set = vec![
        format!("sim.pcpus={}", vms / VMS_ON_A_PCPU),
        format!("duration={}s", SECONDS - 1.0),
        "warmup=1s".to_owned(),
        // The ticks of so many idle clocks would be most of what happens.
        "sim.guest.tick=0s".to_owned(),
    ];
    let mut scenario = Scenario::load(&path, &Overrides { set, ..Overrides::default() }).unwrap();
    // An entry has at most 64 VMs.
    let kinds = std::mem::take(&mut scenario.vms);
    let loads = std::mem::take(&mut scenario.loads);
    let most = 64;
    for (number, from) in (0..).zip((0..vms / 3).step_by(usize::from(most))) {
        for kind in &kinds {
            let name = format!("{}-{number}", kind.name);
            let own = loads.iter().filter(|load| load.vm == kind.name);
            scenario.loads.extend(own.cloned().map(|mut load| {
                load.vm.clone_from(&name);
                load
            }));
            let mut entry = kind.clone();
            (entry.name, entry.count, entry.vcpus) = (name, most.min(vms / 3 - from), 4);
            scenario.vms.push(entry);
        }
    }
    scenario
}

/// Seconds for a simulated one, and the most memory in MB.
fn measure(scenario: &Scenario, arm: &str) -> (f64, f32) {
    PEAK.reset_peak_usage();
    let runs = (0..RUNS).map(|_| {
        let begin = Instant::now();
        frontdesk_sim::run(scenario, arm, 1, 1, false).unwrap();
        begin.elapsed().as_secs_f64() / SECONDS
    });
    (runs.fold(f64::MAX, f64::min), PEAK.peak_usage_as_mb())
}

fn plot(curves: &[Vec<(u16, f64)>]) -> String {
    let most = curves.iter().flatten().map(|(_, seconds)| *seconds).fold(0.0, f64::max) * 1.1;
    let x = (1050.0, "VMs with 4 vCPUs each, eight on a physical CPU");
    chart::svg(x, (most, "seconds for a simulated second, one core"), |chart| {
        for ((_, _, name, colour), points) in CASES.into_iter().zip(curves) {
            // Through the origin, and the point of the most VMs.
            let (vms, seconds) = points[points.len() - 1];
            chart
                .draw_series(LineSeries::new([(0.0, 0.0), (f64::from(vms), seconds)], colour.stroke_width(1)))
                .unwrap();
            let dots = points
                .iter()
                .map(|(vms, seconds)| Circle::new((f64::from(*vms), *seconds), 8, colour.filled()));
            chart
                .draw_series(dots)
                .unwrap()
                .label(format!("{name} (line: proportional to the VMs)"))
                .legend(move |(x, y)| Circle::new((x + 15, y), 8, colour.filled()));
        }
    })
}
