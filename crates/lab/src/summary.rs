//! From the repeats of the arms to their medians and the scenario's checks.

use frontdesk_scenario::{
    ArmResult, Bar, Check, Checks, Latency, Measure, Repeat, ResponseCheck, Responses, Scenario, Summary, Vm,
};
use indexmap::IndexMap;

/// CPU time of each VM over its fair share: what VMs that do not want theirs leave is shared by weight among those
/// that do.
///
/// `vms`: name, CPU time, weight, and whether it wants all it can get.
pub(crate) fn cpu_shares(vms: &[(String, u64, u32, bool)]) -> IndexMap<String, f64> {
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
pub(crate) fn summarise(repeats: Vec<Repeat>) -> ArmResult {
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
        boosts,
        pbhr: median(repeats.iter().filter_map(pbhr)),
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
pub(crate) fn latency(samples: &[f64]) -> Option<Latency> {
    Summary::of(samples).map(|summary| Latency { p50: summary.p50, p99: summary.p99, max: summary.max })
}

fn pbhr(repeat: &Repeat) -> Option<f64> {
    (repeat.boosts > 0).then(|| float(repeat.boost_hits) / float(repeat.boosts))
}

/// Measurements that are not part of an arm.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    /// Slowdown of CPU-bound guest work by the plugin, one per round.
    pub(crate) plugin_cpu: Vec<f64>,
    /// Slowdown of fork-heavy guest work by the plugin, one per round.
    pub(crate) plugin_fork: Vec<f64>,
    /// Events per second of the engine, one per recording.
    pub(crate) engine_speed: Vec<f64>,
}

/// Every bar that the scenario sets.
pub(crate) fn checks(scenario: &Scenario, arms: &IndexMap<String, ArmResult>, extra: &Extra) -> Vec<Check> {
    let Checks {
        response,
        share_error,
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
    let ratios = |check: &ResponseCheck| {
        let pairs = repeats(&check.of.arm).iter().zip(repeats(&check.over.arm));
        let ratio = |(of, over): (&Repeat, &Repeat)| {
            let number = |repeat, side| Some(measured(&pooled(repeat, scenario, side)?, check.measure));
            Some(number(of, &check.of)? / number(over, &check.over)?)
        };
        pairs.filter_map(ratio).collect::<Vec<f64>>()
    };
    let responses = response
        .iter()
        .filter_map(|check| Some(Check::median(check.name.as_str(), &ratios(check), check.bar()?)));
    let wanting = wanting_vms(scenario, "frontdesk");
    let worst_share = |repeat: &Repeat| {
        let errors = repeat.cpu_share.iter().filter(|(vm, _)| wanting.contains(vm));
        errors.map(|(_, share)| (share - 1.0).abs()).reduce(f64::max)
    };
    let at_most = |bar: Option<f64>| bar.map(Bar::AtMost);
    let at_least = |bar: Option<f64>| bar.map(Bar::AtLeast);
    let rows = [
        ("CPU share, worst deviation of a VM", each(&worst_share), at_most(share_error)),
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
    responses.chain(set.map(|(name, values, bar)| Check::median(name, &values, bar))).collect()
}

fn measured(summary: &Summary, measure: Measure) -> f64 {
    match measure {
        Measure::Mean => summary.mean,
        Measure::P50 => summary.p50,
        Measure::P95 => summary.p95,
        Measure::P99 => summary.p99,
    }
}

/// The response times of the VMs that are meant, together.
fn pooled(repeat: &Repeat, scenario: &Scenario, responses: &Responses) -> Option<Summary> {
    let entry = scenario.vms.iter().find(|vm| Some(&vm.name) == responses.vm.as_ref());
    let names = entry.map(Vm::names);
    let meant = |vm: &String| names.as_ref().is_none_or(|names| names.contains(vm));
    let samples = repeat.samples_ms.iter().filter(|(vm, _)| meant(vm)).flat_map(|(_, samples)| samples);
    Summary::of(&samples.copied().collect::<Vec<f64>>())
}

/// Names of the VMs that want all the CPU they can get in an arm.
pub(crate) fn wanting_vms(scenario: &Scenario, arm: &str) -> Vec<String> {
    let Some(arm) = scenario.arms.get(arm) else { return Vec::new() };
    let wants = scenario.vms.iter().filter(|vm| {
        let hogs = vm.workloads.iter().filter(|w| w.kind == frontdesk_scenario::WorkloadKind::Hog);
        hogs.into_iter().any(|hog| !arm.stops(vm, hog))
    });
    wants.flat_map(Vm::names).collect()
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

#[allow(clippy::cast_precision_loss)]
fn float(count: u64) -> f64 {
    count as f64
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
