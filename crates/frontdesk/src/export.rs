//! `frontdesk export`.

use crate::outputs::write;
use crate::recording::{open, warn_if_incomplete};
use anyhow::bail;
use frontdesk_engine::{Event, Time, nanos};
use frontdesk_record::Record;
use frontdesk_replay::TimelineBuilder;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Slices and marks in a trace, at most: they are sorted in memory, where a million takes about 300 MB, and
/// ui.perfetto.dev does not take many more.
const MAX_MARKS: usize = 2_000_000;

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
    let mut before = Vec::new();
    let mut builder: Option<TimelineBuilder> = None;
    let mut end = Time(u64::MAX);
    for record in &mut recording {
        let record = record?;
        if let (None, Record::Event(Event { at, .. })) = (&builder, &record) {
            let from = at.plus(nanos(args.from));
            end = args.length.map_or(end, |length| from.plus(nanos(length)));
            let begun = builder.insert(TimelineBuilder::new(from, end));
            before.drain(..).try_for_each(|record| begun.add(&record))?;
        }
        match &mut builder {
            // What comes before the first event is names and parameters.
            None if record.is_about_reservations() => {}
            None => before.push(record),
            Some(builder) => {
                builder.add(&record)?;
                if builder.marks() > MAX_MARKS {
                    bail!(
                        "{} has more than {MAX_MARKS} slices and marks in this interval; choose a shorter one with --from and --for",
                        args.file.display()
                    );
                }
                if matches!(record, Record::Event(event) if event.at > end) {
                    break;
                }
            }
        }
    }
    warn_if_incomplete(&recording);
    let Some(builder) = builder else { bail!("{} has no events", args.file.display()) };
    let timeline = builder.finish().timeline;
    write(&args.output, |output| frontdesk_report::perfetto(&timeline, output))?;
    Ok(ExitCode::SUCCESS)
}
