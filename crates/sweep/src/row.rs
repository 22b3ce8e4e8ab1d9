//! What a run gives as rows: one for each VM, and for each workload that does something that is counted.

use crate::columns::{FIRST, LAST, MEASURED};
use crate::design::{Sweep, SweepRun};
use crate::table::{Cell, Column, Kind, Row};
use frontdesk_scenario::{Repeat, Summary, Unit};
use toml::Value;

/// The columns of a sweep's rows.
#[derive(Clone, Debug)]
pub struct Layout {
    parameters: Vec<Parameter>,
    /// Their names, and what their values are. A parameter whose values are times has its column in seconds,
    /// and `_s` after its name.
    pub columns: Vec<Column>,
    /// Whether only VMs have rows, and their workloads none: of a cluster there are many.
    vms_only: bool,
}

/// What the values of a parameter are, all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameter {
    Whole,
    Number,
    Time,
    Text,
}

fn seconds(value: &Value) -> Option<f64> {
    Some(humantime::parse_duration(value.as_str()?).ok()?.as_secs_f64())
}

fn text(text: &str) -> Cell {
    Cell::Text(text.into())
}

fn whole(count: u64) -> Cell {
    Cell::Whole(i64::try_from(count).unwrap_or(i64::MAX))
}

fn number(value: Option<f64>) -> Cell {
    value.map_or(Cell::Absent, Cell::Number)
}

impl Layout {
    /// The columns for a sweep.
    #[must_use]
    pub fn of(sweep: &Sweep) -> Layout {
        let values = |index: usize| sweep.points.iter().map(move |point| &point[index]);
        let parameters = (0..sweep.keys.len()).map(|index| {
            if values(index).all(Value::is_integer) {
                Parameter::Whole
            } else if values(index).all(|value| value.is_integer() || value.is_float()) {
                Parameter::Number
            } else if values(index).all(|value| seconds(value).is_some()) {
                Parameter::Time
            } else {
                Parameter::Text
            }
        });
        let parameters: Vec<Parameter> = parameters.collect();
        let varied = sweep.keys.iter().zip(&parameters).map(|(key, parameter)| match parameter {
            Parameter::Whole => (key.clone(), Kind::Whole),
            Parameter::Number => (key.clone(), Kind::Number),
            Parameter::Time => (format!("{key}_s"), Kind::Number),
            Parameter::Text => (key.clone(), Kind::Text),
        });
        let fixed = |(name, kind): &(&str, Kind)| ((*name).to_owned(), *kind);
        let columns = FIRST.iter().map(fixed).chain(varied).chain(LAST.iter().map(fixed)).collect();
        Layout { parameters, columns, vms_only: sweep.cluster.is_some() }
    }

    /// The number of a column.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|(own, _)| own == name)
    }

    /// The numbers of the columns of the parameters.
    #[must_use]
    pub fn varied(&self) -> std::ops::Range<usize> {
        FIRST.len()..FIRST.len() + self.parameters.len()
    }

    /// The rows of a run, from what it measured or why it failed.
    pub(crate) fn rows(&self, run: SweepRun<'_>, result: Result<&Repeat, &str>) -> Vec<Row> {
        let parameters =
            run.point.iter().zip(&self.parameters).map(|(value, parameter)| match (parameter, value) {
                (Parameter::Whole, Value::Integer(value)) => Cell::Whole(*value),
                #[allow(clippy::cast_precision_loss)] // No key of a scenario needs such numbers.
                (Parameter::Number, Value::Integer(value)) => Cell::Number(*value as f64),
                (Parameter::Number, Value::Float(value)) => Cell::Number(*value),
                (Parameter::Time, value) => number(seconds(value)),
                (_, Value::String(value)) => text(value),
                (_, value) => text(&value.to_string()),
            });
        let mut before = vec![whole(run.number as u64)];
        before.extend(parameters);
        before.extend([whole(run.seed), text(run.arm)]);
        let commit = Some(env!("FRONTDESK_COMMIT")).filter(|commit| !commit.is_empty());
        let built = [text(env!("CARGO_PKG_VERSION")), commit.map_or(Cell::Absent, text)];
        let row = |measured: Vec<Cell>, error: Cell| {
            let built = built.iter().cloned();
            before.iter().cloned().chain(measured).chain(built).chain([error]).collect()
        };
        match result {
            Ok(repeat) => {
                let wanted = |whom: &&str| !(self.vms_only && whom.contains('/'));
                let whom = of_whom(repeat).into_iter().filter(wanted);
                whom.map(|whom| row(measured(repeat, whom), Cell::Absent)).collect()
            }
            Err(error) => vec![row(vec![Cell::Absent; MEASURED], text(error))],
        }
    }
}

