//! Scenarios, and what simulating one gives.

use crate::error::{Error, json, raised};
use crate::tables::{self, Spec, Table};
use frontdesk_scenario::{Overrides, Scenario as Parsed};
use frontdesk_sim::simulate;
use frontdesk_sweep::Cell;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often it is looked whether Python was interrupted.
const LOOK: Duration = Duration::from_millis(100);

/// A scenario, checked.
#[pyclass(frozen, module = "frontdesk._frontdesk")]
pub(crate) struct Scenario {
    path: PathBuf,
    parsed: Parsed,
}

fn overrides(
    set: Vec<String>,
    repeats: Option<u32>,
    duration: Option<&str>,
    arms: Vec<String>,
) -> PyResult<Overrides> {
    let wrong = |error| Error::new_err(format!("duration: {error}"));
    let duration = duration.map(|text| humantime::parse_duration(text).map_err(wrong)).transpose()?;
    Ok(Overrides { set, repeats, duration, arms })
}

#[pymethods]
impl Scenario {
    /// Reads a scenario file.
    #[staticmethod]
    fn load(
        path: PathBuf,
        set: Vec<String>,
        repeats: Option<u32>,
        duration: Option<&str>,
        arms: Vec<String>,
    ) -> PyResult<Scenario> {
        let overrides = overrides(set, repeats, duration, arms)?;
        let parsed = Parsed::load(&path, &overrides).map_err(|error| raised(&error))?;
        Ok(Scenario { path, parsed })
    }

    /// Takes the text of a scenario file, in TOML; `path` is for messages, and what it names is relative to
    /// that.
    #[staticmethod]
    fn parse(
        text: &str,
        path: PathBuf,
        set: Vec<String>,
        repeats: Option<u32>,
        duration: Option<&str>,
        arms: Vec<String>,
    ) -> PyResult<Scenario> {
        let overrides = overrides(set, repeats, duration, arms)?;
        let parsed = Parsed::parse(text, &path, &overrides).map_err(|error| raised(&error))?;
        Ok(Scenario { path, parsed })
    }

    /// The scenario file.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.parsed.name
    }

    /// What it shows.
    #[getter]
    fn description(&self) -> &str {
        &self.parsed.description
    }

    /// The names of its arms.
    #[getter]
    fn arms(&self) -> Vec<String> {
        self.parsed.arms.keys().cloned().collect()
    }

    /// The names of its VMs.
    #[getter]
    fn vms(&self) -> Vec<String> {
        self.parsed.vm_names()
    }

    /// Runs all arms and repeats on the model, on so many threads. Other threads of Python run meanwhile.
    fn simulate(&self, py: Python<'_>, seed: u64, threads: Option<usize>) -> PyResult<Simulated> {
        let threads = threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into));
        let (sender, receiver) = channel();
        let parsed = self.parsed.clone();
        // A thread of its own: that of Python looks for Ctrl-C, and leaves it alone then.
        std::thread::spawn(move || {
            let simulated = simulate(&[parsed], seed, threads.unwrap_or(1), &|_, _| {});
            // Nobody listens any more if Python was interrupted.
            let _ = sender.send(simulated);
        });
        // The receiver is for one thread, and is lent to that which waits.
        let receiver = std::sync::Mutex::new(receiver);
        loop {
            let told = py.detach(|| match receiver.lock() {
                Ok(receiver) => receiver.recv_timeout(LOOK),
                Err(_) => Err(RecvTimeoutError::Disconnected),
            });
            match told {
                Ok(Ok(mut simulated)) => {
                    let simulated = simulated.pop().map(|inner| Simulated { inner });
                    return simulated.ok_or_else(|| Error::new_err("nothing was simulated"));
                }
                Ok(Err((_, error))) => return Err(self.about(&error)),
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new_err("the model panicked: this is a bug, please report it"));
                }
            }
        }
    }
}

impl Scenario {
    fn about(&self, error: &frontdesk_sim::SimError) -> PyErr {
        Error::new_err(format!("{}: {}", self.path.display(), frontdesk_scenario::sentence(error)))
    }
}

/// What simulating a scenario gave.
#[pyclass(frozen, module = "frontdesk._frontdesk")]
pub(crate) struct Simulated {
    inner: frontdesk_sim::Simulated,
}

const RESPONSES: [Spec; 4] = [
    Spec::text("arm", "arm"),
    Spec::whole("repeat", "repeat"),
    Spec::text("vm", "vm"),
    Spec::number("response_ms", "response_ms"),
];

#[pymethods]
impl Simulated {
    /// What `frontdesk sim --json` writes.
    fn outcome(&self) -> PyResult<String> {
        json(&self.inner.outcome)
    }

    /// Every response time: arm, repeat, vm (or VM/WORKLOAD) and response_ms.
    fn responses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let mut table = Table::new(&RESPONSES);
        for (arm, result) in &self.inner.outcome.arms {
            let arm = Cell::Text(arm.as_str().into());
            for (repeat, run) in (1..).zip(&result.repeats) {
                for (vm, samples) in &run.samples_ms {
                    let vm = Cell::Text(vm.as_str().into());
                    let row =
                        |ms: &f64| vec![arm.clone(), Cell::Whole(repeat), vm.clone(), Cell::Number(*ms)];
                    table.rows.extend(samples.iter().map(row));
                }
            }
        }
        table.parquet(py)
    }

    /// The arms of which there is a trace: of their first repeats.
    fn traced(&self) -> Vec<String> {
        self.inner.timelines.iter().map(|timeline| timeline.arm.clone()).collect()
    }

    /// What happened in the first repeat of an arm: tables by their names.
    fn trace<'py>(&self, py: Python<'py>, arm: &str) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
        let timeline = self.inner.timelines.iter().find(|timeline| timeline.arm == arm);
        let timeline = timeline.ok_or_else(|| {
            let arms = self.traced().join(", ");
            Error::new_err(format!("there is no trace of arm {arm:?}; there are those of: {arms}"))
        })?;
        tables::trace(py, timeline)
    }

    /// Writes what `frontdesk sim --html` does.
    fn write_report(&self, path: &str) -> PyResult<()> {
        let html = frontdesk_report::html(&self.inner.outcome, &self.inner.timelines);
        let html = html.map_err(|error| raised(&error))?;
        let wrong = |error| Error::new_err(format!("cannot write {}: {error}", Path::new(path).display()));
        std::fs::write(path, html).map_err(wrong)
    }
}
