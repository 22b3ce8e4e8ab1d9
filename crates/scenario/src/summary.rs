//! From the repeats of the arms to their medians and the scenario's checks.

use crate::outcome::{ArmResult, Bar, Check, Follow, Frames, Latency, Rate, Repeat, Summary};
use crate::scenario::{Across, Checks, Compare, Daemon, Gain, Measure, Scenario, Subject, VmSpec};
use crate::statistics::{float, median};
use indexmap::IndexMap;

/// A loss of throughput that cannot be told from none.
const SMALLEST_LOSS: f64 = 0.001;

/// CPU time of each VM over its fair share: what VMs that do not want theirs leave is shared by weight among
/// those that do.
///
/// `vms`: name, CPU time, weight, and whether it wants all it can get.
#[must_use]
pub fn cpu_shares(vms: &[(String, u64, u32, bool)]) -> IndexMap<String, f64> {
    let sum = |wanting: bool| {
        let of = vms.iter().filter(|(_, _, _, wants)| *wants == wanting);
        of.fold((0.0, 0.0), |(cpu, weight), vm| (cpu + float(vm.1), weight + f64::from(vm.2)))
    };
    let ((cpu, weight), (idle_cpu, idle_weight)) = (sum(true), sum(false));
    let share = |(name, ran, own, wants): &(String, u64, u32, bool)| {
        let per_weight = if *wants { cpu / weight } else { (cpu + idle_cpu) / (weight + idle_weight) };
        let fair = per_weight * f64::from(*own);
        (name.clone(), if fair > 0.0 { float(*ran) / fair } else { 0.0 })
    };
    vms.iter().map(share).collect()
}

/// The medians over an arm's repeats.
#[must_use]
pub fn summarise(repeats: Vec<Repeat>) -> ArmResult {
    let vms = |pick: fn(&Repeat) -> Vec<String>| repeats.first().map(pick).unwrap_or_default();
    let responses = vms(|repeat| repeat.response_ms.keys().cloned().collect()).into_iter().map(|vm| {
        let all: Vec<Summary> = repeats.iter().filter_map(|r| r.response_ms.get(&vm).copied()).collect();
        (vm, median_summary(&all))
    });
    let response_ms = responses.collect();
    let shares = vms(|repeat| repeat.cpu_share.keys().cloned().collect()).into_iter().map(|vm| {
        let share = median(repeats.iter().filter_map(|r| r.cpu_share.get(&vm).copied()));
        (vm, share.unwrap_or(0.0))
    });
    let cpu_share = shares.collect();
    let rates = vms(|repeat| repeat.rates.keys().cloned().collect()).into_iter().filter_map(|workload| {
        let all: Vec<Rate> = repeats.iter().filter_map(|r| r.rates.get(&workload).copied()).collect();
        let unit = all.first()?.unit;
        Some((workload, Rate { per_s: median(all.iter().map(|rate| rate.per_s))?, unit }))
    });
    let rates = rates.collect();
    let times = vms(|repeat| repeat.times_ms.keys().cloned().collect()).into_iter().map(|workload| {
        let all: Vec<Summary> =
            repeats.iter().filter_map(|r| Summary::of(r.times_ms.get(&workload)?)).collect();
        (workload, median_summary(&all))
    });
    let times_ms = times.collect();
    let frames = vms(|repeat| repeat.frames.keys().cloned().collect()).into_iter().map(|workload| {
        let of = |pick: fn(&Frames) -> Option<f64>| {
            median(repeats.iter().filter_map(|repeat| pick(repeat.frames.get(&workload)?)))
        };
        let sure = |pick| of(pick).unwrap_or(0.0);
        let frames = Frames {
            per_s: sure(|frames| Some(frames.per_s)),
            deviation: sure(|frames| Some(frames.deviation)),
            dropped: sure(|frames| Some(frames.dropped)),
            jitter_ms: sure(|frames| Some(frames.jitter_ms)),
            estimate_error: of(|frames| frames.estimate_error),
            recovery_s: of(|frames| frames.recovery_s),
        };
        (workload, frames)
    });
    let frames = frames.collect();
    let follows: Vec<Follow> = repeats.iter().filter_map(|repeat| repeat.follow).collect();
    let follow = (!follows.is_empty()).then(|| Follow {
        to_io_ms: median(follows.iter().filter_map(|follow| follow.to_io_ms)),
        to_cpu_ms: median(follows.iter().filter_map(|follow| follow.to_cpu_ms)),
        missed: follows.iter().map(|follow| follow.missed).sum(),
        wasted: follows.iter().map(|follow| follow.wasted).sum(),
    });
    let boosts: u64 = repeats.iter().map(|repeat| repeat.boosts).sum();
    let latencies: Vec<Latency> = repeats.iter().filter_map(|repeat| repeat.decision_us).collect();
    let latency = |pick: fn(&Latency) -> f64| median(latencies.iter().map(pick)).unwrap_or(0.0);
    let decision_us = (!latencies.is_empty()).then(|| Latency {
        p50: latency(|l| l.p50),
        p99: latency(|l| l.p99),
        max: latencies.iter().map(|l| l.max).fold(0.0, f64::max),
    });
    ArmResult {
        response_ms,
        cpu_share,
        rates,
        times_ms,
        frames,
        follow,
        boosts,
        pbhr: median(repeats.iter().filter_map(pbhr)),
        unanswered: unanswered(&repeats),
        decision_us,
        daemon_cpu: median(repeats.iter().filter_map(|repeat| repeat.daemon_cpu)),
        repeats,
    }
}