/// The VMs and the workloads of which something was measured, as VM and VM/WORKLOAD.
fn of_whom(repeat: &Repeat) -> Vec<&str> {
    let keys = repeat.cpu_ms.keys().chain(repeat.response_ms.keys()).chain(repeat.rates.keys());
    let mut whom: Vec<&str> = Vec::new();
    for key in keys.chain(repeat.times_ms.keys()).chain(repeat.frames.keys()) {
        if !whom.contains(&key.as_str()) {
            whom.push(key);
        }
    }
    whom
}

/// From the column `vm` to `seconds`.
fn measured(repeat: &Repeat, whom: &str) -> Vec<Cell> {
    let (vm, workload) = whom.split_once('/').map_or((whom, None), |(vm, workload)| (vm, Some(workload)));
    let response = repeat.response_ms.get(whom);
    let of = |pick: fn(&Summary) -> f64| number(response.map(pick));
    let rate = repeat.rates.get(whom);
    let unit = rate.map(|rate| match rate.unit {
        Unit::Operations => "operations",
        Unit::Bytes => "bytes",
    });
    let times = repeat.times_ms.get(whom).and_then(|times| Summary::of(times));
    let frames = repeat.frames.get(whom);
    vec![
        text(vm),
        workload.map_or(Cell::Absent, text),
        response.map_or(Cell::Absent, |response| whole(response.count)),
        of(|response| response.mean),
        of(|response| response.p50),
        of(|response| response.p95),
        of(|response| response.p99),
        of(|response| response.max),
        number(repeat.cpu_ms.get(whom).copied()),
        number(repeat.cpu_share.get(whom).copied()),
        number(rate.map(|rate| rate.per_s)),
        unit.map_or(Cell::Absent, text),
        number(times.map(|times| times.mean)),
        number(frames.map(|frames| frames.per_s)),
        number(frames.map(|frames| frames.dropped)),
        whole(repeat.boosts),
        whole(repeat.boost_hits),
        whole(repeat.request_boosts),
        whole(repeat.unanswered_boosts),
        Cell::Number(repeat.seconds),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_scenario::Rate;
    use std::path::Path;

    #[test]
    fn each_vm_and_workload_has_a_row_and_so_has_an_error() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/sweeps/thresholds.toml");
        let sweep = Sweep::load(&path).unwrap();
        let layout = Layout::of(&sweep);
        let summary = Summary { count: 2, mean: 1.5, p50: 1.0, p95: 2.0, p99: 3.0, max: 4.0 };
        let repeat = Repeat {
            response_ms: [("a".to_owned(), summary)].into_iter().collect(),
            cpu_ms: [("a".to_owned(), 10.0), ("b".to_owned(), 20.5)].into_iter().collect(),
            rates: [("b/hog".to_owned(), Rate { per_s: 7.0, unit: Unit::Bytes })].into_iter().collect(),
            boosts: 3,
            ..Repeat::default()
        };
        let run = sweep.run(0).unwrap();
        let rows = layout.rows(run, Ok(&repeat));
        let failed = layout.rows(run, Err("it fell over"));
        assert!(rows.iter().chain(&failed).all(|row| row.len() == layout.columns.len()));
        let cell = |row: &Row, name: &str| row[layout.column(name).unwrap()].clone();
        let whom: Vec<_> = rows.iter().map(|row| (cell(row, "vm"), cell(row, "workload"))).collect();
        assert_eq!(whom, [(text("a"), Cell::Absent), (text("b"), Cell::Absent), (text("b"), text("hog"))]);
        assert_eq!(
            (cell(&rows[0], "requests"), cell(&rows[0], "p99_ms")),
            (Cell::Whole(2), Cell::Number(3.0))
        );
        assert_eq!((cell(&rows[2], "per_s"), cell(&rows[2], "unit")), (Cell::Number(7.0), text("bytes")));
        assert_eq!(cell(&rows[1], "boosts"), Cell::Whole(3));
        assert_eq!((cell(&failed[0], "error"), cell(&failed[0], "vm")), (text("it fell over"), Cell::Absent));
        let times = layout.varied().map(|column| layout.columns[column].0.as_str());
        assert!(
            times.clone().any(|name| name == "policy.tavs.io_threshold_s"),
            "{:?}",
            times.collect::<Vec<_>>()
        );
    }
}
