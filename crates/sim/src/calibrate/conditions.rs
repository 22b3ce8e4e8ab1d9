//! What a lab measured in an arm beside response times, and what the model takes as given: how fast the machine was and how long decisions took.

use super::scale;
use frontdesk_scenario::{ArmResult, Scenario, WorkloadKind};
use serde::Serialize;
use std::time::Duration;

/// The conditions of an arm in the lab.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Conditions {
    /// CPU time that an operation of VMs that only compute took, over that in the arm from which the model is calibrated: machines that are
    /// VMs themselves, or whose CPUs share a core, are not always equally fast. 1 if no VM only computes.
    pub slowness: f64,
    /// From a packet to the boost, in microseconds: the median of the daemon's own statistics, where it acted.
    pub decision_us: Option<f64>,
}

impl Conditions {
    /// Those of an arm, compared with those of the arm from which the model is calibrated; each with its scenario.
    #[must_use]
    pub fn of(arm: (&Scenario, &ArmResult), reference: (&Scenario, &ArmResult)) -> Conditions {
        let slowness = match (operation_ms(arm), operation_ms(reference)) {
            (Some(here), Some(there)) => here / there,
            _ => 1.0,
        };
        Conditions { slowness, decision_us: arm.1.decision_us.map(|latency| latency.p50) }
    }

    /// Gives them to an arm of a scenario.
    pub fn apply(&self, scenario: &mut Scenario, arm: &str) {
        let Some(arm) = scenario.arms.get_mut(arm) else { return };
        let sim = arm.sim.get_or_insert_with(|| scenario.sim.clone());
        let spread = sim.costs.spread;
        scale(sim, self.slowness, spread);
        if let Some(latency) = self.decision_us {
            sim.decision_latency = Duration::from_secs_f64((latency / 1e6).clamp(0.0, 1.0));
        }
    }
}

/// CPU time of an operation of VMs that do nothing but compute, in milliseconds.
fn operation_ms((scenario, result): (&Scenario, &ArmResult)) -> Option<f64> {
    let (mut cpu_ms, mut operations) = (0.0, 0.0);
    for entry in &scenario.vms {
        let [workload] = entry.workloads.as_slice() else { continue };
        if workload.kind != WorkloadKind::Hog {
            continue;
        }
        for (name, repeat) in
            entry.names().iter().flat_map(|name| result.repeats.iter().map(move |r| (name, r)))
        {
            let rate = repeat.rates.get(&format!("{name}/{}", workload.name));
            if let (Some(rate), Some(cpu)) = (rate, repeat.cpu_ms.get(name)) {
                cpu_ms += cpu;
                operations += rate.per_s * repeat.seconds;
            }
        }
    }
    (cpu_ms > 0.0 && operations > 0.0).then(|| cpu_ms / operations)
}
