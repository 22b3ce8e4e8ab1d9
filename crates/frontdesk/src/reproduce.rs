//! `frontdesk reproduce`: the papers' experiments on the papers' machines, paper against model.

mod calibration;
mod mm;
mod tavs;
mod vamp;
mod vsip;

use crate::outputs::{check, write_json, write_text};
use crate::sim::simulate_all;
use crate::words::plain_table;
use frontdesk_report::Quantity;
use frontdesk_scenario::{Outcome, Overrides, Scenario};
use frontdesk_sim::Simulated;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run a paper's experiments on a model of the paper's machine, and print paper against model.
///
/// tavs: one core, Xen's credit scheduler and a driver domain; Figure 4, Figure 5, Table 1, Figures 6 and 7.
/// What the paper does not say is in the scenario files. Two numbers are fitted, what the driver domain does
/// for a packet and how long an experiment ran; --calibrate shows how, on the paper's unmodified rows only.
///
/// mm: the same with films, a game and sound; Figures 1 and 3 to 6. What programs cost is from the paper's
/// Table 1, and nothing is fitted. Figure 2 and Table 2 would be put in, not found out, and are said to be.
///
/// vamp: eight cores, Linux's CFS, two VMs of eight vCPUs; Figures 1, 4 and 6 to 9. The paper does not say
/// what its programs cost, so that they are made by its words; the film is fitted to its unmodified row.
///
/// vsip: one disk with an arm, up to eight VMs; Figures 1 to 12 and §4.6. The paper does not say what its
/// programs read, so that this is made up; nothing is fitted. Arms "paper" do what it says, "vsip" what
/// frontdesk does.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The paper.
    paper: Paper,
    /// Where the random numbers begin.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Repeats of each arm, rather than as many as the scenarios have.
    #[arg(long, value_name = "N")]
    repeat: Option<u32>,
    /// Write paper against model, and all results, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report of each experiment into this folder, as HTML.
    #[arg(long, value_name = "FOLDER")]
    html: Option<PathBuf>,
    /// Write the plots into this folder.
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// Instead, fit what the TAVS paper does not give to its Table 1's unmodified rows, and show what that
    /// and other fits predict for TAVS.
    #[arg(long, conflicts_with_all = ["repeat", "json", "html", "plots"])]
    calibrate: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Paper {
    /// Task-aware virtual machine scheduling for I/O performance (VEE'09).
    Tavs,
    /// Scheduler support for video-oriented multimedia on client-side virtualization (MMSys'12).
    Mm,
    /// Virtual asymmetric multiprocessor for interactive performance of consolidated desktops (VEE'14).
    Vamp,
    /// Exploiting interactive characteristics in virtualised disk scheduling (CF'16).
    Vsip,
}

/// Paper against model, of one number.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    experiment: String,
    arm: String,
    what: String,
    paper: String,
    model: String,
}

/// What --json writes.
#[derive(Serialize)]
struct Reproduced<'a> {
    rows: &'a [Row],
    outcomes: Vec<&'a Outcome>,
}

impl Paper {
    /// The files of its scenarios, what is in them, and what is changed in that.
    fn scenarios(self) -> Vec<(&'static str, &'static str, Vec<String>)> {
        let as_it_is = |(name, text): &(_, _)| (*name, *text, Vec::new());
        match self {
            Paper::Tavs => tavs::SCENARIOS.iter().map(as_it_is).collect(),
            Paper::Mm => mm::SCENARIOS.iter().map(as_it_is).collect(),
            Paper::Vamp => vamp::scenarios(),
            Paper::Vsip => vsip::scenarios(),
        }
    }

    fn rows(self, simulated: &[Simulated], seed: u64) -> anyhow::Result<Vec<Row>> {
        Ok(match self {
            Paper::Tavs => simulated.iter().flat_map(tavs::rows).collect(),
            Paper::Mm => mm::inputs().into_iter().chain(simulated.iter().flat_map(mm::rows)).collect(),
            Paper::Vamp => {
                vamp::figure_1(seed)?.into_iter().chain(simulated.iter().flat_map(vamp::rows)).collect()
            }
            Paper::Vsip => {
                let first = vsip::inputs().into_iter().chain(vsip::figure_8(seed));
                first.chain(simulated.iter().flat_map(vsip::rows)).collect()
            }
        })
    }

    /// What the column of the model holds.
    fn model(self) -> &'static str {
        match self {
            Paper::Tavs => "model (nine of ten runs)",
            Paper::Mm | Paper::Vamp | Paper::Vsip => "model",
        }
    }
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let paper = args.paper;
    if args.calibrate {
        anyhow::ensure!(paper == Paper::Tavs, "--calibrate: nothing is fitted to this paper, only to tavs");
        return calibration::print(tavs::SCENARIOS[3], args.seed);
    }
    let files = paper.scenarios();
    let scenarios = files.iter().map(|(name, text, set)| {
        let overrides = Overrides { repeats: args.repeat, set: set.clone(), ..Overrides::default() };
        Scenario::parse(text, name.as_ref(), &overrides)
    });
    let scenarios = scenarios.collect::<Result<Vec<_>, _>>()?;
    for folder in [&args.plots, &args.html].into_iter().flatten() {
        std::fs::create_dir_all(folder)?;
    }
    let messages = check(args.json.iter())?;
    let mut simulated = simulate_all(&scenarios, args.seed, None)
        .map_err(|(number, error)| anyhow::Error::new(error).context(files[number].0))?;
    let rows = paper.rows(&simulated, args.seed)?;
    let mut table = plain_table(&["experiment", "arm", "what", "paper", paper.model()]);
    for Row { experiment, arm, what, paper, model } in &rows {
        table.add_row([experiment, arm, what, paper, model]);
    }
    messages.line(table);
    if paper == Paper::Mm {
        simulated.iter_mut().for_each(mm::draw);
    }
    if let Some(path) = &args.json {
        let outcomes = simulated.iter().map(|one| &one.outcome).collect();
        write_json(path, &Reproduced { rows: &rows, outcomes })?;
    }
    for one in &simulated {
        if let Some(folder) = &args.html {
            let page = frontdesk_report::html(&one.outcome, &one.timelines)?;
            write_text(&folder.join(format!("{}.html", one.outcome.scenario)), &page)?;
        }
        if let Some(folder) = &args.plots {
            write_plots(folder, &one.outcome)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_plots(folder: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    let mut plots = vec![
        ("arms", frontdesk_report::svg_arms(outcome, &Quantity::REPORT)?),
        ("shares", frontdesk_report::svg_arms(outcome, &[Quantity::Share])?),
    ];
    if outcome.arms.values().any(|arm| !arm.response_ms.is_empty()) {
        plots.push(("cdf", frontdesk_report::svg_cdf(outcome)?));
    }
    if !outcome.figures.is_empty() {
        plots.push(("seconds", frontdesk_report::svg_figures(outcome)?));
    }
    for (kind, svg) in plots {
        write_text(&folder.join(format!("{}-{kind}.svg", outcome.scenario)), &svg)?;
    }
    Ok(())
}
