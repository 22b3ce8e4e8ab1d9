//! What the rows show: the effect of each parameter, the Pareto front, and what failed.

use crate::cluster::{Cluster, DayPart};
use crate::design::Sweep;
use crate::document::{Goal, Objective};
use crate::folder::Folder;
use crate::row::Layout;
use crate::table::{Cell, Row};
use frontdesk_scenario::{Figure, HostInfo, Mark, NumberTable, Outcome, Series, float};
use std::collections::BTreeMap;

/// Values of a parameter up to which each is a level of its own; of more, levels hold several.
const MOST_LEVELS: usize = 12;
/// Runs in such a level, if there are not too many levels then.
const RUNS_IN_LEVEL: usize = 5;
/// Objectives at most, if the sweep file names none.
const MOST_MEASURES: usize = 4;
/// Rows of a table at most.
const MOST_ROWS: usize = 100;
/// A parameter whose largest value is so many times its smallest is drawn over a logarithmic axis.
const LOG_FROM: f64 = 30.0;

/// One of the rows of an arm with a set of parameters, and what was measured of two objectives.
type Measured<'a> = (&'a Row, [Vec<f64>; 2]);

/// A number that a run measured.
#[derive(Clone, Copy)]
struct Sample<'a> {
    point: usize,
    arm: usize,
    row: &'a Row,
    value: f64,
}

/// What the rows show, as the result model has it: tables, and figures.
#[must_use]
pub fn summary(sweep: &Sweep, folder: &Folder) -> Outcome {
    let layout = folder.layout();
    let (mut tables, figures) = match &sweep.cluster {
        Some((cluster, day)) => of_cluster(sweep, cluster, day, layout, folder.rows()),
        None => of_parameters(sweep, layout, folder.rows()),
    };
    tables.extend(failures(layout, folder.rows()));
    let host = sweep
        .run(0)
        .and_then(|run| sweep.scenario_of(run).ok())
        .map_or_else(HostInfo::default, |of| frontdesk_sim::outcome(&of, Default::default()).host);
    Outcome {
        scenario: sweep.scenario.clone(),
        host,
        arms: Default::default(),
        checks: Vec::new(),
        tables,
        figures,
        screenshots: Vec::new(),
    }
}

