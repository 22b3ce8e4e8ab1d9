//! Reading a scenario file: TOML, overrides, types, ranges, each with errors that point into the file.

use crate::allowed::{Violation, one_of};
use crate::close::{did_you_mean, did_you_mean_field};
use crate::scenario::{Scenario, Subject};
use frontdesk_workload::WorkloadKind;
use indexmap::IndexMap;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// What a run changes in a scenario file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Assignments `KEY=VALUE`, applied in order. The key is a dotted path in which an array is indexed by
    /// number or by the `name` of an entry (`vm.cpu.count=8`, `load.0.bytes=100`); the value is TOML, or else
    /// a plain string. A key that the file leaves out can be set; arms, VMs and other entries cannot be
    /// added.
    pub set: Vec<String>,
    /// Replaces `repeats`.
    pub repeats: Option<u32>,
    /// Replaces `duration`.
    pub duration: Option<Duration>,
    /// Runs only the arms with these names, in this order, and drops the checks that need one of the others.
    /// Empty: all arms.
    pub arms: Vec<String>,
}

/// Where in a scenario an error is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorLocation {
    /// The scenario file.
    pub path: PathBuf,
    /// The line, from 1; of the closest thing around it if the key itself is not in the file.
    pub line: usize,
    /// The override that changed it.
    pub changed_by: Option<String>,
}

impl fmt::Display for ErrorLocation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.path.display(), self.line)?;
        match &self.changed_by {
            Some(change) => write!(out, " with {change}"),
            None => Ok(()),
        }
    }
}

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read the scenario {}", path.display())]
    Read {
        /// The scenario file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{place}: not valid TOML: {message}")]
    Syntax {
        /// Where.
        place: ErrorLocation,
        /// What the parser expected.
        message: String,
    },
    /// A key is unknown or missing, or its value has the wrong type.
    #[error("{place}: {key}{}{message}", if key.is_empty() { "" } else { ": " })]
    Key {
        /// Where.
        place: ErrorLocation,
        /// The dotted key; empty for the file as a whole.
        key: String,
        /// What is wrong, and what would be accepted.
        message: String,
    },
    /// A value is out of its range or does not fit the others.
    #[error("{place}: {violation}")]
    Value {
        /// Where.
        place: ErrorLocation,
        /// What is wrong.
        violation: Box<Violation>,
    },
    /// An override that does not fit the file.
    #[error("{}: {change}: {message}", path.display())]
    Override {
        /// The scenario file.
        path: PathBuf,
        /// The override.
        change: String,
        /// What is wrong, and what would be accepted.
        message: String,
    },
}

