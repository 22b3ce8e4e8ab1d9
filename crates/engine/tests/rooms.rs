//! The engine's rooms follow each other.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_testing::modules::{Module, Modules};
use std::path::Path;

/// Each may know those before it, and all what is in no room: events, actions, parameters.
const ROOMS: [&str; 6] = ["observe", "infer", "explain", "policy", "knob", "engine"];

fn engine() -> Modules {
    Modules::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
}

fn module(path: &str) -> Module {
    path.split("::").map(str::to_owned).collect()
}

#[test]
fn paths_are_found() {
    let edges = engine().edges();
    let knows = |one: &str, other: &str| edges[&module(one)].contains(&module(other));
    // By name, through a re-export, in an attribute, and by belonging.
    for (one, other) in [
        ("engine::vm", "policy::view"),
        ("policy::view", "infer::routing"),
        ("infer::reads", "lru"),
        ("policy::reservation", "policy::reservation::levels"),
    ] {
        assert!(knows(one, other), "{one} knows {other}: {:?}", edges[&module(one)]);
    }
    assert!(!knows("policy::view", "infer"), "what is re-exported there is none of its own");
}

#[test]
fn each_room_knows_only_those_before_it() {
    let room =
        |module: &Module| ROOMS.iter().position(|room| module.first().is_some_and(|name| name == room));
    let edges = engine().edges();
    for (one, known) in edges.iter().filter(|(one, _)| !one.is_empty()) {
        for other in known {
            assert!(room(other) <= room(one), "{} is not to know {}", one.join("::"), other.join("::"));
        }
    }
}
