//! What comes out of repeats is held against the bars.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use super::{FILE, parse, set};
use frontdesk_scenario::{Check, Extra, Overrides, Repeat, Scenario, checks, summarise};
use indexmap::IndexMap;
use std::fmt::Write;

/// The scenario with other bars.
fn with_checks(bars: &str) -> Scenario {
    let text = FILE.split("# What must come out").next().unwrap();
    parse(&format!("{text}\n{bars}"), &Overrides::default()).unwrap()
}

/// A bar for response times of frontdesk over stock.
fn over_stock(measure: &str, across: &str) -> String {
    let mut bar = format!("[[checks.compare]]\nname = \"x\"\nmeasure = \"{measure}\"\nat_most = 1\n");
    write!(bar, "across = \"{across}\"\nof = {{ arm = \"frontdesk\" }}\nover = {{ arm = \"stock\" }}\n")
        .unwrap();
    bar
}

/// A repeat with these response times of the mixed VM.
fn repeat(samples: &[f64]) -> Repeat {
    let samples_ms = [("mixed".to_owned(), samples.to_vec())].into();
    Repeat { samples_ms, ..Repeat::default() }
}

fn judged(scenario: &Scenario, arms: &[(&str, Vec<Repeat>)]) -> Check {
    let arms: IndexMap<_, _> =
        arms.iter().map(|(name, repeats)| ((*name).to_owned(), summarise(repeats.clone()))).collect();
    let mut checks = checks(scenario, &arms, &Extra::default());
    assert_eq!(checks.len(), 1);
    checks.remove(0)
}

#[test]
fn every_repeat_can_be_judged_and_not_only_the_median() {
    // Slower than stock once.
    let arms = [
        ("stock", vec![repeat(&[10.0]), repeat(&[10.0]), repeat(&[10.0])]),
        ("frontdesk", vec![repeat(&[2.5]), repeat(&[12.5]), repeat(&[2.5])]),
    ];
    let median = judged(&with_checks(&over_stock("mean", "median")), &arms);
    assert_eq!((median.value, median.pass), (Some(0.25), true));
    let each = judged(&with_checks(&over_stock("mean", "each")), &arms);
    assert_eq!((each.value, each.spread, each.pass), (Some(1.25), Some((0.25, 1.25)), false));
    // A repeat without any request is not passed over.
    let mut arms = arms;
    arms[1].1[1] = Repeat::default();
    let median = judged(&with_checks(&over_stock("mean", "median")), &arms);
    assert_eq!((median.value, median.pass), (Some(0.25), true));
    let each = judged(&with_checks(&over_stock("mean", "each")), &arms);
    assert_eq!((each.value, each.pass), (None, false));
}

#[test]
fn the_slowest_request_of_all_repeats_is_held_against_that_of_another_arm() {
    let arms = [
        ("stock", vec![repeat(&[1.0, 20.0]), repeat(&[1.0, 90.0]), repeat(&[1.0, 30.0])]),
        ("frontdesk", vec![repeat(&[1.0, 25.0]), repeat(&[1.0, 2.0]), repeat(&[1.0, 45.0])]),
    ];
    let all = judged(&with_checks(&over_stock("max", "all")), &arms);
    assert_eq!((all.value, all.spread, all.pass), (Some(0.5), None, true));
    let each = judged(&with_checks(&over_stock("max", "each")), &arms);
    assert_eq!((each.value, each.pass), (Some(1.5), false), "in two repeats");
}

#[test]
fn unanswered_boosts_of_all_repeats_of_each_acting_arm_count() {
    let text = FILE.split("# What must come out").next().unwrap();
    let overrides = set(&["arms.io-only.daemon=act"]);
    let scenario = parse(&format!("{text}\n[checks]\nunanswered = 0.001"), &overrides).unwrap();
    let boosts =
        |request_boosts, unanswered_boosts| Repeat { request_boosts, unanswered_boosts, ..Repeat::default() };
    let judged = |frontdesk: Vec<Repeat>, io_only: Repeat| {
        judged(
            &scenario,
            &[("frontdesk", frontdesk), ("io-only", vec![io_only]), ("observe", vec![boosts(1, 1)])],
        )
    };
    // One of two thousand, though it is one of two hundred in its repeat.
    let one = judged(vec![boosts(1800, 0), boosts(200, 1)], boosts(100, 0));
    assert_eq!((one.value, one.spread, one.pass), (Some(0.0005), None, true));
    assert!(!judged(vec![boosts(800, 0), boosts(200, 2)], boosts(100, 0)).pass);
    assert_eq!(judged(vec![boosts(2000, 0)], boosts(100, 1)).value, Some(0.01), "the worst arm");
    assert!(!judged(vec![boosts(0, 0)], boosts(0, 0)).pass, "what was not measured does not pass");
}

#[test]
fn shares_can_be_compared() {
    let bars = "[[checks.compare]]\nname = \"x\"\nmeasure = \"share\"\nof = { arm = \"stock\", vm = \"cpu\" }\nat_most = 0.9";
    let shares = [("mixed", 1.4), ("cpu-1", 0.8), ("cpu-2", 0.9)];
    let repeat =
        Repeat { cpu_share: shares.map(|(vm, share)| (vm.to_owned(), share)).into(), ..Repeat::default() };
    let check = judged(&with_checks(bars), &[("stock", vec![repeat])]);
    assert!(check.pass && check.value.is_some_and(|value| (value - 0.85).abs() < 1e-9), "{check:?}");
}
