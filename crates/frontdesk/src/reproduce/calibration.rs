//! How the one number is fitted that the paper does not give: what the driver domain does for a packet.
//!
//! The rule: the response times of the I/O-only VMs of Table 1, unmodified scheduler, are to be the paper's in their geometric mean. A lone packet
//! costs the same in both directions; the steps are 5 us. The mixed VMs' rows, and all of TAVS, are not looked at.

use super::simulate_all;
use comfy_table::{Table, presets};
use frontdesk_scenario::{Overrides, Scenario};
use std::process::ExitCode;

/// TAVS Table 1, unmodified scheduler: mean response of the I/O-only VMs in ms.
pub(super) const NORMAL_IO: [(&str, &str); 3] = [("io-1", "3.75"), ("io-2", "4.56"), ("io-3", "5.07")];

/// What is tried, in microseconds.
const COSTS: std::ops::RangeInclusive<u32> = 1..=24;
const STEP: u32 = 5;
/// Repeats of each, so that the tail, which makes the mean, is there in each.
const REPEATS: u32 = 20;

/// Prints what comes of each cost, and which one the rule takes.
pub(super) fn print((name, text): (&str, &str), seed: u64) -> anyhow::Result<ExitCode> {
    let costs: Vec<u32> = COSTS.map(|step| step * STEP).collect();
    let scenarios = costs.iter().map(|cost| {
        let set = ["in", "out"].map(|way| format!("sim.costs.packet_{way}={cost}us")).to_vec();
        let overrides = Overrides {
            set,
            repeats: Some(REPEATS),
            arms: vec!["normal".to_owned()],
            ..Overrides::default()
        };
        Scenario::parse(text, name.as_ref(), &overrides)
    });
    let scenarios = scenarios.collect::<Result<Vec<_>, _>>()?;
    let simulated = simulate_all(&scenarios, seed)
        .map_err(|(_, error)| anyhow::Error::new(error).context(name.to_owned()))?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["packet, us", "I/O-only VMs, ms", "model / paper"]);
    let mut best = (f64::MAX, 0);
    for (cost, simulated) in costs.iter().zip(&simulated) {
        let responses = &simulated.outcome.arms["normal"].response_ms;
        let pairs: Vec<(f64, f64)> = NORMAL_IO
            .iter()
            .filter_map(|(vm, paper)| Some((responses.get(*vm)?.mean, paper.parse().ok()?)))
            .collect();
        let means: Vec<_> = pairs.iter().map(|(model, _)| format!("{model:.2}")).collect();
        let off = pairs.iter().map(|(model, paper)| (model / paper).ln()).sum::<f64>() / 3.0;
        table.add_row([cost.to_string(), means.join(" "), format!("{:.2}", off.exp())]);
        if off.abs() < best.0 {
            best = (off.abs(), *cost);
        }
    }
    println!("{table}\nThe rule takes packet_in = packet_out = {} us.", best.1);
    Ok(ExitCode::SUCCESS)
}
