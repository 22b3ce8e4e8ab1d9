//! `frontdesk capacity`.

use crate::lab::{INTERRUPTED, progress_bar};
use crate::outputs::{check, write_json, write_text};
use crate::recording::{open, shown, warn_if_incomplete};
use crate::{FAILED, compare, words};
use frontdesk_capacity::{
    ArmCapacity, Cluster, Derived, Held, Limit, ObservedVm, Profile, Progress, capacity, observe, summary,
};
use frontdesk_engine::nanos;
use frontdesk_scenario::Overrides;
use frontdesk_sim::Calibration;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Columns of its tables in a terminal, as those of the help.
const WIDTH: u16 = 100;

/// Tell how many desktops the modelled host holds at a limit of their response times.
///
/// A profile names a scenario and which of its VMs are desktops, in what proportion. The number of desktops
/// is doubled until the limit is broken, and the interval halved, in each arm of the scenario: stock and
/// frontdesk, say. For each number there are as many runs as a sequential test takes to be sure of it, each
/// with another seed. A model is a model: what it leaves out is in the documentation.
///
/// With --from a profile is made from a recording of one's own host: what each VM was asked for and used. It
/// is written into a folder, to be looked at, and asked about by the same command.
///
/// Exit status: 0 if every arm holds a desktop or more, 1 if one holds none, 2 if that could not be tried,
/// 130 after Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  frontdesk capacity scenarios/capacity/office.toml --limit \"p95 <= 100 ms\"
  frontdesk capacity scenarios/capacity/echo.toml --limit \"worst p95 <= 20 ms\" --html capacity.html
  frontdesk capacity scenarios/capacity/echo.toml --calibrate scenarios/echo-mixed.toml lab.json
  frontdesk capacity scenarios/capacity/office.toml --hosts 40 --spare 2
  frontdesk capacity --from morning.fdsk --write morning
  frontdesk capacity morning/profile.toml")]
pub(crate) struct Args {
    /// The profile.
    #[arg(required_unless_present = "from")]
    profile: Option<PathBuf>,
    /// Make a profile from a recording of `frontdesk record` (- is standard input), and ask nothing.
    #[arg(
        long,
        value_name = "RECORDING",
        requires = "write",
        conflicts_with_all = [
            "profile", "limit", "calibrate", "hosts", "set", "arms", "seed", "jobs", "json", "html", "plot",
        ]
    )]
    from: Option<PathBuf>,
    /// The folder into which that profile and its scenario are written; nothing in it is replaced.
    #[arg(long, value_name = "FOLDER", requires = "from")]
    write: Option<PathBuf>,
    /// What is to be kept: p1 to p100 or the mean of the response times, of all desktops together or
    /// ("worst p95 <= 50 ms") of the one that is worst off.
    #[arg(long, value_name = "LIMIT", default_value = "p95 <= 100 ms")]
    limit: Limit,
    /// Calibrate what packets and requests cost by a scenario that was run on real VMs of the host: its file,
    /// and what `frontdesk lab` wrote, as `frontdesk compare` does.
    #[arg(long, num_args = 2, value_names = ["SCENARIO", "RESULT"])]
    calibrate: Vec<PathBuf>,
    /// Tell what so many such hosts hold, too, desktops spread evenly over them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    hosts: Option<u32>,
    /// With --hosts: while so many of them are down.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "hosts")]
    spare: u32,
    /// Change a key of the scenario, as vm.builder.vcpus=2; may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Only these arms of the scenario, separated by commas.
    #[arg(long, value_name = "ARMS", value_delimiter = ',')]
    arms: Vec<String>,
    /// The seed of all runs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Runs at the same time; as many as there are CPUs if left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Write what was found as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with tables and the plot.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the plot as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// What is written as JSON.
#[derive(Serialize)]
struct Found<'a> {
    scenario: &'a str,
    calibration: Option<Calibration>,
    limit: String,
    limit_ms: f64,
    arms: &'a [ArmCapacity],
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterFound<'a>>,
}

/// What several such hosts hold.
#[derive(Serialize)]
struct ClusterFound<'a> {
    #[serde(flatten)]
    cluster: Cluster,
    arms: Vec<ArmOfCluster<'a>>,
}

