//! The report as one HTML file.

use crate::arms::{Quantity, comparison};
use crate::number::{
    bar, cells, dash, extent, extent_of, latency, number, optional, percent, spread, throughput,
};
use crate::{ReportError, figure, plot};
use frontdesk_scenario::{ArmResult, Follow, Frames, NumberTable, Outcome, Rate, Summary, Timeline};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// The result as one HTML file that needs nothing else: the checks, what was measured of each arm, and the
/// plots. The plots over time need `timelines`, in any number and order; without them, they are left out.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn html(outcome: &Outcome, timelines: &[Timeline]) -> Result<String, ReportError> {
    let title = format!("frontdesk: {}", outcome.scenario);
    let plots = plots(outcome, timelines)?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    p.kicker { "frontdesk report" }
                    h1 { (outcome.scenario) }
                    (host(outcome))
                    @for note in crate::table::notes(outcome) {
                        p { (note) }
                    }
                }
                main {
                    (verdict(outcome))
                    (checks(outcome))
                    @if !outcome.arms.is_empty() {
                        (arms(outcome))
                    }
                    @for table in &outcome.tables {
                        (numbers(table))
                    }
                    (plots)
                    (screenshots(outcome))
                }
            }
        }
    };
    Ok(page.into_string())
}

fn host(outcome: &Outcome) -> Markup {
    let host = &outcome.host;
    let facts = [
        ("CPU", format!("{} ({} online)", host.cpu, host.cpus)),
        ("Host kernel", host.kernel.clone()),
        ("Guest kernel", host.guest_kernel.clone()),
        ("QEMU", host.qemu.clone()),
        ("frontdesk", host.frontdesk.clone()),
    ];
    html! {
        dl.facts {
            @for (what, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
                div { dt { (what) } dd { (value) } }
            }
        }
    }
}

fn verdict(outcome: &Outcome) -> Markup {
    let total = outcome.checks.len();
    let passed = outcome.checks.iter().filter(|check| check.pass).count();
    let (class, text) = match total {
        0 => ("verdict none", "No checks in this run".to_owned()),
        _ if passed == total => ("verdict pass", format!("Passed: all {total} checks")),
        _ => ("verdict fail", format!("Failed: {} of {total} checks", total - passed)),
    };
    html! { p class=(class) role="status" { (text) } }
}

fn checks(outcome: &Outcome) -> Markup {
    html! {
        @if !outcome.checks.is_empty() {
            section {
                h2 { "Checks" }
                div.wide {
                    table {
                        thead {
                            tr {
                                th { "Check" }
                                th.number { "Value" }
                                th.number { "Spread" }
                                th.number { "Bar" }
                                th { "Result" }
                            }
                        }
                        tbody {
                            @for check in &outcome.checks {
                                tr {
                                    td { (check.name) }
                                    td.number { strong { (optional(check.value)) } }
                                    td.number { (spread(check)) }
                                    td.number { (bar(check.bar)) }
                                    td {
                                        @if check.pass { span.mark.pass { "✓ pass" } }
                                        @else { span.mark.fail { "✗ FAIL" } }
                                    }
                                }
                            }
                        }
                    }
                }
                p.note {
                    "The value is the median over the repeats, the spread its lowest and highest. Ratios and "
                    "differences are between arms of the same repeat."
                }
            }
        }
    }
}

