//! The plots, as SVG.
//!
//! They are drawn at twice the size at which they are shown, because the SVG backend knows whole pixels only.
//! The page replaces the ink colours below by its own, which follow the reader's light or dark theme.

use crate::ReportError;
use crate::number::{extent_of, trimmed};
use frontdesk_scenario::{Outcome, Timeline, float};
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::combinators::{BindKeyPoints, IntoLogRange};
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Text, axes, and grid. The style sheet of the page knows these values.
pub(crate) const INK: RGBColor = RGBColor(0x24, 0x29, 0x2F);
pub(crate) const AXIS: RGBColor = RGBColor(0x8C, 0x95, 0x9F);
const GRID: RGBColor = RGBColor(0xE4, 0xE8, 0xEC);

/// Colours that people with any kind of colour vision tell apart (Okabe and Ito); the last three, which come
/// with many arms only, are harder to.
pub(crate) const PALETTE: [RGBColor; 10] = [
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x66, 0x66, 0x66),
    RGBColor(0x7B, 0x5C, 0xB8),
    RGBColor(0x8A, 0x9A, 0x1A),
    RGBColor(0x8A, 0x5A, 0x3C),
];

pub(crate) const WIDTH: i32 = 1600;
const HEIGHT: i32 = 760;
/// Where the plotting area begins, behind the labels of the y axis.
pub(crate) const LEFT: i32 = 130;
/// What is left free of that, so that the label is not cut.
pub(crate) const MARGIN: i32 = 14;
/// What is left free on the other side.
pub(crate) const RIGHT: i32 = 40;
/// Height of a row of the legend.
const ROW: i32 = 44;
pub(crate) const FONT: i32 = 26;

/// The colour of the arm or series with this index.
pub(crate) fn colour(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

/// The response-time distribution of every arm as a standalone SVG file with a white background.
///
/// # Errors
/// When it cannot be drawn.
pub fn svg_cdf(outcome: &Outcome) -> Result<String, ReportError> {
    draw("response times", HEIGHT, |area| {
        area.fill(&WHITE)?;
        cdf_in(area, outcome)
    })
}

/// The response-time distribution of every arm: the samples of all repeats and VMs under load together.
pub(crate) fn cdf(outcome: &Outcome) -> Result<String, ReportError> {
    draw("response times", HEIGHT, |area| cdf_in(area, outcome))
}

fn cdf_in(area: &Area<'_>, outcome: &Outcome) -> Drawn {
    let arms = outcome.arms.iter().enumerate().map(|(index, (name, arm))| {
        let samples = arm.repeats.iter().flat_map(|repeat| repeat.samples_ms.values().flatten());
        let mut samples: Vec<f64> = samples.copied().filter(|sample| *sample > 0.0).collect();
        samples.sort_by(f64::total_cmp);
        (name.as_str(), colour(index), samples)
    });
    let arms: Vec<_> = arms.filter(|(_, _, samples)| !samples.is_empty()).collect();
    let area = legend(area, arms.iter().map(|(name, colour, _)| (*name, *colour)))?;
    let (range, ticks) = log_axis(arms.iter().flat_map(|(_, _, samples)| samples.iter().copied()));
    let right = *range.end();
    let x = (*range.start()..right).log_scale().with_key_points(ticks);
    let mut chart = chart(&area).build_cartesian_2d(x, 0.0..100.0)?;
    mesh(&mut chart, "response time, ms (logarithmic)", "requests answered within it, %")?;
    for (_, colour, samples) in &arms {
        chart.draw_series(LineSeries::new(steps(samples, right), colour.stroke_width(5)))?;
    }
    Ok(())
}

/// The steps of a cumulative distribution in percent, drawn out to `right`; at most about a thousand.
fn steps(sorted: &[f64], right: f64) -> Vec<(f64, f64)> {
    let total = count(sorted.len());
    let stride = (sorted.len() / 1000).max(1);
    let mut points = Vec::new();
    let mut below = 0.0;
    for (index, sample) in sorted.iter().enumerate() {
        if index % stride != 0 && index + 1 != sorted.len() {
            continue;
        }
        points.push((*sample, below));
        below = 100.0 * count(index + 1) / total;
        points.push((*sample, below));
    }
    points.push((right, below));
    points
}

/// Time from each packet to the guest's switch to another task, over the time in the repeat; all repeats of
/// an arm.
pub(crate) fn delays(outcome: &Outcome, timelines: &[Timeline]) -> Result<String, ReportError> {
    let arms = outcome.arms.keys().enumerate().map(|(index, name)| {
        let packets = timelines.iter().filter(|timeline| timeline.arm == *name).flat_map(|of| &of.packets);
        let points = packets.filter_map(|packet| {
            let delay = packet.task_delay.filter(|delay| *delay > 0)?;
            Some((seconds(packet.at), seconds(delay) * 1000.0))
        });
        (name.as_str(), colour(index), points.collect::<Vec<_>>())
    });
    let arms: Vec<_> = arms.filter(|(_, _, points)| !points.is_empty()).collect();
    draw("packet to guest task", HEIGHT, |area| {
        let area = legend(area, arms.iter().map(|(name, colour, _)| (*name, *colour)))?;
        let points = || arms.iter().flat_map(|(_, _, points)| points.iter().copied());
        let (range, ticks) = log_axis(points().map(|(_, delay)| delay));
        let x = 0.0..last(points());
        let y = (*range.start()..*range.end()).log_scale().with_key_points(ticks);
        let mut chart = chart(&area).build_cartesian_2d(x, y)?;
        mesh(&mut chart, "time in the repeat, s", "packet to guest task, ms (log.)")?;
        for (_, colour, points) in &arms {
            let style = colour.mix(0.55).filled();
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 5, style)))?;
        }
        Ok(())
    })
}

