//! `frontdesk lab`.

use crate::companion::{GUEST, PLUGIN, own_program};
use crate::{FAILED, IMPOSSIBLE};
use anyhow::Context;
use frontdesk_lab::{LabConfig, LabError, Progress};
use frontdesk_report::Quantity;
use frontdesk_scenario::{Experiment, Outcome, Overrides, Timeline};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Exit status after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Run an experiment on real virtual machines or processes, and compare its arms.
///
/// Boots the VMs that the scenario names on this host, puts the load on them, and runs the arms (the kernel's own scheduler, frontdesk,
/// and bounds) interleaved and repeated. Prints a table of the result and of every bar that the scenario sets. Needs root, QEMU
/// and the packages that `frontdesk doctor` checks. Everything it starts is gone when it ends. A scenario with a table `study` is about
/// reservations on processes, and needs no VMs.
///
/// Exit status: 0 if all checks pass, 1 if one fails, 2 if the run could not be made, 130 after Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  frontdesk lab scenarios/echo-mixed.toml --html report.html
  frontdesk lab scenarios/echo-mixed.toml --set vm.cpu.count=2 --set guest.kernel=6.12-cloud
  frontdesk lab scenarios/echo-mixed.toml --arms stock,frontdesk --repeats 1 --duration 10s")]
pub(crate) struct Args {
    /// The scenario file.
    scenario: PathBuf,
    /// Override any key of the scenario: a dotted path, with array entries by number or name (vm.cpu.count=2).
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Repeats of each arm.
    #[arg(long, value_name = "N")]
    repeats: Option<u32>,
    /// Measured time of one repeat, such as 20s.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Run only these arms; checks that need others are left out.
    #[arg(long, value_name = "ARM,...", value_delimiter = ',')]
    arms: Vec<String>,
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

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let overrides = Overrides {
        set: args.set.clone(),
        repeats: args.repeats,
        duration: args.duration,
        arms: args.arms.clone(),
    };
    let experiment = Experiment::load(&args.scenario, &overrides)?;
    let missing = match &experiment {
        Experiment::Vms(_) => crate::doctor::missing(),
        Experiment::Processes(_) => Vec::new(),
    };
    if !missing.is_empty() {
        eprint!("frontdesk: this host can't run the lab:\n{}", crate::doctor::list(&missing));
        return Ok(ExitCode::from(IMPOSSIBLE));
    }
    // Found out now rather than after minutes of measuring.
    let outputs = [&args.json, &args.html, &args.trace, &args.svg, &args.svg_arms];
    for path in outputs.into_iter().flatten() {
        create(path)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let bar = progress_bar();
    let progress = |progress: &Progress| show(&bar, progress);
    let result = match &experiment {
        Experiment::Vms(scenario) => {
            let config =
                LabConfig { guest: GUEST.find()?, plugin: PLUGIN.find()?, frontdesk: own_program()?, stop };
            frontdesk_lab::run(scenario, &config, &progress)
        }
        Experiment::Processes(study) => frontdesk_lab::study(study, &own_program()?, &stop, &progress)
            .map(|outcome| (outcome, Vec::new())),
    };
    bar.finish_and_clear();
    let (outcome, timelines) = match result {
        Ok(result) => result,
        Err(LabError::Interrupted) => {
            eprintln!("frontdesk: interrupted; everything that the run started has been removed");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Err(LabError::Scenario(violation)) => {
            anyhow::bail!("{}: {violation}", args.scenario.display());
        }
        Err(error) => return Err(error.into()),
    };
    write_outputs(args, &outcome, &timelines)?;
    let colour = std::io::stdout().is_terminal();
    println!("{}", frontdesk_report::table(&outcome, 80, colour));
    let passed = outcome.checks.iter().all(|check| check.pass);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn write_outputs(args: &Args, outcome: &Outcome, timelines: &[Timeline]) -> anyhow::Result<()> {
    if let Some(path) = &args.json {
        let mut file = create(path)?;
        serde_json::to_writer_pretty(&mut file, outcome)?;
        finish(file, path)?;
    }
    if let Some(path) = &args.html {
        let mut file = create(path)?;
        file.write_all(frontdesk_report::html(outcome, timelines)?.as_bytes())?;
        finish(file, path)?;
    }
    if let Some(path) = &args.svg {
        let mut file = create(path)?;
        let svg = match outcome.figures.is_empty() {
            true => frontdesk_report::svg_cdf(outcome)?,
            false => frontdesk_report::svg_figures(outcome)?,
        };
        file.write_all(svg.as_bytes())?;
        finish(file, path)?;
    }
    if let Some(path) = &args.svg_arms {
        let mut file = create(path)?;
        file.write_all(frontdesk_report::svg_arms(outcome, &Quantity::ALL)?.as_bytes())?;
        finish(file, path)?;
    }
    if let Some(path) = &args.trace {
        let mut file = create(path)?;
        match timelines.last() {
            Some(timeline) => frontdesk_report::perfetto(timeline, &mut file)?,
            None => eprintln!("frontdesk: no arm ran the daemon, so there is nothing to trace"),
        }
        finish(file, path)?;
    }
    Ok(())
}

fn create(path: &Path) -> anyhow::Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("can't write {}", path.display()))?;
    Ok(BufWriter::new(file))
}

fn finish(mut file: BufWriter<File>, path: &Path) -> anyhow::Result<()> {
    file.flush().with_context(|| format!("can't write {}", path.display()))
}

fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar
}

/// Shows a step. Without a terminal each step is a line, so that a log says what a long run is doing.
fn show(bar: &ProgressBar, progress: &Progress) {
    let Progress { done, total, doing } = progress;
    bar.set_length(u64::from(*total));
    bar.set_position(u64::from(*done));
    bar.set_message(doing.clone());
    if bar.is_hidden() {
        eprintln!("{done}/{total} done; {doing}");
    }
}
