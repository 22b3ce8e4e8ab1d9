//! What was found, as the result model has it: tables, and a plot.

use crate::limit::Limit;
use crate::profile::Profile;
use crate::search::{ArmCapacity, Cluster};
use frontdesk_scenario::{Figure, Mark, NumberTable, Outcome, Series, median};

fn number(count: u32) -> Option<f64> {
    Some(f64::from(count))
}

/// What was found, for the table in a terminal, the page and the plot; of a cluster, too, if one is given.
#[must_use]
pub fn summary(profile: &Profile, limit: &Limit, arms: &[ArmCapacity], cluster: Option<&Cluster>) -> Outcome {
    let held = NumberTable {
        title: format!("Desktops on {} CPUs with {limit}", profile.scenario.host.vm_cpus.len()),
        names: vec!["arm".to_owned()],
        columns: ["held", "at most", "sure by, %"].map(str::to_owned).to_vec(),
        rows: arms
            .iter()
            .map(|of| {
                let numbers = vec![
                    number(of.held.desktops),
                    of.held.at_most.and_then(number),
                    Some(of.confidence * 100.0),
                ];
                (vec![of.arm.clone()], numbers)
            })
            .collect(),
    };
    let rows = arms.iter().flat_map(|of| {
        of.tried.iter().map(|tried| {
            let runs: Vec<f64> =
                tried.runs_ms.iter().copied().map(|run| run.unwrap_or(f64::INFINITY)).collect();
            let kept = u32::try_from(runs.iter().filter(|run| **run <= limit.most_ms()).count());
            let (least, most) =
                (runs.iter().copied().reduce(f64::min), runs.iter().copied().reduce(f64::max));
            let told = |value: Option<f64>| value.filter(|value| value.is_finite());
            let numbers = vec![
                number(u32::try_from(runs.len()).unwrap_or(u32::MAX)),
                kept.ok().and_then(number),
                told(median(runs)),
                told(least),
                told(most),
            ];
            (vec![of.arm.clone(), tried.desktops.to_string()], numbers)
        })
    });
    let tried = NumberTable {
        title: format!("What was tried: {} of each run, in ms", limit.what()),
        names: vec!["arm".to_owned(), "desktops".to_owned()],
        columns: ["runs", "kept it", "median", "least", "most"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
    };
    let mut series: Vec<Series> =
        arms.iter().map(|of| Series { name: of.arm.clone(), points: points(of) }).collect();
    let last = series.iter().flat_map(|of| &of.points).map(|(desktops, _)| *desktops).fold(1.0, f64::max);
    series.push(Series {
        name: "limit".to_owned(),
        points: vec![(1.0, limit.most_ms()), (last, limit.most_ms())],
    });
    let figure = Figure::Chart {
        title: format!("{}: responses of so many desktops", profile.scenario.name),
        x: "desktops".to_owned(),
        log_x: false,
        y: format!("{}, median of the runs, ms", limit.what()),
        mark: Mark::Line,
        series,
    };
    let of_model = frontdesk_sim::outcome(&profile.scenario, Default::default());
    Outcome {
        scenario: profile.scenario.name.clone(),
        tables: [Some(held), cluster.map(|cluster| of_cluster(*cluster, arms)), Some(tried)]
            .into_iter()
            .flatten()
            .collect(),
        figures: vec![figure],
        ..of_model
    }
}

fn of_cluster(cluster: Cluster, arms: &[ArmCapacity]) -> NumberTable {
    let Cluster { hosts, spare } = cluster;
    let down = if spare == 0 { String::new() } else { format!(" while {spare} of them are down") };
    let row = |of: &ArmCapacity| {
        let held = cluster.holds(of.held);
        (vec![of.arm.clone()], vec![number(held.desktops), held.at_most.and_then(number)])
    };
    NumberTable {
        title: format!("Desktops on {hosts} such hosts{down}"),
        names: vec!["arm".to_owned()],
        columns: ["held", "at most"].map(str::to_owned).to_vec(),
        rows: arms.iter().map(row).collect(),
    }
}

fn points(of: &ArmCapacity) -> Vec<(f64, f64)> {
    let point = |tried: &crate::search::Tried| {
        // Where nobody was answered in half of the runs there is no height to draw.
        let runs = tried.runs_ms.iter().map(|run| run.unwrap_or(f64::INFINITY));
        Some((f64::from(tried.desktops), median(runs).filter(|median| median.is_finite())?))
    };
    of.tried.iter().filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Held, Tried};
    use crate::sequential::Verdict;

    /// Who was never answered is not left out of the plot: it would look better the worse it is.
    #[test]
    fn runs_without_an_answer_are_the_slowest_of_a_point() {
        let tried = |desktops, runs_ms| Tried { desktops, verdict: Verdict::Broken, runs_ms };
        let tried = vec![tried(1, vec![None, Some(5.0), Some(7.0)]), tried(2, vec![None, Some(5.0), None])];
        let held = Held { desktops: 0, at_most: None };
        let arm = ArmCapacity { arm: "stock".to_owned(), held, confidence: 1.0, tried };
        assert_eq!(points(&arm), [(1.0, 7.0)]);
    }

    #[test]
    fn a_cluster_holds_what_the_hosts_hold_that_are_left() {
        let held = Held { desktops: 70, at_most: Some(71) };
        let arm = ArmCapacity { arm: "frontdesk".to_owned(), held, confidence: 1.0, tried: Vec::new() };
        let table = of_cluster(Cluster { hosts: 40, spare: 2 }, &[arm]);
        assert_eq!(table.title, "Desktops on 40 such hosts while 2 of them are down");
        assert_eq!(table.rows, [(vec!["frontdesk".to_owned()], vec![Some(2660.0), Some(2698.0)])]);
        let all = Held { desktops: 64, at_most: None };
        assert_eq!(Cluster { hosts: 3, spare: 0 }.holds(all), Held { desktops: 192, at_most: None });
    }
}
