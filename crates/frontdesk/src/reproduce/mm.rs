//! What is printed of MM. Most of its results are pictures: "paper" is what its text says of them.

use super::Row;
use frontdesk_scenario::{ArmResult, Figure, Frames, Mark, Series};
use frontdesk_sim::{FrameSecond, Simulated};

/// The scenarios, as they are in `scenarios/papers`.
pub(super) const SCENARIOS: [(&str, &str); 7] = [
    ("mm-figure4-low.toml", include_str!("../../../../scenarios/papers/mm-figure4-low.toml")),
    ("mm-figure4-high.toml", include_str!("../../../../scenarios/papers/mm-figure4-high.toml")),
    ("mm-figure4-indirect.toml", include_str!("../../../../scenarios/papers/mm-figure4-indirect.toml")),
    ("mm-figure4-game.toml", include_str!("../../../../scenarios/papers/mm-figure4-game.toml")),
    ("mm-figure3.toml", include_str!("../../../../scenarios/papers/mm-figure3.toml")),
    ("mm-figure5.toml", include_str!("../../../../scenarios/papers/mm-figure5.toml")),
    ("mm-figure6.toml", include_str!("../../../../scenarios/papers/mm-figure6.toml")),
];

/// Of Figure 5: the other domain computes from this second on, and so many are printed.
const BEGINS: usize = 33;
const PRINTED: usize = 5;

/// What the model is given, and so cannot show.
pub(super) fn inputs() -> Vec<Row> {
    let row = |experiment: &str, what: &str, paper: &str, model: &str| {
        let [experiment, what, paper, model] = [experiment, what, paper, model].map(str::to_owned);
        Row { experiment, arm: "-".to_owned(), what, paper, model }
    };
    let tracking = "CPU overhead of tracking";
    vec![
        row("Figure 2", "GPU interrupts for a frame", "110, linear in frames", "an input: 110"),
        row("Table 2", &format!("{tracking}, all pages"), "4.95 and 3.91 %", "an input: none"),
        row("Table 2", &format!("{tracking}, 1 of 128"), "0.58 and 0.33 %", "an input: none"),
    ]
}

/// The rows of one experiment.
pub(super) fn rows(simulated: &Simulated) -> Vec<Row> {
    let outcome = &simulated.outcome;
    let mut rows = Vec::new();
    for (name, arm) in &outcome.arms {
        let mut row = |what: String, paper: &str, model: String| {
            let (experiment, arm) = (outcome.scenario.clone(), name.clone());
            rows.push(Row { experiment, arm, what, paper: paper.to_owned(), model });
        };
        for (film, frames) in &arm.frames {
            let seconds = simulated.runs[name].first().and_then(|run| run.frames.get(film));
            match outcome.scenario.as_str() {
                "mm-figure3" => {
                    let error = frames.estimate_error.map_or_else(|| "-".to_owned(), percent);
                    row(format!("Figure 3: {film}, error of the estimate"), paper_error(name), error);
                }
                "mm-figure5" => {
                    let from = seconds.into_iter().flatten().skip(BEGINS).take(PRINTED);
                    let shown = from.map(|second| second.shown.to_string()).collect::<Vec<_>>().join(", ");
                    row(
                        format!("Figure 5: frames in each second from {BEGINS} s on"),
                        paper_agile(name),
                        shown,
                    );
                    row("dropped in all".to_owned(), "-", percent(frames.dropped));
                    let raised = seconds.and_then(|seconds| highest_share(seconds));
                    let raised = raised.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}"));
                    row("highest share, of its own".to_owned(), "-", raised);
                }
                "mm-figure6" => {
                    let what = "Figure 6: frames/s (the domain's CPU)".to_owned();
                    row(what, paper_inside(name), format!("{:.1} ({})", frames.per_s, cpu(seconds)));
                }
                scenario => {
                    let figure = figure_of(scenario, name);
                    row(
                        format!("{figure}: frames/s (dropped)"),
                        paper_frames(scenario, name),
                        shown(frames, arm),
                    );
                }
            }
        }
    }
    rows
}

