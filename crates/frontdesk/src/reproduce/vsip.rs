//! What is printed of vSIP. Most of its results are pictures: "paper" is what its text says of them.

use super::Row;
use frontdesk_engine::disk::{Asker, Device, DiskConfig, DiskOperation, DiskPolicy, DiskRequest, Inputs};
use frontdesk_engine::{TaskId, Time, UserInput, VmId};
use frontdesk_scenario::{ArmResult, Outcome};
use frontdesk_sim::{Rng, Simulated};

const FIGURE_9: (&str, &str) =
    ("vsip-figure9.toml", include_str!("../../../../scenarios/papers/vsip-figure9.toml"));
const FIGURE_10: (&str, &str) =
    ("vsip-figure10.toml", include_str!("../../../../scenarios/papers/vsip-figure10.toml"));
const FIGURE_11: (&str, &str) =
    ("vsip-figure11.toml", include_str!("../../../../scenarios/papers/vsip-figure11.toml"));
const MIXED: (&str, &str) = ("vsip-mixed.toml", include_str!("../../../../scenarios/papers/vsip-mixed.toml"));

/// A program: its name, and how often it computes for how long and then reads so many KiB. The paper does not
/// say, but for two that start warm (Figures 5 and 6, as a picture).
type Program = (&'static str, u32, &'static str, u32);

/// Of Figure 9, whose files are not in memory.
const COLD: [Program; 4] = [
    ("impress", 300, "4ms", 64),
    ("firefox", 250, "5ms", 64),
    ("chrome", 200, "3ms", 64),
    ("gimp", 350, "6ms", 64),
];
/// Of Figures 2, 3 and 11, which read little.
const WARM: [Program; 3] =
    [("firefox", 25, "50ms", 16), ("chrome", 20, "40ms", 16), ("word", 40, "30ms", 16)];
/// Of Figures 4 and 12: one of the four pages that read, and one of the others.
const PAGES: [Program; 2] = [("espn", 30, "60ms", 16), ("amazon", 30, "60ms", 0)];
/// The copies of the film of Figure 10, and what a frame of each is, in KiB.
const FILMS: [(&str, u32); 2] = [("720p", 17), ("1080p", 33)];

/// The scenarios, and what is changed in them.
pub(super) fn scenarios() -> Vec<(&'static str, &'static str, Vec<String>)> {
    let program = |figure: &str, (name, rounds, main, read): &Program| {
        let key = |field: &str, value: String| format!("vm.desk.workloads.program.{field}={value}");
        vec![
            format!("name=\"vsip-{figure}-{name}\""),
            key("rounds", rounds.to_string()),
            key("main", format!("\"{main}\"")),
            key("read_kib", read.to_string()),
        ]
    };
    let cold = COLD.iter().map(|one| (FIGURE_9.0, FIGURE_9.1, program("figure9", one)));
    let films = FILMS.iter().map(|(name, kib)| {
        let set =
            [format!("name=\"vsip-figure10-{name}\""), format!("vm.desk.workloads.mplayer.frame_kib={kib}")];
        (FIGURE_10.0, FIGURE_10.1, set.to_vec())
    });
    let warm = WARM.iter().map(|one| (FIGURE_11.0, FIGURE_11.1, program("figure11", one)));
    let pages = PAGES.iter().map(|one| (FIGURE_11.0, FIGURE_11.1, program("figure12", one)));
    cold.chain(films).chain(warm).chain(pages).chain([(MIXED.0, MIXED.1, Vec::new())]).collect()
}

/// What the model is given, and so cannot show.
pub(super) fn inputs() -> Vec<Row> {
    let row = |figure: &str, what: &str, paper: &str, model: &str| {
        let [experiment, what, paper, model] = [figure, what, paper, model].map(str::to_owned);
        Row { experiment, arm: "-".to_owned(), what, paper, model }
    };
    let reads = "an input: 20 to 40 of 16 KiB";
    vec![
        row("Figure 1", "interactive programs beside loads", "slower", "Figures 2 to 4, 9 and 10"),
        row("Figure 5", "reads of a warm start and of a page", "some (a picture)", reads),
        row("Figure 6", "what they read", "some (a picture)", reads),
        row(
            "Figure 7",
            "identification by rate, not by count",
            "B is interactive, A is not",
            "a test: the same",
        ),
    ]
}