/// How far from 1 the plot of the CPU shares reaches at most; bars beyond are cut.
const SHARE_REACH: f64 = 0.25;

/// The VMs whose CPU time was measured, in the order of the arms that have them.
pub(crate) fn vms(outcome: &Outcome) -> Vec<&str> {
    unique(outcome.arms.values().flat_map(|arm| arm.cpu_share.keys()))
}

/// Each name once, in the order in which they first come.
pub(crate) fn unique<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut unique: Vec<&str> = Vec::new();
    for name in names {
        if !unique.contains(&name.as_str()) {
            unique.push(name);
        }
    }
    unique
}

/// CPU time of every VM over its fair share, as bars up and down from 1; of each VM one for every arm.
pub(crate) fn shares(outcome: &Outcome) -> Result<String, ReportError> {
    let vms = vms(outcome);
    let off = outcome.arms.values().flat_map(|arm| arm.cpu_share.values()).map(|share| (share - 1.0).abs());
    let reach = extent_of(off).map_or(0.0, |extent| extent.end() * 1.1).clamp(0.05, SHARE_REACH);
    draw("CPU shares", HEIGHT, |area| {
        let names = outcome.arms.keys().enumerate();
        let area = legend(area, names.map(|(index, name)| (name.as_str(), colour(index))))?;
        let y = (1.0 - reach)..(1.0 + reach);
        let mut chart =
            chart(&area).x_label_area_size(60).build_cartesian_2d(0.0..count(vms.len().max(1)), y)?;
        mesh_of_names(&mut chart, "CPU time over fair share", 7)?;
        let width = 0.8 / count(outcome.arms.len().max(1));
        for (number, arm) in outcome.arms.values().enumerate() {
            let bars = vms.iter().enumerate().filter_map(|(index, vm)| {
                let share = arm.cpu_share.get(*vm)?.clamp(1.0 - reach, 1.0 + reach);
                let left = count(index) + 0.1 + width * count(number);
                Some(Rectangle::new([(left, 1.0), (left + width * 0.9, share)], colour(number).filled()))
            });
            chart.draw_series(bars)?;
        }
        let end = count(vms.len().max(1));
        chart.draw_series(LineSeries::new([(0.0, 1.0), (end, 1.0)], INK.stroke_width(2)))?;
        // Names below each other would run into each other: with many VMs only some are written.
        let stride = vms.len().div_ceil(12).max(1);
        let named = vms.iter().enumerate().step_by(stride);
        let style = text_style().pos(Pos::new(HPos::Center, VPos::Top));
        chart.draw_series(named.map(|(index, vm)| {
            let place = EmptyElement::at((count(index) + 0.5, 1.0 - reach));
            place + Text::new((*vm).to_owned(), (0, 14), style.clone())
        }))?;
        Ok(())
    })
}