fn percent(fraction: f64) -> String {
    format!("{:.2} %", fraction * 100.0)
}

fn shown(frames: &Frames, arm: &ArmResult) -> String {
    // A game drops none: it makes as many as it can.
    let drops = arm.repeats.iter().flat_map(|repeat| repeat.frames.values()).any(|of| of.dropped > 0.0);
    let dropped = if drops { format!(" ({})", percent(frames.dropped)) } else { String::new() };
    format!("{:.1} +- {:.1}{dropped}", frames.per_s, frames.deviation)
}

fn highest_share(seconds: &[FrameSecond]) -> Option<f64> {
    let highest = seconds.iter().filter_map(|second| second.share_permille).max()?;
    Some(f64::from(highest) / 1000.0)
}

/// What the film's domain used of the CPU in a run.
fn cpu(seconds: Option<&Vec<FrameSecond>>) -> String {
    let used: Vec<f64> = seconds.into_iter().flatten().map(|second| second.cpu).collect();
    #[allow(clippy::cast_precision_loss)] // A few.
    let mean = used.iter().sum::<f64>() / used.len().max(1) as f64;
    format!("{:.0} %", mean * 100.0)
}

/// Figure 1 is of the unmodified scheduler, Figure 4 of the other.
fn figure_of(scenario: &str, arm: &str) -> String {
    let figure = if arm.ends_with("-credit") { "Figure 1" } else { "Figure 4" };
    let part = match scenario {
        "mm-figure4-low" => "(a)",
        "mm-figure4-game" => "(c)",
        _ => "(b)",
    };
    format!("{figure}{part}")
}

/// §4.2.4 and §6.2.
fn paper_frames(scenario: &str, arm: &str) -> &'static str {
    let Some((beside, scheduler)) = arm.split_once('-') else { return "-" };
    match (scenario, beside, scheduler) {
        (_, _, "frontdesk") => "not in the paper",
        (_, "idle", _) => "-",
        ("mm-figure4-low", ..) => "good quality",
        (_, _, "mm") => "near the maximum",
        ("mm-figure4-high", "download", _) => "severe drops",
        ("mm-figure4-high" | "mm-figure4-game", "cpu" | "build" | "encode", _) => "significantly degraded",
        ("mm-figure4-high" | "mm-figure4-game", "netcpu", _) => "degraded more than by CPU-bound",
        ("mm-figure4-indirect", "cpu" | "netcpu" | "build" | "encode", _) => "less degraded than direct",
        _ => "-",
    }
}

/// §6.1.
fn paper_error(arm: &str) -> &'static str {
    match arm {
        "high" => "below 1 %",
        "game" => "similar to the real rate",
        "game-frontdesk" => "not in the paper",
        "build" | "listing" => "effective",
        _ => "-",
    }
}

/// §6.2.
fn paper_agile(arm: &str) -> &'static str {
    match arm {
        "mm" => "adapted as soon as it drops",
        "mm-from-10" => "the desired rate rises by itself",
        "early" => "not in the paper",
        _ => "-",
    }
}

/// §6.3.
fn paper_inside(arm: &str) -> &'static str {
    match arm.split_once('-') {
        Some(("native", _)) => "moderate quality",
        Some(("credit", "3")) => "most are dropped",
        Some(("mm", _)) => "reasonable, below native",
        _ => "-",
    }
}

