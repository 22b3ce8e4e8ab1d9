//! Tables of what things say of themselves, for Arrow.

use crate::error::{Error, raised};
use frontdesk_scenario::Timeline;
use frontdesk_sweep::{Cell, Kind, Row, write_parquet};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde_json::{Map, Value};

/// A column, and the field that its values are of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    column: &'static str,
    field: &'static str,
    kind: Kind,
}

impl Spec {
    pub(crate) const fn text(column: &'static str, field: &'static str) -> Spec {
        Spec { column, field, kind: Kind::Text }
    }

    pub(crate) const fn whole(column: &'static str, field: &'static str) -> Spec {
        Spec { column, field, kind: Kind::Whole }
    }

    pub(crate) const fn number(column: &'static str, field: &'static str) -> Spec {
        Spec { column, field, kind: Kind::Number }
    }

    pub(crate) const fn flag(column: &'static str, field: &'static str) -> Spec {
        Spec { column, field, kind: Kind::Flag }
    }
}

/// Rows with these columns.
pub(crate) struct Table {
    specs: &'static [Spec],
    pub(crate) rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(specs: &'static [Spec]) -> Table {
        Table { specs, rows: Vec::new() }
    }

    /// Adds a row from the fields of something.
    ///
    /// # Errors
    /// It has a field that no column is for, or one of another kind: columns and fields are to agree.
    pub(crate) fn add(&mut self, mut fields: Map<String, Value>) -> PyResult<()> {
        let mut row = Vec::with_capacity(self.specs.len());
        for Spec { column, field, kind } in self.specs {
            let value = fields.remove(*field).unwrap_or(Value::Null);
            row.push(cell(value, *kind).ok_or_else(|| bug(&format!("{column} is no {kind:?}")))?);
        }
        if let Some(left) = fields.keys().next() {
            return Err(bug(&format!("there is no column for {left}")));
        }
        self.rows.push(row);
        Ok(())
    }

    /// The table as a Parquet file.
    pub(crate) fn parquet<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let columns: Vec<_> = self.specs.iter().map(|spec| (spec.column.to_owned(), spec.kind)).collect();
        let mut bytes = Vec::new();
        let rows: Vec<&Row> = self.rows.iter().collect();
        py.detach(|| write_parquet(&columns, &rows, &mut bytes)).map_err(|error| raised(&error))?;
        Ok(PyBytes::new(py, &bytes))
    }
}

fn bug(what: &str) -> PyErr {
    Error::new_err(format!("{what}: this is a bug, please report it"))
}

/// A value as a cell of this kind; `None` if it is of another.
fn cell(value: Value, kind: Kind) -> Option<Cell> {
    Some(match (kind, value) {
        (_, Value::Null) => Cell::Absent,
        // Bits of a number that has no sign stay what they are.
        (Kind::Whole, Value::Number(number)) => {
            Cell::Whole(number.as_i64().or_else(|| number.as_u64().map(u64::cast_signed))?)
        }
        (Kind::Number, Value::Number(number)) => Cell::Number(number.as_f64()?),
        (Kind::Flag, Value::Bool(flag)) => Cell::Flag(flag),
        (Kind::Text, Value::String(text)) => Cell::Text(text.into()),
        // A choice with a number, as that of a vCPU: its name and the number.
        (Kind::Text, Value::Object(choice)) if choice.len() == 1 && choice.values().all(Value::is_number) => {
            let named = choice.iter().map(|(name, number)| format!("{name} {number}"));
            Cell::Text(named.collect::<String>().into())
        }
        // A structure.
        (Kind::Text, value @ (Value::Object(_) | Value::Array(_))) => Cell::Text(value.to_string().into()),
        _ => return None,
    })
}

/// The fields of something.
pub(crate) fn fields(of: &impl Serialize) -> PyResult<Map<String, Value>> {
    match serde_json::to_value(of).map_err(|error| raised(&error))? {
        Value::Object(fields) => Ok(fields),
        other => Err(bug(&format!("{other} has no fields"))),
    }
}

