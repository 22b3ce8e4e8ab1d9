//! How the two numbers are found that the paper does not give: what the driver domain does for a packet, and
//! how long Table 1's experiment ran.
//!
//! Both come from Table 1's rows of the unmodified scheduler alone. *Cost*: the I/O-only VMs' response times
//! are to be the paper's in their geometric mean. A packet costs the same in both directions. Waits grow in
//! proportion to the cost, so the line through what comes of all costs that are tried gives the one that is
//! taken, in whole microseconds. *Length*: equal VMs differ by chance only, and the less the longer a run is;
//! the VMs of a run are to differ as the paper's do. The steps are a minute. How long it ran matters, because
//! the time in which nothing is inferred yet is part of the paper's measurements.
//!
//! Latency of the network and cost of a packet cannot be told apart by these rows, so what other pairs that
//! meet them predict is printed too.

use super::tavs::{mean_response, run_means};
use crate::sim::simulate_all;
use crate::words::plain_table;
use frontdesk_scenario::{Overrides, Scenario};
use frontdesk_sim::Simulated;
use std::process::ExitCode;

/// TAVS Table 1, unmodified scheduler: mean response in ms.
pub(super) const NORMAL: [(&str, f64); 6] = [
    ("mixed-1", 69.44),
    ("mixed-2", 74.75),
    ("mixed-3", 74.13),
    ("io-1", 3.75),
    ("io-2", 4.56),
    ("io-3", 5.07),
];
/// The same with TAVS.
pub(super) const TAVS: [(&str, f64); 6] =
    [("mixed-1", 5.09), ("mixed-2", 5.69), ("mixed-3", 5.67), ("io-1", 4.95), ("io-2", 4.95), ("io-3", 3.76)];

/// Costs of a packet that are tried, in microseconds.
const COSTS: [u32; 12] = [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60];
/// Latencies of the network, each way, in microseconds. The first is the simulator's default, about what
/// Ethernet with 100 Mbit/s has.
const LATENCIES: [u32; 5] = [100, 400, 700, 1000, 1300];
/// Lengths of a run that are tried, in seconds.
const LENGTHS: [u32; 15] = [60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 660, 720, 780, 840, 900];
/// Repeats of each, so that the tail, which makes the mean, is there in each.
const REPEATS: u32 = 200;

/// How far the model may be from the paper's rows with TAVS.
const BAR: f64 = 0.25;

/// A variant of the scenario: one arm, with some keys set.
fn variant((name, text): (&str, &str), arm: &str, set: Vec<String>) -> anyhow::Result<Scenario> {
    let overrides =
        Overrides { set, repeats: Some(REPEATS), arms: vec![arm.to_owned()], ..Overrides::default() };
    Ok(Scenario::parse(text, name.as_ref(), &overrides)?)
}

fn costs(latency: u32, cost: u32) -> Vec<String> {
    vec![
        format!("sim.network.latency={latency}us"),
        format!("sim.costs.packet_in={cost}us"),
        format!("sim.costs.packet_out={cost}us"),
    ]
}

fn run(scenarios: &[Scenario], seed: u64) -> anyhow::Result<Vec<Simulated>> {
    simulate_all(scenarios, seed, None)
        .map_err(|(number, error)| anyhow::Error::new(error).context(scenarios[number].name.clone()))
}

/// Prints what comes of each cost and each length, which ones the rules take, and what that and other pairs
/// predict for TAVS.
pub(super) fn print(scenario: (&str, &str), seed: u64) -> anyhow::Result<ExitCode> {
    let pairs = fit_costs(scenario, seed)?;
    let (_, cost) = pairs[0];
    println!("The rule takes packet_in = packet_out = {cost} us.\n");
    let length = fit_length(scenario, cost, seed)?;
    println!("The rule takes a run of {length} s.\n");
    predict(scenario, &pairs, length, seed)?;
    Ok(ExitCode::SUCCESS)
}

/// For each latency the cost that the rule takes.
fn fit_costs(scenario: (&str, &str), seed: u64) -> anyhow::Result<Vec<(u32, u32)>> {
    let grid = LATENCIES.iter().flat_map(|latency| COSTS.iter().map(|cost| (*latency, *cost)));
    let grid: Vec<(u32, u32)> = grid.collect();
    let scenarios = grid.iter().map(|(latency, cost)| variant(scenario, "normal", costs(*latency, *cost)));
    let simulated = run(&scenarios.collect::<Result<Vec<_>, _>>()?, seed)?;
    let mut table = plain_table(&["packet, us", "I/O-only VMs, ms", "model / paper"]);
    let ratios = grid.iter().zip(&simulated).map(|((latency, cost), simulated)| {
        let means = NORMAL[3..].iter().map(|(vm, paper)| (mean_response(simulated, "normal", vm), paper));
        let ratio = mean(means.clone().map(|(model, paper)| (model / paper).ln())).exp();
        if *latency == LATENCIES[0] {
            let means: Vec<_> = means.map(|(model, _)| format!("{model:.2}")).collect();
            table.add_row([cost.to_string(), means.join(" "), format!("{ratio:.2}")]);
        }
        ratio
    });
    let ratios: Vec<f64> = ratios.collect();
    println!("{table}");
    let of_latency = LATENCIES.iter().zip(ratios.chunks(COSTS.len()));
    Ok(of_latency.map(|(latency, ratios)| (*latency, cost_for(ratios))).collect())
}

