//! What a lab measured in each repeat beside response times, and what the model takes as given: how fast the
//! machine was and how long decisions took.

use crate::run::{outcome, run};
use crate::world::SimError;
use frontdesk_engine::nanos;
use frontdesk_scenario::{ArmResult, Outcome, Repeat, Scenario, Sim, WorkloadKind};
use indexmap::IndexMap;
use serde::Serialize;
use std::time::Duration;

/// The conditions of a repeat in the lab.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Conditions {
    /// CPU time that an operation of VMs that only compute took, over that in the arm from which the model is
    /// calibrated: a machine that is a VM itself, or whose CPUs share a core, is not always equally fast. 1
    /// if no VM only computes.
    pub slowness: f64,
    /// From a packet to the boost, in microseconds: the median of the daemon's own statistics, where it
    /// acted.
    pub decision_us: Option<f64>,
}

impl Conditions {
    /// Those of a repeat, compared with those of the arm from which the model is calibrated; each with its
    /// scenario.
    #[must_use]
    pub fn of(repeat: (&Scenario, &Repeat), reference: (&Scenario, &ArmResult)) -> Conditions {
        let here = operation_ms(repeat.0, std::slice::from_ref(repeat.1));
        let slowness = match (here, operation_ms(reference.0, &reference.1.repeats)) {
            (Some(here), Some(there)) => here / there,
            _ => 1.0,
        };
        Conditions { slowness, decision_us: repeat.1.decision_us.map(|latency| latency.p50) }
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

/// What the model says of a lab's arms, each repeat under the conditions that it had there. `reference`: the
/// arm, with its scenario, from which the model was calibrated.
///
/// # Errors
/// It cannot be run.
pub fn predict(
    scenario: &Scenario,
    lab: &IndexMap<String, ArmResult>,
    reference: (&Scenario, &ArmResult),
    seed: u64,
) -> Result<Outcome, SimError> {
    let mut arms = IndexMap::new();
    for (name, result) in lab.iter().filter(|(name, _)| scenario.arms.contains_key(*name)) {
        arms.insert(name.clone(), repeats(scenario, name, result, reference, seed)?);
    }
    Ok(outcome(scenario, arms))
}

/// The model's repeats of an arm, one for each of the lab.
pub(super) fn repeats(
    scenario: &Scenario,
    arm: &str,
    lab: &ArmResult,
    reference: (&Scenario, &ArmResult),
    seed: u64,
) -> Result<Vec<Repeat>, SimError> {
    let repeats = (1..).zip(&lab.repeats).map(|(number, measured)| {
        let mut scenario = scenario.clone();
        Conditions::of((&scenario, measured), reference).apply(&mut scenario, arm);
        Ok(run(&scenario, arm, number, seed, false)?.repeat)
    });
    repeats.collect()
}

/// CPU time of an operation of VMs that do nothing but compute, in milliseconds.
fn operation_ms(scenario: &Scenario, repeats: &[Repeat]) -> Option<f64> {
    let (mut cpu_ms, mut operations) = (0.0, 0.0);
    for entry in &scenario.vms {
        let [workload] = entry.workloads.as_slice() else { continue };
        if workload.kind != WorkloadKind::Hog {
            continue;
        }
        for name in entry.names() {
            let key = format!("{name}/{}", workload.name);
            for repeat in repeats {
                if let (Some(rate), Some(cpu)) = (repeat.rates.get(&key), repeat.cpu_ms.get(&name)) {
                    cpu_ms += cpu;
                    operations += rate.per_s * repeat.seconds;
                }
            }
        }
    }
    (cpu_ms > 0.0 && operations > 0.0).then(|| cpu_ms / operations)
}

/// Multiplies what the model takes a CPU for.
pub(super) fn scale(sim: &mut Sim, factor: f64, spread: f64) {
    let longest = Duration::from_secs(1);
    let (host, guest) = (&mut sim.costs, &mut sim.guest);
    for cost in [
        &mut host.packet_in,
        &mut host.packet_out,
        &mut host.block,
        &mut host.timer,
        &mut guest.interrupt,
        &mut guest.receive,
        &mut guest.send,
        &mut guest.request,
        &mut guest.block,
        &mut guest.switch,
        &mut guest.message,
    ] {
        *cost = Duration::from_nanos(nanos(cost.mul_f64(factor))).min(longest);
    }
    host.spread = spread;
}
