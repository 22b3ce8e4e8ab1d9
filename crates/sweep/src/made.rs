//! A run of a sweep, and its rows.

use crate::design::Sweep;
use crate::row::Layout;
use crate::table::Row;
use std::panic::{UnwindSafe, catch_unwind};

/// Runs that are done.
pub(crate) struct Done {
    pub(crate) runs: usize,
    pub(crate) rows: Vec<Row>,
}

/// The rows of a run. One that fails, however it does, has one that says so.
pub(crate) fn rows(sweep: &Sweep, layout: &Layout, number: usize) -> Vec<Row> {
    let Some(run) = sweep.run(number) else { return Vec::new() };
    let measured = caught(|| {
        let scenario = sweep.scenario_of(run).map_err(|error| error.to_string())?;
        let run = frontdesk_sim::run(&scenario, run.arm, 1, run.seed, false);
        run.map_err(|error| sweep.as_named(error.to_string()))
    });
    match &measured {
        Ok(measured) => layout.rows(run, Ok(&measured.repeat)),
        Err(error) => layout.rows(run, Err(error)),
    }
}

/// What it gives, or that it panicked.
fn caught<T>(run: impl FnOnce() -> Result<T, String> + UnwindSafe) -> Result<T, String> {
    catch_unwind(run)
        .unwrap_or_else(|_| Err("the model panicked: this is a bug, please report it".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::panic)] // That is what it is about.
    fn a_panic_is_an_error_as_others_are() {
        assert_eq!(caught(|| Ok(7)), Ok(7));
        assert_eq!(caught::<()>(|| Err("no such arm".to_owned())), Err("no such arm".to_owned()));
        let told = caught::<()>(|| panic!("index out of bounds")).unwrap_err();
        assert!(told.contains("the model panicked") && told.contains("please report it"), "{told}");
    }
}
