//! Recordings: their tables, and what going through them again gives.

use crate::error::{Error, json, raised};
use crate::tables::{self, Spec, Table, fields};
use frontdesk_engine::Config;
use frontdesk_record::{Ending, Record, Recording as Records};
use frontdesk_replay::{compare, sample, timeline, verify};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

/// Tables of a daemon's configuration that are the engine's parameters.
const PARAMETERS: [&str; 4] = ["tavs", "ledger", "multimedia", "asymmetric"];

/// The name of a table, and the table as Parquet.
type NamedBytes<'py> = (String, Bound<'py, PyBytes>);

/// A recording, which is read anew for everything that is asked.
#[pyclass(frozen, module = "frontdesk._frontdesk")]
pub(crate) struct Recording {
    path: PathBuf,
}

const RECORD: Spec = Spec::whole("record", "record");
const AT: Spec = Spec::whole("at_ns", "at");
const KIND: Spec = Spec::text("kind", "kind");
const VM: Spec = Spec::whole("vm", "vm");
const VCPU: Spec = Spec::whole("vcpu", "vcpu");
const PERMILLE: Spec = Spec::whole("permille", "permille");

const EVENTS: [Spec; 33] = [
    RECORD,
    AT,
    KIND,
    VM,
    VCPU,
    Spec::text("thread", "thread"),
    Spec::whole("pcpu", "pcpu"),
    Spec::whole("ran_ns", "ran_ns"),
    Spec::whole("waited_ns", "waited_ns"),
    Spec::flag("runnable", "runnable"),
    Spec::whole("by", "by"),
    Spec::whole("task", "task"),
    Spec::whole("to", "to"),
    Spec::whole("vector", "vector"),
    Spec::text("protocol", "protocol"),
    Spec::whole("port", "port"),
    Spec::whole("request", "request"),
    Spec::whole("count", "count"),
    Spec::whole("vcpus", "vcpus"),
    Spec::whole("weight", "weight"),
    PERMILLE,
    Spec::text("region", "region"),
    Spec::text("device", "device"),
    Spec::flag("in_interrupt", "in_interrupt"),
    Spec::text("input", "input"),
    Spec::whole("slow", "slow"),
    Spec::text("standing", "standing"),
    Spec::flag("limited", "limited"),
    Spec::flag("acts", "acts"),
    Spec::flag("charges_boosts", "charges_boosts"),
    Spec::whole("realtime_permille", "realtime_permille"),
    Spec::whole("slice_ns", "slice_ns"),
    Spec::whole("silence_ns", "silence_ns"),
];
const ACTIONS: [Spec; 11] = [
    RECORD,
    AT,
    KIND,
    VM,
    VCPU,
    Spec::text("target", "target"),
    Spec::text("level", "level"),
    PERMILLE,
    Spec::flag("on", "on"),
    Spec::flag("applied", "applied"),
    Spec::whole("latency_ns", "latency_ns"),
];
const DECISIONS: [Spec; 6] = [
    RECORD,
    Spec::whole("cpu", "cpu"),
    AT,
    KIND,
    Spec::text("event", "event"),
    Spec::text("dispatches", "dispatches"),
];
const NAMES: [Spec; 3] = [RECORD, VM, Spec::text("name", "name")];
const TARGETS: [Spec; 3] = [RECORD, Spec::whole("target", "target"), Spec::text("name", "name")];
const PARAMETER_CHANGES: [Spec; 4] = [RECORD, KIND, VM, Spec::text("parameters", "parameters")];

/// A choice as the name of its kind, and its content.
fn choice(of: &impl Serialize) -> PyResult<(String, Map<String, Value>)> {
    let value = serde_json::to_value(of).map_err(|error| raised(&error))?;
    Ok(match value {
        Value::Object(choice) => match choice.into_iter().next() {
            Some((kind, Value::Object(content))) => (kind, content),
            Some((kind, content)) => (kind, Map::from_iter([("content".to_owned(), content)])),
            None => (String::new(), Map::new()),
        },
        Value::String(kind) => (kind, Map::new()),
        other => (other.to_string(), Map::new()),
    })
}

impl Recording {
    fn open(&self) -> PyResult<Records<BufReader<File>>> {
        let name = self.path.display().to_string();
        let file =
            File::open(&self.path).map_err(|error| Error::new_err(format!("cannot read {name}: {error}")))?;
        Records::new(BufReader::new(file), name).map_err(|error| raised(&error))
    }
}

#[pymethods]
impl Recording {
    /// Looks whether the file is a recording that can be read.
    #[new]
    fn new(path: PathBuf) -> PyResult<Recording> {
        let recording = Recording { path };
        recording.open()?;
        Ok(recording)
    }