/// What each parameter does.
fn of_parameters(sweep: &Sweep, layout: &Layout, rows: &[Row]) -> (Vec<NumberTable>, Vec<Figure>) {
    let mut measures: Vec<(Objective, Vec<Sample<'_>>)> = Vec::new();
    for objective in objectives(sweep, layout, rows) {
        let samples = samples(sweep, layout, rows, &objective);
        measures.push((objective, samples));
    }
    let mut tables = vec![effects(sweep, layout, &measures)];
    let mut figures = Vec::new();
    for column in layout.varied() {
        for (objective, samples) in &measures {
            figures.extend(figure(sweep, &layout.columns[column].0, column, objective, samples));
        }
    }
    if let [one, other] = measures.as_slice()
        && !sweep.pareto.is_empty()
    {
        let (table, figure) = front(sweep, layout, one, other);
        tables.insert(0, table);
        figures.insert(0, figure);
    }
    (tables, figures)
}

/// What became of a desktop in a part of the day, over all seeds.
#[derive(Clone, Copy, Default)]
struct Desktops {
    asked: u64,
    /// Their responses take longer than the limit, or never come.
    late: u64,
}

/// How many desktops of a cluster keep the limit, part of the day by part.
fn of_cluster(
    sweep: &Sweep,
    cluster: &Cluster,
    day: &[DayPart],
    layout: &Layout,
    rows: &[Row],
) -> (Vec<NumberTable>, Vec<Figure>) {
    let column = |name: &str| layout.column(name);
    let columns = (column("cluster.part"), column("arm"), column("vm"), column(&cluster.limit.measure));
    let (Some(part), Some(arm), Some(vm), Some(measure)) = columns else { return Default::default() };
    let mut found = vec![vec![Desktops::default(); day.len()]; sweep.arms.len()];
    for row in rows {
        let (Some(vm), Some(arm)) = (row[vm].text(), row[arm].text()) else { continue };
        let arm = sweep.arms.iter().position(|own| own == arm);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A part of the day.
        let part = row[part].number().map(|part| part as usize);
        let own = arm.zip(part).and_then(|(arm, part)| found.get_mut(arm)?.get_mut(part));
        let kind = cluster.mix.keys().find(|kind| is_of(vm, kind));
        if let Some((own, kind)) = own.zip(kind) {
            own.asked += 1;
            let most = cluster.limit.of(kind);
            own.late += u64::from(row[measure].number().is_none_or(|value| value > most));
        }
    }
    let seeds = sweep.seeds.len() as u64;
    let late = |own: Desktops, homeless: u32| {
        let (late, asked) = (own.late + u64::from(homeless) * seeds, own.asked + u64::from(homeless) * seeds);
        (asked > 0).then(|| float(late) / float(asked) * 100.0)
    };
    let limit = cluster.limit.to_string();
    let mut lines = Vec::new();
    for (number, part) in day.iter().enumerate() {
        let in_use: u32 = part.hosts.iter().flat_map(|(_, used)| used).sum();
        let numbers = [part.up, in_use + part.homeless, part.homeless].map(|count| Some(f64::from(count)));
        let of_arms = found.iter().map(|of_arm| late(of_arm[number], part.homeless));
        lines.push((vec![number.to_string()], numbers.into_iter().chain(of_arms).collect()));
    }
    let whole_day = found.iter().map(|of_arm| {
        let sum = |of: fn(&Desktops) -> u64| of_arm.iter().map(of).sum::<u64>();
        let homeless = day.iter().map(|part| part.homeless).sum();
        late(Desktops { asked: sum(|own| own.asked), late: sum(|own| own.late) }, homeless)
    });
    lines.push((vec!["day".to_owned()], [None; 3].into_iter().chain(whole_day).collect()));
    let title = format!("Desktops in use that do not keep {limit} ms, or have no host, %");
    let series = sweep.arms.iter().zip(&found).map(|(arm, of_arm)| {
        let points = (0_u64..).zip(day).zip(of_arm);
        let points =
            points.filter_map(|((number, part), own)| Some((float(number), late(*own, part.homeless)?)));
        Series { name: arm.clone(), points: points.collect() }
    });
    let figure = Figure::Chart {
        title: title.clone(),
        x: "part of the day".to_owned(),
        log_x: false,
        y: "%".to_owned(),
        mark: Mark::Line,
        series: series.collect(),
    };
    let fixed = ["hosts up", "in use", "without a host"].map(str::to_owned);
    let columns = fixed.into_iter().chain(sweep.arms.iter().cloned()).collect();
    let table = NumberTable { title, names: vec!["part".to_owned()], columns, rows: lines };
    (vec![table], vec![figure])
}

/// Whether a VM is of an entry: of that name, or one of several.
fn is_of(vm: &str, entry: &str) -> bool {
    let number = |rest: &str| rest.strip_prefix('-').is_some_and(|rest| rest.parse::<u16>().is_ok());
    vm.strip_prefix(entry).is_some_and(|rest| rest.is_empty() || number(rest))
}

/// Of whom a row is: VM, or VM/WORKLOAD.
fn whom(layout: &Layout, row: &Row) -> Option<String> {
    let text = |name| layout.column(name).and_then(|column| row[column].text());
    let vm = text("vm")?;
    Some(text("workload").map_or_else(|| vm.to_owned(), |workload| format!("{vm}/{workload}")))
}

/// What the sweep file names, or else the mean and the 99th percentile of who answered.
fn objectives(sweep: &Sweep, layout: &Layout, rows: &[Row]) -> Vec<Objective> {
    if !sweep.pareto.is_empty() {
        return sweep.pareto.clone();
    }
    let Some(mean) = layout.column("mean_ms") else { return Vec::new() };
    let mut answered: Vec<String> = Vec::new();
    for of in rows.iter().filter(|row| row[mean].number().is_some()).filter_map(|row| whom(layout, row)) {
        if !answered.contains(&of) {
            answered.push(of);
        }
    }
    let both = answered.into_iter().flat_map(|of| ["mean_ms", "p99_ms"].map(|measure| (measure, of.clone())));
    let objective =
        |(measure, of): (&str, String)| Objective { measure: measure.to_owned(), of, goal: Goal::Least };
    both.map(objective).take(MOST_MEASURES).collect()
}

fn samples<'a>(sweep: &Sweep, layout: &Layout, rows: &'a [Row], objective: &Objective) -> Vec<Sample<'a>> {
    let column = layout.column(&objective.measure);
    let sample = |row: &'a Row| {
        let value = row[column?].number()?;
        let number = row[0].number().filter(|_| whom(layout, row).as_ref() == Some(&objective.of))?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The number of a run.
        let number = number as usize;
        let (rest, arm) = (number / sweep.arms.len(), number % sweep.arms.len());
        Some(Sample { point: rest / sweep.seeds.len(), arm, row, value })
    };
    rows.iter().filter_map(sample).collect()
}

