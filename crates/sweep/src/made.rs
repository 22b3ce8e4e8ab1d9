//! A run of a sweep, and its rows.

use crate::design::Sweep;
use crate::row::Layout;
use crate::table::Row;
use std::panic::catch_unwind;

/// Runs that are done.
pub(crate) struct Done {
    pub(crate) runs: usize,
    pub(crate) rows: Vec<Row>,
}

/// The rows of a run. One that fails, however it does, has one that says so.
pub(crate) fn rows(sweep: &Sweep, layout: &Layout, number: usize) -> Vec<Row> {
    let Some(run) = sweep.run(number) else { return Vec::new() };
    let measured = catch_unwind(|| {
        let scenario = sweep.scenario_of(run).map_err(|error| error.to_string())?;
        let run = frontdesk_sim::run(&scenario, run.arm, 1, run.seed, false);
        run.map_err(|error| sweep.as_named(error.to_string()))
    });
    let measured =
        measured.unwrap_or_else(|_| Err("the model panicked: this is a bug, please report it".to_owned()));
    match &measured {
        Ok(measured) => layout.rows(run, Ok(&measured.repeat)),
        Err(error) => layout.rows(run, Err(error)),
    }
}
