//! `frontdesk sim`.

use crate::FAILED;
use crate::lab::progress_bar;
use crate::outputs::{Outputs, write, write_json};
use crate::words::plain_table;
use comfy_table::Table;
use frontdesk_scenario::{Outcome, Overrides, Scenario};
use frontdesk_sim::{SimError, Simulated, simulate};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Run an experiment on a modelled host, and compare its arms.
///
/// Takes the scenario files of `frontdesk lab`. Their `[sim]` table says what the modelled machine is like:
/// the hypervisor's scheduler, its physical CPUs, who does the I/O, and what everything costs. The engine is
/// the same as on a real host. The same seed gives the same result, bit for bit, on any number of threads.
///
/// With --sweep the scenario is run for each value, and for each combination of values if there are several
/// sweeps.
///
/// A result whose FILE is - goes to standard output, and what is printed otherwise to standard error.
///
/// Exit status: 0 if all checks pass, 1 if one fails, 2 if the run could not be made.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  frontdesk sim scenarios/echo-mixed.toml --html report.html
  frontdesk sim scenarios/echo-mixed.toml --set sim.scheduler=credit --repeat 10
  frontdesk sim scenarios/echo-mixed.toml --sweep vm.cpu.count=1,3,5,7 --sweep policy.tavs.pb_ratio=0.1,0.5")]
pub(crate) struct Args {
    /// The scenario file.
    scenario: PathBuf,
    /// Where the random numbers begin.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Override any key of the scenario: a dotted path, with array entries by number or name
    /// (vm.cpu.count=2).
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Run once for each of these values of a key.
    #[arg(long, value_name = "KEY=VALUE,...")]
    sweep: Vec<String>,
    /// Repeats of each arm.
    #[arg(long, alias = "repeats", value_name = "N")]
    repeat: Option<u32>,
    /// Measured time of one repeat, such as 20s.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Run only these arms; checks that need others are left out.
    #[arg(long, value_name = "ARM,...", value_delimiter = ',')]
    arms: Vec<String>,
    /// Threads; as many as there are CPUs if left out.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write a line for each point of the sweeps, arm, repeat and VM as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    outputs: Outputs,
}

/// One point of a sweep, as --json writes it.
#[derive(Serialize)]
struct Point<'a> {
    set: &'a [String],
    outcome: &'a Outcome,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let points = points(&args.sweep)?;
    let scenarios = points.iter().map(|point| {
        let overrides = Overrides {
            set: args.set.iter().chain(point).cloned().collect(),
            repeats: args.repeat,
            duration: args.duration,
            arms: args.arms.clone(),
        };
        Scenario::load(&args.scenario, &overrides)
    });
    let scenarios: Vec<Scenario> = scenarios.collect::<Result<_, _>>()?;
    if scenarios.len() > 1 && !args.outputs.only_json() {
        anyhow::bail!("with --sweep there is more than one result: only --json and --csv can be written");
    }
    let messages = args.outputs.check(&args.csv)?;
    let result = simulate_all(&scenarios, args.seed, args.threads);
    let simulated = result.map_err(|(point, error)| {
        let at = points.get(point).filter(|point| !point.is_empty());
        let at = at.map(|point| format!(" with {}", point.join(", "))).unwrap_or_default();
        anyhow::Error::new(error).context(format!("{}{at}", args.scenario.display()))
    })?;
    if let Some(path) = &args.csv {
        let lines = points.iter().zip(&simulated).map(|(set, simulated)| {
            let set = args.set.iter().chain(set).filter_map(|assignment| assignment.split_once('='));
            (set.collect(), &simulated.outcome)
        });
        let lines: Vec<_> = lines.collect();
        write(path, |out| frontdesk_report::csv(&lines, out))?;
    }
    if let [only] = simulated.as_slice() {
        args.outputs.write(&only.outcome, &only.timelines)?;
        messages.line(frontdesk_report::table(&only.outcome, 80, messages.in_colour()));
    } else {
        let outcomes: Vec<_> = simulated.iter().map(|simulated| &simulated.outcome).collect();
        if let Some(path) = args.outputs.json() {
            let points = points.iter().zip(&outcomes).map(|(set, outcome)| Point { set, outcome });
            write_json(path, &points.collect::<Vec<_>>())?;
        }
        messages.line(overview(&points, &outcomes));
    }
    let passed = simulated.iter().flat_map(|simulated| &simulated.outcome.checks).all(|check| check.pass);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Simulates with progress, with as many threads as there are CPUs unless told otherwise.
pub(crate) fn simulate_all(
    scenarios: &[Scenario],
    seed: u64,
    threads: Option<usize>,
) -> Result<Vec<Simulated>, (usize, SimError)> {
    let threads = threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into));
    let bar = progress_bar();
    let show = |done: usize, total: usize| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(format!("{done} of {total} runs"));
    };
    let simulated = simulate(scenarios, seed, threads.unwrap_or(1), &show);
    bar.finish_and_clear();
    simulated
}

/// The assignments of each point of the sweeps: all combinations.
fn points(sweeps: &[String]) -> anyhow::Result<Vec<Vec<String>>> {
    let mut points = vec![Vec::new()];
    for sweep in sweeps {
        let Some((key, values)) = sweep.split_once('=').filter(|(_, values)| !values.is_empty()) else {
            anyhow::bail!("--sweep {sweep}: not of the form KEY=VALUE,..., as in vm.cpu.count=1,3,5");
        };
        let values: Vec<&str> = values.split(',').collect();
        points = points
            .iter()
            .flat_map(|point: &Vec<String>| {
                values.iter().map(move |value| {
                    let assignment = format!("{key}={value}");
                    point.iter().cloned().chain([assignment]).collect()
                })
            })
            .collect();
    }
    Ok(points)
}

/// A line for each point and arm.
fn overview(points: &[Vec<String>], outcomes: &[&Outcome]) -> Table {
    let header = ["sweep", "arm", "VM", "mean ms", "p99 ms", "boosts", "PBHR", "worst share"];
    let mut table = plain_table(&header);
    for (point, outcome) in points.iter().zip(outcomes) {
        for (name, arm) in &outcome.arms {
            let worst =
                arm.cpu_share.values().copied().max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()));
            let common = [
                arm.boosts.to_string(),
                arm.pbhr.map_or_else(String::new, |pbhr| format!("{:.0} %", pbhr * 100.0)),
                worst.map_or_else(String::new, |share| format!("{share:.3}")),
            ];
            for (vm, response) in &arm.response_ms {
                let own = [
                    point.join(" "),
                    name.clone(),
                    vm.clone(),
                    format!("{:.2}", response.mean),
                    format!("{:.2}", response.p99),
                ];
                table.add_row(own.into_iter().chain(common.clone()));
            }
            if arm.response_ms.is_empty() {
                let own = [point.join(" "), name.clone(), String::new(), String::new(), String::new()];
                table.add_row(own.into_iter().chain(common));
            }
        }
    }
    table
}
