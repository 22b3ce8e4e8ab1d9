//! What holds for any events: everything that an engine begins it ends, in time.
//!
//! For property tests and for fuzzing with coverage (`fuzz/`).

use crate::pass::pass;
use frontdesk_engine::{Action, ActionKind, Boost, BoostTarget, Config, Engine, Event, Ratio, Time, VmId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Tasks that are remembered of each vCPU.
pub const TASKS: usize = 16;

/// A belief low enough to be reached, so that boosts do happen.
#[must_use]
pub fn config() -> Config {
    let mut config = Config::default();
    config.tavs.belief_threshold = 4;
    config.tavs.negative_evidence = 1;
    config.tavs.counter_bits = 1;
    config.tavs.tasks_per_vcpu = TASKS;
    config.tavs.pb_ratio = 0.5;
    config.multimedia.max_share = Some(8.0);
    config.asymmetric.pre_io_period = Duration::from_millis(100);
    config.asymmetric.background_load = 0.1;
    config.asymmetric.min_fast = Duration::from_micros(30);
    config.asymmetric.ratio = Ratio::Most;
    config.asymmetric.ports = vec![3];
    config
}

/// A new engine that has been told events, and what it decided.
///
/// # Panics
/// It refuses the parameters.
#[must_use]
pub fn run(events: &[Event]) -> (Engine, Vec<Action>) {
    let mut engine = Engine::new(config()).unwrap();
    let actions = go_on(&mut engine, events);
    (engine, actions)
}

/// Tells an engine events, and the time in between; what it decides.
pub fn go_on(engine: &mut Engine, events: &[Event]) -> Vec<Action> {
    let mut actions = Vec::new();
    for event in events {
        pass(engine, event.at);
        engine.on_event(event);
        actions.extend(std::iter::from_fn(|| engine.poll_action()));
    }
    actions
}

/// Threads that nobody hears of any more seem to wait, and have turns for ever: no longer.
///
/// # Panics
/// The engine refuses its own parameters.
pub fn without_turns(engine: &mut Engine) {
    let mut config = engine.config().clone();
    config.ledger.longest_wait = Duration::ZERO;
    engine.configure(config).unwrap();
}

/// How long a vCPU goes ahead of one that it helps, in nanoseconds.
fn helped_ahead() -> u64 {
    u64::try_from(config().tavs.io_threshold.as_nanos()).unwrap() / 8
}

/// Lets the time of the last boost and of the last film pass, and looks at what was decided.
///
/// # Panics
/// A boost, a film or an episode lasts too long, or something is done twice.
pub fn all_ends(mut engine: Engine, mut actions: Vec<Action>, events: &[Event]) {
    let end = events.iter().map(|event| event.at).max().unwrap_or_default();
    let end = end.plus(11_000_000_000);
    without_turns(&mut engine);
    pass(&mut engine, end);
    engine.on_deadline(end);
    actions.extend(std::iter::from_fn(|| engine.poll_action()));
    let mut since: BTreeMap<(VmId, BoostTarget), (Boost, Time)> = BTreeMap::new();
    let mut watched = BTreeSet::new();
    let mut shares = BTreeMap::new();
    let mut weights = BTreeMap::new();
    for Action { at, kind } in actions {
        match kind {
            ActionKind::Boost { vm, target, level } => {
                let before = match level {
                    Boost::None => since.remove(&(vm, target)),
                    _ => since.insert((vm, target), (level, at)),
                };
                let (was, begun) = before.unwrap_or((Boost::None, at));
                assert!(was != level, "boosted twice, or not");
                // Emulator threads may have the last answer in their hands.
                let most = match was {
                    _ if target == BoostTarget::Emulators => u64::MAX,
                    // A film's, and before it and after it one that helps another on its physical CPU.
                    Boost::Multimedia => 10_000_000 + 2 * helped_ahead(),
                    // An event's, and before it a turn of who starved.
                    _ => 40_000_000 + 10_000_000,
                };
                assert!(at.since(begun) <= most, "begun {begun:?}, ended {at:?}");
                let level = |target| since.get(&(vm, target)).map(|(level, _)| *level);
                let emulators = level(BoostTarget::Emulators);
                assert!(
                    since.iter().all(|((of, _), (level, _))| *of != vm || Some(*level) <= emulators),
                    "a vCPU ahead of its emulator threads"
                );
            }
            ActionKind::Share { vm, permille } => {
                assert!((1..=64_000).contains(&permille));
                shares.insert(vm, permille);
            }
            ActionKind::Watch { vm, vcpu, on } => {
                let changed = if on { watched.insert((vm, vcpu)) } else { watched.remove(&(vm, vcpu)) };
                assert!(changed, "watched twice, or not");
            }
            ActionKind::Weight { vm, vcpu, permille } => {
                let before = match permille {
                    1000 => weights.remove(&(vm, vcpu)),
                    _ => weights.insert((vm, vcpu), permille),
                };
                assert!(before.unwrap_or(1000) != permille, "the same weight again: {kind:?}");
                // Slow beside what a person waits for, fast for a player.
                assert!([15, 1000, 9000].contains(&permille), "{kind:?}");
            }
            // What a new kind promises, its own tests say.
            #[allow(unreachable_patterns)]
            _ => {}
        }
    }
    assert_eq!(since, BTreeMap::new());
    assert_eq!(watched, BTreeSet::new());
    assert_eq!(weights, BTreeMap::new());
    for vm in engine.vms() {
        let explain = engine.explain(vm).unwrap();
        let plays = explain.multimedia.is_some_and(|of| !of.players.is_empty() || of.share_permille != 1000);
        assert!(!plays, "a film without end");
        assert!(explain.asymmetric.is_none_or(|of| of.episode.is_none()), "an episode without end");
        assert_eq!(shares.get(&vm).copied().unwrap_or(1000), explain.share_permille);
    }
}
