//! The result as tables for a terminal.

use crate::arms::is_hog;
use crate::number::{
    bar, cells, dash, extent, extent_of, latency, number, optional, percent, spread, throughput,
};
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, LineStyle, Table, presets};
use frontdesk_scenario::{NumberTable, Outcome};

/// The result as tables at most `width` columns wide, where the longest words allow it (80 do for what the
/// lab measures): response times, throughput (without workloads called "hog"), times of operations, frames of
/// films, what else was measured of each arm, and the checks; before them, what is to be known of an emulated
/// host. `colour` adds ANSI escapes.
#[must_use]
pub fn table(outcome: &Outcome, width: u16, colour: bool) -> String {
    let undilated = outcome.host.dilation.map(|dilation| {
        let title = format!("Response time in ms, divided by the dilation of {dilation}");
        (title, responses(outcome, dilation))
    });
    let response = "Response time in ms (median over the repeats)".to_owned();
    let first = std::iter::once((response, responses(outcome, 1.0))).chain(undilated);
    let tables = [
        ("Throughput (median over the repeats)", rates(outcome)),
        ("Time of an operation in ms (median over the repeats)", times(outcome)),
        ("Frames (median over the repeats)", frames(outcome)),
        ("Arms", arms(outcome)),
        ("Belief: time until it follows a task that changes, in ms", follow(outcome)),
    ];
    let of_study = outcome.tables.iter().map(|of| (of.title.clone(), numbers(of)));
    let last = [("Checks", checks(outcome, colour))];
    let named = |(title, table): (&str, Table)| (title.to_owned(), table);
    let all = first.chain(tables.map(named)).chain(of_study).chain(last.map(named));
    let filled = all.filter(|(_, table)| !table.is_empty());
    let notes = Some(notes(outcome)).filter(|notes| !notes.is_empty()).map(|notes| notes.join("\n") + "\n");
    let texts = filled.map(|(title, mut table)| {
        table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
        if colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        format!("{title}\n{}\n", table.trim_fmt())
    });
    notes.into_iter().chain(texts).collect::<Vec<_>>().join("\n")
}

/// What is to be known of the machine and the repeats before the numbers are read.
pub(crate) fn notes(outcome: &Outcome) -> Vec<String> {
    let host = &outcome.host;
    let mut notes = Vec::new();
    if let Some(outer) = &host.emulated_on {
        notes.push(format!(
            "Host: emulated, {} CPUs, Linux {}, QEMU {} with KVM; by QEMU {} on {} ({} CPUs, Linux {}).",
            host.cpus, host.kernel, host.qemu, outer.qemu, outer.cpu, outer.cpus, outer.kernel
        ));
    }
    if let Some(dilation) = host.dilation {
        notes.push(format!(
            "Everything takes about {dilation} times as long there: durations of the load, of frontdesk and \
             of the host's scheduler were multiplied by that. Ratios are the result."
        ));
    }
    for (name, arm) in &outcome.arms {
        for (index, repeat) in (1_u32..).zip(&arm.repeats) {
            for why in repeat.voided.iter().filter_map(|why| why.lines().next()) {
                notes.push(format!("{name}, repeat {index}: made again, for in an earlier attempt {why}"));
            }
            if let Some(lost) = repeat.lost.filter(|lost| lost.gaps > 0) {
                notes.push(format!(
                    "{name}, repeat {index}: disturbed; {} ms were taken from the host's CPUs in {} gaps, the \
                     longest of {} ms",
                    number(lost.ms),
                    lost.gaps,
                    number(lost.longest_ms)
                ));
            }
        }
    }
    notes
}

/// Response times, divided by `dilation`.
fn responses(outcome: &Outcome, dilation: f64) -> Table {
    let mut table = empty(&["arm", "VM", "requests", "mean", "p50", "p99", "max"], 2);
    for (name, arm) in &outcome.arms {
        for (vm, of) in &arm.response_ms {
            let numbers = [of.mean, of.p50, of.p99, of.max].map(|time| number(time / dilation));
            table.add_row([name.clone(), vm.clone(), of.count.to_string()].into_iter().chain(numbers));
        }
    }
    table
}