/// Where the line through all costs and their ratios, by least squares, meets 1.
fn cost_for(ratios: &[f64]) -> u32 {
    let costs = COSTS.map(f64::from);
    let (middle, level) = (mean(costs.iter().copied()), mean(ratios.iter().copied()));
    let rise: f64 = costs.iter().zip(ratios).map(|(cost, ratio)| (cost - middle) * (ratio - level)).sum();
    let slope = rise / costs.iter().map(|cost| (cost - middle).powi(2)).sum::<f64>();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Negative is 0.
    let cost = (middle + (1.0 - level) / slope).round() as u32;
    cost
}

/// The length of a run for which equal VMs differ as in the paper.
fn fit_length(scenario: (&str, &str), cost: u32, seed: u64) -> anyhow::Result<u32> {
    let scenarios = LENGTHS.map(|length| {
        let mut set = costs(LATENCIES[0], cost);
        set.push(format!("duration={length}s"));
        variant(scenario, "normal", set)
    });
    let simulated = run(&scenarios.into_iter().collect::<Result<Vec<_>, _>>()?, seed)?;
    let mut table =
        plain_table(&["run, s", "mixed VMs, +- ms", "I/O-only VMs, +- ms", "paper / model, variance"]);
    let mut best = (f64::MAX, LENGTHS[0]);
    for (length, simulated) in LENGTHS.iter().zip(&simulated) {
        let model = [&NORMAL[..3], &NORMAL[3..]].map(|vms| {
            let runs = runs(simulated, "normal", vms);
            mean(runs.iter().map(|run| variance(run.iter().copied())))
        });
        let paper = [&NORMAL[..3], &NORMAL[3..]].map(|vms| variance(vms.iter().map(|(_, mean)| *mean)));
        let ratio = f64::midpoint(paper[0] / model[0], paper[1] / model[1]);
        let [mixed, io] = model.map(|variance| format!("{:.2}", variance.sqrt()));
        table.add_row([length.to_string(), mixed, io, format!("{ratio:.2}")]);
        if ratio.ln().abs() < best.0 {
            best = (ratio.ln().abs(), *length);
        }
    }
    println!("{table}");
    Ok(best.1)
}

/// What the pair and the length that the rules take, and others, predict for TAVS.
fn predict(scenario: (&str, &str), pairs: &[(u32, u32)], length: u32, seed: u64) -> anyhow::Result<()> {
    let others = [length / 2, length * 2].map(|length| (pairs[0], length));
    let points: Vec<_> = pairs.iter().map(|pair| (*pair, length)).chain(others).collect();
    let scenarios = points.iter().map(|((latency, cost), length)| {
        let mut set = costs(*latency, *cost);
        set.push(format!("duration={length}s"));
        variant(scenario, "tavs", set)
    });
    let simulated = run(&scenarios.collect::<Result<Vec<_>, _>>()?, seed)?;
    let mut table = plain_table(&[
        "latency, us",
        "packet, us",
        "run, s",
        "TAVS: mixed VMs, ms",
        "TAVS: I/O-only VMs, ms",
    ]);
    let of = |vms: &[(&str, f64)], of: &dyn Fn(&str, f64) -> f64| {
        format!("{:.2}", mean(vms.iter().map(|(vm, paper)| of(vm, *paper))))
    };
    let [mixed, io] = [&TAVS[..3], &TAVS[3..]].map(|vms| of(vms, &|_, paper| paper));
    table.add_row(["paper".to_owned(), String::new(), String::new(), mixed, io]);
    for (((latency, cost), length), simulated) in points.iter().zip(&simulated) {
        let [mixed, io] =
            [&TAVS[..3], &TAVS[3..]].map(|vms| of(vms, &|vm, _| mean_response(simulated, "tavs", vm)));
        let [latency, cost, length] = [latency, cost, length].map(ToString::to_string);
        table.add_row([latency, cost, length, mixed, io]);
    }
    println!("{table}");
    chance(&simulated[0]);
    Ok(())
}

/// Prints how far the model is from itself: what could be asked of it if the paper's experiment were one of
/// its own runs.
fn chance(simulated: &Simulated) {
    let means = TAVS.map(|(vm, _)| mean_response(simulated, "tavs", vm));
    let near = runs(simulated, "tavs", &TAVS).into_iter().map(|run| {
        let rows = run.iter().zip(means).filter(|(row, mean)| (mean / *row - 1.0).abs() <= BAR);
        rows.count()
    });
    let near: Vec<usize> = near.collect();
    let of_all = |count: usize| 100.0 * mean(near.iter().map(|rows| f64::from(u8::from(*rows >= count))));
    println!(
        "\nThe model's means are within 25 % of all six rows of one of its own runs in {:.0} % of them,",
        of_all(6)
    );
    println!("of five or more in {:.0} %, of four or more in {:.0} %.", of_all(5), of_all(4));
}

/// The mean responses of some VMs in each run of an arm, in ms.
fn runs(simulated: &Simulated, arm: &str, vms: &[(&str, f64)]) -> Vec<Vec<f64>> {
    let of_vms: Vec<Vec<f64>> = vms.iter().map(|(vm, _)| run_means(simulated, arm, vm)).collect();
    let runs = of_vms.iter().map(Vec::len).min().unwrap_or(0);
    (0..runs).map(|run| of_vms.iter().map(|means| means[run]).collect()).collect()
}

#[allow(clippy::cast_precision_loss)] // A few.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// Of a sample.
fn variance<I: ExactSizeIterator<Item = f64> + Clone>(values: I) -> f64 {
    let (count, mean) = (values.len(), mean(values.clone()));
    #[allow(clippy::cast_precision_loss)] // A few.
    let freedom = (count - 1) as f64;
    values.map(|value| (value - mean).powi(2)).sum::<f64>() / freedom
}
