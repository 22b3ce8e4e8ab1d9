//! The files that an experiment's result can be written to.

use anyhow::Context;
use frontdesk_report::Quantity;
use frontdesk_scenario::{Outcome, Timeline};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Where to write what came out.
#[derive(clap::Args)]
pub(crate) struct Outputs {
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report, with its plots, as one HTML file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a trace of the first repeat of the last arm that ran the daemon; opens in ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the plot of the response times, or those of a study of reservations, as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a plot that compares the arms (response, throughput, time of an operation, PBHR) as SVG.
    #[arg(long, value_name = "FILE")]
    svg_arms: Option<PathBuf>,
}

impl Outputs {
    /// The file for the result as JSON.
    pub(crate) fn json(&self) -> Option<&Path> {
        self.json.as_deref()
    }

    /// Whether no other is wanted.
    pub(crate) fn only_json(&self) -> bool {
        self.files().count() == usize::from(self.json.is_some())
    }

    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.json, &self.html, &self.trace, &self.svg, &self.svg_arms].into_iter().flatten()
    }

    /// Makes them, empty: that one can not be written is found out now rather than after minutes of measuring.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.files().try_for_each(|path| create(path).map(drop))
    }

    /// Writes them.
    pub(crate) fn write(&self, outcome: &Outcome, timelines: &[Timeline]) -> anyhow::Result<()> {
        if let Some(path) = &self.json {
            let mut file = create(path)?;
            serde_json::to_writer_pretty(&mut file, outcome)?;
            finish(file, path)?;
        }
        if let Some(path) = &self.html {
            let mut file = create(path)?;
            file.write_all(frontdesk_report::html(outcome, timelines)?.as_bytes())?;
            finish(file, path)?;
        }
        if let Some(path) = &self.svg {
            let mut file = create(path)?;
            let svg = match outcome.figures.is_empty() {
                true => frontdesk_report::svg_cdf(outcome)?,
                false => frontdesk_report::svg_figures(outcome)?,
            };
            file.write_all(svg.as_bytes())?;
            finish(file, path)?;
        }
        if let Some(path) = &self.svg_arms {
            let mut file = create(path)?;
            file.write_all(frontdesk_report::svg_arms(outcome, &Quantity::REPORT)?.as_bytes())?;
            finish(file, path)?;
        }
        if let Some(path) = &self.trace {
            let mut file = create(path)?;
            match timelines.last() {
                Some(timeline) => frontdesk_report::perfetto(timeline, &mut file)?,
                None => eprintln!("frontdesk: no arm ran the daemon, so there is nothing to trace"),
            }
            finish(file, path)?;
        }
        Ok(())
    }
}

pub(crate) fn create(path: &Path) -> anyhow::Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("can't write {}", path.display()))?;
    Ok(BufWriter::new(file))
}

pub(crate) fn finish(mut file: BufWriter<File>, path: &Path) -> anyhow::Result<()> {
    file.flush().with_context(|| format!("can't write {}", path.display()))
}
