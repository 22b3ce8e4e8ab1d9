use super::*;
use crate::run::run;
use frontdesk_scenario::{Overrides, Sim};
use std::time::Duration;

const ARM: &str = "io-only";

fn scenario() -> Scenario {
    let text = r#"
        name = "x"
        description = "x"
        repeats = 1
        duration = "20s"
        warmup = "1s"
        think_scale = 0.2
        guest = { kernel = "6.1-cloud" }
        host = { vm_cpus = [0], client_cpus = [1] }
        load = [{ vm = "mixed", protocol = "tcp", port = 7, bytes = 40, think = ["100ms", "1s"] }]
        arms.stock = {}
        arms.io-only = { stop = ["mixed/hog"] }
        [[vm]]
        name = "mixed"
        workloads = [{ name = "echo", run = "echo", protocol = "tcp", port = 7 }, { name = "hog", run = "hog" }]
        [[vm]]
        name = "cpu"
        count = 3
        workloads = [{ name = "hog", run = "hog" }]
    "#;
    Scenario::parse(text, "x.toml".as_ref(), &Overrides::default()).unwrap()
}

/// What a model with a factor and a spread has in the arm, as a lab's result.
fn measured(cost_factor: f64, spread: f64) -> ArmResult {
    let mut scenario = scenario();
    Calibration { cost_factor, spread, lab_ms: [0.0; 2], model_ms: [0.0; 2] }.apply(&mut scenario);
    // Other seeds than those of the calibration.
    let runs = (1..=3).map(|repeat| run(&scenario, ARM, repeat, 99, false).unwrap().repeat);
    ArmResult { repeats: runs.collect(), ..ArmResult::default() }
}

#[test]
fn what_a_model_was_made_with_is_found_again() {
    let calibration = calibrate(&scenario(), ARM, &measured(8.0, 0.15), 1).unwrap();
    assert!((7.4..8.6).contains(&calibration.cost_factor), "{calibration:?}");
    assert!((0.09..0.21).contains(&calibration.spread), "{calibration:?}");
}

#[test]
fn the_same_result_gives_the_same_calibration() {
    let lab = measured(3.0, 0.1);
    assert_eq!(calibrate(&scenario(), ARM, &lab, 1).unwrap(), calibrate(&scenario(), ARM, &lab, 1).unwrap());
}

#[test]
fn costs_of_all_arms_are_scaled_and_the_rest_is_not() {
    let mut scenario = scenario();
    let own = Sim { decision_latency: Duration::from_micros(7), ..Sim::default() };
    scenario.arms["stock"].sim = Some(own);
    Calibration { cost_factor: 2.0, spread: 0.3, lab_ms: [0.0; 2], model_ms: [0.0; 2] }.apply(&mut scenario);
    let normal = Sim::default();
    for sim in [&scenario.sim, scenario.arms["stock"].sim.as_ref().unwrap()] {
        assert_eq!(sim.costs.packet_in, normal.costs.packet_in * 2);
        assert_eq!(sim.guest.request, normal.guest.request * 2);
        assert_eq!((sim.guest.slice, sim.guest.frame), (normal.guest.slice, normal.guest.frame));
        assert!((sim.costs.spread - 0.3).abs() < 1e-9);
    }
    assert_eq!(scenario.arms["stock"].sim.as_ref().unwrap().decision_latency, Duration::from_micros(7));
}

#[test]
fn what_cannot_be_calibrated_is_refused() {
    let few = Repeat { samples_ms: [("mixed".to_owned(), vec![1.0; 39])].into(), ..Repeat::default() };
    let lab = ArmResult { repeats: vec![few], ..ArmResult::default() };
    assert!(matches!(
        calibrate(&scenario(), ARM, &lab, 1),
        Err(CalibrationError::TooFew { samples: 39, .. })
    ));
    assert!(matches!(calibrate(&scenario(), "idle", &lab, 1), Err(CalibrationError::NoArm(_))));
    // Faster than the network.
    let fast = Repeat { samples_ms: [("mixed".to_owned(), vec![0.001; 40])].into(), ..Repeat::default() };
    let lab = ArmResult { repeats: vec![fast], ..ArmResult::default() };
    assert!(matches!(calibrate(&scenario(), ARM, &lab, 1), Err(CalibrationError::OutOfReach { .. })));
}

#[test]
fn the_conditions_of_a_repeat_are_its_own() {
    let rate = |per_s| frontdesk_scenario::Rate { per_s, ..Default::default() };
    // Two of the three computing VMs were heard of; the one that answers does not count.
    let lab = |cpu_ms: f64, decision| {
        let repeat = Repeat {
            seconds: 10.0,
            cpu_ms: [("mixed", 5.0), ("cpu-1", cpu_ms), ("cpu-2", cpu_ms)]
                .map(|(vm, ms)| (vm.to_owned(), ms))
                .into(),
            rates: [("mixed/hog", 9.0), ("cpu-1/hog", 30.0), ("cpu-2/hog", 10.0)]
                .map(|(vm, per_s)| (vm.to_owned(), rate(per_s)))
                .into(),
            decision_us: decision,
            ..Repeat::default()
        };
        ArmResult { repeats: vec![repeat], ..ArmResult::default() }
    };
    let mut scenario = scenario();
    let latency = frontdesk_scenario::Latency { p50: 90.0, p99: 200.0, max: 300.0 };
    let (slow, fast) = (lab(3_000.0, Some(latency)), lab(2_000.0, None));
    let conditions = Conditions::of((&scenario, &slow.repeats[0]), (&scenario, &fast));
    assert_eq!(conditions, Conditions { slowness: 1.5, decision_us: Some(90.0) });
    conditions.apply(&mut scenario, "stock");
    let sim = scenario.arms["stock"].sim.as_ref().unwrap();
    assert_eq!(sim.costs.packet_in, Sim::default().costs.packet_in * 3 / 2);
    assert_eq!(sim.decision_latency, Duration::from_micros(90));
    assert!(scenario.arms[ARM].sim.is_none() && scenario.sim == Sim::default());
    // Nothing to compare with: the machine is taken to be as fast.
    let nothing = Conditions::of((&scenario, &Repeat::default()), (&scenario, &fast));
    assert_eq!(nothing, Conditions { slowness: 1.0, decision_us: None });
}
