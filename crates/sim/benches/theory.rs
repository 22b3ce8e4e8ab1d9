//! Waits before a server in the model and by Pollaczek and Khinchine's formula, over its load.
//!
//! Prints both, and with `--svg FILE` draws them. `tests/theory.rs` asserts what this shows.

#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a program, not a library"
)]

mod chart;
#[path = "../tests/queue/mod.rs"]
mod queue;

use frontdesk_sim::{Nanos, Rng};
use plotters::prelude::*;
use std::{env, fs};

/// Mean service time.
const MEAN: Nanos = 400_000;
const REQUESTS: usize = 400_000;

/// Name, a service time of this mean, second moment in units of the mean squared, colour.
type Service = (&'static str, fn(&mut Rng, Nanos) -> Nanos, f64, RGBColor);

const SERVICES: [Service; 3] = [
    ("exponential service", |rng, mean| rng.exponential(mean), 2.0, RGBColor(0xD5, 0x5E, 0x00)),
    ("uniform service", |rng, mean| rng.uniform(0, 2 * mean), 4.0 / 3.0, RGBColor(0x00, 0x72, 0xB2)),
    ("deterministic service", |_, mean| mean, 1.0, RGBColor(0x00, 0x9E, 0x73)),
];

fn main() {
    let loads: Vec<f64> = (1..=9).map(|tenths| f64::from(tenths) / 10.0).collect();
    let by_theory = |load: f64, moment: f64| load * moment / (2.0 * (1.0 - load));
    let mut found = Vec::new();
    println!(
        "mean wait in service times; {REQUESTS} requests each\nservice                 load    model   theory"
    );
    for (name, service, moment, _) in SERVICES {
        let mut points = Vec::new();
        for load in &loads {
            let waits = queue::waits(REQUESTS, (MEAN as f64 / load) as Nanos, MEAN, service);
            let mean = waits.iter().sum::<f64>() / waits.len() as f64 / MEAN as f64;
            println!("{name:<22} {load:>5.1} {mean:>8.3} {:>8.3}", by_theory(*load, moment));
            points.push((*load, mean));
        }
        found.push(points);
    }
    let Some(path) = env::args().skip_while(|argument| argument != "--svg").nth(1) else { return };
    let svg = chart::svg((0.92, "load of the server"), (10.0, "mean wait, service times"), |chart| {
        for ((name, _, moment, colour), points) in SERVICES.into_iter().zip(found) {
            let curve =
                (0..=180).map(|step| f64::from(step) / 200.0).map(|load| (load, by_theory(load, moment)));
            chart
                .draw_series(LineSeries::new(curve, colour.stroke_width(3)))
                .unwrap()
                .label(format!("{name}: theory (line), model (dots)"))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 30, y)], colour.stroke_width(4)));
            chart
                .draw_series(points.into_iter().map(|point| Circle::new(point, 8, colour.filled())))
                .unwrap();
        }
    });
    fs::write(&path, svg).unwrap();
}
