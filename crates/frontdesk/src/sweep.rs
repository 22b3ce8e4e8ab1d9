//! `frontdesk sweep`.

use crate::FAILED;
use crate::lab::{INTERRUPTED, progress_bar};
use crate::outputs::{check, write_json, write_text};
use frontdesk_sweep::{Cell, Ended, Folder, Progress, Sweep, Workers, plan, run, summary};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The report, in the folder of the results.
const REPORT: &str = "report.html";
/// Runs are made to tell how long all will take for so long.
const PLANNING: Duration = Duration::from_secs(10);
/// CPUs that a cluster may have.
const OF_A_CLUSTER: [u32; 2] = [32, 256];
/// Columns of its tables in a terminal, as those of the help.
const WIDTH: u16 = 100;

/// Run a scenario on the modelled host with many sets of parameters.
///
/// A sweep file names a scenario, and which values any of its keys have: grids, random points or Latin
/// hypercubes, each with several seeds; or a cluster of such hosts with up to 100,000 desktops. Everything
/// is checked before anything runs. The rows of finished runs are kept in the folder as Parquet files. After
/// Ctrl-C or a crash, the same command goes on from there; when all is done, rows.parquet has all rows, and
/// report.html what they show. A run that fails is a row with its error. The same rows come out on any
/// number of threads, and on Ray.
///
/// Exit status: 0 if all runs succeeded, 1 if one failed, 2 if the sweep could not be made, 130 after Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  frontdesk sweep scenarios/sweeps/neighbours.toml
  frontdesk sweep scenarios/sweeps/cluster.toml --plan
  frontdesk sweep scenarios/sweeps/thresholds.toml --out results/thresholds --jobs 2")]
pub(crate) struct Args {
    /// The sweep file.
    sweep: PathBuf,
    /// The folder for the results; one with the name of the sweep file, in the current folder, if left out.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Runs at the same time; as many as there are CPUs if left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Make the runs on the Ray cluster at this address (HOST:PORT, or ray://HOST:PORT), or on the one that
    /// runs on this machine (auto). Needs Python with the packages frontdesk and ray.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "jobs")]
    ray: Option<String>,
    /// Say how many runs there are and how long they will take, by making some for ten seconds, and end.
    #[arg(long, conflicts_with_all = ["out", "ray", "json"])]
    plan: bool,
    /// Write all rows as JSON, too; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let sweep = Arc::new(Sweep::load(&args.sweep)?);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let jobs = args.jobs.map(usize::from);
    let jobs = jobs.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    if args.plan {
        return tell_plan(&sweep, jobs, &stop);
    }
    let name = args.sweep.file_stem().map_or_else(|| PathBuf::from("sweep"), PathBuf::from);
    let path = args.out.clone().unwrap_or(name);
    let mut folder = Folder::open(&path, &sweep)?;
    let messages = check(args.json.iter())?;
    for damaged in &folder.damaged {
        eprintln!("frontdesk: {} was damaged; its runs are made again", damaged.display());
    }
    let workers = args.ray.as_deref().map_or(Workers::Threads(jobs), Workers::Ray);
    let bar = progress_bar();
    let ended = run(&sweep, &mut folder, workers, &stop, &|Progress { done, total, left, written }| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        let left = left.filter(|_| done < total).map(|left| {
            let left = humantime::format_duration(Duration::from_secs(left.as_secs() + 1));
            format!(", some {left} left")
        });
        let left = left.unwrap_or_default();
        bar.set_message(format!("{done} of {total} runs{left}"));
        if bar.is_hidden() && written {
            eprintln!("{done} of {total} runs{left}");
        }
    });
    bar.finish_and_clear();
    if ended? == Ended::Stopped {
        let done = sweep.runs() - folder.missing().len();
        eprintln!(
            "frontdesk: interrupted; {} has {done} of {} runs, and the same command goes on from there",
            path.display(),
            sweep.runs()
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let (summary, report) = (summary(&sweep, &folder), path.join(REPORT));
    write_text(&report, &frontdesk_report::html(&summary, &[])?)?;
    if let Some(file) = &args.json {
        write_json(file, &objects(&folder))?;
    }
    messages.line(frontdesk_report::table(&summary, WIDTH, messages.in_colour()));
    messages.line(format!("Rows: {}    Report: {}", folder.file().display(), report.display()));
    Ok(if folder.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// How long the sweep will take.
fn tell_plan(sweep: &Sweep, jobs: usize, stop: &AtomicBool) -> anyhow::Result<ExitCode> {
    let Some(plan) = plan(sweep, PLANNING, stop)? else { return Ok(ExitCode::from(INTERRUPTED)) };
    let time = |time: Duration| humantime::format_duration(Duration::from_secs(time.as_secs().max(1)));
    println!(
        "{} runs, {} of simulated time. {} of them were made, from all over the sweep.",
        plan.runs,
        time(plan.simulated),
        plan.made
    );
    let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
    for cpus in [jobs].into_iter().chain(OF_A_CLUSTER.into_iter().filter(|cpus| *cpus > jobs)) {
        println!("On {cpus} CPUs like these: some {}", time(plan.on(cpus)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Each row with the names of its columns, as far as it has values.
fn objects(folder: &Folder) -> Vec<BTreeMap<&str, &Cell>> {
    let columns = &folder.layout().columns;
    let object = |row| columns.iter().map(|(name, _)| name.as_str()).zip(row);
    let there = |(_, cell): &(&str, &Cell)| **cell != Cell::Absent;
    folder.rows().iter().map(|row| object(row).filter(there).collect()).collect()
}
