//! What is printed of vAMP. Its results are pictures: "paper" is what its text says of them.

use super::Row;
use frontdesk_engine::{EventKind, Thread, VmId};
use frontdesk_scenario::{ArmResult, Overrides, Scenario};
use frontdesk_sim::{FeedEntry, Simulated, feed_entries};
use std::collections::HashMap;

const FIGURE_1: (&str, &str) =
    ("vamp-figure1.toml", include_str!("../../../../scenarios/papers/vamp-figure1.toml"));
const FIGURE_4: (&str, &str) =
    ("vamp-figure4.toml", include_str!("../../../../scenarios/papers/vamp-figure4.toml"));
const OTHERS: [(&str, &str); 4] = [
    ("vamp-figure6.toml", include_str!("../../../../scenarios/papers/vamp-figure6.toml")),
    ("vamp-figure7.toml", include_str!("../../../../scenarios/papers/vamp-figure7.toml")),
    ("vamp-figure8.toml", include_str!("../../../../scenarios/papers/vamp-figure8.toml")),
    ("vamp-figure9.toml", include_str!("../../../../scenarios/papers/vamp-figure9.toml")),
];

/// A program of Figure 4: its name, rounds, the main thread's part in each, other threads, their parts, what
/// is drawn, and whether it writes to the disk. The paper says how they work (§4.3): one thread of GIMP does
/// most, and Chrome's many work in small pieces.
type Program = (&'static str, u32, &'static str, u16, &'static str, &'static str, bool);
const PROGRAMS: [Program; 4] = [
    ("impress", 150, "14ms", 2, "1ms", "200us", false),
    ("firefox", 250, "5ms", 4, "700us", "200us", false),
    ("chrome", 400, "1500us", 6, "700us", "100us", true),
    ("gimp", 20, "120ms", 1, "5ms", "2ms", false),
];

/// The scenarios, and what is changed in them: Figure 4 is of four programs.
pub(super) fn scenarios() -> Vec<(&'static str, &'static str, Vec<String>)> {
    let launches = PROGRAMS.iter().map(|(name, rounds, main, threads, part, draw, sync)| {
        let key = |field: &str, value: String| format!("vm.desk.workloads.program.{field}={value}");
        let text = |value: &str| format!("\"{value}\"");
        let set = vec![
            format!("name=\"vamp-figure4-{name}\""),
            key("rounds", rounds.to_string()),
            key("main", text(main)),
            key("threads", threads.to_string()),
            key("part", text(part)),
            key("draw", text(draw)),
            key("sync", sync.to_string()),
        ];
        (FIGURE_4.0, FIGURE_4.1, set)
    });
    launches.chain(OTHERS.iter().map(|(name, text)| (*name, *text, Vec::new()))).collect()
}

/// Figure 1: how long guest tasks run at a time, as switches of address spaces show it.
pub(super) fn figure_1(seed: u64) -> anyhow::Result<Vec<Row>> {
    let (file, text) = FIGURE_1;
    let scenario = Scenario::parse(text, file.as_ref(), &Overrides::default())?;
    let mut rows = Vec::new();
    for arm in scenario.arms.keys() {
        let quanta = quanta(&feed_entries(&scenario, arm, 1, seed)?);
        let (what, paper, part) = match arm.as_str() {
            "threads" => ("shorter than 100 us", "62 %", part(&quanta, |time| time < 100_000)),
            "thread" => ("longer than 5 ms", "90 %", part(&quanta, |time| time > 5_000_000)),
            _ => ("longer than 1 ms", "10 %", part(&quanta, |time| time > 1_000_000)),
        };
        rows.push(Row {
            experiment: scenario.name.clone(),
            arm: arm.clone(),
            what: format!("Figure 1: time quanta {what}"),
            paper: paper.to_owned(),
            model: format!("{:.0} %", part * 100.0),
        });
    }
    Ok(rows)
}

