//! The files that an experiment's result can be written to.

use anyhow::{Context, bail};
use frontdesk_report::Quantity;
use frontdesk_scenario::{Outcome, Timeline};
use serde::Serialize;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write, stderr, stdout};
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
    /// Write a trace of the first repeat of the last arm that ran the daemon, or of the last arm of a
    /// simulation if none did; opens in ui.perfetto.dev.
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

    /// As [`check`], with others that the command writes.
    pub(crate) fn check<'a>(
        &'a self,
        others: impl IntoIterator<Item = &'a PathBuf>,
    ) -> anyhow::Result<MessageStream> {
        check(self.files().chain(others))
    }

    /// Writes them.
    pub(crate) fn write(&self, outcome: &Outcome, timelines: &[Timeline]) -> anyhow::Result<()> {
        if let Some(path) = &self.json {
            write_json(path, outcome)?;
        }
        if let Some(path) = &self.html {
            write_text(path, &frontdesk_report::html(outcome, timelines)?)?;
        }
        if let Some(path) = &self.svg {
            let svg = match outcome.figures.is_empty() {
                true => frontdesk_report::svg_cdf(outcome)?,
                false => frontdesk_report::svg_figures(outcome)?,
            };
            write_text(path, &svg)?;
        }
        if let Some(path) = &self.svg_arms {
            write_text(path, &frontdesk_report::svg_arms(outcome, &Quantity::REPORT)?)?;
        }
        if let Some(path) = &self.trace {
            match timelines.last() {
                Some(timeline) => write(path, |out| frontdesk_report::perfetto(timeline, out))?,
                None => eprintln!("frontdesk: no arm ran the daemon, so there is nothing to trace"),
            }
        }
        Ok(())
    }
}

/// Where the command says how it went: standard output, unless a result goes there.
#[derive(Clone, Copy)]
pub(crate) enum MessageStream {
    Stdout,
    Stderr,
}

impl MessageStream {
    pub(crate) fn in_colour(self) -> bool {
        match self {
            MessageStream::Stdout => stdout().is_terminal(),
            MessageStream::Stderr => stderr().is_terminal(),
        }
    }

    pub(crate) fn line(self, text: impl Display) {
        match self {
            MessageStream::Stdout => println!("{text}"),
            MessageStream::Stderr => eprintln!("{text}"),
        }
    }
}

/// Makes the files, empty: that one cannot be written is found out now rather than after minutes of
/// measuring.
pub(crate) fn check<'a>(files: impl Iterator<Item = &'a PathBuf>) -> anyhow::Result<MessageStream> {
    let mut messages = MessageStream::Stdout;
    for path in files {
        if is_stdout(path) {
            if matches!(messages, MessageStream::Stderr) {
                bail!("only one result can be written to standard output (-); name files for the others");
            }
            messages = MessageStream::Stderr;
        }
        create(path)?;
    }
    Ok(messages)
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// A file, or standard output.
type Output = BufWriter<Box<dyn Write>>;

/// Makes a file, empty; - is standard output.
fn create(path: &Path) -> anyhow::Result<Output> {
    let output: Box<dyn Write> = match is_stdout(path) {
        true => Box::new(stdout().lock()),
        false => Box::new(File::create(path).with_context(|| failed(path))?),
    };
    Ok(BufWriter::new(output))
}

/// Makes a file of what `content` writes; - is standard output.
pub(crate) fn write<E>(path: &Path, content: impl FnOnce(&mut Output) -> Result<(), E>) -> anyhow::Result<()>
where
    Result<(), E>: Context<(), E>,
{
    let mut output = create(path)?;
    content(&mut output).with_context(|| failed(path))?;
    output.flush().with_context(|| failed(path))
}

pub(crate) fn write_text(path: &Path, text: &str) -> anyhow::Result<()> {
    write(path, |output| output.write_all(text.as_bytes()))
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    write(path, |output| serde_json::to_writer_pretty(output, value))
}

/// What to say if it cannot be written.
fn failed(path: &Path) -> String {
    match is_stdout(path) {
        true => "cannot write to standard output".to_owned(),
        false => format!("cannot write {}", path.display()),
    }
}