/// A task of the session of Figure 8: its name, requests after each input, requests a second without regard
/// to inputs, and whether it is interactive.
type Task = (&'static str, u64, f64, bool);
const SESSION: [Task; 6] = [
    ("office", 12, 0.0, true),
    ("browser", 30, 0.2, true),
    ("mail", 8, 0.1, true),
    ("virus scanner", 0, 20.0, false),
    ("backup", 0, 100.0, false),
    ("indexer", 0, 2.0, false),
];
/// How long it takes, in seconds.
const SESSION_S: u64 = 600;

/// Figure 8: the part of requests after inputs, of applications in a session that is made up.
pub(super) fn figure_8(seed: u64) -> Vec<Row> {
    let rules = [("paper", Inputs::All), ("vsip", Inputs::Start)];
    rules.into_iter().flat_map(|(arm, inputs)| session(seed, arm, inputs)).collect()
}

fn session(seed: u64, arm: &str, inputs: Inputs) -> Vec<Row> {
    const SECOND: u64 = 1_000_000_000;
    /// The counts are those of the whole session, as in the paper.
    const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);
    let config = DiskConfig { inputs, half_life: HOUR, ..DiskConfig::default() };
    let mut policy = DiskPolicy::new(config, Device::Flash);
    let (vm, mut rng) = (VmId(0), Rng::new(seed, 0));
    let mut events: Vec<(u64, Option<usize>)> = Vec::new();
    let mut at = 0;
    while at < SESSION_S * SECOND {
        at += rng.uniform(2 * SECOND, 20 * SECOND);
        events.push((at, None));
        for (task, (_, reads, ..)) in SESSION.iter().enumerate() {
            events.extend((0..*reads).map(|_| (at + 1 + rng.uniform(0, 2 * SECOND), Some(task))));
        }
    }
    for (task, (_, _, per_s, _)) in SESSION.iter().enumerate().filter(|(_, task)| task.2 > 0.0) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        // Of a table above.
        let gap = (SECOND as f64 / per_s) as u64;
        let mut next = rng.uniform(0, gap);
        while next < SESSION_S * SECOND {
            events.push((next, Some(task)));
            next += rng.uniform(gap / 2, gap * 3 / 2);
        }
    }
    events.sort_unstable();
    for (id, (at, task)) in (0_u64..).zip(events) {
        let at = Time(at);
        let Some(task) = task else {
            policy.input(vm, UserInput::Enter, at);
            continue;
        };
        let asker = Some(Asker { vcpu: 0, task: Some(TaskId(task as u64)) });
        let (operation, offset, bytes) = (DiskOperation::Read, 0, 4096);
        if policy.arrive(&DiskRequest { id, vm, asker, operation, offset, bytes, at }) {
            while let Some(submit) = policy.next(at) {
                policy.complete(submit.id, at);
            }
        }
    }
    let explained = policy.applications(vm);
    let row = |(number, (name, .., interactive)): (usize, &Task)| {
        let task = Some(TaskId(number as u64));
        let found = explained.iter().find(|application| application.task == task);
        let model = found.map_or_else(
            || "-".to_owned(),
            |found| {
                let part = f64::from(found.post) / f64::from((found.post + found.pre).max(1));
                let verdict = if found.verdict.interactive() { "interactive" } else { "not interactive" };
                format!("{:.0} %: {verdict}", part * 100.0)
            },
        );
        Row {
            experiment: "vsip-figure8".to_owned(),
            arm: arm.to_owned(),
            what: format!("Figure 8: requests after inputs, {name}"),
            paper: if *interactive { "much more than 60 %" } else { "about 50 %" }.to_owned(),
            model,
        }
    };
    SESSION.iter().enumerate().map(row).collect()
}

/// The rows of one experiment.
pub(super) fn rows(simulated: &Simulated) -> Vec<Row> {
    let outcome = &simulated.outcome;
    let mut rows = Vec::new();
    for (name, arm) in &outcome.arms {
        let mut row = |what: &str, paper: &str, model: String| {
            let (experiment, arm, what) = (outcome.scenario.clone(), name.clone(), what.to_owned());
            rows.push(Row { experiment, arm, what, paper: paper.to_owned(), model });
        };
        if let (Some(time), Some(alone)) = (response(arm), outcome.arms.get("alone").and_then(response)) {
            let model = format!("{:.2} ({:.2} s)", time / alone, time / 1000.0);
            row(&format!("{}, of alone", what(&outcome.scenario, name)), paper_time(outcome, name), model);
        }
        for frames in arm.frames.values() {
            let dropped = format!("{:.1} %", frames.dropped * 100.0);
            row("Figure 10: frames dropped", paper_film(&outcome.scenario, name), dropped);
        }
        if let (Some(rate), Some(fair)) = (others(arm), stock(outcome, name).and_then(others)) {
            let paper = if name.ends_with("-cfq-first") { "they starve" } else { "almost as under CFQ" };
            let paper = if outcome.scenario == "vsip-mixed" { paper } else { "nearly as under CFQ" };
            row("§4.5: others' throughput, of CFQ", paper, format!("{:.2}", rate / fair));
        }
    }
    rows
}

fn what(scenario: &str, arm: &str) -> &'static str {
    match scenario {
        "vsip-mixed" => "§4.6: a burst",
        _ if scenario.starts_with("vsip-figure9") => "Figure 9: cold launch",
        _ if scenario.starts_with("vsip-figure12") && arm.contains("-7-") => "Figure 12: page",
        _ if scenario.starts_with("vsip-figure12") => "Figure 4: page",
        _ if arm.contains("-7-") => "Figure 11: warm launch",
        _ if arm.starts_with("boot") => "Figure 3: warm launch",
        _ => "Figure 2: warm launch",
    }
}