fn median_summary(all: &[Summary]) -> Summary {
    let of = |pick: fn(&Summary) -> f64| median(all.iter().map(pick)).unwrap_or(0.0);
    Summary {
        count: all.iter().map(|summary| summary.count).sum(),
        mean: of(|s| s.mean),
        p50: of(|s| s.p50),
        p95: of(|s| s.p95),
        p99: of(|s| s.p99),
        max: all.iter().map(|summary| summary.max).fold(0.0, f64::max),
    }
}

/// Percentiles of latencies in microseconds; `None` if there are none.
#[must_use]
pub fn latency(samples: &[f64]) -> Option<Latency> {
    Summary::of(samples).map(|summary| Latency { p50: summary.p50, p99: summary.p99, max: summary.max })
}

fn pbhr(repeat: &Repeat) -> Option<f64> {
    (repeat.boosts > 0).then(|| float(repeat.boost_hits) / float(repeat.boosts))
}

/// Fraction of the boosts for a request that ended before its answer was sent; `None` if there were none.
fn unanswered(repeats: &[Repeat]) -> Option<f64> {
    let sum = |pick: fn(&Repeat) -> u64| repeats.iter().map(pick).sum::<u64>();
    let all = sum(|repeat| repeat.request_boosts);
    (all > 0).then(|| float(sum(|repeat| repeat.unanswered_boosts)) / float(all))
}

/// Measurements that are not part of an arm.
#[derive(Clone, Debug, Default)]
pub struct Extra {
    /// Slowdown of CPU-bound guest work by the plugin, one per round.
    pub plugin_cpu: Vec<f64>,
    /// Slowdown of fork-heavy guest work by the plugin, one per round.
    pub plugin_fork: Vec<f64>,
    /// Events per second of the engine, one per recording.
    pub engine_speed: Vec<f64>,
}