fn arms(outcome: &Outcome) -> Markup {
    let responses = |arm: &ArmResult| {
        let row = |(vm, of): (&String, &Summary)| {
            let numbers = [of.mean, of.p50, of.p95, of.p99, of.max].map(number);
            [vm.clone(), of.count.to_string()].into_iter().chain(numbers).collect()
        };
        arm.response_ms.iter().map(row).collect()
    };
    let rates = |arm: &ArmResult| {
        let row = |(workload, rate): (&String, &Rate)| vec![workload.clone(), throughput(*rate)];
        arm.rates.iter().map(row).collect()
    };
    let times = |arm: &ArmResult| {
        let row = |(workload, of): (&String, &Summary)| {
            let numbers = [of.mean, of.p50, of.max].map(number);
            [workload.clone(), of.count.to_string()].into_iter().chain(numbers).collect()
        };
        arm.times_ms.iter().map(row).collect()
    };
    let frames = |arm: &ArmResult| {
        let row = |(workload, of): (&String, &Frames)| {
            let numbers = [number(of.per_s), number(of.deviation), percent(of.dropped), number(of.jitter_ms)];
            let error = of.estimate_error.map_or_else(dash, percent);
            [workload.clone()].into_iter().chain(numbers).chain([error]).collect()
        };
        arm.frames.iter().map(row).collect()
    };
    let follow = |arm: &ArmResult| {
        let row = |of: Follow| {
            vec![optional(of.to_io_ms), optional(of.to_cpu_ms), of.missed.to_string(), of.wasted.to_string()]
        };
        arm.follow.into_iter().map(row).collect()
    };
    let all = |arm: &ArmResult| {
        let lost: u64 = arm.repeats.iter().map(|repeat| repeat.lost_events).sum();
        vec![vec![
            extent_of(arm.cpu_share.values().copied()).map_or_else(dash, extent),
            arm.boosts.to_string(),
            optional(arm.pbhr),
            arm.unanswered.map_or_else(dash, percent),
            latency(arm.decision_us),
            arm.daemon_cpu.map_or_else(dash, percent),
            lost.to_string(),
        ]]
    };
    html! {
        section {
            h2 { "Arms" }
            (by_arm(
                outcome,
                Some("VM under load"),
                &["Requests", "Mean, ms", "p50", "p95", "p99", "Max"],
                "Response times as the client outside saw them, in milliseconds: medians over the repeats.",
                responses,
            ))
            (by_arm(
                outcome,
                Some("VM/workload"),
                &["Throughput"],
                "What each workload did: bytes it read or received, else its operations. Medians over the repeats.",
                rates,
            ))
            (by_arm(
                outcome,
                Some("VM/workload"),
                &["Operations", "Mean, ms", "p50", "Max"],
                "How long the operations of the workloads that repeat took, in milliseconds: medians over the repeats.",
                times,
            ))
            (by_arm(
                outcome,
                Some("VM/workload"),
                &["Frames a second", "±", "Dropped", "Jitter, ms", "Estimate off by"],
                "Films and games: frames that were seen in each second, with the standard deviation of the seconds; \
                 those that were too late and not shown; the standard deviation of the time between two that were; \
                 and by how much the rate that frontdesk estimates is wrong. Medians over the repeats.",
                frames,
            ))
            (by_arm(
                outcome,
                None,
                &["CPU share", "Boosts", "PBHR", "Unanswered", "Decision, µs", "Daemon CPU", "Events lost"],
                "CPU share: CPU time over fair share, smallest and largest of all VMs. PBHR: fraction of boosts in \
                 which an I/O-bound task really woke. Unanswered: boosts for a request that ended before its answer was \
                 sent. Decision: from a packet in the kernel to the boost applied, p50 / \
                 p99 / max. Daemon CPU: CPU time of frontdesk itself over wall-clock time.",
                all,
            ))
            (by_arm(
                outcome,
                None,
                &["To I/O-bound, ms", "To CPU-bound, ms", "Missed changes", "Wasted boosts"],
                "How the belief follows a task that changes its character: the time until it is believed to be what it \
                 has become, the changes that were over before that, and the boosts while no task was I/O-bound. \
                 Medians.",
                follow,
            ))
        }
    }
}

/// What the desktops showed, each arm in a row.
fn screenshots(outcome: &Outcome) -> Markup {
    html! {
        @if !outcome.screenshots.is_empty() {
            section {
                h2 { "Desktops" }
                div.screenshots {
                    @for shot in &outcome.screenshots {
                        figure {
                            img src={ "data:image/png;base64," (shot.png) } alt={ "Desktop of " (shot.vm) };
                            figcaption { (shot.vm) ", " (shot.arm) }
                        }
                    }
                }
                p.note { "What each desktop showed at the end of the first repeat of an arm." }
            }
        }
    }
}

/// A table with rows of each arm, and a note below: a column of text if `text` names one, then numbers.
/// Nothing without rows.
fn by_arm(
    outcome: &Outcome,
    text: Option<&str>,
    numbers: &[&str],
    note: &str,
    rows: impl Fn(&ArmResult) -> Vec<Vec<String>>,
) -> Markup {
    let arms = outcome.arms.iter().enumerate();
    let rows: Vec<_> = arms
        .flat_map(|(index, (name, arm))| rows(arm).into_iter().map(move |row| (index, name, row)))
        .collect();
    html! {
        @if !rows.is_empty() {
            div.wide {
                table {
                    thead {
                        tr {
                            th { "Arm" }
                            @if let Some(text) = text { th { (text) } }
                            @for title in numbers { th.number { (title) } }
                        }
                    }
                    tbody {
                        @for (index, name, row) in rows {
                            tr {
                                td { (arm_name(index, name)) }
                                @for (column, cell) in row.into_iter().enumerate() {
                                    td.number[column > 0 || text.is_none()] { (cell) }
                                }
                            }
                        }
                    }
                }
            }
            p.note { (note) }
        }
    }
}

/// The name of an arm after a dot in its colour.
fn arm_name(index: usize, name: &str) -> Markup {
    let plotters::style::RGBColor(red, green, blue) = plot::colour(index);
    html! {
        span.arm {
            span.dot style={ "background:" (format!("#{red:02X}{green:02X}{blue:02X}")) } {}
            (name)
        }
    }
}