fn rates(outcome: &Outcome) -> Table {
    let mut table = empty(&["arm", "VM/workload", "throughput"], 2);
    for (name, arm) in &outcome.arms {
        for (workload, rate) in arm.rates.iter().filter(|(workload, _)| !is_hog(workload)) {
            table.add_row([name.clone(), workload.clone(), throughput(*rate)]);
        }
    }
    table
}

fn times(outcome: &Outcome) -> Table {
    let mut table = empty(&["arm", "VM/workload", "operations", "mean", "p50", "max"], 2);
    for (name, arm) in &outcome.arms {
        for (workload, of) in &arm.times_ms {
            let numbers = [of.mean, of.p50, of.max].map(number);
            table.add_row([name.clone(), workload.clone(), of.count.to_string()].into_iter().chain(numbers));
        }
    }
    table
}

fn frames(outcome: &Outcome) -> Table {
    let header = ["arm", "VM/workload", "frames/s", "±", "dropped", "jitter ms", "estimate off"];
    let mut table = empty(&header, 2);
    for (name, arm) in &outcome.arms {
        for (workload, of) in &arm.frames {
            let numbers = [
                number(of.per_s),
                number(of.deviation),
                percent(of.dropped),
                number(of.jitter_ms),
                of.estimate_error.map_or_else(dash, percent),
            ];
            table.add_row([name.clone(), workload.clone()].into_iter().chain(numbers));
        }
    }
    table
}

fn follow(outcome: &Outcome) -> Table {
    let header = ["arm", "to I/O-bound", "to CPU-bound", "missed changes", "wasted boosts"];
    let mut table = empty(&header, 1);
    for (name, arm) in &outcome.arms {
        let Some(of) = arm.follow else { continue };
        let counts = [of.missed, of.wasted].map(|count| count.to_string());
        let row = [name.clone(), optional(of.to_io_ms), optional(of.to_cpu_ms)];
        table.add_row(row.into_iter().chain(counts));
    }
    table
}

fn arms(outcome: &Outcome) -> Table {
    let header = ["arm", "CPU share", "boosts", "PBHR", "decision µs p50/p99/max", "daemon CPU"];
    let mut table = empty(&header, 1);
    for (name, arm) in &outcome.arms {
        table.add_row([
            name.clone(),
            extent_of(arm.cpu_share.values().copied()).map_or_else(dash, extent),
            arm.boosts.to_string(),
            optional(arm.pbhr),
            latency(arm.decision_us),
            arm.daemon_cpu.map_or_else(dash, percent),
        ]);
    }
    table
}

fn numbers(of: &NumberTable) -> Table {
    let header: Vec<&str> = of.names.iter().chain(&of.columns).map(String::as_str).collect();
    let mut table = empty(&header, of.names.len());
    for ((names, _), numbers) in of.rows.iter().zip(cells(of)) {
        table.add_row(names.iter().cloned().chain(numbers));
    }
    table
}

fn checks(outcome: &Outcome, colour: bool) -> Table {
    let mut table = empty(&["check", "value", "spread", "bar", "result"], 1);
    for check in &outcome.checks {
        let texts = [check.name.clone(), optional(check.value), spread(check), bar(check.bar)];
        table.add_row(texts.into_iter().map(Cell::new).chain([verdict(check.pass, colour)]));
    }
    table
}

pub(crate) fn verdict(pass: bool, colour: bool) -> Cell {
    let (text, shade) = if pass { ("pass", Color::Green) } else { ("FAIL", Color::Red) };
    let cell = Cell::new(text);
    if colour { cell.fg(shade).add_attribute(Attribute::Bold) } else { cell }
}

/// A table with a header, the first `texts` columns of which hold text and the others numbers.
pub(crate) fn empty(header: &[&str], texts: usize) -> Table {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    table.load_style(presets::NOTHING.header_separator(rule)).set_header(header);
    for column in table.column_iter_mut().skip(texts) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