/// Every bar that the scenario sets.
#[must_use]
pub fn checks(scenario: &Scenario, arms: &IndexMap<String, ArmResult>, extra: &Extra) -> Vec<Check> {
    let Checks {
        compare,
        gain,
        share_error,
        unanswered: unanswered_ratio,
        pbhr: hit_ratio,
        decision_p99_us,
        daemon_cpu,
        plugin_cpu_slowdown,
        plugin_fork_slowdown,
        engine_events_per_s,
    } = scenario.checks.clone();
    let repeats = |arm: &str| arms.get(arm).map_or(&[][..], |arm| &arm.repeats);
    let each = |pick: &dyn Fn(&Repeat) -> Option<f64>| {
        repeats("frontdesk").iter().filter_map(pick).collect::<Vec<f64>>()
    };
    let compared = |check: &Compare, bar: Bar| {
        let other = check.over.as_ref().or(check.minus.as_ref());
        // Of one repeat, or of all.
        let value = |index: Option<usize>| {
            let number = |of: &Subject| {
                let all = repeats(&of.arm);
                let meant = index.map_or(Some(all), |index| all.get(index..=index))?;
                number(meant, scenario, of, check.measure)
            };
            let value = number(&check.of)?;
            Some(match (other, &check.over) {
                (None, _) => value,
                (Some(other), Some(_)) => value / number(other)?,
                (Some(other), None) => value - number(other)?,
            })
        };
        let each = || (0..repeats(&check.of.arm).len()).map(|index| value(Some(index)));
        let name = check.name.as_str();
        match check.across {
            Across::Median => Check::median(name, &each().flatten().collect::<Vec<f64>>(), bar),
            Across::Each => {
                Check::each(name, &each().map(|value| value.unwrap_or(f64::NAN)).collect::<Vec<f64>>(), bar)
            }
            Across::All => Check::median(name, value(None).as_slice(), bar),
        }
    };
    let gained = |gain: &Gain| {
        let values = (0..repeats(&gain.of.arm).len()).filter_map(|index| {
            let (of, base) = (repeats(&gain.of.arm).get(index)?, repeats(&gain.base).get(index)?);
            let loser = Subject {
                arm: String::new(),
                vm: Some(gain.loser.vm.clone()),
                workload: Some(gain.loser.workload.clone()),
            };
            let change = |subject| {
                let number = |repeat| number(std::slice::from_ref(repeat), scenario, subject, Measure::Rate);
                Some(number(of)? / number(base)? - 1.0)
            };
            // What is lost can be less than what can be measured.
            Some(change(&gain.of)? / (-change(&loser)?).max(SMALLEST_LOSS))
        });
        values.collect::<Vec<f64>>()
    };
    let compares = compare.iter().filter_map(|check| Some(compared(check, check.bar()?)));
    let gains =
        gain.iter().map(|gain| Check::median(gain.name.as_str(), &gained(gain), Bar::AtLeast(gain.at_least)));
    let acting = scenario.arms.iter().filter(|(_, arm)| arm.daemon == Daemon::Act).map(|(name, _)| name);
    let worst_share = |index: usize| {
        let worst = acting.clone().filter_map(|arm| {
            let wanting = wanting_vms(scenario, arm);
            let repeat = repeats(arm).get(index)?;
            // A VM that does not want its share may have less, but not more.
            let error = |(vm, share): (&String, &f64)| {
                if wanting.contains(vm) { (share - 1.0).abs() } else { (share - 1.0).max(0.0) }
            };
            repeat.cpu_share.iter().map(error).reduce(f64::max)
        });
        worst.reduce(f64::max)
    };
    let shares: Vec<f64> =
        (0..usize::try_from(scenario.repeats).unwrap_or(usize::MAX)).map_while(worst_share).collect();
    // Of all repeats together: one boost in a thousand is less than one in a repeat.
    let most_unanswered =
        acting.clone().filter_map(|arm| unanswered(repeats(arm))).reduce(f64::max).into_iter().collect();
    let at_most = |bar: Option<f64>| bar.map(Bar::AtMost);
    let at_least = |bar: Option<f64>| bar.map(Bar::AtLeast);
    let rows = [
        ("CPU share, worst deviation of a VM", shares, at_most(share_error)),
        ("boosts that ended before their answer", most_unanswered, at_most(unanswered_ratio)),
        ("PBHR: boosts that an I/O-bound task used", each(&pbhr), at_least(hit_ratio)),
        (
            "packet -> boost applied, p99 in us",
            each(&|repeat| repeat.decision_us.map(|latency| latency.p99)),
            at_most(decision_p99_us),
        ),
        ("daemon, CPU of one core", each(&|repeat| repeat.daemon_cpu), at_most(daemon_cpu)),
        ("plugin, slowdown of CPU-bound work", extra.plugin_cpu.clone(), at_most(plugin_cpu_slowdown)),
        ("plugin, slowdown of fork-heavy work", extra.plugin_fork.clone(), at_most(plugin_fork_slowdown)),
        ("engine, events per second", extra.engine_speed.clone(), at_least(engine_events_per_s)),
    ];
    let set = rows.into_iter().filter_map(|(name, values, bar)| Some((name, values, bar?)));
    compares.chain(gains).chain(set.map(|(name, values, bar)| Check::median(name, &values, bar))).collect()
}

/// The number that is meant, of one repeat, or of several taken as one if it is about response times; `None`
/// if it was not measured.
fn number(repeats: &[Repeat], scenario: &Scenario, of: &Subject, measure: Measure) -> Option<f64> {
    let responses = |pick: fn(&Summary) -> f64| {
        let keys = response_keys(scenario, of);
        let samples = repeats.iter().flat_map(|repeat| &repeat.samples_ms);
        let samples = samples.filter(|(key, _)| keys.contains(key));
        let samples: Vec<f64> = samples.flat_map(|(_, samples)| samples).copied().collect();
        Summary::of(&samples).as_ref().map(pick)
    };
    let repeat = repeats.first()?;
    match measure {
        Measure::Mean => responses(|summary| summary.mean),
        Measure::P50 => responses(|summary| summary.p50),
        Measure::P95 => responses(|summary| summary.p95),
        Measure::P99 => responses(|summary| summary.p99),
        Measure::Max => responses(|summary| summary.max),
        Measure::Rate => {
            let keys = workload_keys(scenario, of);
            keys.iter().filter_map(|key| Some(repeat.rates.get(key)?.per_s)).reduce(|a, b| a + b)
        }
        Measure::Time => {
            let keys = workload_keys(scenario, of);
            let times = keys.iter().filter_map(|key| repeat.times_ms.get(key)).flatten();
            Summary::of(&times.copied().collect::<Vec<f64>>()).map(|summary| summary.mean)
        }
        Measure::Frames => frames(repeat, scenario, of, |frames| Some(frames.per_s)),
        Measure::Dropped => frames(repeat, scenario, of, |frames| Some(frames.dropped)),
        Measure::Jitter => frames(repeat, scenario, of, |frames| Some(frames.jitter_ms)),
        Measure::EstimateError => frames(repeat, scenario, of, |frames| frames.estimate_error),
        Measure::Recovery => frames(repeat, scenario, of, |frames| frames.recovery_s),
        Measure::Share => {
            let names = vm_names(scenario, of);
            let shares: Vec<f64> = names.iter().filter_map(|vm| repeat.cpu_share.get(vm)).copied().collect();
            Summary::of(&shares).map(|summary| summary.mean)
        }
        Measure::Pbhr => pbhr(repeat),
        Measure::Unanswered => unanswered(repeats),
        Measure::Follow => repeat.follow.and_then(|follow| Some(follow.to_io_ms?.max(follow.to_cpu_ms?))),
        Measure::Wasted => (repeat.boosts > 0).then_some(float(repeat.follow?.wasted) / float(repeat.boosts)),
    }
}