/// Tasks drawn in a colour of their own; the others are grey.
const NAMED_TASKS: usize = 6;

/// Degree of belief of every guest task over time, and the threshold.
pub(crate) fn beliefs(timeline: &Timeline) -> Result<String, ReportError> {
    let mut tasks: BTreeMap<(usize, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for point in &timeline.beliefs {
        let points = tasks.entry((point.vm, &point.task)).or_default();
        points.push((seconds(point.at), f64::from(point.belief)));
    }
    let mut tasks: Vec<_> = tasks.into_iter().collect();
    for (_, points) in &mut tasks {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    // Those that were believed in most come first.
    let peak =
        |points: &[(f64, f64)]| extent_of(points.iter().map(|point| point.1)).map_or(0.0, |of| *of.end());
    tasks.sort_by(|(_, one), (_, other)| peak(other).total_cmp(&peak(one)));
    let (named, others) = tasks.split_at(tasks.len().min(NAMED_TASKS));
    let threshold = f64::from(timeline.belief_threshold);
    let points = || tasks.iter().flat_map(|(_, points)| points.iter().copied());
    let y = extent_of(points().map(|point| point.1).chain([0.0, threshold])).unwrap_or(0.0..=1.0);
    let margin = (y.end() - y.start()).max(1.0) * 0.05;
    let end = last(points());
    draw("degree of belief", HEIGHT, |area| {
        let label = |vm: usize, task: &str| match timeline.vms.get(vm) {
            Some(vm) => format!("{vm} {task}"),
            None => task.to_owned(),
        };
        let entries = named.iter().enumerate();
        let entries = entries.map(|(index, ((vm, task), _))| (label(*vm, task), colour(index)));
        let rest = (!others.is_empty()).then(|| (format!("{} others", others.len()), AXIS));
        let line = [(format!("threshold {threshold}"), INK)];
        let area = legend(area, entries.chain(rest).chain(line))?;
        let mut chart =
            chart(&area).build_cartesian_2d(0.0..end, (y.start() - margin)..(y.end() + margin))?;
        mesh(&mut chart, "time in the repeat, s", "degree of belief")?;
        for (_, points) in others {
            chart.draw_series(LineSeries::new(thinned(points), AXIS.stroke_width(2)))?;
        }
        for (index, (_, points)) in named.iter().enumerate() {
            chart.draw_series(LineSeries::new(thinned(points), colour(index).stroke_width(4)))?;
        }
        let dashed = DashedLineSeries::new([(0.0, threshold), (end, threshold)], 14, 10, INK.stroke_width(3));
        chart.draw_series(dashed)?;
        Ok(())
    })
}

/// Where a time axis ends: at the last of some points, but not at its own start.
fn last(points: impl Iterator<Item = (f64, f64)>) -> f64 {
    extent_of(points.map(|(at, _)| at)).map_or(1.0, |extent| extent.end().max(0.001))
}

/// At most about a thousand points of a line, the last among them.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let stride = points.len().div_ceil(1000).max(1);
    points.iter().step_by(stride).chain(points.last()).copied().collect()
}

/// Draws a plot into an SVG element.
pub(crate) fn draw(
    plot: &'static str,
    height: i32,
    content: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<String, ReportError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH.unsigned_abs(), height.unsigned_abs()))
            .into_drawing_area();
        let drawn = content(&area).and_then(|()| area.present());
        drawn.map_err(|error| ReportError { plot, source: error.to_string().into() })?;
    }
    Ok(svg)
}

