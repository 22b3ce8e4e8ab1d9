//! `frontdesk export`.

use crate::outputs::write;
use crate::recording::{open, warn_if_incomplete};
use frontdesk_replay::{ReplayError, timeline};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Turn a recording into a trace that other programs open.
///
/// The trace has a track for each physical CPU with the VM thread on it, and for each VM its vCPUs with the
/// guest tasks on them, its boosts, packets, reads and degrees of belief. The interval is held in memory;
/// --from and --for choose a part of a long recording.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  frontdesk export --perfetto morning.fdsk -o trace.json
  frontdesk export --perfetto morning.fdsk --from 90s --for 10s -o - | gzip > trace.json.gz")]
pub(crate) struct Args {
    /// In the JSON format that <https://ui.perfetto.dev> and Chrome open.
    #[arg(long, required = true)]
    perfetto: bool,
    /// The recording; - is standard input.
    file: PathBuf,
    /// Where to write; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Begin so long after the first event.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0s")]
    from: Duration,
    /// Stop so long after that.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    length: Option<Duration>,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let mut recording = open(&args.file)?;
    let timeline = timeline(&mut recording, args.from, args.length);
    let timeline = timeline.map_err(|error| match error {
        error @ ReplayError::TooMany { .. } => anyhow::Error::msg(format!("{error} with --from and --for")),
        error => error.into(),
    })?;
    warn_if_incomplete(&recording);
    let timeline = timeline.timeline;
    write(&args.output, |output| frontdesk_report::perfetto(&timeline, output))?;
    Ok(ExitCode::SUCCESS)
}
