//! The report as one HTML file.

use crate::ReportError;
use crate::number::{bar, dash, extent, extent_of, latency, number, optional, percent, spread};
use crate::plot;
use frontdesk_scenario::{ArmResult, Outcome, Timeline};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// The result as one HTML file that needs nothing else: the checks, what was measured of each arm, and the plots.
/// The plots over time need `timelines`, in any number and order; without them, they are left out.
///
/// # Errors
/// When a plot can not be drawn.
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
                }
                main {
                    (verdict(outcome))
                    (checks(outcome))
                    (arms(outcome))
                    (plots)
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
            @for (what, value) in facts {
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
                    "The value is the median over the repeats, the spread its lowest and highest. Ratios are between "
                    "arms of the same repeat."
                }
            }
        }
    }
}

fn arms(outcome: &Outcome) -> Markup {
    html! {
        section {
            h2 { "Arms" }
            div.wide {
                table {
                    thead {
                        tr {
                            th { "Arm" }
                            th { "VM under load" }
                            th.number { "Requests" }
                            th.number { "Mean, ms" }
                            th.number { "p50" }
                            th.number { "p95" }
                            th.number { "p99" }
                            th.number { "Max" }
                        }
                    }
                    tbody {
                        @for (index, (name, arm)) in outcome.arms.iter().enumerate() {
                            @for (vm, of) in &arm.response_ms {
                                tr {
                                    td { (arm_name(index, name)) }
                                    td { (vm) }
                                    td.number { (of.count) }
                                    @for value in [of.mean, of.p50, of.p95, of.p99, of.max] {
                                        td.number { (number(value)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            p.note { "Response times as the client outside saw them, in milliseconds: medians over the repeats." }
            div.wide {
                table {
                    thead {
                        tr {
                            th { "Arm" }
                            th.number { "CPU share" }
                            th.number { "Boosts" }
                            th.number { "PBHR" }
                            th.number { "Decision, µs" }
                            th.number { "Daemon CPU" }
                            th.number { "Events lost" }
                        }
                    }
                    tbody {
                        @for (index, (name, arm)) in outcome.arms.iter().enumerate() {
                            (arm_row(index, name, arm))
                        }
                    }
                }
            }
            p.note {
                "CPU share: CPU time over fair share, smallest and largest of all VMs. PBHR: fraction of boosts in "
                "which an I/O-bound task really ran. Decision: from a packet in the kernel to the boost applied, "
                "p50 / p99 / max. Daemon CPU: CPU time of frontdesk itself over wall-clock time."
            }
        }
    }
}

fn arm_row(index: usize, name: &str, arm: &ArmResult) -> Markup {
    let lost: u64 = arm.repeats.iter().map(|repeat| repeat.lost_events).sum();
    html! {
        tr {
            td { (arm_name(index, name)) }
            td.number { (extent_of(arm.cpu_share.values().copied()).map_or_else(dash, extent)) }
            td.number { (arm.boosts) }
            td.number { (optional(arm.pbhr)) }
            td.number { (latency(arm.decision_us)) }
            td.number { (arm.daemon_cpu.map_or_else(dash, percent)) }
            td.number { (lost) }
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
    if sampled {
        let explanation = "How large a part of the requests was answered within a time: further left is faster, and \
            where a line reaches 100 % is the longest wait. All repeats and VMs under load together.";
        figures.push(figure("Response times", &plot::cdf(outcome)?, explanation, &html! {}));
    }
    if shared {
        let explanation = "CPU time of each VM over its fair share; 1 is fair. A boost may change when a VM runs, not \
            how much, so the bars should stay near 1 for every VM that wants its share. A VM that needs less than its \
            share falls below 1, and the others may use what it leaves. Bars beyond 25 % are cut; the table has the \
            numbers.";
        figures.push(figure("CPU shares", &plot::shares(outcome)?, explanation, &share_table(outcome)));
    }
    if delayed {
        let explanation = "Each dot is a packet towards a VM: how long it took until the guest switched to another \
            task, which is how long the task that waits for the packet was kept waiting. Arms in which frontdesk at \
            least observed; all repeats together.";
        let plot = plot::delays(outcome, timelines)?;
        figures.push(figure("From packet to guest task", &plot, explanation, &html! {}));
    }
    for arm in outcome.arms.keys() {
        let mut of_arm = timelines.iter().filter(|of| of.arm == *arm && !of.beliefs.is_empty());
        let Some(timeline) = of_arm.next() else { continue };
        let title = format!("Degree of belief, {arm}, repeat {}", timeline.repeat);
        let explanation = "What frontdesk thinks of each guest task. A task that runs briefly after an event gains \
            belief, one that runs long loses it; above the threshold (dashed line) it counts as I/O-bound and may be \
            boosted. Grey: tasks that were believed in less.";
        figures.push(figure(&title, &plot::beliefs(timeline)?, explanation, &html! {}));
    }
    Ok(html! {
        @for figure in figures {
            (figure)
        }
    })
}

/// A section with a plot, and what follows it. The SVG comes from the plotting library, which escapes the text in it.
fn figure(title: &str, svg: &str, explanation: &str, after: &Markup) -> Markup {
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