fn named(objective: &Objective) -> String {
    format!("{} of {}", objective.measure, objective.of)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / float(count))
}

/// The samples of an arm by the value of a parameter, from the smallest: each value by itself if these are
/// few or texts, else levels with as many samples each.
fn levels<'a>(samples: &[Sample<'a>], arm: usize, column: usize) -> Vec<Vec<Sample<'a>>> {
    let of_arm = samples.iter().copied().filter(|sample| sample.arm == arm);
    let mut values: BTreeMap<String, Vec<Sample<'a>>> = BTreeMap::new();
    for sample in of_arm {
        let value = match &sample.row[column] {
            Cell::Text(text) => text.to_string(),
            cell => format!("{:?}", cell.number()),
        };
        values.entry(value).or_default().push(sample);
    }
    let place = |samples: &[Sample<'_>]| samples[0].row[column].number().unwrap_or(0.0);
    let numbers = values.values().all(|samples| samples[0].row[column].number().is_some());
    let mut levels: Vec<Vec<Sample<'a>>> = values.into_values().collect();
    levels.sort_by(|one, other| place(one).total_cmp(&place(other)));
    if levels.len() <= MOST_LEVELS || !numbers {
        return levels;
    }
    let all: Vec<Sample<'a>> = levels.into_iter().flatten().collect();
    let several = (all.len() / RUNS_IN_LEVEL).clamp(2, MOST_LEVELS);
    (0..several)
        .map(|level| all[all.len() * level / several..all.len() * (level + 1) / several].to_vec())
        .collect()
}

