//! The search: doubling until the limit is broken, then halving the interval.

use crate::error::CapacityError;
use crate::limit::Limit;
use crate::profile::Profile;
use crate::sequential::{Sequential, Verdict, confidence};
use frontdesk_scenario::Scenario;
use frontdesk_sim::SimError;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Runs begun at the same time at least: what most decisions take.
const AT_ONCE: u32 = 5;

/// What a number of desktops gave.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Tried {
    /// How many there were.
    pub desktops: u32,
    /// What the runs say.
    pub verdict: Verdict,
    /// What is limited, of each run, in milliseconds; absent where somebody was never answered.
    pub runs_ms: Vec<Option<f64>>,
}

/// How many desktops are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Held {
    /// So many: with them the limit is kept. 0 if it is not even with one.
    pub desktops: u32,
    /// With one more than so many it is broken; absent if it is kept with as many as can be modelled. Larger
    /// than `desktops` where the runs do not tell.
    pub at_most: Option<u32>,
}

/// Several hosts like the one that is modelled, over which desktops are spread evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Cluster {
    /// How many.
    pub hosts: u32,
    /// So many of them, fewer than all, may be down at a time, and the others have their desktops.
    pub spare: u32,
}

impl Cluster {
    /// What they hold, of what one of them does: hosts know nothing of each other.
    #[must_use]
    pub fn holds(&self, host: Held) -> Held {
        let hosts = self.hosts.saturating_sub(self.spare);
        // With one more than all of them take, one of them has one more.
        let at_most = host.at_most.map(|desktops| desktops.saturating_mul(hosts));
        Held { desktops: host.desktops.saturating_mul(hosts), at_most }
    }
}

/// What an arm holds.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ArmCapacity {
    /// The arm.
    pub arm: String,
    /// How many desktops.
    pub held: Held,
    /// With this probability at least no verdict about a number that was tried is wrong, and so neither is
    /// `held`. The errors of all of them are added up.
    pub confidence: f64,
    /// What was tried, by the number of desktops.
    pub tried: Vec<Tried>,
}

/// How far the search is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The arm.
    pub arm: &'a str,
    /// Desktops that are tried now.
    pub desktops: u32,
    /// Runs made so far.
    pub runs: u32,
}