fn part(quanta: &[u64], of: impl Fn(u64) -> bool) -> f64 {
    let count = quanta.iter().filter(|time| of(**time)).count();
    #[allow(clippy::cast_precision_loss)] // Some millions.
    let part = count as f64 / quanta.len().max(1) as f64;
    part
}

/// How long each task ran on a vCPU until the next did, the vCPU was halted, or the run was over, in
/// nanoseconds. A VM that has its physical CPUs to itself runs all the time.
fn quanta(entries: &[FeedEntry]) -> Vec<u64> {
    let mut since: HashMap<(VmId, u16), u64> = HashMap::new();
    let mut quanta = Vec::new();
    let mut last = 0;
    for entry in entries {
        let FeedEntry::Event(event) = entry else { continue };
        let at = event.at.0;
        last = at;
        match event.kind {
            EventKind::TaskSwitch { vm, vcpu, .. } => {
                quanta.extend(since.insert((vm, vcpu), at).map(|since| at - since));
            }
            EventKind::Resume { vm, vcpu } => {
                since.insert((vm, vcpu), at);
            }
            EventKind::Halt { vm, vcpu } | EventKind::Stop { vm, thread: Thread::Vcpu(vcpu), .. } => {
                quanta.extend(since.remove(&(vm, vcpu)).map(|since| at - since));
            }
            _ => {}
        }
    }
    quanta.extend(since.values().map(|since| last - since));
    quanta.retain(|time| *time > 0);
    quanta
}

/// The rows of one experiment.
pub(super) fn rows(simulated: &Simulated) -> Vec<Row> {
    let outcome = &simulated.outcome;
    let experiment = outcome.scenario.as_str();
    let stock = outcome.arms.get("stock");
    let mut rows = Vec::new();
    for (name, arm) in &outcome.arms {
        let mut row = |what: &str, paper: &str, model: String| {
            let (experiment, arm, what) = (experiment.to_owned(), name.clone(), what.to_owned());
            rows.push(Row { experiment, arm, what, paper: paper.to_owned(), model });
        };
        if let Some(time) = response(arm) {
            let what = match experiment {
                "vamp-figure6" => "Figure 6: launch, of stock",
                "vamp-figure7" => "Figure 7: page, of stock",
                _ => "Figure 4(a): launch, of stock",
            };
            let base = stock.and_then(response).unwrap_or(time);
            row(what, paper_launch(experiment, name), format!("{:.2} ({:.2} s)", time / base, time / 1000.0));
        }
        let rate = |arm: &ArmResult| arm.rates.get("desk/work").map(|rate| rate.per_s);
        if experiment.starts_with("vamp-figure4")
            && let (Some(rate), Some(base)) = (rate(arm), stock.and_then(rate))
        {
            let slower = (base / rate - 1.0) * 100.0;
            row("Figure 4(b): background work takes", paper_background(name), format!("{slower:+.0} %"));
            let seconds = simulated.runs[name].iter().filter_map(|run| run.cpu_seconds.get("desk"));
            let (least, most) = seconds
                .flatten()
                .fold((f64::MAX, 0.0_f64), |(least, most), used| (least.min(*used), most.max(*used)));
            // Half of eight.
            let off = |used: f64| (used / 4.0 - 1.0) * 100.0;
            let model = format!("{:+.0} to {:+.0} %", off(least), off(most));
            row("the VM's CPU time in any second, against its due", "preserved", model);
        }
        for frames in arm.frames.values() {
            let dropped = format!("{:.1} % ({:.1})", frames.dropped * 100.0, frames.per_s);
            if experiment == "vamp-figure8" {
                row("Figure 8: frames dropped (shown a second)", paper_film(name), dropped);
            }
            let seconds = simulated.runs[name].iter().flat_map(|run| run.frames.values()).flatten();
            let known: Vec<bool> = seconds.filter_map(|second| second.sound_client).collect();
            let found = known.iter().filter(|found| **found).count();
            if experiment == "vamp-figure9" && !known.is_empty() {
                let what = "Figure 9: seconds in which the film has the highest counter";
                row(what, "all", format!("{found} of {}", known.len()));
            }
        }
    }
    rows
}

