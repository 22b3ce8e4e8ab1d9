//! What the engine decides about events that were written down, action by action as it was frozen.
//!
//! The fixtures in `tests/oracle` are compressed text (`zstd -dc FILE` shows it). `echo-mixed.events.zst` is
//! a recording of the daemon in words; the events of `seeds` come from [`seeds`]. Boosts and shares are
//! frozen, nothing else. A change that is to decide otherwise freezes them again, and its commit says why
//! each kind of difference is right:
//!
//! ```text
//! ORACLE=freeze cargo test --release -p frontdesk-engine -p frontdesk-sim --test oracle -- --nocapture
//! ```

#![allow(clippy::unwrap_used)] // A test that panics fails.

#[path = "oracle/seeds.rs"]
mod seeds;

use frontdesk_engine::{Engine, Time};
use frontdesk_testing::oracle::text::{self, OracleInput};
use frontdesk_testing::oracle::{Section, check, digest, read};
use frontdesk_testing::pass;
use std::path::Path;

/// Where the fixtures are.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle");
const RANDOM: std::ops::Range<u64> = 0..64;
const RANDOM_EVENTS: usize = 1200;
const HOSTS: std::ops::Range<u64> = 100..115;
const HOST_EVENTS: usize = 4000;
/// Lines shown up to the one after which the actions differ.
const CONTEXT: usize = 6;

/// Tells an engine what the lines say, the first of which has its parameters; returns what it decides, each
/// with the number of the line that it follows. `wakes`: it is also told the time when it wants to be; else
/// the lines do that.
fn decide(lines: &[String], wakes: bool) -> Vec<(usize, String)> {
    let mut engine: Option<Engine> = None;
    let mut actions = Vec::new();
    for (number, line) in (1..).zip(lines) {
        let told = text::parse(line).unwrap_or_else(|error| panic!("line {number}, `{line}`: {error}"));
        if let (OracleInput::Config(config), None) = (&told, &engine) {
            engine = Some(Engine::new(config.as_ref().clone()).unwrap());
            continue;
        }
        let engine = engine.as_mut().expect("parameters come first");
        if let (OracleInput::Event(event), true) = (&told, wakes) {
            pass(engine, event.at);
        }
        match told {
            OracleInput::Config(config) => engine.configure(*config).unwrap(),
            OracleInput::Policy(vm, policy) => engine.configure_vm(vm, policy).unwrap(),
            OracleInput::Event(event) => engine.on_event(&event),
            OracleInput::Deadline(at) => engine.on_deadline(at),
        }
        let decided = std::iter::from_fn(|| engine.poll_action());
        actions.extend(decided.filter_map(|action| Some((number, text::action(&action)?))));
    }
    actions
}

/// The lines up to a number, the last of them.
fn context(lines: &[String], number: usize) -> String {
    let first = number.saturating_sub(CONTEXT);
    let shown = (first + 1..).zip(&lines[first..number.min(lines.len())]);
    shown.map(|(number, line)| format!("line {number}: {line}\n")).collect()
}

#[test]
fn the_recording_is_decided_as_it_was() {
    let text = read(&Path::new(FOLDER).join("echo-mixed.events.zst"));
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let title = format!("echo-mixed, {}", digest(&lines));
    let section = Section { title, actions: decide(&lines, false) };
    check(FOLDER, "echo-mixed", &[section], |_, number| context(&lines, number));
}

/// The lines of all seeds, with their names.
fn seeds() -> Vec<(String, Vec<String>)> {
    let random = RANDOM.map(|seed| ("random", seed, seeds::random(seed, RANDOM_EVENTS)));
    let hosts = HOSTS.map(|seed| ("host", seed, seeds::host(seed, HOST_EVENTS)));
    let with_config = random.chain(hosts).map(|(kind, seed, events)| {
        let (config, line) = seeds::config(seed, kind == "random");
        (format!("{kind} {seed}, {config}"), std::iter::once(line).chain(events).collect())
    });
    with_config.collect()
}

#[test]
fn the_seeds_are_decided_as_they_were() {
    let seeds = seeds();
    let sections: Vec<Section> = seeds
        .iter()
        .map(|(name, lines)| Section {
            title: format!("{name}, {}", digest(lines)),
            actions: decide(lines, true),
        })
        .collect();
    check(FOLDER, "seeds", &sections, |section, number| {
        let (_, lines) = seeds.iter().find(|(name, _)| section.title.starts_with(name)).unwrap();
        context(lines, number)
    });
}

#[test]
fn a_line_says_all_of_an_event() {
    let lines: Vec<String> = seeds().into_iter().flat_map(|(_, lines)| lines).collect();
    for line in &lines {
        let again = match text::parse(line).unwrap() {
            OracleInput::Config(config) => text::config(&config),
            OracleInput::Policy(vm, policy) => text::policy(vm, &policy),
            OracleInput::Event(event) => text::event(&event),
            OracleInput::Deadline(Time(at)) => format!("{at} deadline"),
        };
        assert_eq!(again, *line);
    }
    for line in [
        "5 display-update vm=1 region=none",
        "5 display-update vm=1 region=1,2,640,354",
        "5 device-access vm=1 vcpu=0 device=sound in-interrupt=true",
        "5 gpu-done vm=1",
        "5 timer vm=1 vcpu=3",
        "5 input vm=1 what=button",
    ] {
        let OracleInput::Event(event) = text::parse(line).unwrap() else { panic!("{line}") };
        assert_eq!(text::event(&event), line);
    }
    for (line, said) in [
        ("5 teleport vm=1", "`teleport` is no kind of event that is known"),
        ("5 halt vm=1", "`vcpu` is missing"),
        ("5 halt vm=1 vcpu=0 why=no", "`why` is no field that is known here"),
        ("5 halt vm=1 vcpu=0 vcpu=1", "`vcpu` comes twice"),
        ("soon vm=1 vcpu=0", "`soon` is neither a time nor `config` nor `policy`"),
    ] {
        assert_eq!(text::parse(line).unwrap_err(), said);
    }
}