/// Looks how many desktops each arm holds, on so many threads; what comes out does not depend on how many.
/// It is taken that where a number of desktops is held, fewer are. `None` if `stop` was set.
///
/// # Errors
/// A run is not possible.
pub fn capacity(
    profile: &Profile,
    limit: &Limit,
    seed: u64,
    threads: usize,
    stop: &AtomicBool,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<Option<Vec<ArmCapacity>>, CapacityError> {
    let runs = AtomicU32::new(0);
    let mut arms = Vec::new();
    for arm in profile.scenario.arms.keys() {
        let mut tried = BTreeMap::new();
        let held = search(profile.most(), |desktops| {
            let scenario = profile.scenario(desktops);
            let run = |repeat: u32| {
                progress(Progress { arm, desktops, runs: runs.load(Ordering::Relaxed) });
                let run = frontdesk_sim::run(&scenario, arm, repeat, seed, false)?;
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(limit.measure(&answered(&scenario, run.repeat)))
            };
            let Some((verdict, measured)) = decide(limit.most_ms(), threads, stop, &run)
                .map_err(|source| CapacityError::Run { desktops, source: Box::new(source) })?
            else {
                return Ok(None);
            };
            let runs_ms = measured.into_iter().map(|value| Some(value).filter(|it| it.is_finite())).collect();
            tried.insert(desktops, Tried { desktops, verdict, runs_ms });
            Ok::<_, CapacityError>(Some(verdict))
        })?;
        let Some(held) = held else { return Ok(None) };
        let (confidence, tried) = (confidence(tried.len()), tried.into_values().collect());
        arms.push(ArmCapacity { arm: arm.clone(), held, confidence, tried });
    }
    Ok(Some(arms))
}

/// With who was asked and never answered, too.
fn answered(scenario: &Scenario, mut repeat: frontdesk_scenario::Repeat) -> frontdesk_scenario::Repeat {
    let counted = |load: &frontdesk_scenario::LoadProfile| load.kind.waits();
    for (vm, _) in scenario.clients().filter(|(_, load)| counted(load)) {
        let own = |of: &String| of.split('/').next() == Some(&vm);
        if !repeat.samples_ms.keys().any(own) {
            repeat.samples_ms.insert(vm, Vec::new());
        }
    }
    repeat
}

/// Tries numbers up to `most` until it is known how many are held: first for the largest that is kept, then,
/// if the runs do not tell about the next one, for the smallest that is broken.
fn search<E>(
    most: u32,
    mut verdict: impl FnMut(u32) -> Result<Option<Verdict>, E>,
) -> Result<Option<Held>, E> {
    let mut known = BTreeMap::new();
    let mut bisect = |is_below: &dyn Fn(Verdict) -> bool| {
        // So many are below what is looked for, and so many are not.
        let (mut below, mut above) = (0, None);
        loop {
            let next = match above {
                None if below >= most => break,
                None => (below * 2).clamp(1, most),
                Some(above) if above - below > 1 => below + (above - below) / 2,
                Some(_) => break,
            };
            let found = match known.get(&next) {
                Some(found) => *found,
                None => match verdict(next)? {
                    Some(found) => *known.entry(next).or_insert(found),
                    None => return Ok(None),
                },
            };
            if is_below(found) { below = next } else { above = Some(next) }
        }
        Ok(Some((below, above)))
    };
    let Some((desktops, _)) = bisect(&|verdict| verdict == Verdict::Kept)? else { return Ok(None) };
    let Some((at_most, broken)) = bisect(&|verdict| verdict != Verdict::Broken)? else { return Ok(None) };
    Ok(Some(Held { desktops, at_most: broken.map(|_| at_most) }))
}

/// Makes runs until they tell. Returns what each of them gave, in order, or nothing if `stop` was set.
fn decide(
    most_ms: f64,
    threads: usize,
    stop: &AtomicBool,
    run: &(impl Fn(u32) -> Result<f64, SimError> + Sync),
) -> Result<Option<(Verdict, Vec<f64>)>, SimError> {
    let mut test = Sequential::default();
    let mut measured = Vec::new();
    let mut begun = 0;
    loop {
        let several = AT_ONCE.max(u32::try_from(threads).unwrap_or(u32::MAX));
        for result in side_by_side(begun + 1, several, threads, stop, run) {
            let Some(result) = result else { return Ok(None) };
            let value = result?;
            measured.push(value);
            if let Some(verdict) = test.add(value <= most_ms) {
                return Ok(Some((verdict, measured)));
            }
        }
        begun += several;
    }
}

/// Makes runs from this one on, and returns them in order; nothing for those that were not made, as `stop`
/// was set.
fn side_by_side(
    from: u32,
    count: u32,
    threads: usize,
    stop: &AtomicBool,
    run: &(impl Fn(u32) -> Result<f64, SimError> + Sync),
) -> Vec<Option<Result<f64, SimError>>> {
    let next = AtomicU32::new(0);
    let results: Vec<Mutex<Option<Result<f64, SimError>>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let work = || loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(place) = results.get(number as usize).filter(|_| !stop.load(Ordering::Relaxed)) else {
            break;
        };
        let result = run(from.saturating_add(number));
        if let Ok(mut place) = place.lock() {
            *place = Some(result);
        }
    };
    std::thread::scope(|scope| {
        (1..threads.min(results.len())).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let result = |place: Mutex<_>| place.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.into_iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn held(most: u32, kept: u32, broken: u32) -> (Held, usize) {
        let mut asked = 0;
        let held = search(most, |desktops| {
            asked += 1;
            assert!((1..=most).contains(&desktops));
            Ok::<_, Infallible>(Some(match desktops {
                _ if desktops <= kept => Verdict::Kept,
                _ if desktops < broken => Verdict::Undecided,
                _ => Verdict::Broken,
            }))
        });
        (held.unwrap().unwrap(), asked)
    }

    proptest! {
        #[test]
        fn the_largest_that_is_kept_is_found(most in 1_u32..2000, kept in 0_u32..2500, doubt in 0_u32..50) {
            let broken = kept + 1 + doubt;
            let (held, asked) = held(most, kept, broken);
            prop_assert_eq!(held.desktops, kept.min(most));
            prop_assert_eq!(held.at_most, Some(broken - 1).filter(|_| broken <= most));
            // Twice at most: once up and once down each.
            prop_assert!(asked <= 4 * 12, "{}", asked);
        }
    }

    #[test]
    fn nothing_is_tried_twice_and_none_may_be_held() {
        assert_eq!(held(64, 0, 1), (Held { desktops: 0, at_most: Some(0) }, 1));
        assert_eq!(held(64, 64, 65), (Held { desktops: 64, at_most: None }, 7));
        let (found, asked) = held(64, 20, 21);
        assert_eq!((found, asked), (Held { desktops: 20, at_most: Some(20) }, 10));
    }

    #[test]
    fn runs_are_taken_in_order_whoever_makes_them() {
        let stop = AtomicBool::new(false);
        let run = |number: u32| Ok(if number == 3 { 200.0 } else { f64::from(number) });
        let alone = decide(100.0, 1, &stop, &run).unwrap().unwrap();
        assert_eq!(alone.0, Verdict::Kept);
        assert_eq!(
            alone.1,
            (1..=15_u8).map(|run| if run == 3 { 200.0 } else { f64::from(run) }).collect::<Vec<_>>()
        );
        assert_eq!(decide(100.0, 7, &stop, &run).unwrap().unwrap(), alone);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(decide(100.0, 2, &stop, &run).unwrap(), None);
    }
}