#[derive(Serialize)]
struct ArmOfCluster<'a> {
    arm: &'a str,
    held: Held,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if let (Some(recording), Some(folder)) = (&args.from, &args.write) {
        return derive(recording, folder);
    }
    // Without a recording the command line has one.
    let Some(path) = &args.profile else { anyhow::bail!("name a profile, or a recording with --from") };
    let cluster = args.hosts.map(|hosts| Cluster { hosts, spare: args.spare });
    if let Some(Cluster { hosts, spare }) = cluster {
        anyhow::ensure!(spare < hosts, "--spare {spare}: with --hosts {hosts} it is {} at most", hosts - 1);
    }
    let overrides = Overrides { set: args.set.clone(), arms: args.arms.clone(), ..Overrides::default() };
    let mut profile = Profile::load(path, &overrides)?;
    let calibration = match args.calibrate.as_slice() {
        [scenario, result] => Some(compare::calibration(scenario, result, args.seed)?),
        _ => None,
    };
    let messages = check(args.json.iter().chain(&args.html).chain(&args.plot))?;
    if let Some(Calibration { cost_factor, spread, .. }) = calibration {
        messages.line(format_args!("Calibrated: costs x {cost_factor:.2}, spread {spread:.3}."));
    }
    calibration.iter().for_each(|calibration| calibration.apply(&mut profile.scenario));
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let jobs = args.jobs.map(usize::from);
    let jobs = jobs.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    let bar = progress_bar();
    let found =
        capacity(&profile, &args.limit, args.seed, jobs, &stop, &|Progress { arm, desktops, runs }| {
            bar.set_message(format!("{arm}: {desktops} desktops; {runs} runs so far"));
            bar.tick();
        });
    bar.finish_and_clear();
    let Some(arms) = found? else {
        eprintln!("frontdesk: interrupted; nothing is known yet");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let outcome = summary(&profile, &args.limit, &arms, cluster.as_ref());
    if let Some(file) = &args.json {
        let (scenario, limit) = (profile.scenario.name.as_str(), args.limit.to_string());
        let limit_ms = args.limit.most_ms();
        let cluster = cluster.map(|cluster| {
            let held = |of: &ArmCapacity| cluster.holds(of.held);
            let arms = arms.iter().map(|of| ArmOfCluster { arm: &of.arm, held: held(of) }).collect();
            ClusterFound { cluster, arms }
        });
        write_json(file, &Found { scenario, calibration, limit, limit_ms, arms: &arms, cluster })?;
    }
    if let Some(file) = &args.html {
        write_text(file, &frontdesk_report::html(&outcome, &[])?)?;
    }
    if let Some(file) = &args.plot {
        write_text(file, &frontdesk_report::svg_figures(&outcome)?)?;
    }
    messages.line(frontdesk_report::table(&outcome, WIDTH, messages.in_colour()));
    let none = arms.iter().any(|arm| arm.held.desktops == 0);
    Ok(if none { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// Makes a profile from a recording, and tells what was seen.
fn derive(path: &Path, folder: &Path) -> anyhow::Result<ExitCode> {
    let mut recording = open(path)?;
    let observed = observe(&mut recording)?;
    warn_if_incomplete(&recording);
    let profile = Derived::of(&observed, recording.name())?.write(folder)?;
    let header = ["VM", "CPU", "requests", "asked each", "CPU for each", "frames/s"];
    println!("{}", words::table(&header, 1, None, observed.vms.iter().map(row)));
    if observed.lost > 0 {
        println!("\n{} events were lost meanwhile: the numbers are that far off.", observed.lost);
    }
    println!("\nLook at {}, and then: frontdesk capacity {}", folder.display(), profile.display());
    Ok(ExitCode::SUCCESS)
}

/// What was seen of a VM: of the port that was asked most.
fn row(vm: &ObservedVm) -> [String; 6] {
    let none = || "-".to_owned();
    let time = |seconds: f64| words::duration(nanos(Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0))));
    let asked = vm.asked.iter().max_by_key(|asked| asked.requests);
    [
        shown(&vm.name, 30),
        words::percent(vm.cpu),
        vm.asked.iter().map(|asked| asked.requests).sum::<u64>().to_string(),
        asked.map_or_else(none, |asked| time(asked.think_s.0)),
        asked.and_then(|asked| asked.cost_s).map_or_else(none, time),
        vm.film.map_or_else(none, |film| format!("{:.1}", film.rate)),
    ]
}