    /// The file.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Everything in it: whether it ended in order, and tables by their names.
    fn tables<'py>(&self, py: Python<'py>) -> PyResult<(bool, Vec<NamedBytes<'py>>)> {
        let mut records = self.open()?;
        let (mut events, mut actions) = (Table::new(&EVENTS), Table::new(&ACTIONS));
        let (mut decisions, mut parameters) = (Table::new(&DECISIONS), Table::new(&PARAMETER_CHANGES));
        let (mut vms, mut targets) = (Table::new(&NAMES), Table::new(&TARGETS));
        while let Some(record) = records.next().transpose().map_err(|error| raised(&error))? {
            let number = records.records();
            // A long recording takes a while.
            if number % 65_536 == 0 {
                py.check_signals()?;
            }
            let with = |mut fields: Map<String, Value>, more: &[(&str, Value)]| {
                fields.insert("record".to_owned(), number.into());
                fields.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
                fields
            };
            match record {
                Record::Event(event) => {
                    let (kind, content) = choice(&event.kind)?;
                    events.add(with(content, &[("at", event.at.0.into()), ("kind", kind.into())]))?;
                }
                Record::Deadline(at) => {
                    events.add(with(Map::new(), &[("at", at.0.into()), ("kind", "Deadline".into())]))?;
                }
                Record::Applied { action, latency_ns } => {
                    let (kind, content) = choice(&action.kind)?;
                    let more = [
                        ("at", action.at.0.into()),
                        ("kind", kind.into()),
                        ("applied", true.into()),
                        ("latency_ns", latency_ns.into()),
                    ];
                    actions.add(with(content, &more))?;
                }
                Record::Discarded(action) => {
                    let (kind, content) = choice(&action.kind)?;
                    let more = [("at", action.at.0.into()), ("kind", kind.into()), ("applied", false.into())];
                    actions.add(with(content, &more))?;
                }
                Record::Decision { cpu, event, dispatches } => {
                    let mut told = fields(&event)?;
                    let (kind, content) = choice(&told.remove("kind"))?;
                    let at = told.remove("at").unwrap_or_default();
                    let dispatches = serde_json::to_value(dispatches).map_err(|error| raised(&error))?;
                    told.extend(content);
                    let more = [
                        ("cpu", cpu.into()),
                        ("at", at),
                        ("kind", kind.into()),
                        ("event", told.into()),
                        ("dispatches", dispatches),
                    ];
                    decisions.add(with(Map::new(), &more))?;
                }
                Record::DecisionsLost { decisions: lost } => {
                    let lost = Map::from_iter([("decisions".to_owned(), lost.into())]);
                    let more = [("kind", "DecisionsLost".into()), ("event", lost.into())];
                    decisions.add(with(Map::new(), &more))?;
                }
                Record::Vm { vm, name } => {
                    vms.add(with(Map::new(), &[("vm", vm.0.into()), ("name", name.into())]))?;
                }
                Record::Target { target, name } => {
                    targets.add(with(Map::new(), &[("target", target.0.into()), ("name", name.into())]))?;
                }
                Record::State(engine) => {
                    let config = fields(engine.config())?;
                    parameters
                        .add(with(Map::new(), &[("kind", "State".into()), ("parameters", config.into())]))?;
                }
                Record::Config(config) => {
                    let config = fields(&config)?;
                    parameters
                        .add(with(Map::new(), &[("kind", "Config".into()), ("parameters", config.into())]))?;
                }
                Record::Policy { vm, policy } => {
                    let policy = fields(&policy)?;
                    let more =
                        [("kind", "Policy".into()), ("vm", vm.0.into()), ("parameters", policy.into())];
                    parameters.add(with(Map::new(), &more))?;
                }
                // A dispatcher's state is for replays.
                Record::Dispatcher { .. } | Record::End => {}
            }
        }
        let complete = records.ending() == Some(Ending::Complete);
        let tables = [
            ("events", events),
            ("actions", actions),
            ("decisions", decisions),
            ("parameters", parameters),
            ("vms", vms),
            ("targets", targets),
        ];
        let tables = tables.into_iter().map(|(name, table)| Ok((name.to_owned(), table.parquet(py)?)));
        Ok((complete, tables.collect::<PyResult<_>>()?))
    }

    /// What ran where and when, from so long after the first event: tables by their names.
    fn trace<'py>(
        &self,
        py: Python<'py>,
        start: &str,
        length: Option<&str>,
    ) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
        let time = |key: &str, text: &str| {
            humantime::parse_duration(text).map_err(|error| Error::new_err(format!("{key}: {error}")))
        };
        let (start, length) =
            (time("start", start)?, length.map(|length| time("length", length)).transpose()?);
        let mut records = self.open()?;
        let examined = py.detach(|| timeline(&mut records, start, length)).map_err(|error| raised(&error))?;
        tables::trace(py, &examined.timeline)
    }

    /// Whether the same is decided as was, as `frontdesk replay --json` says it.
    fn verify(&self, py: Python<'_>) -> PyResult<(bool, String)> {
        let mut records = self.open()?;
        let verified = py.detach(|| verify(&mut records)).map_err(|error| raised(&error))?;
        Ok((verified.is_same(), json(&verified)?))
    }

    /// What would be decided with other parameters: a configuration as TOML, called `name` in messages. As
    /// `frontdesk replay --config --json` says it: the differences, and the summary.
    fn compare(&self, py: Python<'_>, name: &str, config: &str) -> PyResult<(String, String)> {
        let wrong = |message: &dyn std::fmt::Display| Error::new_err(format!("{name}: {message}"));
        let mut other: toml::Table =
            toml::from_str(config).map_err(|error| wrong(&error.to_string().trim_end()))?;
        // The rest of a daemon's file is nothing that a recording knows of.
        other.retain(|table, _| PARAMETERS.contains(&table));
        let other: Config = other.try_into().map_err(|error: toml::de::Error| wrong(&error.message()))?;
        let problems: Vec<String> = other.problems().iter().map(ToString::to_string).collect();
        if !problems.is_empty() {
            return Err(wrong(&problems.join("; ")));
        }
        let mut records = self.open()?;
        let mut differences = Vec::new();
        let compared =
            py.detach(|| compare(&mut records, &other, |difference| differences.push(difference.clone())));
        let compared = compared.map_err(|error| raised(&error))?;
        Ok((json(&differences)?, json(&compared)?))
    }

    /// What would be decided if tasks were only seen now and then, as `frontdesk replay --sampled --json`
    /// says it, and whether false boosts keep within `pb_ratio`.
    fn sampled(&self, py: Python<'_>) -> PyResult<(bool, String)> {
        let mut records = self.open()?;
        let agreement = py.detach(|| sample(&mut records)).map_err(|error| raised(&error))?;
        Ok((agreement.bounded(), json(&agreement)?))
    }
}
