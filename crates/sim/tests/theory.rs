//! What is known about scheduling and queueing in general must hold in the model.

#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "helpers of tests"
)]

mod cycles;
#[allow(dead_code, reason = "the rate-monotonic policy is for the comparison with SimSo")]
mod periodic;
mod queue;

use cycles::{Cycle, Cycles, HOG, MS, Spec, ran};
use frontdesk_sim::{Entity, HostScheduler, Machine, Nanos, Rng, cfs, edf, eevdf};
use periodic::{Policy, TaskSet};
use proptest::prelude::*;

/// CPU time that somebody may be behind or ahead of a fluid schedule: three clock ticks, for preemption waits
/// for a tick, and EEVDF lets lag grow to a slice or a tick on either side.
const LAG: f64 = 3.0 * 4.0 * MS as f64;

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Liu and Layland 1973: earliest deadline first meets every deadline iff the utilisation is at most 1.
    #[test]
    fn edf_meets_every_deadline_iff_utilisation_is_at_most_one(seed in any::<u64>()) {
        let set = TaskSet::random(&mut Rng::new(seed, 0), 10_000);
        let utilisation = set.utilisation();
        // By then an overload has asked for more than there was time for, whatever was done in which order.
        let backlog: u64 = set.tasks.iter().map(|(_, execution)| execution).sum();
        let overload = (utilisation - 1.0).max(0.01);
        let duration = (backlog as f64 / overload) as u64 + 40_000;
        let missed = set.run(Policy::EarliestDeadlineFirst, duration.min(20_000_000));
        let missed = missed.iter().flatten().filter(|job| job.aborted).count();
        if utilisation <= 1.0 {
            prop_assert_eq!(missed, 0, "utilisation {}", utilisation);
        } else if utilisation >= 1.01 {
            prop_assert!(missed > 0, "utilisation {}", utilisation);
        }
    }

    /// Groups of computing vCPUs get CPU time by weight, at every time to within a bound that does not grow.
    #[test]
    fn weighted_shares_converge_with_a_bounded_lag(weights in prop::collection::vec(100u32..4000, 2..8)) {
        let groups: Vec<_> = weights.iter().map(|weight| (*weight, vec![Spec::of(HOG)])).collect();
        let (mut machine, mut work) = Cycles::machine(1, eevdf(), &groups);
        let whole: u32 = weights.iter().sum();
        for step in 1..=500 {
            machine.run_until(&mut work, step * 20 * MS + step * 12_345).unwrap();
            for (entity, weight) in (0..).zip(&weights) {
                let fluid = machine.now() as f64 * f64::from(*weight) / f64::from(whole);
                let lag = fluid - ran(&machine, entity) as f64;
                prop_assert!(lag.abs() < LAG, "{} of {:?} at {}: {}", entity, weights, machine.now(), lag);
            }
        }
    }

    /// No pCPU idles while a vCPU waits. Under EEVDF one that slept, but had not paid back yet, wakes where
    /// it was though that is busy; the next clock tick there sends it away.
    #[test]
    fn work_is_conserved(seed in any::<u64>(), pcpus in 1u16..4, which in 0usize..3) {
        let mut rng = Rng::new(seed, 0);
        let entity = |rng: &mut Rng| {
            let cycle = Cycle { compute: rng.uniform(MS / 20, 5 * MS), sleep: rng.uniform(MS / 20, 10 * MS) };
            Spec::of(if rng.uniform(0, 5) == 0 { HOG } else { cycle })
        };
        let groups: Vec<_> = (0..rng.uniform(1, 5))
            .map(|_| (1024, (0..rng.uniform(1, 4)).map(|_| entity(&mut rng)).collect::<Vec<_>>()))
            .collect();
        let entities: u32 = groups.iter().map(|(_, entities)| entities.len() as u32).sum();
        let scheduler: [fn() -> Box<dyn HostScheduler>; 3] = [eevdf, cfs, || edf(&[])];
        let patience = if which == 0 { 4 * MS } else { 0 };
        let (mut machine, mut work) = Cycles::machine(pcpus, scheduler[which](), &groups);
        // When each was last seen to run, to sleep, or to wait while all were busy. That is asked of each by
        // itself: one may wait for its tick just when another's is over.
        let mut fine = vec![0; entities as usize];
        for _ in 0..2_000 {
            let before = machine.now();
            machine.run_until(&mut work, machine.now() + rng.uniform(1, MS)).unwrap();
            let host = machine.host();
            let idle = host.pcpus().filter(|pcpu| host.current(*pcpu).is_none()).count();
            let waits = |entity: Entity| host.is_runnable(entity) && host.running_on(entity).is_none();
            for (entity, fine) in (0..entities).map(Entity).zip(&mut fine) {
                if idle == 0 || !waits(entity) {
                    *fine = machine.now();
                }
                prop_assert!(before <= *fine + patience, "{} idle, {:?} waits since {}", idle, entity, fine);
            }
        }
    }
}