impl Scenario {
    /// Reads a scenario file, applies the overrides and [validates](Scenario::validate) what results.
    ///
    /// # Errors
    /// Any [`ScenarioError`]; each names the file, and where it can the line, the key, the value and what is
    /// allowed.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Scenario, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?;
        Scenario::parse(&text, path, overrides)
    }

    /// Like [`Scenario::load`], from text; `path` is for messages only.
    ///
    /// ```
    /// use frontdesk_scenario::{Overrides, Scenario};
    ///
    /// let text = r#"
    ///     name = "hogs"
    ///     description = "CPU-bound VMs share a core."
    ///     repeats = 3
    ///     duration = "20s"
    ///     warmup = "3s"
    ///     think_scale = 1.0
    ///     guest = { kernel = "6.1-cloud" }
    ///     host = { vm_cpus = [0], client_cpus = [1] }
    ///     vm = [{ name = "cpu", count = 2, workloads = [{ name = "hog", run = "hog" }] }]
    ///     arms.stock = {}
    /// "#;
    /// let overrides = Overrides { set: vec!["vm.cpu.count=3".to_owned()], ..Overrides::default() };
    /// let scenario = Scenario::parse(text, "hogs.toml".as_ref(), &overrides)?;
    /// assert_eq!(scenario.vm_names(), ["cpu-1", "cpu-2", "cpu-3"]);
    ///
    /// let overrides = Overrides { set: vec!["vm.cpu.count=65".to_owned()], ..Overrides::default() };
    /// let error = Scenario::parse(text, "hogs.toml".as_ref(), &overrides).unwrap_err();
    /// let says = "hogs.toml:10 with --set vm.cpu.count=65: vm.cpu.count = 65: allowed is 1 to 64";
    /// assert_eq!(error.to_string(), says);
    /// # Ok::<(), frontdesk_scenario::ScenarioError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Scenario::load`], except that nothing is read.
    pub fn parse(text: &str, path: &Path, overrides: &Overrides) -> Result<Scenario, ScenarioError> {
        Scenario::of(&File::read(text, path, overrides)?, overrides)
    }

    pub(crate) fn of(file: &File<'_>, overrides: &Overrides) -> Result<Scenario, ScenarioError> {
        let mut scenario: Scenario = file.deserialise(&complete(&file.values))?;
        scenario.find_files(file.path.parent().unwrap_or(Path::new("")));
        scenario.validate().map_err(|violation| file.violates(violation))?;
        if !overrides.arms.is_empty() {
            scenario.narrow(&overrides.arms).map_err(|unknown| file.lacks_arm(unknown))?;
        }
        Ok(scenario)
    }

    /// Files that workloads name are relative to the scenario's folder.
    fn find_files(&mut self, folder: &Path) {
        for workload in self.vms.iter_mut().flat_map(|vm| &mut vm.workloads) {
            if let WorkloadKind::RtApp { file } = &mut workload.kind {
                *file = folder.join(&*file);
            }
        }
    }

    /// Leaves only some arms, and the checks that need no other. The error is the unknown arm and a message.
    fn narrow(&mut self, arms: &[String]) -> Result<(), (String, String)> {
        retain(&mut self.arms, arms)?;
        let kept = |subject: &Subject| self.arms.contains_key(&subject.arm);
        self.checks.compare.retain(|check| {
            [Some(&check.of), check.over.as_ref(), check.minus.as_ref()].into_iter().flatten().all(kept)
        });
        self.checks.gain.retain(|check| kept(&check.of) && self.arms.contains_key(&check.base));
        for check in self.checks.keys() {
            if check.lacks(&self.arms).is_some() {
                *check.bar = None;
            }
        }
        Ok(())
    }
}

/// Leaves only some arms, in this order. The error is the unknown one and a message.
pub(crate) fn retain<A>(of: &mut IndexMap<String, A>, arms: &[String]) -> Result<(), (String, String)> {
    if let Some(unknown) = arms.iter().find(|arm| !of.contains_key(*arm)) {
        return Err((unknown.clone(), format!("there is no such arm; allowed is {}", one_of(of.keys()))));
    }
    of.retain(|name, _| arms.contains(name));
    of.sort_by_cached_key(|name, _| arms.iter().position(|arm| arm == name));
    Ok(())
}

/// One step of the path to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Key {
    Name(String),
    Index(usize),
}

/// A scenario file while it is read.
pub(crate) struct File<'a> {
    path: &'a Path,
    text: &'a str,
    /// What the file has, with the places of everything in it.
    spans: Spanned<DeTable<'a>>,
    /// The same values, with the overrides applied.
    pub(crate) values: Value,
    /// The overrides applied, as a reader knows them, and where they went.
    changes: Vec<(String, Vec<Key>)>,
}

impl<'a> File<'a> {
    /// Parses a file and applies the overrides of values.
    pub(crate) fn read(text: &'a str, path: &'a Path, overrides: &Overrides) -> Result<Self, ScenarioError> {
        let mut file = File::parse(text, path)?;
        for set in &overrides.set {
            file.change(format!("--set {set}"), set)?;
        }
        if let Some(repeats) = overrides.repeats {
            file.change(format!("--repeats {repeats}"), &format!("repeats={repeats}"))?;
        }
        if let Some(duration) = overrides.duration {
            let duration = humantime::format_duration(duration);
            file.change(format!("--duration {duration}"), &format!("duration={duration}"))?;
        }
        Ok(file)
    }