fn response(arm: &ArmResult) -> Option<f64> {
    arm.response_ms.values().next().map(|summary| summary.mean)
}

/// What the VMs beside it got done in a second, as far as they only do that.
fn others(arm: &ArmResult) -> Option<f64> {
    let others = arm.rates.iter().filter(|(name, rate)| {
        ["reader", "booter"].iter().any(|vm| name.starts_with(vm)) && rate.per_s > 0.0
    });
    let rates: Vec<f64> = others.map(|(_, rate)| rate.per_s).collect();
    (!rates.is_empty()).then(|| rates.iter().sum())
}

/// The arm with CFQ and the same VMs.
fn stock<'a>(outcome: &'a Outcome, arm: &str) -> Option<&'a ArmResult> {
    let beside = ["-fair", "-cfq-first", "-cfq", "-deadline", "-paper", "-vsip"];
    let beside = beside.iter().find_map(|scheduler| arm.strip_suffix(scheduler))?;
    outcome.arms.get(&format!("{beside}-cfq"))
}

/// §2.1, §4.3, §4.4 and §4.6. That of CFQ in Figure 9 follows from the other two numbers.
fn paper_time(outcome: &Outcome, arm: &str) -> &'static str {
    let cold = outcome.scenario.starts_with("vsip-figure9");
    let reads = !outcome.scenario.ends_with("-amazon");
    match arm {
        "alone" => "1",
        "read-cfq" if cold => "1.76",
        "read-paper" if cold => "1.09",
        "boot-cfq" if cold => "2.25",
        "boot-paper" if cold => "1.17",
        "interactive-paper" | "mixed-paper" | "interactive-cfq-first" | "mixed-cfq-first" => "guaranteed",
        "interactive-cfq" | "mixed-cfq" => "longer",
        "read-7-paper" => "near alone",
        "boot-7-paper" if reads => "above alone, below CFQ",
        "boot-7-paper" | "boot-7-cfq" | "read-7-cfq" if !reads => "1",
        _ if arm.ends_with("-cfq") => "the more VMs, the longer",
        _ => "not in the paper",
    }
}

/// §4.3.
fn paper_film(scenario: &str, arm: &str) -> &'static str {
    match arm {
        "read-5-cfq" if scenario.ends_with("1080p") => "39.1 % (the most)",
        _ if arm.ends_with("-cfq") => "up to 39.1 %",
        _ if arm.ends_with("-paper") => "low enough",
        _ => "not in the paper",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_scenario::{Overrides, Scenario};
    use frontdesk_sim::simulate;

    fn short(wanted: &str, duration: &str, arms: &[&str]) -> Vec<Row> {
        let found = scenarios().into_iter().find(|(_, text, set)| {
            let name = format!("name=\"{wanted}\"");
            set.contains(&name) || set.is_empty() && text.contains(&name.replace('=', " = "))
        });
        let (file, text, mut set) = found.unwrap();
        set.push(format!("duration={duration}"));
        let arms = arms.iter().map(ToString::to_string).collect();
        let overrides = Overrides { set, repeats: Some(1), arms, ..Overrides::default() };
        let scenario = Scenario::parse(text, file.as_ref(), &overrides).unwrap();
        rows(&simulate(&[scenario], 1, 1, &|_, _| {}).unwrap().remove(0))
    }

    fn number(row: &Row) -> f64 {
        row.model.split(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_cold_launch_is_shorter_than_with_cfq_and_others_go_on() {
        let rows = short("vsip-figure9-chrome", "40s", &["alone", "read-cfq", "read-paper", "read-vsip"]);
        let launches: Vec<f64> =
            rows.iter().filter(|row| row.what.starts_with("Figure 9")).map(number).collect();
        let [alone, cfq, paper, vsip] = launches[..] else { panic!("not four launches: {rows:?}") };
        assert!((alone - 1.0).abs() < 1e-9 && cfq > 1.3 && paper < cfq && vsip < cfq, "{launches:?}");
    }

    #[test]
    fn a_mixed_vm_that_comes_first_starves_others_and_its_bursts_alone_do_not() {
        let rows = short("vsip-mixed", "40s", &["alone", "mixed-cfq", "mixed-cfq-first", "mixed-vsip"]);
        let of = |arm: &str, what: &str| {
            number(rows.iter().find(|row| row.arm == arm && row.what.starts_with(what)).unwrap())
        };
        assert!(of("mixed-cfq-first", "§4.5") < 0.2, "{rows:?}");
        assert!(of("mixed-vsip", "§4.5") > 0.7, "{rows:?}");
        assert!(of("mixed-vsip", "§4.6") < of("mixed-cfq", "§4.6"), "{rows:?}");
    }

    #[test]
    fn figure_8_tells_applications_apart() {
        for rule in [figure_8(1), figure_8(2)] {
            assert_eq!(rule.len(), 2 * SESSION.len());
            for row in rule {
                let interactive = row.paper.starts_with("much");
                assert_eq!(row.model.ends_with(": interactive"), interactive, "{row:?}");
            }
        }
    }
}
