//! Kernel and model side by side.

use super::case::{Case, Costs, Measured};
use serde::{Deserialize, Serialize};

/// What was measured, for the test that compares the model with it again.
#[derive(Serialize, Deserialize)]
pub struct Record {
    /// Version of the kernel.
    pub kernel: String,
    /// CPUs of the machine.
    pub cpus: u16,
    pub costs: Costs,
    pub measured: Vec<(Case, Measured)>,
}

/// A value in the kernel and in the model.
pub struct Row {
    /// Group and process, or the group alone.
    pub who: String,
    pub what: &'static str,
    pub kernel: f64,
    pub model: f64,
    /// How far the model may be off, as a fraction of the kernel's value,
    pub bar: f64,
    /// and in its unit, if that is more.
    least: f64,
}

impl Row {
    /// How far the model is off, as a fraction.
    pub fn off(&self) -> f64 {
        self.model / self.kernel - 1.0
    }

    pub fn passes(&self) -> bool {
        (self.model - self.kernel).abs() <= (self.kernel * self.bar).max(self.least)
    }
}

/// Shares of what the processes of the case got together within 3 %, or 0.3 points where that is more; mean
/// and 95th percentile of wake-up latencies within 25 %.
pub fn rows(kernel: &Measured, model: &Measured) -> Vec<Row> {
    let whole = |measured: &Measured| measured.cpu.iter().flatten().sum::<f64>();
    let (whole_kernel, whole_model) = (whole(kernel), whole(model));
    let mut rows = Vec::new();
    for (group, (cpu, latency)) in kernel.cpu.iter().zip(&kernel.latency).enumerate() {
        for (process, (share, latency)) in cpu.iter().zip(latency).enumerate() {
            let who = format!("{group}.{process}");
            rows.push(Row {
                who: who.clone(),
                what: "share, %",
                kernel: share / whole_kernel * 100.0,
                model: model.cpu[group][process] / whole_model * 100.0,
                bar: 0.03,
                least: 0.3,
            });
            let (Some(kernel), Some(model)) = (latency, &model.latency[group][process]) else { continue };
            let values = [
                ("mean, ms", kernel.mean_us, model.mean_us),
                ("p95, ms", kernel.percentiles_us[95], model.percentiles_us[95]),
            ];
            rows.extend(values.map(|(what, kernel, model)| Row {
                who: who.clone(),
                what,
                kernel: kernel / 1000.0,
                model: model / 1000.0,
                bar: 0.25,
                least: 0.0,
            }));
        }
    }
    rows
}