fn response(arm: &ArmResult) -> Option<f64> {
    arm.response_ms.values().next().map(|summary| summary.mean)
}

/// §4.3 and §4.4: "up to" is of the best program or page.
fn paper_launch(experiment: &str, arm: &str) -> &'static str {
    match (experiment, arm) {
        (_, "stock") => "1",
        ("vamp-figure6", "low-pinned" | "medium-pinned" | "high-pinned") => "lower with the ratio",
        ("vamp-figure6", "low-unpinned" | "medium-unpinned" | "high-unpinned") => "higher with the ratio",
        ("vamp-figure7", "low") => "0.69 at best",
        ("vamp-figure7", "medium" | "high") => "above low",
        ("vamp-figure7", "low-extension" | "medium-extension" | "high-extension") => "0.59 at best",
        ("vamp-figure4-gimp", "low-paper" | "medium-paper" | "high-paper") => "about 0.6",
        (_, "low-paper") => "0.59 at best",
        (_, "medium-paper" | "high-paper") => "above low",
        (_, "low-extension" | "medium-extension" | "high-extension") => "0.3 at best",
        _ => "not in the paper",
    }
}

fn paper_background(arm: &str) -> &'static str {
    match arm {
        "low-paper" | "medium-paper" | "high-paper" | "low-extension" | "medium-extension"
        | "high-extension" => "+3 to +20 %",
        "stock" => "0 %",
        _ => "not in the paper",
    }
}

fn paper_film(arm: &str) -> &'static str {
    match arm {
        "stock" => "28.1 %",
        "low-unidentified" | "medium-unidentified" | "high-unidentified" => "as stock",
        "low" | "medium" | "high" => "less, more with the ratio",
        "low-extension" | "medium-extension" | "high-extension" => "1.5 to 2.2 %",
        _ => "not in the paper",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_sim::simulate;

    fn short(wanted: &str, duration: &str, arms: &[&str]) -> Vec<Row> {
        let parsed = scenarios().into_iter().map(|(file, text, mut set)| {
            set.push(format!("duration={duration}"));
            let has_all = arms.iter().all(|arm| text.contains(&format!("[arms.{arm}]")));
            let arms = if has_all { arms } else { &[] };
            let arms = arms.iter().map(ToString::to_string).collect();
            let overrides = Overrides { set, repeats: Some(1), arms, ..Overrides::default() };
            Scenario::parse(text, file.as_ref(), &overrides).unwrap()
        });
        let scenario: Vec<_> = parsed.filter(|scenario| scenario.name == wanted).collect();
        rows(&simulate(&scenario, 1, 1, &|_, _| {}).unwrap().remove(0))
    }

    #[test]
    fn a_launch_is_shorter_with_fast_vcpus_and_shorter_still_with_the_guests_help() {
        let rows = short("vamp-figure4-gimp", "40s", &["stock", "medium", "medium-extension"]);
        let launches = rows.iter().filter(|row| row.what.starts_with("Figure 4(a)"));
        let of_stock = |row: &Row| row.model.split(' ').next().unwrap().parse::<f64>().unwrap();
        let times: Vec<f64> = launches.map(of_stock).collect();
        let [stock, medium, extension] = times[..] else { panic!("not three launches: {rows:?}") };
        assert!(stock > medium && medium > extension, "{times:?}");
        assert_eq!(rows.len(), 9, "launch, background and CPU time of each: {rows:?}");
    }

    #[test]
    fn threads_that_wait_for_each_other_run_shortly_and_one_alone_for_long() {
        let rows = figure_1(1).unwrap();
        let percent = |arm: &str| {
            let row = rows.iter().find(|row| row.arm == arm).unwrap();
            row.model.trim_end_matches(" %").parse::<f64>().unwrap()
        };
        assert!(percent("thread") > 50.0, "{rows:?}");
        assert!(percent("program") < percent("thread"), "{rows:?}");
    }
}