    fn parse(text: &'a str, path: &'a Path) -> Result<Self, ScenarioError> {
        let syntax = |error: toml::de::Error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            let place = ErrorLocation { path: path.to_owned(), line, changed_by: None };
            ScenarioError::Syntax { place, message: error.message().to_owned() }
        };
        let spans = DeTable::parse(text).map_err(syntax)?;
        let values = Value::Table(toml::from_str::<Table>(text).map_err(syntax)?);
        Ok(File { path, text, spans, values, changes: Vec::new() })
    }

    /// Applies an assignment `KEY=VALUE`; `change` is what a reader knows it as.
    fn change(&mut self, change: String, assignment: &str) -> Result<(), ScenarioError> {
        match assign(&mut self.values, assignment) {
            Ok(keys) => {
                self.changes.push((change, keys));
                Ok(())
            }
            Err(message) => Err(ScenarioError::Override { path: self.path.to_owned(), change, message }),
        }
    }

    pub(crate) fn deserialise<T: DeserializeOwned>(&self, values: &Value) -> Result<T, ScenarioError> {
        serde_path_to_error::deserialize(values.clone()).map_err(
            |error: serde_path_to_error::Error<toml::de::Error>| {
                let (mut keys, mut run) = (Vec::new(), String::new());
                error.path().iter().for_each(|segment| match segment {
                    Segment::Seq { index } => keys.push(Key::Index(*index)),
                    Segment::Map { key } => keys.push(Key::Name(key.clone())),
                    // In the file its keys are beside `run`.
                    Segment::Enum { variant }
                        if keys.pop_if(|key| *key == Key::Name("run".to_owned())).is_some() =>
                    {
                        run = format!(", with run = {variant:?}");
                    }
                    Segment::Enum { .. } | Segment::Unknown => {}
                });
                let mut message = explain(error.inner().message(), get(&self.values, &keys));
                if message.contains(" field `") || message == NO_KEYS {
                    message += &run;
                }
                ScenarioError::Key { place: self.place(&keys), key: dotted(&self.values, &keys), message }
            },
        )
    }

    pub(crate) fn violates(&self, violation: Violation) -> ScenarioError {
        let place = self.place(&self.keys(&violation.key));
        ScenarioError::Value { place, violation: Box::new(violation) }
    }

    pub(crate) fn lacks_arm(&self, (arm, message): (String, String)) -> ScenarioError {
        ScenarioError::Override { path: self.path.to_owned(), change: format!("--arms {arm}"), message }
    }

    /// The path that a dotted key names, as far as it leads.
    fn keys(&self, dotted: &str) -> Vec<Key> {
        let mut here = Some(&self.values);
        let mut keys = Vec::new();
        for part in dotted.split('.') {
            let Some(key) = here.and_then(|value| step(value, part)) else { break };
            here = here.and_then(|value| get(value, std::slice::from_ref(&key)));
            keys.push(key);
        }
        keys
    }

    fn place(&self, keys: &[Key]) -> ErrorLocation {
        let mut offset = 0;
        let mut table = Some(self.spans.get_ref());
        let mut array = None;
        for key in keys {
            let value: Option<&Spanned<DeValue<'_>>> = match key {
                Key::Name(name) => table.and_then(|table| {
                    let (key, value) = table.get_key_value(name.as_str())?;
                    offset = key.span().start;
                    Some(value)
                }),
                Key::Index(index) => array.and_then(|array: &toml::de::DeArray<'_>| {
                    let value = array.get(*index)?;
                    offset = value.span().start;
                    Some(value)
                }),
            };
            let Some(value) = value else { break };
            table = value.get_ref().as_table();
            array = value.get_ref().as_array();
        }
        let touches = |changed: &Vec<Key>| changed.starts_with(keys) || keys.starts_with(changed);
        let change = self.changes.iter().rev().find(|(_, changed)| !keys.is_empty() && touches(changed));
        ErrorLocation {
            path: self.path.to_owned(),
            line: line_of(self.text, offset),
            changed_by: change.map(|(change, _)| change.clone()),
        }
    }
}

