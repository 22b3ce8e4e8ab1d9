//! What is printed of TAVS.

use super::{Row, calibration};
use frontdesk_scenario::ArmResult;
use frontdesk_sim::Simulated;

/// The scenarios, as they are in `scenarios/papers`.
pub(super) const SCENARIOS: [(&str, &str); 6] = [
    ("tavs-figure4.toml", include_str!("../../../../scenarios/papers/tavs-figure4.toml")),
    ("tavs-figure5-disk.toml", include_str!("../../../../scenarios/papers/tavs-figure5-disk.toml")),
    ("tavs-figure5-network.toml", include_str!("../../../../scenarios/papers/tavs-figure5-network.toml")),
    ("tavs-table1.toml", include_str!("../../../../scenarios/papers/tavs-table1.toml")),
    ("tavs-figure6.toml", include_str!("../../../../scenarios/papers/tavs-figure6.toml")),
    ("tavs-figure7.toml", include_str!("../../../../scenarios/papers/tavs-figure7.toml")),
];

/// The rows of one experiment.
pub(super) fn rows(simulated: &Simulated) -> Vec<Row> {
    let outcome = &simulated.outcome;
    let mut rows = Vec::new();
    for (name, arm) in &outcome.arms {
        let mut row = |what: String, paper: &str, model: String| {
            let (experiment, arm) = (outcome.scenario.clone(), name.clone());
            rows.push(Row { experiment, arm, what, paper: paper.to_owned(), model });
        };
        for vm in arm.response_ms.keys() {
            let what = format!("{vm}: mean response, ms");
            row(what, &paper_response(&outcome.scenario, name, vm), model_response(simulated, name, vm));
        }
        for (workload, rate) in arm.rates.iter().filter(|(workload, _)| workload.ends_with("/io")) {
            row(format!("{workload}: MB/s"), "-", format!("{:.2}", rate.per_s / 1e6));
        }
        if let Some(rate) = arm.rates.get("mixed/burn-0ms") {
            row("mixed/burn-0ms: reads per second".to_owned(), "-", format!("{:.1}", rate.per_s / 4096.0));
        }
        if let Some(pbhr) = arm.pbhr {
            row("PBHR".to_owned(), paper_pbhr(name), format!("{:.0} %", pbhr * 100.0));
        }
        if outcome.scenario == "tavs-figure4" {
            let models =
                simulated.outcome.arms[name].repeats.iter().filter_map(|repeat| repeat.model.as_ref());
            let samples = models.filter_map(|model| model.delivery_ms.get("mixed")).flatten();
            let longest = samples.copied().fold(0.0, f64::max);
            row("mixed: longest delivery, ms".to_owned(), paper_delivery(name), format!("{longest:.0}"));
        }
        row("CPU share of who wants it, of its fair part".to_owned(), "1.00", shares(arm));
    }
    rows
}

/// TAVS Table 1.
fn paper_response(scenario: &str, arm: &str, vm: &str) -> String {
    let rows = match (scenario, arm) {
        ("tavs-table1", "normal") => calibration::NORMAL,
        ("tavs-table1", "tavs") => calibration::TAVS,
        _ => return "-".to_owned(),
    };
    rows.iter().find(|(name, _)| *name == vm).map_or("-".to_owned(), |(_, mean)| format!("{mean:.2}"))
}

/// The model's mean response, and where nine of ten runs are, if there are enough to tell.
fn model_response(simulated: &Simulated, arm: &str, vm: &str) -> String {
    let mean = mean_response(simulated, arm, vm);
    let mut runs = run_means(simulated, arm, vm);
    if runs.len() < 20 {
        return format!("{mean:.2}");
    }
    runs.sort_by(f64::total_cmp);
    let [low, high] = [runs.len() / 20, runs.len() - 1 - runs.len() / 20].map(|place| runs[place]);
    format!("{mean:.2} ({low:.2} - {high:.2})")
}

/// Mean response of a VM in an arm, over all requests of all runs, in ms. The tail makes the mean, and few
/// runs have much of it: their median would be less.
pub(super) fn mean_response(simulated: &Simulated, arm: &str, vm: &str) -> f64 {
    let summaries = simulated.outcome.arms[arm].repeats.iter().filter_map(|run| run.response_ms.get(vm));
    #[allow(clippy::cast_precision_loss)] // Far from 2^52.
    let (count, sum) = summaries
        .map(|run| (run.count as f64, run.count as f64 * run.mean))
        .fold((0.0, 0.0), |(counts, sums), (count, sum)| (counts + count, sums + sum));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Mean response of a VM in each run of an arm, in ms.
pub(super) fn run_means(simulated: &Simulated, arm: &str, vm: &str) -> Vec<f64> {
    let runs = simulated.outcome.arms[arm].repeats.iter();
    runs.filter_map(|run| run.response_ms.get(vm)).map(|response| response.mean).collect()
}

/// TAVS §5.1: the longest scheduling latency from the driver domain to the server.
fn paper_delivery(arm: &str) -> &'static str {
    match arm {
        "normal" => "150",
        "tavs" => "near 0, but at first",
        _ => "-",
    }
}

/// TAVS §5.2, Figure 7.
fn paper_pbhr(arm: &str) -> &'static str {
    match arm {
        "bits-1" => "64 %",
        "bits-2" | "bits-4" => "about 90 %",
        "bits-nc" => "very low",
        _ => "-",
    }
}

fn shares(arm: &ArmResult) -> String {
    let wanting: Vec<f64> = arm.cpu_share.values().copied().filter(|share| *share > 0.5).collect();
    let least = wanting.iter().copied().fold(f64::MAX, f64::min);
    let most = wanting.iter().copied().fold(0.0, f64::max);
    format!("{least:.2} to {most:.2}")
}
