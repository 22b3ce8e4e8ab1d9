//! `frontdesk compare`.

use crate::FAILED;
use crate::lab::{Recordings, measure};
use crate::outputs::{check, write_json, write_text};
use anyhow::Context;
use frontdesk_report::{Ratio, compare, comparison_table, svg_comparison};
use frontdesk_scenario::{ArmResult, Outcome, Overrides, Scenario};
use frontdesk_sim::{Calibration, Conditions, calibrate, predict};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Run an experiment on real VMs and on the modelled host, and put the results side by side.
///
/// The model is calibrated from one arm only, "io-only", in which the VM that answers does nothing else: from
/// its fastest responses follow what a request costs on this host and how much requests differ. All other
/// arms are predicted. Taken as given, and told, is what the lab measured in each arm beside response times:
/// CPU time for the same work in VMs that only compute, which says how fast the machine was, and how long
/// frontdesk took to decide. The table has, for each arm and VM, the mean and the 95th percentile of the
/// response times in both.
///
/// A result whose FILE is - goes to standard output, and what is printed otherwise to standard error.
///
/// Exit status: 0 if the model is within 25 % in everything, 1 if not, 2 if the comparison could not be made,
/// 130 after Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  frontdesk lab scenarios/echo-mixed.toml --json lab.json
  frontdesk compare scenarios/echo-mixed.toml --lab lab.json --svg compare.svg
  frontdesk compare scenarios/tavs/table1.toml --calibrate scenarios/echo-mixed.toml lab.json")]
pub(crate) struct Args {
    /// The scenario file.
    scenario: PathBuf,
    /// What `frontdesk lab` wrote with --json when it ran the scenario; without it the scenario is run on
    /// real VMs now.
    #[arg(long, value_name = "RESULT")]
    lab: Option<PathBuf>,
    /// Calibrate the model from another scenario that was run on this host, for one without an arm "io-only":
    /// its file, and what `frontdesk lab` wrote.
    #[arg(long, num_args = 2, value_names = ["SCENARIO", "RESULT"])]
    calibrate: Vec<PathBuf>,
    /// Where the model's random numbers begin.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Repeats of each arm in the lab, if that is run; the model has those of the lab.
    #[arg(long, value_name = "N")]
    repeats: Option<u32>,
    /// Measured time of one repeat, such as 20s.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Override any key of the scenario, as in `frontdesk sim`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Write the comparison, with both results, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the plot of the response times of both as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The arm from which the model is calibrated.
const CALIBRATED_BY: &str = "io-only";

/// As --json writes it.
#[derive(Serialize)]
struct Compared<'a> {
    calibration: Calibration,
    conditions: &'a BTreeMap<String, Vec<Conditions>>,
    ratios: &'a [Ratio],
    lab: &'a Outcome,
    model: &'a Outcome,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let overrides =
        Overrides { set: args.set.clone(), repeats: args.repeats, duration: args.duration, arms: Vec::new() };
    let scenario = Scenario::load(&args.scenario, &overrides)?;
    let messages = check([&args.json, &args.svg].into_iter().flatten())?;
    let other = match args.calibrate.as_slice() {
        [file, result] => Some((Scenario::load(file, &Overrides::default())?, read(result)?)),
        _ => None,
    };
    let lab = match &args.lab {
        Some(path) => read(path)?,
        None => match measure(&args.scenario, &scenario, Recordings::new())? {
            Ok((outcome, _)) => outcome,
            Err(status) => return Ok(status),
        },
    };
    if lab.scenario != scenario.name {
        anyhow::bail!("the lab's result is of the scenario {:?}, not of {:?}", lab.scenario, scenario.name);
    }
    let (reference, result) = other.as_ref().map_or((&scenario, &lab), |(scenario, lab)| (scenario, lab));
    let arm = calibrating_arm(result)?;
    let calibration = calibrate(reference, CALIBRATED_BY, arm, args.seed)?;
    let conditions: BTreeMap<String, Vec<Conditions>> = lab
        .arms
        .iter()
        .map(|(name, result)| {
            let of = |repeat| Conditions::of((&scenario, repeat), (reference, arm));
            (name.clone(), result.repeats.iter().map(of).collect())
        })
        .collect();
    let mut calibrated = scenario.clone();
    calibration.apply(&mut calibrated);
    let model = &predict(&calibrated, &lab.arms, (reference, arm), args.seed)?;
    let ratios = compare(&scenario, &lab, model);
    write(args, &Compared { calibration, conditions: &conditions, ratios: &ratios, lab: &lab, model })?;
    messages.line(format_args!(
        "Calibrated from the fastest responses of {CALIBRATED_BY}: costs x {:.2}, spread {:.3}; all others are predicted.\n{}\n\n{}",
        calibration.cost_factor,
        calibration.spread,
        given(&conditions),
        comparison_table(&ratios, messages.in_colour())
    ));
    let within = ratios.iter().all(|ratio| ratio.within);
    Ok(if within { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// The calibration by a scenario and what `frontdesk lab` wrote when it ran that.
///
/// # Errors
/// They cannot be read, are not of each other, or do not tell what a request costs.
pub(crate) fn calibration(scenario: &Path, result: &Path, seed: u64) -> anyhow::Result<Calibration> {
    let (scenario, lab) = (Scenario::load(scenario, &Overrides::default())?, read(result)?);
    if lab.scenario != scenario.name {
        anyhow::bail!("the lab's result is of the scenario {:?}, not of {:?}", lab.scenario, scenario.name);
    }
    Ok(calibrate(&scenario, CALIBRATED_BY, calibrating_arm(&lab)?, seed)?)
}

fn calibrating_arm(result: &Outcome) -> anyhow::Result<&ArmResult> {
    result.arms.get(CALIBRATED_BY).with_context(|| {
        format!(
            "the lab's result of {:?} has no arm {CALIBRATED_BY:?}, from which the model is calibrated; name a \
             scenario and a result that have one with --calibrate",
            result.scenario
        )
    })
}

/// What the model was told of the lab's arms, in words.
fn given(conditions: &BTreeMap<String, Vec<Conditions>>) -> String {
    let arms = conditions.iter().map(|(name, repeats)| {
        let slowness: Vec<_> = repeats.iter().map(|repeat| format!("{:.2}", repeat.slowness)).collect();
        let decisions: Vec<_> = repeats.iter().filter_map(|repeat| repeat.decision_us).collect();
        let decisions: Vec<_> = decisions.into_iter().map(|us| format!("{us:.0}")).collect();
        let told = if decisions.is_empty() {
            String::new()
        } else {
            format!(", decisions {} us", decisions.join(", "))
        };
        format!("{name} {}{told}", slowness.join(", "))
    });
    format!("Given, for each repeat: CPU time for the same work, {}.", arms.collect::<Vec<_>>().join("; "))
}

fn read(path: &Path) -> anyhow::Result<Outcome> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not a result that `frontdesk lab --json` wrote", path.display()))
}

fn write(args: &Args, compared: &Compared<'_>) -> anyhow::Result<()> {
    if let Some(path) = &args.json {
        write_json(path, compared)?;
    }
    if let Some(path) = &args.svg {
        write_text(path, &svg_comparison(compared.lab, compared.model)?)?;
    }
    Ok(())
}