/// Adds the plots of frames over time, of the first run of each arm: Figures 3 and 5.
pub(super) fn draw(simulated: &mut Simulated) {
    if !["mm-figure3", "mm-figure5"].contains(&simulated.outcome.scenario.as_str()) {
        return;
    }
    for (arm, runs) in &simulated.runs {
        let Some((film, seconds)) = runs.first().and_then(|run| run.frames.first()) else { continue };
        let series = |name: &str, of: fn(&FrameSecond) -> Option<f64>| {
            let points = (1_u32..).zip(seconds).filter_map(|(at, second)| Some((f64::from(at), of(second)?)));
            Series { name: name.to_owned(), points: points.collect() }
        };
        #[allow(clippy::cast_precision_loss)] // Frames of a second.
        let all = [
            series("seen", |second| Some(second.shown as f64)),
            series("estimated", |second| second.estimated),
            series("desired", |second| second.desired),
            series("CPU of the domain, %", |second| Some(second.cpu * 100.0)),
            series("share, of 10 its own", |second| Some(f64::from(second.share_permille?) / 100.0)),
        ];
        simulated.outcome.figures.push(Figure::Chart {
            title: format!("{arm}: {film}, second by second"),
            x: "seconds".to_owned(),
            log_x: false,
            y: "frames/s".to_owned(),
            mark: Mark::Line,
            series: all.into_iter().filter(|series| !series.points.is_empty()).collect(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_scenario::{Overrides, Scenario};
    use frontdesk_sim::simulate;

    fn short(file: &str, duration: &str, arms: &[&str]) -> Simulated {
        let (name, text) = SCENARIOS.iter().find(|(name, _)| *name == file).unwrap();
        let overrides = Overrides {
            set: vec![format!("duration={duration}")],
            repeats: Some(1),
            arms: arms.iter().map(ToString::to_string).collect(),
            ..Overrides::default()
        };
        let scenario = Scenario::parse(text, name.as_ref(), &overrides).unwrap();
        simulate(&[scenario], 1, 1, &|_, _| {}).unwrap().remove(0)
    }

    #[test]
    fn every_arm_of_every_scenario_has_its_words_of_the_paper() {
        for (file, text) in SCENARIOS {
            let scenario = Scenario::parse(text, file.as_ref(), &Overrides::default()).unwrap();
            assert_eq!(format!("{}.toml", scenario.name), file);
            for arm in scenario.arms.keys().filter(|arm| arm.ends_with("-mm")) {
                let of_idle = arm.starts_with("idle");
                assert_eq!(paper_frames(&scenario.name, arm) == "-", of_idle, "{file}, {arm}");
            }
        }
    }

    #[test]
    fn figures_1_and_4_are_of_the_two_schedulers() {
        let simulated = short("mm-figure4-high.toml", "10s", &["cpu-credit", "cpu-mm"]);
        let rows = rows(&simulated);
        assert_eq!(rows.len(), 2);
        assert!(
            rows[0].what.starts_with("Figure 1(b)") && rows[1].what.starts_with("Figure 4(b)"),
            "{rows:?}"
        );
        assert_eq!([&*rows[0].paper, &*rows[1].paper], ["significantly degraded", "near the maximum"]);
        assert!(rows.iter().all(|row| row.model.contains(" %)")), "{rows:?}");
    }

    #[test]
    fn figure_3_is_of_estimates_and_figure_5_of_seconds() {
        let mut simulated = short("mm-figure3.toml", "10s", &["listing"]);
        let estimate = rows(&simulated);
        assert!(estimate.len() == 1 && estimate[0].model.ends_with(" %"), "{estimate:?}");
        draw(&mut simulated);
        let [Figure::Chart { series, .. }] = &simulated.outcome.figures[..] else { panic!("not one chart") };
        assert_eq!(series[0].points.len(), 10);
        let simulated = short("mm-figure5.toml", "40s", &["credit", "mm"]);
        let agile = rows(&simulated);
        let seconds = agile.iter().filter(|row| row.what.starts_with("Figure 5"));
        assert!(seconds.clone().all(|row| row.model.split(", ").count() == PRINTED), "{agile:?}");
        assert_eq!(seconds.count(), 2);
    }

    #[test]
    fn what_is_an_input_is_said_to_be_one() {
        assert!(inputs().iter().all(|row| row.model.starts_with("an input")));
    }
}