/// A number of the frames of the workload that is meant: the mean of those of an entry.
fn frames(
    repeat: &Repeat,
    scenario: &Scenario,
    of: &Subject,
    pick: fn(&Frames) -> Option<f64>,
) -> Option<f64> {
    let keys = workload_keys(scenario, of);
    let numbers: Vec<f64> = keys.iter().filter_map(|key| pick(repeat.frames.get(key)?)).collect();
    Summary::of(&numbers).map(|summary| summary.mean)
}

/// The VMs of the entry that is meant.
fn vm_names(scenario: &Scenario, of: &Subject) -> Vec<String> {
    let meant = scenario.vms.iter().filter(|vm| of.vm.as_ref().is_none_or(|name| *name == vm.name));
    meant.flat_map(VmSpec::names).collect()
}

fn workload_keys(scenario: &Scenario, of: &Subject) -> Vec<String> {
    let Some(workload) = &of.workload else { return Vec::new() };
    vm_names(scenario, of).iter().map(|vm| format!("{vm}/{workload}")).collect()
}

/// Keys of the response times that are meant.
fn response_keys(scenario: &Scenario, of: &Subject) -> Vec<String> {
    let names = vm_names(scenario, of);
    let clients = scenario.clients().filter(|(vm, _)| names.contains(vm));
    let asked = clients.filter(|(_, load)| {
        let entry = scenario.vms.iter().find(|entry| entry.name == load.vm);
        let asked = entry.and_then(|entry| load.target(entry));
        of.workload.as_ref().is_none_or(|name| asked.is_some_and(|workload| workload.name == *name))
    });
    asked.map(|(vm, load)| scenario.response_key(&vm, load)).collect()
}

/// Names of the VMs that want all the CPU they can get in an arm: those with a workload that never waits, or
/// that computes so long at a time that its VM is hardly ever idle.
#[must_use]
pub fn wanting_vms(scenario: &Scenario, arm: &str) -> Vec<String> {
    let Some(arm) = scenario.arms.get(arm) else { return Vec::new() };
    let wants = scenario.vms.iter().filter(|vm| {
        let running = vm.workloads.iter().filter(|workload| !arm.stops(vm, workload));
        running.into_iter().any(|workload| workload.kind.wants_cpu())
    });
    wants.flat_map(VmSpec::names).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_time_is_an_equal_share() {
        let vm = |name: &str, ran, wants| (name.to_owned(), ran, 1024, wants);
        let shares = cpu_shares(&[vm("a", 100, true), vm("b", 110, true), vm("c", 90, true)]);
        assert_eq!(shares.values().copied().collect::<Vec<_>>(), [1.0, 1.1, 0.9]);
    }

    #[test]
    fn what_an_idle_vm_leaves_belongs_to_the_others() {
        let vm = |name: &str, ran, wants| (name.to_owned(), ran, 1024, wants);
        let shares = cpu_shares(&[vm("idle", 10, false), vm("a", 100, true), vm("b", 100, true)]);
        assert_eq!(shares["a"], 1.0);
        assert!(shares["idle"] < 0.2);
    }

    #[test]
    fn weights_count() {
        let shares = cpu_shares(&[("a".into(), 200, 2048, true), ("b".into(), 100, 1024, true)]);
        assert_eq!((shares["a"], shares["b"]), (1.0, 1.0));
    }

    #[test]
    fn medians_are_per_repeat() {
        let repeat = |mean| Repeat {
            response_ms: [("vm".to_owned(), Summary { count: 1, mean, ..Summary::default() })].into(),
            ..Repeat::default()
        };
        let arm = summarise(vec![repeat(1.0), repeat(9.0), repeat(2.0)]);
        assert_eq!((arm.response_ms["vm"].mean, arm.response_ms["vm"].count), (2.0, 3));
        assert_eq!((arm.pbhr, arm.decision_us), (None, None));
    }
}