/// The part of a measure's variance that a parameter explains, beyond what chance would (epsilon squared);
/// none if the measure is the same everywhere, or no level has two runs.
fn effect(levels: &[Vec<Sample<'_>>]) -> Option<f64> {
    let all = || levels.iter().flatten().map(|sample| sample.value);
    let centre = mean(all())?;
    let total: f64 = all().map(|value| (value - centre).powi(2)).sum();
    let within = levels.iter().map(|level| {
        let own = mean(level.iter().map(|sample| sample.value)).unwrap_or(centre);
        level.iter().map(|sample| (sample.value - own).powi(2)).sum::<f64>()
    });
    let within: f64 = within.sum();
    let free = all().count().checked_sub(levels.len()).filter(|free| *free > 0)?;
    let chance = float(levels.len() as u64 - 1) * within / float(free as u64);
    (total > 0.0).then(|| ((total - within - chance) / total).max(0.0))
}

fn effects(sweep: &Sweep, layout: &Layout, measures: &[(Objective, Vec<Sample<'_>>)]) -> NumberTable {
    let mut rows = Vec::new();
    for column in layout.varied() {
        for (arm, name) in sweep.arms.iter().enumerate() {
            let of = measures.iter().map(|(_, samples)| Some(effect(&levels(samples, arm, column))? * 100.0));
            rows.push((vec![layout.columns[column].0.clone(), name.clone()], of.collect()));
        }
    }
    NumberTable {
        title: "Effect of each parameter: the part of the variance that it explains, %".to_owned(),
        names: ["parameter", "arm"].map(str::to_owned).to_vec(),
        columns: measures.iter().map(|(objective, _)| named(objective)).collect(),
        rows,
    }
}

/// A measure over a parameter, a line for each arm; none if the parameter is a text.
fn figure(
    sweep: &Sweep,
    parameter: &str,
    column: usize,
    objective: &Objective,
    samples: &[Sample<'_>],
) -> Option<Figure> {
    let place = |sample: &Sample<'_>| sample.row[column].number();
    let lines = sweep.arms.iter().enumerate().map(|(arm, name)| {
        let points = levels(samples, arm, column).into_iter().filter_map(|level| {
            Some((mean(level.iter().filter_map(place))?, mean(level.iter().map(|sample| sample.value))?))
        });
        Series { name: name.clone(), points: points.collect() }
    });
    let series: Vec<Series> = lines.filter(|line| !line.points.is_empty()).collect();
    let places = || series.iter().flat_map(|line| line.points.iter().map(|(at, _)| *at));
    let (low, high) = (places().reduce(f64::min)?, places().reduce(f64::max)?);
    Some(Figure::Chart {
        title: format!("{} over {parameter}", named(objective)),
        x: parameter.to_owned(),
        log_x: low > 0.0 && high / low >= LOG_FROM,
        y: named(objective),
        mark: Mark::Line,
        series,
    })
}

/// What is on the front: no other set of parameters and arm is better by one measure and not worse by the
/// other. Means over the seeds.
fn front(
    sweep: &Sweep,
    layout: &Layout,
    (one, first): &(Objective, Vec<Sample<'_>>),
    (other, second): &(Objective, Vec<Sample<'_>>),
) -> (NumberTable, Figure) {
    let mut found: BTreeMap<(usize, usize), Measured<'_>> = BTreeMap::new();
    for (measure, samples) in [first, second].into_iter().enumerate() {
        for sample in samples {
            let entry = found.entry((sample.arm, sample.point)).or_insert((sample.row, Default::default()));
            entry.1[measure].push(sample.value);
        }
    }
    let means = found.into_iter().filter_map(|((arm, _), (row, [first, second]))| {
        Some((arm, row, (mean(first.into_iter())?, mean(second.into_iter())?)))
    });
    let means: Vec<(usize, &Row, (f64, f64))> = means.collect();
    let on_front =
        means.iter().filter(|(_, _, own)| !means.iter().any(|(_, _, than)| beats(*than, *own, one, other)));
    let mut on_front: Vec<_> = on_front.collect();
    on_front.sort_by(|(_, _, own), (_, _, than)| own.0.total_cmp(&than.0).then(own.1.total_cmp(&than.1)));
    // Of those that are as good as each other by both, the first stands for all.
    on_front.dedup_by_key(|(_, _, own)| *own);
    let rows = on_front.iter().take(MOST_ROWS).map(|(arm, row, (first, second))| {
        let values = row[layout.varied()].iter().map(shown);
        ([sweep.arms[*arm].clone()].into_iter().chain(values).collect(), vec![Some(*first), Some(*second)])
    });
    let parameters = layout.columns[layout.varied()].iter().map(|(name, _)| name.clone());
    let goal = |objective: &Objective| match objective.goal {
        Goal::Least => "least",
        Goal::Most => "most",
    };
    let title =
        format!("Pareto front: the {} {} and the {} {}", goal(one), named(one), goal(other), named(other));
    let arms = sweep.arms.iter().enumerate().map(|(arm, name)| {
        let points = means.iter().filter(|(own, _, _)| *own == arm).map(|(_, _, means)| *means);
        Series { name: name.clone(), points: points.collect() }
    });
    let line = Series {
        name: "on the front".to_owned(),
        points: on_front.iter().map(|(_, _, means)| *means).collect(),
    };
    let figure = Figure::Chart {
        title: title.clone(),
        x: named(one),
        log_x: false,
        y: named(other),
        mark: Mark::Dot,
        series: arms.chain([line]).collect(),
    };
    let table = NumberTable {
        title,
        names: ["arm".to_owned()].into_iter().chain(parameters).collect(),
        columns: vec![named(one), named(other)],
        rows: rows.collect(),
    };
    (table, figure)
}

/// Whether one pair of values is better than another by one measure, and not worse by the other.
fn beats(one: (f64, f64), other: (f64, f64), first: &Objective, second: &Objective) -> bool {
    let gain = |goal: Goal, one: f64, other: f64| match goal {
        Goal::Least => other - one,
        Goal::Most => one - other,
    };
    let gains = (gain(first.goal, one.0, other.0), gain(second.goal, one.1, other.1));
    gains.0 >= 0.0 && gains.1 >= 0.0 && (gains.0 > 0.0 || gains.1 > 0.0)
}

fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Absent => String::new(),
        Cell::Whole(value) => value.to_string(),
        Cell::Number(value) => value.to_string(),
        Cell::Text(text) => text.to_string(),
        Cell::Flag(flag) => flag.to_string(),
    }
}

/// The runs that failed, and why.
fn failures(layout: &Layout, rows: &[Row]) -> Option<NumberTable> {
    let error = layout.column("error")?;
    let failed: Vec<&Row> = rows.iter().filter(|row| row[error].text().is_some()).collect();
    let columns: Vec<usize> = layout
        .varied()
        .chain(["seed", "arm", "error"].iter().filter_map(|name| layout.column(name)))
        .collect();
    (!failed.is_empty()).then(|| NumberTable {
        title: format!("Runs that failed: {}", failed.len()),
        names: columns.iter().map(|column| layout.columns[*column].0.clone()).collect(),
        columns: Vec::new(),
        rows: failed
            .iter()
            .take(MOST_ROWS)
            .map(|row| (columns.iter().map(|column| shown(&row[*column])).collect(), Vec::new()))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[(f64, f64)]) -> Vec<Row> {
        values.iter().map(|(parameter, value)| vec![Cell::Number(*parameter), Cell::Number(*value)]).collect()
    }

    fn samples_of(rows: &[Row]) -> Vec<Sample<'_>> {
        let sample = |(point, row): (usize, _)| {
            let row: &Row = row;
            Sample { point, arm: 0, row, value: row[1].number().unwrap() }
        };
        rows.iter().enumerate().map(sample).collect()
    }

    fn effect_of(values: &[(f64, f64)]) -> Option<f64> {
        let rows = rows(values);
        effect(&levels(&samples_of(&rows), 0, 0))
    }

    #[test]
    fn an_effect_is_all_where_nothing_else_matters_and_none_where_it_does_not() {
        let exact = effect_of(&[(1.0, 5.0), (1.0, 5.0), (2.0, 7.0), (2.0, 7.0)]).unwrap();
        assert!((exact - 1.0).abs() < 1e-9, "{exact}");
        let without = effect_of(&[(1.0, 5.0), (1.0, 7.0), (2.0, 5.0), (2.0, 7.0)]).unwrap();
        assert!(without < 1e-9, "{without}");
        assert_eq!(effect_of(&[(1.0, 5.0), (2.0, 5.0), (2.0, 5.0)]), None, "the same everywhere");
        assert_eq!(effect_of(&[(1.0, 5.0), (2.0, 6.0)]), None, "nothing tells chance from effect");
        // Many values of a parameter share levels.
        let line: Vec<(f64, f64)> = (0..100).map(|at| (f64::from(at), f64::from(at) * 3.0)).collect();
        let line = effect_of(&line).unwrap();
        assert!(line > 0.97 && line < 1.0, "{line}");
    }

    #[test]
    fn a_vm_is_of_an_entry_by_its_name_and_number() {
        assert!(is_of("desk", "desk") && is_of("desk-12", "desk"));
        assert!(!is_of("desk-a", "desk") && !is_of("desks-1", "desk") && !is_of("des", "desk"));
    }

    #[test]
    fn what_another_beats_is_not_on_the_front() {
        let objective = |goal| Objective { measure: "x".to_owned(), of: "y".to_owned(), goal };
        let (least, most) = (objective(Goal::Least), objective(Goal::Most));
        assert!(beats((1.0, 2.0), (1.0, 3.0), &least, &least));
        assert!(!beats((1.0, 2.0), (1.0, 2.0), &least, &least));
        assert!(!beats((0.5, 3.0), (1.0, 2.0), &least, &least));
        assert!(beats((0.5, 3.0), (1.0, 2.0), &least, &most));
    }
}
