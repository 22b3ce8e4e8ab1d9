//! Calibration of the model against real VMs, from an arm in which the VM that answers does nothing else.
//!
//! In such an arm some of the requests find the CPU free to them: the woken VM preempts at once and keeps the
//! CPU, and the response time is what the request costs on its way through the network, the emulator's thread
//! and the guest. Those are the fastest ones, and two of their quantiles give two numbers: how much more
//! everything costs on that host than the scenario says, and how much requests differ. The others waited for
//! the scheduler, which stays for the model to predict.

mod conditions;

pub use conditions::{Conditions, predict};
use conditions::{repeats, scale};

use crate::world::SimError;
use frontdesk_scenario::{ArmResult, Repeat, Scenario, quantile};
use serde::Serialize;

/// What the arm of a lab gave for the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// By how much the costs of the scenario's `[sim]` are multiplied: those of packets and tasks, on the
    /// host and in the guest.
    pub cost_factor: f64,
    /// How much requests differ: `sim.costs.spread`.
    pub spread: f64,
    /// The quantiles of the response time that were matched in the lab, in milliseconds.
    pub lab_ms: [f64; 2],
    /// The same in the calibrated model.
    pub model_ms: [f64; 2],
}

/// Why the model cannot be calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// There is nothing to calibrate with.
    #[error(
        "the lab's result has {samples} response times of arm {arm:?}: at least {LEAST_SAMPLES} are needed to calibrate the model"
    )]
    TooFew {
        /// The arm.
        arm: String,
        /// Response times that the result has.
        samples: usize,
    },
    /// The scenario has no such arm.
    #[error("the scenario has no arm {0:?} to calibrate the model with")]
    NoArm(String),
    /// No factor makes the model as fast or slow.
    #[error(
        "no cost factor from {LEAST} to {MOST} gives the model the lab's response time of {lab_ms:.3} ms in arm {arm:?}: it has \
         {model_ms:.3} ms at best; are sim.network.latency and the costs of [sim] those of that host?"
    )]
    OutOfReach {
        /// The arm.
        arm: String,
        /// In the lab.
        lab_ms: f64,
        /// The closest that the model comes.
        model_ms: f64,
    },
    /// The model cannot be run.
    #[error(transparent)]
    Sim(#[from] SimError),
}

/// Percentiles that are matched, both among the requests that find the CPU free.
const QUANTILES: [usize; 2] = [10, 2];
const LEAST_SAMPLES: usize = 40;
/// Factors and spreads that are tried.
const LEAST: f64 = 0.01;
const MOST: f64 = 1_000.0;
const WIDEST: f64 = 1.0;

/// Halvings of the range of what is looked for.
const STEPS: u32 = 16;

impl Calibration {
    /// Applies it to a scenario, that of the lab's arm or another one of the same host.
    pub fn apply(&self, scenario: &mut Scenario) {
        let arms = scenario.arms.values_mut().filter_map(|arm| arm.sim.as_mut());
        for sim in arms.chain([&mut scenario.sim]) {
            scale(sim, self.cost_factor, self.spread);
        }
    }
}

/// Finds what makes the model's `arm` like the lab's. The same lab result and seed give the same calibration.
///
/// # Errors
/// There are too few response times, the model does not reach them, or it cannot be run.
pub fn calibrate(
    scenario: &Scenario,
    arm: &str,
    lab: &ArmResult,
    seed: u64,
) -> Result<Calibration, CalibrationError> {
    if !scenario.arms.contains_key(arm) {
        return Err(CalibrationError::NoArm(arm.to_owned()));
    }
    let samples = lab.repeats.iter().flat_map(|repeat| repeat.samples_ms.values()).map(Vec::len).sum();
    if samples < LEAST_SAMPLES {
        return Err(CalibrationError::TooFew { arm: arm.to_owned(), samples });
    }
    let lab_ms = quantiles(&lab.repeats);
    let model = |cost_factor: f64, spread: f64| -> Result<[f64; 2], SimError> {
        let mut model = scenario.clone();
        Calibration { cost_factor, spread, lab_ms, model_ms: lab_ms }.apply(&mut model);
        Ok(quantiles(&repeats(&model, arm, lab, (scenario, lab), seed)?))
    };
    // With more spread the fastest get faster beside the others, and the factor follows.
    let factor = |spread: f64| {
        bisect(LEAST.ln(), MOST.ln(), |factor| Ok(model(factor.exp(), spread)?[0] < lab_ms[0])).map(f64::exp)
    };
    let spread = bisect(0.0, WIDEST, |spread| {
        let [middle, fast] = model(factor(spread)?, spread)?;
        Ok(fast / middle > lab_ms[1] / lab_ms[0])
    })?;
    let cost_factor = factor(spread)?;
    let model_ms = model(cost_factor, spread)?;
    if (model_ms[0] / lab_ms[0] - 1.0).abs() > 0.05 {
        let (lab_ms, model_ms) = (lab_ms[0], model_ms[0]);
        return Err(CalibrationError::OutOfReach { arm: arm.to_owned(), lab_ms, model_ms });
    }
    Ok(Calibration { cost_factor, spread, lab_ms, model_ms })
}

/// Where, between two numbers, `below` becomes false.
fn bisect(
    mut low: f64,
    mut high: f64,
    below: impl Fn(f64) -> Result<bool, SimError>,
) -> Result<f64, SimError> {
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        if below(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(f64::midpoint(low, high))
}

/// The quantiles of all response times.
fn quantiles(repeats: &[Repeat]) -> [f64; 2] {
    let mut samples: Vec<f64> =
        repeats.iter().flat_map(|repeat| repeat.samples_ms.values()).flatten().copied().collect();
    samples.sort_by(f64::total_cmp);
    QUANTILES.map(|percent| quantile(&samples, percent).unwrap_or(0.0))
}

#[cfg(test)]
mod tests;
