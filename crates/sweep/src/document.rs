//! The sweep file as it is written, and the sets of parameters that follow from it.

use crate::cluster::{Cluster, DayPart};
use crate::range::{Drawing, Range, draw};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use toml::{Table, Value};

/// In a cluster: the part of the day, and the host. No keys of a scenario.
pub(crate) const OF_CLUSTER: [&str; 2] = ["cluster.part", "cluster.host"];
/// Runs of a sweep at most: its rows are in memory at the end.
pub(crate) const MOST_RUNS: usize = 100_000;

/// The sweep file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Document {
    pub(crate) scenario: PathBuf,
    #[serde(default)]
    pub(crate) set: Table,
    #[serde(default)]
    pub(crate) arms: Vec<String>,
    pub(crate) seeds: Option<Value>,
    #[serde(default)]
    grid: Table,
    random: Option<Drawn>,
    latin_hypercube: Option<Drawn>,
    pub(crate) cluster: Option<Cluster>,
    #[serde(default)]
    pub(crate) pareto: Vec<Objective>,
}

/// A table `random` or `latin-hypercube`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drawn {
    points: usize,
    #[serde(default = "first")]
    seed: u64,
    ranges: Table,
}

fn first() -> u64 {
    1
}

/// What is to be made small or large: an entry of `pareto`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// The column.
    pub measure: String,
    /// Of which rows: VM, or VM/WORKLOAD.
    pub of: String,
    /// Which values are good.
    pub goal: Goal,
}

/// Which values are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Small ones.
    Least,
    /// Large ones.
    Most,
}

/// What is wrong: a key, and a message.
pub(crate) type Wrong = (String, String);

/// The sets of parameters while they are put together: keys, and a value for each in each set.
pub(crate) struct Points {
    pub(crate) keys: Vec<String>,
    pub(crate) points: Vec<Vec<Value>>,
}

impl Points {
    /// Combines each set so far with each of these values of further keys.
    fn vary(&mut self, keys: Vec<String>, values: &[Vec<Value>]) -> Result<(), Wrong> {
        if let Some(twice) = keys.iter().find(|key| self.keys.contains(key)) {
            return Err((twice.clone(), "it is varied twice".to_owned()));
        }
        let several = self.points.len().saturating_mul(values.len());
        if several > MOST_RUNS {
            let message =
                format!("with it there are {several} sets of parameters: allowed are up to {MOST_RUNS}");
            return Err((keys.join(", "), message));
        }
        let with = |point: &Vec<Value>| {
            let point = point.clone();
            values.iter().map(move |own| point.iter().chain(own).cloned().collect())
        };
        self.points = self.points.iter().flat_map(with).collect();
        self.keys.extend(keys);
        Ok(())
    }
}

/// A set of parameters for each part of the day and host with somebody on it.
pub(crate) fn of_cluster(cluster: &Cluster, day: &[DayPart]) -> Points {
    let kinds = cluster.mix.keys().map(|kind| format!("vm.{kind}.count"));
    let points = day.iter().enumerate().flat_map(|(part, of_day)| {
        of_day.hosts.iter().map(move |(host, used)| {
            let part = i64::try_from(part).unwrap_or(i64::MAX);
            let numbers =
                [part, i64::from(*host)].into_iter().chain(used.iter().map(|count| i64::from(*count)));
            numbers.map(Value::Integer).collect()
        })
    });
    Points {
        keys: OF_CLUSTER.map(str::to_owned).into_iter().chain(kinds).collect(),
        points: points.collect(),
    }
}

/// The keys that are varied, and all combinations of the grid's values and the points drawn.
pub(crate) fn points(document: &Document) -> Result<Points, Wrong> {
    let mut points = Points { keys: Vec::new(), points: vec![Vec::new()] };
    for (key, value) in flat(&document.grid, |_| false) {
        let values = value.as_array().filter(|values| !values.is_empty());
        let values =
            values.ok_or_else(|| (format!("grid.{key}"), "allowed is a list of values".to_owned()))?;
        points.vary(vec![key], &values.iter().map(|value| vec![value.clone()]).collect::<Vec<_>>())?;
    }
    let drawn = [
        ("random", &document.random, Drawing::Random),
        ("latin-hypercube", &document.latin_hypercube, Drawing::LatinHypercube),
    ];
    for (name, drawn, drawing) in drawn {
        let Some(drawn) = drawn else { continue };
        if !(1..=MOST_RUNS).contains(&drawn.points) {
            return Err((format!("{name}.points"), format!("allowed is 1 to {MOST_RUNS}")));
        }
        let is_range = |table: &Table| table.contains_key("from") || table.contains_key("to");
        let (mut keys, mut ranges) = (Vec::new(), Vec::new());
        for (key, value) in flat(&drawn.ranges, is_range) {
            let range = Range::parse(value).map_err(|message| (format!("{name}.ranges.{key}"), message))?;
            keys.push(key);
            ranges.push(range);
        }
        if keys.is_empty() {
            let message = "allowed is a range for each of one or more keys";
            return Err((format!("{name}.ranges"), message.to_owned()));
        }
        points.vary(keys, &draw(drawing, &ranges, drawn.points, drawn.seed))?;
    }
    Ok(points)
}

/// The values in a table that are leaves, or no tables, and their dotted keys: a key may be written with dots
/// or in quotes.
pub(crate) fn flat(table: &Table, is_leaf: impl Fn(&Table) -> bool + Copy) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) if !is_leaf(inner) => {
                let inner = flat(inner, is_leaf).into_iter();
                found.extend(inner.map(|(rest, value)| (format!("{key}.{rest}"), value)));
            }
            value => found.push((key.clone(), value)),
        }
    }
    found
}

/// How many seeds, or which: one if left out.
pub(crate) fn seeds(value: Option<&Value>) -> Result<Vec<u64>, String> {
    let seed = |value: &Value| value.as_integer().and_then(|seed| u64::try_from(seed).ok());
    let several = match value {
        None => Some(vec![1]),
        Some(Value::Array(seeds)) => seeds.iter().map(seed).collect(),
        Some(count) => {
            seed(count).filter(|count| *count <= MOST_RUNS as u64).map(|count| (1..=count).collect())
        }
    };
    let mut sorted = several.clone().unwrap_or_default();
    sorted.sort_unstable();
    if sorted.is_empty() || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("allowed is how many, as in 10, or a list of different ones, as in [1, 2, 3]".to_owned());
    }
    Ok(several.unwrap_or_default())
}