const VM: Spec = Spec::text("vm", "vm");
const VCPU: Spec = Spec::whole("vcpu", "vcpu");
const START: Spec = Spec::whole("start_ns", "start");
const END: Spec = Spec::whole("end_ns", "end");
const AT: Spec = Spec::whole("at_ns", "at");
const TASK: Spec = Spec::text("task", "task");
const DECISION: Spec = Spec::text("decision", "decision");
const PERMILLE: Spec = Spec::whole("permille", "permille");

const RUNS: [Spec; 5] = [VM, Spec::text("thread", "thread"), Spec::whole("pcpu", "pcpu"), START, END];
const TASKS: [Spec; 5] = [VM, VCPU, TASK, START, END];
const BOOSTS: [Spec; 5] = [VM, VCPU, START, END, Spec::flag("hit", "hit")];
const PACKETS: [Spec; 6] = [
    VM,
    Spec::text("protocol", "protocol"),
    Spec::whole("port", "port"),
    AT,
    Spec::whole("task_delay_ns", "task_delay"),
    DECISION,
];
const READS: [Spec; 4] = [VM, AT, Spec::whole("done_ns", "done"), DECISION];
const UPDATES: [Spec; 3] = [VM, AT, Spec::text("region", "region")];
const SOUNDS: [Spec; 4] = [VM, AT, VCPU, TASK];
const EPISODES: [Spec; 4] = [VM, Spec::text("cause", "cause"), START, END];
const WEIGHTS: [Spec; 5] = [VM, VCPU, PERMILLE, START, END];
const FRAME_RATES: [Spec; 6] = [
    VM,
    TASK,
    AT,
    Spec::number("rate", "rate"),
    Spec::number("desired", "desired"),
    Spec::whole("share_permille", "share_permille"),
];
const BELIEFS: [Spec; 4] = [VM, TASK, AT, Spec::whole("belief", "belief")];

/// What happened, as tables by their names.
pub(crate) fn trace<'py>(
    py: Python<'py>,
    timeline: &Timeline,
) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
    let vms = &timeline.vms;
    Ok(vec![
        ("runs".to_owned(), slices(py, &RUNS, vms, &timeline.runs)?),
        ("tasks".to_owned(), slices(py, &TASKS, vms, &timeline.tasks)?),
        ("boosts".to_owned(), slices(py, &BOOSTS, vms, &timeline.boosts)?),
        ("packets".to_owned(), slices(py, &PACKETS, vms, &timeline.packets)?),
        ("reads".to_owned(), slices(py, &READS, vms, &timeline.reads)?),
        ("updates".to_owned(), slices(py, &UPDATES, vms, &timeline.updates)?),
        ("sounds".to_owned(), slices(py, &SOUNDS, vms, &timeline.sounds)?),
        ("episodes".to_owned(), slices(py, &EPISODES, vms, &timeline.episodes)?),
        ("weights".to_owned(), slices(py, &WEIGHTS, vms, &timeline.weights)?),
        ("frame_rates".to_owned(), slices(py, &FRAME_RATES, vms, &timeline.frame_rates)?),
        ("beliefs".to_owned(), slices(py, &BELIEFS, vms, &timeline.beliefs)?),
    ])
}

/// A table of slices or marks, with the names of their VMs.
fn slices<'py, T: Serialize>(
    py: Python<'py>,
    specs: &'static [Spec],
    vms: &[String],
    of: &[T],
) -> PyResult<Bound<'py, PyBytes>> {
    let mut table = Table::new(specs);
    for slice in of {
        let mut fields = fields(slice)?;
        if let Some(vm) = fields.get_mut("vm") {
            let index = vm.as_u64().and_then(|index| usize::try_from(index).ok());
            *vm = index.and_then(|index| vms.get(index)).cloned().map_or(Value::Null, Value::String);
        }
        table.add(fields)?;
    }
    table.parquet(py)
}