/// The values as the types take them: what an entry's `run` needs is inside it, and the policy and the
/// modelled machine of an arm are the scenario's, with what the arm says instead. The scenario's come first,
/// so that an arm is not blamed for what it inherits.
fn complete(values: &Value) -> Value {
    let Value::Table(file) = values else { return values.clone() };
    let mut table = Table::new();
    for key in ["policy", "sim"] {
        let common = file.get(key).cloned().unwrap_or_else(|| Value::Table(Table::new()));
        table.insert(key.to_owned(), common);
    }
    table.extend(file.clone());
    for key in ["policy", "sim"] {
        let common = table[key].clone();
        let arms = table.get_mut("arms").and_then(Value::as_table_mut);
        for (_, arm) in arms.into_iter().flat_map(Table::iter_mut) {
            if let Some(own) = arm.get_mut(key) {
                let changes = std::mem::replace(own, common.clone());
                merge(own, changes);
            }
        }
    }
    let vms = table.get_mut("vm").and_then(Value::as_array_mut).into_iter().flatten();
    let workloads = vms.filter_map(|vm| vm.get_mut("workloads")?.as_array_mut()).flatten();
    workloads.for_each(|workload| nest(workload, "name", None));
    let loads = table.get_mut("load").and_then(Value::as_array_mut).into_iter().flatten();
    loads.for_each(|load| nest(load, "vm", Some("ask")));
    Value::Table(table)
}

/// Moves the keys of an entry, but for the one that all entries have, into its `run`, as serde takes an enum:
/// `name = "web"`, `run = "echo"` and `port = 7` become `name = "web"` and `run = { echo = { port = 7 } }`.
fn nest(entry: &mut Value, common: &str, default: Option<&str>) {
    let Value::Table(table) = entry else { return };
    let run = table.get("run").map_or(default, Value::as_str);
    let Some(run) = run.map(ToOwned::to_owned) else { return };
    let mut own = std::mem::take(table);
    own.remove("run");
    table.extend(own.remove_entry(common));
    table.insert("run".to_owned(), Value::Table(Table::from_iter([(run, Value::Table(own))])));
}

/// Replaces in a table what another one has; in tables inside alike.
fn merge(base: &mut Value, changes: Value) {
    match (base, changes) {
        (Value::Table(base), Value::Table(changes)) => {
            for (key, change) in changes {
                match base.get_mut(&key) {
                    Some(value) => merge(value, change),
                    None => drop(base.insert(key, change)),
                }
            }
        }
        (base, changes) => *base = changes,
    }
}

/// Applies `KEY=VALUE`. The result is where it went, or a message.
fn assign(root: &mut Value, assignment: &str) -> Result<Vec<Key>, String> {
    let Some((key, text)) = assignment.split_once('=') else {
        return Err("not of the form KEY=VALUE, as in vm.cpu.count=8".to_owned());
    };
    let (key, text) = (key.trim(), text.trim());
    let value = text.parse::<Value>().unwrap_or_else(|_| Value::String(text.to_owned()));
    let mut here = root;
    let mut keys = Vec::new();
    for part in key.split('.') {
        let parent = if keys.is_empty() { "the file".to_owned() } else { keys_text(&keys) };
        let refusal = format!("there is no {part:?} in {parent}: {}", contents(here, part));
        let in_arms = keys == [Key::Name("arms".to_owned())];
        let key = step(here, part).filter(|_| !in_arms || here.get(part).is_some());
        let key = key.ok_or_else(|| refusal.clone())?;
        here = enter(here, &key).ok_or(refusal)?;
        keys.push(key);
    }
    *here = value;
    Ok(keys)
}

/// The step that `part` of a dotted key takes from `value`: any name in a table, an entry that exists in an
/// array.
fn step(value: &Value, part: &str) -> Option<Key> {
    match value {
        Value::Table(_) if !part.is_empty() => Some(Key::Name(part.to_owned())),
        Value::Array(items) => {
            let named = items.iter().position(|item| entry_name(item) == Some(part));
            let numbered = || part.parse().ok().filter(|index| *index < items.len());
            named.or_else(numbered).map(Key::Index)
        }
        _ => None,
    }
}

