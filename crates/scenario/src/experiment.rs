//! Which of the two kinds a scenario file is.

use crate::load::{File, retain};
use crate::{Overrides, Scenario, ScenarioError, Study};
use std::path::Path;

impl Study {
    fn of(file: &File<'_>, overrides: &Overrides) -> Result<Study, ScenarioError> {
        let mut study: Study = file.deserialise(&file.values)?;
        study.validate().map_err(|violation| file.violates(violation))?;
        if !overrides.arms.is_empty() {
            retain(&mut study.arms, &overrides.arms).map_err(|unknown| file.lacks_arm(unknown))?;
            let kept = |arm: &String| study.arms.contains_key(arm);
            study.checks.retain(|check| kept(&check.arm) && check.over.as_ref().is_none_or(kept));
        }
        Ok(study)
    }
}

/// What a scenario file holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Experiment {
    /// VMs and what runs in them.
    Vms(Box<Scenario>),
    /// Reservations on processes: a file with a table `study`.
    Processes(Box<Study>),
}

impl Experiment {
    /// Reads a scenario file of either kind, applies the overrides and validates what results.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Experiment, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?;
        Experiment::parse(&text, path, overrides)
    }

    /// Like [`Experiment::load`], from text; `path` is for messages only.
    ///
    /// # Errors
    /// As [`Experiment::load`], except that nothing is read.
    pub fn parse(text: &str, path: &Path, overrides: &Overrides) -> Result<Experiment, ScenarioError> {
        let file = File::read(text, path, overrides)?;
        Ok(match file.values.get("study") {
            Some(_) => Experiment::Processes(Box::new(Study::of(&file, overrides)?)),
            None => Experiment::Vms(Box::new(Scenario::of(&file, overrides)?)),
        })
    }
}
