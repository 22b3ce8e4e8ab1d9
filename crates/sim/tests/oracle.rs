//! What the engine decides in the scenarios of `frontdesk reproduce tavs`, action by action as it was frozen:
//! the engine's oracle in a closed loop, where what it decides changes what it is told. A change of the model
//! changes it, too.
//!
//! Of each run the first actions are frozen as they are, and a digest of the others.
//! `crates/engine/tests/oracle.rs` says how to freeze them again.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_scenario::{Daemon, Overrides, Scenario};
use frontdesk_sim::decisions;
use frontdesk_testing::oracle::{Section, check, digest, text};
use std::path::Path;

/// Where the fixtures are.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle");
/// The scenarios, and for how long each is run: about as many actions each.
const SCENARIOS: [(&str, &str); 6] = [
    ("tavs-figure4.toml", "60s"),
    ("tavs-figure5-disk.toml", "20s"),
    ("tavs-figure5-network.toml", "5s"),
    ("tavs-figure6.toml", "20s"),
    ("tavs-figure7.toml", "60s"),
    ("tavs-table1.toml", "60s"),
];
const REPEATS: u32 = 2;
/// Where the random numbers of `frontdesk reproduce` begin.
const SEED: u64 = 1;
/// Actions that are frozen as they are.
const WHOLE: usize = 200;
/// Of the others, so many have a digest together.
const TOGETHER: usize = 500;

#[test]
fn what_is_decided_on_the_papers_machine_is_as_it_was() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/papers");
    let mut sections = Vec::new();
    for (file, duration) in SCENARIOS {
        let set = vec![format!("duration={duration}"), "warmup=0s".to_owned()];
        let scenario =
            Scenario::load(&folder.join(file), &Overrides { set, ..Overrides::default() }).unwrap();
        let acting = scenario.arms.iter().filter(|(_, arm)| arm.daemon != Daemon::Off);
        for (arm, repeat) in acting.flat_map(|(arm, _)| (1..=REPEATS).map(move |repeat| (arm, repeat))) {
            let decided = decisions(&scenario, arm, repeat, SEED).unwrap();
            let title = format!("{}, {arm}, repeat {repeat}, {duration}", scenario.name);
            sections.push(Section { title, actions: shortened(decided.iter().filter_map(text::action)) });
        }
    }
    check(FOLDER, "reproduce-tavs", &sections, |_, _| String::new());
}

/// The first actions, each with its number, and digests of the others.
fn shortened(actions: impl Iterator<Item = String>) -> Vec<(usize, String)> {
    let all: Vec<String> = actions.collect();
    let (first, others) = all.split_at(all.len().min(WHOLE));
    let mut lines: Vec<_> = (1..).zip(first.iter().cloned()).collect();
    for (number, together) in others.chunks(TOGETHER).enumerate() {
        lines.push((WHOLE + 1 + number * TOGETHER, format!("{} together", digest(together))));
    }
    lines
}