/// The value behind a step. A table that the file leaves out is made: whether the types know its name shows
/// later.
fn enter<'v>(value: &'v mut Value, key: &Key) -> Option<&'v mut Value> {
    match (value, key) {
        (Value::Table(table), Key::Name(name)) => {
            Some(table.entry(name.clone()).or_insert_with(|| Value::Table(Table::new())))
        }
        (Value::Array(items), Key::Index(index)) => items.get_mut(*index),
        _ => None,
    }
}

fn get<'v>(value: &'v Value, keys: &[Key]) -> Option<&'v Value> {
    keys.iter().try_fold(value, |here, key| match key {
        Key::Name(name) => here.get(name),
        Key::Index(index) => here.get(*index),
    })
}

fn entry_name(value: &Value) -> Option<&str> {
    value.get("name").and_then(Value::as_str)
}

/// What a value holds, for a message about a name that it does not hold.
fn contents(value: &Value, unknown: &str) -> String {
    match value {
        Value::Table(table) => {
            let close = did_you_mean(unknown, table.keys().map(String::as_str));
            format!("allowed is {}{close}", one_of(table.keys()))
        }
        Value::Array(items) => {
            let numbers = items.iter().enumerate();
            let names =
                numbers.map(|(i, item)| entry_name(item).map_or_else(|| i.to_string(), ToOwned::to_owned));
            let close = did_you_mean(unknown, items.iter().filter_map(entry_name));
            format!("allowed is {}{close}", one_of(names))
        }
        _ => format!("a value of type {} has nothing inside", value.type_str()),
    }
}

/// The dotted key of a path, entries by their name if they have one.
fn dotted(root: &Value, keys: &[Key]) -> String {
    let named = keys.iter().enumerate().map(|(depth, key)| match key {
        Key::Index(_) => get(root, &keys[..=depth])
            .and_then(entry_name)
            .map_or_else(|| key.clone(), |name| Key::Name(name.to_owned())),
        Key::Name(_) => key.clone(),
    });
    keys_text(&named.collect::<Vec<_>>())
}

fn keys_text(keys: &[Key]) -> String {
    let parts = keys.iter().map(|key| match key {
        Key::Name(name) => name.clone(),
        Key::Index(index) => index.to_string(),
    });
    parts.collect::<Vec<_>>().join(".")
}

/// What is said of keys where none are.
const NO_KEYS: &str = "no further keys are allowed";

/// A message of serde in the words of a person who writes scenario files.
fn explain(message: &str, value: Option<&Value>) -> String {
    let message = message.trim_end();
    if let Some(before) = message.strip_suffix("expected a duration") {
        let error = value.and_then(Value::as_str).and_then(|text| humantime::parse_duration(text).err());
        let why = error.map_or_else(String::new, |error| format!(" ({error})"));
        let examples =
            "a text with a number and a unit, as in \"500us\", \"150ms\", \"20s\", \"10min\" or \"1h\"";
        return format!("{before}expected {examples}{why}");
    }
    if message == "expected empty table" {
        return NO_KEYS.to_owned();
    }
    if let Some((before, _)) = message.split_once("expected struct ") {
        return format!("{before}expected a table");
    }
    let words = [
        ("u16", "a whole number, 0 to 65535"),
        ("u32", "a whole number, 0 to 4294967295"),
        ("i32", "a whole number"),
        ("usize", "a whole number, 0 or more"),
        ("f64", "a number"),
        ("a boolean", "true or false"),
        ("a sequence", "an array"),
    ];
    let explained = words.iter().find_map(|(rust, plain)| {
        let before = message.strip_suffix(rust)?.strip_suffix("expected ")?;
        Some(format!("{before}expected {plain}"))
    });
    explained.unwrap_or_else(|| format!("{message}{}", did_you_mean_field(message)))
}

/// The line, from 1, of a byte in a text.
fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    before.split(|byte| *byte == b'\n').count()
}
