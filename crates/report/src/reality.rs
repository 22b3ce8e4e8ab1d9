//! The simulator beside the lab.

use crate::number::number;
use crate::table::{empty, verdict};
use crate::{ReportError, svg_cdf};
use frontdesk_scenario::{ArmResult, Outcome, Repeat, Scenario, Summary, VmSpec};
use indexmap::IndexMap;
use serde::Serialize;

/// How far the model may be from the lab.
pub const TOLERANCE: f64 = 0.25;

/// A number of the lab and of the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The arm.
    pub arm: String,
    /// The VM entry: all its VMs, in all repeats, together.
    pub vm: String,
    /// What of the response times.
    pub measure: &'static str,
    /// In the lab, in milliseconds.
    pub lab: f64,
    /// In the model, in milliseconds.
    pub model: f64,
    /// Model over lab.
    pub ratio: f64,
    /// Whether that is within [`TOLERANCE`].
    pub within: bool,
}

/// Mean and 95th percentile of the response times, for every arm and VM entry that both outcomes have.
#[must_use]
pub fn compare(scenario: &Scenario, lab: &Outcome, model: &Outcome) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for (name, of_lab) in &lab.arms {
        let Some(of_model) = model.arms.get(name) else { continue };
        for entry in &scenario.vms {
            let both = summary(of_lab, entry).zip(summary(of_model, entry));
            let Some((of_lab, of_model)) = both else { continue };
            for (measure, lab, model) in
                [("mean", of_lab.mean, of_model.mean), ("p95", of_lab.p95, of_model.p95)]
            {
                let ratio = model / lab;
                let within = (ratio - 1.0).abs() <= TOLERANCE;
                let (arm, vm) = (name.clone(), entry.name.clone());
                ratios.push(Ratio { arm, vm, measure, lab, model, ratio, within });
            }
        }
    }
    ratios
}

/// The response times of all VMs of an entry in all repeats.
fn summary(arm: &ArmResult, entry: &VmSpec) -> Option<Summary> {
    let names = entry.names();
    let of_entry = |key: &str| names.iter().any(|name| key.split('/').next() == Some(name));
    let samples = arm.repeats.iter().flat_map(|repeat| &repeat.samples_ms);
    let samples = samples.filter(|(key, _)| of_entry(key)).flat_map(|(_, samples)| samples);
    Summary::of(&samples.copied().collect::<Vec<_>>())
}

/// The numbers as a table for a terminal.
#[must_use]
pub fn comparison_table(ratios: &[Ratio], colour: bool) -> String {
    let mut table = empty(&["arm", "VM", "response", "lab ms", "model ms", "model / lab", "within 25 %"], 3);
    for of in ratios {
        let names = [of.arm.clone(), of.vm.clone(), of.measure.to_owned()];
        let numbers = [of.lab, of.model, of.ratio].map(number);
        let cells = names.into_iter().chain(numbers).map(comfy_table::Cell::new);
        table.add_row(cells.chain([verdict(of.within, colour)]));
    }
    if colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    format!("{}\n", table.trim_fmt())
}

/// The distributions of the response times of both, as a standalone SVG file.
///
/// # Errors
/// When it cannot be drawn.
pub fn svg_comparison(lab: &Outcome, model: &Outcome) -> Result<String, ReportError> {
    let mut arms = IndexMap::new();
    for (name, of_lab) in &lab.arms {
        let Some(of_model) = model.arms.get(name) else { continue };
        for (world, arm) in [("lab", of_lab), ("model", of_model)] {
            let samples =
                |repeat: &Repeat| Repeat { samples_ms: repeat.samples_ms.clone(), ..Repeat::default() };
            let repeats = arm.repeats.iter().map(samples).collect();
            arms.insert(format!("{name}, {world}"), ArmResult { repeats, ..ArmResult::default() });
        }
    }
    svg_cdf(&Outcome { arms, checks: Vec::new(), ..lab.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_scenario::Overrides;

    fn outcome(samples: [(&str, &[f64]); 2]) -> Outcome {
        let samples_ms = samples.iter().map(|(vm, samples)| ((*vm).to_owned(), samples.to_vec())).collect();
        let repeats = vec![Repeat { samples_ms, ..Repeat::default() }];
        let arm = ArmResult { repeats, ..ArmResult::default() };
        let arms = [("stock".to_owned(), arm)].into_iter().collect();
        Outcome {
            scenario: "x".to_owned(),
            host: Default::default(),
            arms,
            checks: Vec::new(),
            tables: Vec::new(),
            figures: Vec::new(),
            screenshots: Vec::new(),
        }
    }

    #[test]
    fn vms_of_an_entry_are_taken_together() {
        let text = r#"
            name = "x"
            description = "x"
            repeats = 1
            duration = "1s"
            warmup = "0s"
            think_scale = 1.0
            guest = { kernel = "6.1-cloud" }
            host = { vm_cpus = [0], client_cpus = [1] }
            vm = [{ name = "mixed", count = 2, workloads = [{ name = "hog", run = "hog" }] }]
            arms.stock = {}
        "#;
        let scenario = Scenario::parse(text, "x.toml".as_ref(), &Overrides::default()).unwrap();
        let lab = outcome([("mixed-1", &[1.0, 3.0]), ("mixed-2", &[4.0, 8.0])]);
        let model = outcome([("mixed-1", &[2.0, 4.0]), ("mixed-2", &[4.0, 12.0])]);
        let ratios = compare(&scenario, &lab, &model);
        let numbers: Vec<_> = ratios.iter().map(|of| (of.measure, of.lab, of.model, of.within)).collect();
        assert_eq!(numbers, [("mean", 4.0, 5.5, false), ("p95", 8.0, 12.0, false)]);
        let near = compare(&scenario, &lab, &lab);
        assert!(near.iter().all(|of| of.within && of.vm == "mixed"), "{near:?}");
        assert!(comparison_table(&ratios, false).contains("1.38"));
        assert!(svg_comparison(&lab, &model).unwrap().contains("stock, model"));
    }
}
