//! How much faster than SimSo the simulator runs the same task sets under earliest deadline first and
//! rate-monotonic.
//!
//! Prints the CPU time of both (the wall time on a machine that does nothing else), without start-up, and
//! their ratio; fails if that is below its bar. `--svg FILE` draws the response time of every job in the one
//! over that in the other. `tools/setup.sh sim` installs SimSo.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a program, not a library")]

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/periodic/mod.rs"]
mod periodic;
#[path = "../tests/simso_process/mod.rs"]
mod simso_process;

use frontdesk_sim::Rng;
use periodic::{Policy, TaskSet};
use plotters::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use std::process::ExitCode;

/// So many times faster.
const BAR: f64 = 100.0;
const SETS: u64 = 20;
const DURATION: u64 = 1_000_000;

fn main() -> ExitCode {
    let Some(python) = simso_process::python() else { return ExitCode::from(2) };
    let sets: Vec<TaskSet> = (0..SETS).map(|set| TaskSet::random(&mut Rng::new(7, set), DURATION)).collect();
    let mut kept = true;
    let mut responses = Vec::new();
    for (policy, name) in [(Policy::EarliestDeadlineFirst, "EDF"), (Policy::RateMonotonic, "RM")] {
        let begun = cpu_seconds();
        let found: Vec<_> = sets.iter().flat_map(|set| set.run(policy, DURATION)).flatten().collect();
        let ours = cpu_seconds() - begun;
        let jobs = found.len();
        let answers = simso_process::ask(&python, name, DURATION, &sets);
        let theirs: f64 = answers.iter().map(|answer| answer.seconds).sum();
        let response = |job: &periodic::Job| Some((job.end? - job.release) as f64 / 1000.0);
        let pairs = answers.iter().flat_map(|answer| answer.jobs.iter().flatten()).zip(&found);
        responses.push(
            pairs.filter_map(|(theirs, ours)| Some((response(theirs)?, response(ours)?))).collect::<Vec<_>>(),
        );
        let ratio = theirs / ours;
        kept &= ratio >= BAR;
        println!(
            "{name}: {SETS} task sets, {jobs} jobs: SimSo {:.0} ms, frontdesk {:.1} ms, {ratio:.0} x (bar: {BAR:.0} x) {}",
            theirs * 1000.0,
            ours * 1000.0,
            if ratio >= BAR { "ok" } else { "MISSED" }
        );
    }
    if let Some(path) = std::env::args().skip_while(|argument| argument != "--svg").nth(1) {
        std::fs::write(path, draw(&responses)).unwrap();
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Response times in milliseconds, SimSo's first, under both policies. Of many jobs with about the same, one
/// is drawn.
fn draw(responses: &[Vec<(f64, f64)>]) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (1600, 800)).into_drawing_area();
        area.fill(&WHITE).unwrap();
        for ((name, all), panel) in
            ["EDF", "rate-monotonic"].into_iter().zip(responses).zip(area.split_evenly((1, 2)))
        {
            let mut chart = ChartBuilder::on(&panel)
                .margin(20)
                .caption(name, ("sans-serif", 30))
                .x_label_area_size(70)
                .y_label_area_size(90)
                .build_cartesian_2d(0.0..40.0, 0.0..40.0)
                .unwrap();
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .x_desc("response time in SimSo, ms")
                .y_desc("in frontdesk, ms")
                .label_style(("sans-serif", 24))
                .draw()
                .unwrap();
            let mut drawn = std::collections::BTreeSet::new();
            let cell = |value: f64| format!("{value:.1}");
            let points = all.iter().filter(|(x, y)| drawn.insert((cell(*x), cell(*y))));
            let dot = |point: &(f64, f64)| Circle::new(*point, 4, RGBColor(0x00, 0x72, 0xB2).filled());
            chart.draw_series(points.map(dot)).unwrap();
        }
        area.present().unwrap();
    }
    svg
}