pub(crate) fn chart<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart
        .margin_left(MARGIN)
        .margin_right(RIGHT)
        .margin_top(10)
        .x_label_area_size(90)
        .y_label_area_size(LEFT - MARGIN);
    chart
}

pub(crate) fn text_style() -> TextStyle<'static> {
    text_of(FONT)
}

/// The style of text of a size.
pub(crate) fn text_of(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

pub(crate) fn mesh<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    x: &str,
    y: &str,
) -> Drawn
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_labels(10)
        .y_labels(7)
        .x_label_formatter(&|value| trimmed(*value))
        .y_label_formatter(&|value| trimmed(*value))
        .label_style(text_style())
        .axis_desc_style(text_style())
        .axis_style(AXIS)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .draw()
}

/// A mesh whose x axis holds names, which the caller draws.
pub(crate) fn mesh_of_names(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
    y: &str,
    ticks: usize,
) -> Drawn {
    chart
        .configure_mesh()
        .y_desc(y)
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(ticks)
        .y_label_formatter(&|value| trimmed(*value))
        .label_style(text_style())
        .axis_desc_style(text_style())
        .axis_style(AXIS)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .draw()
}

/// Draws coloured names in rows at the top; the result is what is left of the area.
pub(crate) fn legend<'a, N: AsRef<str>>(
    area: &Area<'a>,
    entries: impl IntoIterator<Item = (N, RGBColor)>,
) -> Result<Area<'a>, DrawingAreaErrorKind<std::io::Error>> {
    let (mut left, mut middle) = (LEFT, ROW / 2);
    for (name, colour) in entries {
        let name = name.as_ref().to_owned();
        // A letter of this size is about 15 pixels wide in the fonts of browsers.
        let width = 46 + 15 * i32::try_from(name.chars().count()).unwrap_or(0);
        if left > LEFT && left + width > WIDTH {
            (left, middle) = (LEFT, middle + ROW);
        }
        area.draw(&Rectangle::new([(left, middle - 9), (left + 34, middle + 9)], colour.filled()))?;
        let style = text_style().pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(name, (left + 46, middle), style))?;
        left += width + 40;
    }
    Ok(area.split_vertically(middle + ROW / 2 + 8).1)
}

/// A logarithmic axis around some values: its range, at least an octave wide, and ticks at 1, 2 and 5.
pub(crate) fn log_axis(values: impl Iterator<Item = f64>) -> (RangeInclusive<f64>, Vec<f64>) {
    let extent = extent_of(values).unwrap_or(1.0..=10.0);
    let decades = (-6..=9).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)));
    let all: Vec<_> = decades.collect();
    let low = all.iter().rev().copied().find(|tick| tick <= extent.start()).unwrap_or(1e-6);
    let high = all.iter().copied().find(|tick| tick > extent.end()).unwrap_or(5e9);
    let inside: Vec<_> = all.into_iter().filter(|tick| (low..=high).contains(tick)).collect();
    // Beyond three decades the 2s and 5s crowd each other.
    let decades_only = high / low > 2e3;
    let is_decade = |tick: f64| (tick.log10() - tick.log10().round()).abs() < 1e-6;
    let ticks = inside.into_iter().filter(|tick| !decades_only || is_decade(*tick)).collect();
    (low..=high, ticks)
}

/// Seconds of some nanoseconds.
fn seconds(nanos: u64) -> f64 {
    float(nanos) / 1e9
}

/// A count as a coordinate; counts of things in memory are far below what a double holds exactly.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn count(count: usize) -> f64 {
    count as f64
}