fn plots(outcome: &Outcome, timelines: &[Timeline]) -> Result<Markup, ReportError> {
    let repeats = || outcome.arms.values().flat_map(|arm| &arm.repeats);
    let sampled = repeats().any(|repeat| repeat.samples_ms.values().any(|samples| !samples.is_empty()));
    let shared = outcome.arms.values().any(|arm| !arm.cpu_share.is_empty());
    let delayed = timelines.iter().flat_map(|of| &of.packets).any(|packet| packet.task_delay.is_some());
    let mut figures = Vec::new();
    for quantity in Quantity::REPORT {
        let Some(plot) = comparison(outcome, quantity)? else { continue };
        let (title, what) = match quantity {
            Quantity::Response => ("Mean response by arm", "How long the client waits; less is better."),
            Quantity::Throughput => ("Throughput by arm", "What the workload gets done; more is better."),
            Quantity::OperationTime => {
                ("Time of an operation by arm", "How long a run of the workload takes; less is better.")
            }
            Quantity::Frames => (
                "Frames by arm",
                "How many frames of a film or a game were seen each second; more is better.",
            ),
            Quantity::Dropped => {
                ("Dropped frames by arm", "Frames that were too late and not shown; less is better.")
            }
            Quantity::Pbhr => (
                "PBHR by arm",
                "The fraction of boosts in which an I/O-bound task really woke; more is better.",
            ),
            Quantity::Share => ("CPU shares by arm", "CPU time of each VM over its fair share; 1 is fair."),
        };
        let explanation = format!(
            "{what} Each dot is the median over the repeats of an arm, and the line through it goes from the lowest to \
             the highest."
        );
        figures.push(section(title, &plot, &explanation, &html! {}));
    }
    if sampled {
        let explanation = "How large a part of the requests was answered within a time: further left is faster, and \
            where a line reaches 100 % is the longest wait. All repeats and VMs under load together.";
        figures.push(section("Response times", &plot::cdf(outcome)?, explanation, &html! {}));
    }
    if shared {
        let explanation = "CPU time of each VM over its fair share; 1 is fair. A boost may change when a VM runs, not \
            how much, so the bars should stay near 1 for every VM that wants its share. A VM that needs less than its \
            share falls below 1, and the others may use what it leaves. Bars beyond 25 % are cut; the table has the \
            numbers.";
        figures.push(section("CPU shares", &plot::shares(outcome)?, explanation, &share_table(outcome)));
    }
    if delayed {
        let explanation = "Each dot is a packet towards a VM: how long it took until the guest switched to another \
            task, which is how long the task that waits for the packet was kept waiting. Arms in which frontdesk at \
            least observed; all repeats together.";
        let plot = plot::delays(outcome, timelines)?;
        figures.push(section("From packet to guest task", &plot, explanation, &html! {}));
    }
    for arm in outcome.arms.keys() {
        let mut of_arm = timelines.iter().filter(|of| of.arm == *arm && !of.beliefs.is_empty());
        let Some(timeline) = of_arm.next() else { continue };
        let title = format!("Degree of belief, {arm}, repeat {}", timeline.repeat);
        let explanation = "What frontdesk thinks of each guest task. A task that runs briefly after an event gains \
            belief, one that runs long loses it; above the threshold (dashed line) it counts as I/O-bound and may be \
            boosted. Grey: tasks that were believed in less.";
        figures.push(section(&title, &plot::beliefs(timeline)?, explanation, &html! {}));
    }
    for of in &outcome.figures {
        figures.push(section(figure::title_of(of), &figure::figure(of)?, "", &html! {}));
    }
    Ok(html! {
        @for figure in figures {
            (figure)
        }
    })
}

/// What a study measured.
fn numbers(of: &NumberTable) -> Markup {
    html! {
        section {
            h2 { (of.title) }
            div.wide {
                table {
                    thead { tr { @for name in of.names.iter().chain(&of.columns) { th { (name) } } } }
                    tbody {
                        @for ((names, _), numbers) in of.rows.iter().zip(cells(of)) {
                            tr {
                                @for name in names { td { (name) } }
                                @for number in numbers { td { (number) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A section with a plot, and what follows it. The SVG comes from the plotting library, which escapes the
/// text in it.
fn section(title: &str, svg: &str, explanation: &str, after: &Markup) -> Markup {
    html! {
        section {
            h2 { (title) }
            figure {
                div.wide { div.plot role="img" aria-label=(title) { (PreEscaped(svg)) } }
                figcaption { (explanation) }
            }
            (after)
        }
    }
}

fn share_table(outcome: &Outcome) -> Markup {
    let vms = plot::vms(outcome);
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th { "VM" }
                        @for name in outcome.arms.keys() {
                            th.number { (name) }
                        }
                    }
                }
                tbody {
                    @for vm in vms {
                        tr {
                            td { (vm) }
                            @for arm in outcome.arms.values() {
                                td.number { (arm.cpu_share.get(vm).map_or_else(dash, |share| format!("{share:.3}"))) }
                            }
                        }
                    }
                }
            }
        }
    }
}