/// Under CFS, too, weights decide; a period is long there, so only the rates are compared.
#[test]
fn cfs_shares_by_weight() {
    let groups = [(1024, vec![Spec::of(HOG)]), (512, vec![Spec::of(HOG); 2]), (256, vec![Spec::of(HOG)])];
    let (mut machine, mut work) = Cycles::machine(1, cfs(), &groups);
    machine.run_until(&mut work, 20_000 * MS).unwrap();
    let rates: Vec<f64> = (0..4).map(|entity| ran(&machine, entity) as f64 / machine.now() as f64).collect();
    for (rate, expected) in rates.iter().zip([4.0 / 7.0, 1.0 / 7.0, 1.0 / 7.0, 1.0 / 7.0]) {
        assert!((rate / expected - 1.0).abs() < 0.01, "{rates:?}");
    }
}

/// A service time of this mean.
type Service = fn(&mut Rng, Nanos) -> Nanos;

/// Pollaczek and Khinchine: the mean wait of Poisson arrivals before one server that takes them as they come.
#[test]
fn waits_are_those_of_m_g_1() {
    let mean = 400_000u64;
    let services: [(&str, Service, f64); 3] = [
        ("deterministic", |_, mean| mean, 1.0),
        ("uniform", |rng, mean| rng.uniform(0, 2 * mean), 4.0 / 3.0),
        ("exponential", |rng, mean| rng.exponential(mean), 2.0),
    ];
    for (name, service, second_moment) in services {
        for load in [0.3, 0.6, 0.8] {
            let waits = queue::waits(400_000, (mean as f64 / load) as Nanos, mean, service);
            let expected = load * second_moment * mean as f64 / (2.0 * (1.0 - load));
            // Waits that follow each other depend on each other, so the error comes from means of long
            // batches.
            let batches: Vec<f64> =
                waits.chunks(10_000).map(|batch| batch.iter().sum::<f64>() / batch.len() as f64).collect();
            let count = batches.len() as f64;
            let found = batches.iter().sum::<f64>() / count;
            let variance = batches.iter().map(|batch| (batch - found).powi(2)).sum::<f64>() / (count - 1.0);
            let error = (variance / count).sqrt();
            assert!(
                (found - expected).abs() < 4.0 * error && error < 0.05 * expected,
                "{name} at load {load}: mean wait {found:.0} ns (standard error {error:.0}), by theory {expected:.0}"
            );
        }
    }
}

/// One server per pCPU is no M/G/1 for the group scheduler, but what is left of the CPU is the same whoever
/// gets it.
#[test]
fn utilisation_is_what_is_asked_for() {
    let cycle = Cycle { compute: 2 * MS, sleep: 8 * MS };
    for scheduler in [eevdf(), cfs(), edf(&[])] {
        let name = scheduler.name();
        let (mut machine, mut work) = Cycles::machine(2, scheduler, &[(1024, vec![Spec::of(cycle); 3])]);
        machine.run_until(&mut work, 60_000 * MS).unwrap();
        let machine: &Machine = &machine;
        let used: Nanos = (0..3).map(|entity| ran(machine, entity)).sum();
        // Three that compute 2 of at least 10 ms; waits for each other are rare on two pCPUs.
        let rate = used as f64 / machine.now() as f64;
        assert!((0.55..0.601).contains(&rate), "{name}: {rate}");
    }
}
