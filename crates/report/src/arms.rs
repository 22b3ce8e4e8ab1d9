//! Charts that compare the arms: for each number a panel, with the arms side by side.

use crate::ReportError;
use crate::number::{extent_of, number, scaled};
use crate::plot::{
    Area, Drawn, FONT, LEFT, MARGIN, RIGHT, WIDTH, colour, count, draw, mesh_of_names, text_of, text_style,
    unique,
};
use frontdesk_scenario::{ArmResult, Outcome, Repeat};
use plotters::chart::ChartBuilder;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A kind of number by which [`svg_arms`](crate::svg_arms) compares the arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Mean response time, for each VM under load.
    Response,
    /// Throughput, for each workload that has one; without those called "hog".
    Throughput,
    /// Mean time of an operation, for each workload that repeats.
    OperationTime,
    /// Frames a second, for each workload that shows some.
    Frames,
    /// Fraction of frames that were not shown, for each workload of which any was not.
    Dropped,
    /// Fraction of boosts in which an I/O-bound task really woke.
    Pbhr,
    /// CPU share over the fair share, for each VM that wants it.
    Share,
}

impl Quantity {
    /// Those of a report, which shows shares elsewhere, in the order in which they are read best.
    pub const REPORT: [Quantity; 6] = [
        Quantity::Response,
        Quantity::Throughput,
        Quantity::OperationTime,
        Quantity::Frames,
        Quantity::Dropped,
        Quantity::Pbhr,
    ];
}

/// A number in every arm that has it.
struct Panel {
    title: String,
    marks: Vec<ArmMark>,
}

/// A number in one arm: the median over the repeats, the lowest, and the highest.
struct ArmMark {
    /// Index of the arm.
    arm: usize,
    median: f64,
    low: f64,
    high: f64,
}

/// What the arms are compared by, as a standalone SVG file with a white background: a panel for each VM or
/// workload that has such a number in at least two arms, with the median over the repeats, the lowest and the
/// highest.
///
/// # Errors
/// When it cannot be drawn.
pub fn svg_arms(outcome: &Outcome, quantities: &[Quantity]) -> Result<String, ReportError> {
    let panels: Vec<_> = quantities.iter().flat_map(|quantity| panels(outcome, *quantity)).collect();
    chart(outcome, &panels, Some(WHITE))
}

/// The panels of one quantity; `None` if there are none.
pub(crate) fn comparison(outcome: &Outcome, quantity: Quantity) -> Result<Option<String>, ReportError> {
    let panels = panels(outcome, quantity);
    if panels.is_empty() { Ok(None) } else { chart(outcome, &panels, None).map(Some) }
}

/// Whether a workload, as VM/WORKLOAD, only fills the CPU.
pub(crate) fn is_hog(key: &str) -> bool {
    let name = key.rsplit('/').next().unwrap_or(key);
    name == "hog" || name.strip_prefix("hog-").is_some_and(|number| number.parse::<u16>().is_ok())
}

fn panels(outcome: &Outcome, quantity: Quantity) -> Vec<Panel> {
    let arms = || outcome.arms.values();
    match quantity {
        Quantity::Response => {
            let keys = unique(arms().flat_map(|arm| arm.response_ms.keys()));
            let panels = keys.into_iter().filter_map(|key| {
                let title = format!("Mean response of {key}, ms");
                let of_repeat = |repeat: &Repeat| Some(repeat.response_ms.get(key)?.mean);
                panel(outcome, title, |arm| Some(arm.response_ms.get(key)?.mean), of_repeat)
            });
            panels.collect()
        }
        Quantity::Throughput => {
            let keys = unique(arms().flat_map(|arm| arm.rates.keys()));
            let panels = keys.into_iter().filter(|key| !is_hog(key)).filter_map(|key| {
                let (_, unit) = scaled(arms().find_map(|arm| arm.rates.get(key)).copied()?);
                let title = format!("Throughput of {key}, {unit}");
                let of_repeat = |repeat: &Repeat| Some(scaled(*repeat.rates.get(key)?).0);
                panel(outcome, title, |arm| Some(scaled(*arm.rates.get(key)?).0), of_repeat)
            });
            panels.collect()
        }
        Quantity::OperationTime => {
            let keys = unique(arms().flat_map(|arm| arm.times_ms.keys()));
            let panels = keys.into_iter().filter_map(|key| {
                let title = format!("Time of an operation of {key}, ms");
                let of_repeat = |repeat: &Repeat| {
                    let times = repeat.times_ms.get(key)?;
                    Some(times.iter().sum::<f64>() / count(times.len()))
                };
                panel(outcome, title, |arm| Some(arm.times_ms.get(key)?.mean), of_repeat)
            });
            panels.collect()
        }
        Quantity::Frames => {
            let keys = unique(arms().flat_map(|arm| arm.frames.keys()));
            let panels = keys.into_iter().filter_map(|key| {
                let title = format!("Frames a second of {key}");
                let of_repeat = |repeat: &Repeat| Some(repeat.frames.get(key)?.per_s);
                panel(outcome, title, |arm| Some(arm.frames.get(key)?.per_s), of_repeat)
            });
            panels.collect()
        }
        Quantity::Dropped => {
            let films = arms().flat_map(|arm| &arm.frames).filter(|(_, of)| of.dropped > 0.0);
            let keys = unique(films.map(|(key, _)| key));
            let panels = keys.into_iter().filter_map(|key| {
                let title = format!("Dropped frames of {key}, %");
                let of_repeat = |repeat: &Repeat| Some(repeat.frames.get(key)?.dropped * 100.0);
                panel(outcome, title, |arm| Some(arm.frames.get(key)?.dropped * 100.0), of_repeat)
            });
            panels.collect()
        }
        Quantity::Pbhr => {
            let title = "Fraction of boosts that hit (PBHR)".to_owned();
            #[allow(clippy::cast_precision_loss)]
            let of_repeat = |repeat: &Repeat| Some(repeat.boost_hits as f64 / repeat.boosts as f64);
            panel(outcome, title, |arm| arm.pbhr, of_repeat).into_iter().collect()
        }
        Quantity::Share => {
            let keys = unique(arms().flat_map(|arm| arm.cpu_share.keys()));
            let panels = keys.into_iter().filter_map(|key| {
                let title = format!("CPU share of {key}, of its fair share");
                let of_repeat = |repeat: &Repeat| repeat.cpu_share.get(key).copied();
                panel(outcome, title, |arm| arm.cpu_share.get(key).copied(), of_repeat)
            });
            panels.collect()
        }
    }
}

/// The panel of a number, if at least two arms have it: there is nothing to compare otherwise.
fn panel(
    outcome: &Outcome,
    title: String,
    of_arm: impl Fn(&ArmResult) -> Option<f64>,
    of_repeat: impl Fn(&Repeat) -> Option<f64>,
) -> Option<Panel> {
    // What an axis from 0 can show.
    let shown = |value: &f64| (0.0..f64::MAX / 2.0).contains(value);
    let marks = outcome.arms.values().enumerate().filter_map(|(index, arm)| {
        let median = of_arm(arm).filter(shown)?;
        let spread = extent_of(arm.repeats.iter().filter_map(&of_repeat).filter(shown).chain([median]))?;
        Some(ArmMark { arm: index, median, low: *spread.start(), high: *spread.end() })
    });
    let marks: Vec<_> = marks.collect();
    (marks.len() >= 2).then_some(Panel { title, marks })
}

/// Height of a panel's title and of what the marks are drawn in.
const TITLE: i32 = 52;
const PLOT: i32 = 280;
/// What lies between a panel and the next below.
const GAP: i32 = 36;
/// Height of a line of an arm's name.
const LINE: i32 = 28;
/// Size of the names and numbers, and how wide a letter of it is at most in the fonts of browsers.
const SMALL: i32 = 22;
const LETTER: i32 = 12;
/// A number above a mark has at most seven letters.
const NUMBER: i32 = 7 * LETTER;

/// How panels and the names of arms are placed so that nothing overlaps; alike in all panels.
struct Layout {
    columns: usize,
    /// Letters in a line of a name; `None`: names are written from bottom to top.
    letters: Option<usize>,
    /// Height of the names.
    names_height: i32,
    /// Whether there is room for the numbers.
    numbers: bool,
}

impl Layout {
    fn of(panels: &[Panel], outcome: &Outcome) -> Layout {
        let marks = || panels.iter().flat_map(|panel| &panel.marks);
        let names: Vec<&str> = unique(marks().filter_map(|mark| Some(outcome.arms.get_index(mark.arm)?.0)));
        let most = panels.iter().map(|panel| panel.marks.len()).max().unwrap_or(1);
        let slot = |columns: i32| (WIDTH / columns - LEFT - RIGHT) / pixels(most);
        let letters = |slot: i32| usize::try_from((slot - 8) / LETTER).unwrap_or(0);
        // A letter of a title is at most 15 pixels wide.
        let short = |panel: &Panel| 15 * pixels(panel.title.chars().count()) <= WIDTH / 2 - LEFT;
        let one_line = || names.iter().all(|name| name.chars().count() <= letters(slot(2)));
        let halves = panels.len() > 1 && panels.iter().all(short) && slot(2) >= NUMBER && one_line();
        let (columns, slot) = if halves { (2, slot(2)) } else { (1, slot(1)) };
        let lines =
            names.iter().map(|name| Some(wrapped(name, letters(slot))?.len())).collect::<Option<Vec<_>>>();
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let height = match &lines {
            Some(lines) => LINE * pixels(lines.iter().copied().max().unwrap_or(0)),
            None => LETTER * pixels(longest),
        };
        Layout {
            columns,
            letters: lines.map(|_| letters(slot)),
            names_height: height + 16,
            numbers: slot >= NUMBER,
        }
    }
}

/// A count of things in a picture.
fn pixels(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A name in lines of at most `width` letters, broken after hyphens; `None` if a part is wider.
fn wrapped(name: &str, width: usize) -> Option<Vec<String>> {
    let mut lines = vec![String::new()];
    for part in name.split_inclusive('-') {
        let length = part.chars().count();
        let last = lines.last_mut()?;
        if length > width {
            return None;
        } else if last.chars().count() + length <= width {
            last.push_str(part);
        } else {
            lines.push(part.to_owned());
        }
    }
    Some(lines)
}

fn chart(outcome: &Outcome, panels: &[Panel], ground: Option<RGBColor>) -> Result<String, ReportError> {
    let layout = Layout::of(panels, outcome);
    let rows = panels.len().div_ceil(layout.columns).max(1);
    let height = pixels(rows) * (TITLE + PLOT + layout.names_height + GAP);
    draw("arms", height, |area| {
        if let Some(ground) = ground {
            area.fill(&ground)?;
        }
        if panels.is_empty() {
            area.draw(&Text::new("No two arms have a number in common.", (LEFT, TITLE), text_style()))?;
        }
        let places = area.split_evenly((rows, layout.columns));
        for (panel, place) in panels.iter().zip(&places) {
            let place = place.margin(0, GAP, 0, 0);
            place.draw(&Text::new(panel.title.clone(), (LEFT, TITLE / 2 - FONT / 2), text_style()))?;
            marks_in(&place.split_vertically(TITLE).1, &panel.marks, outcome, &layout)?;
        }
        Ok(())
    })
}

fn marks_in(area: &Area<'_>, marks: &[ArmMark], outcome: &Outcome, layout: &Layout) -> Drawn {
    // Above the highest mark there is room for its number.
    let highest = extent_of(marks.iter().map(|mark| mark.high));
    let top = highest.map(|of| of.end() * 1.2).filter(|top| *top > 0.0).unwrap_or(1.0);
    let mut chart = ChartBuilder::on(area)
        .margin_left(MARGIN)
        .margin_right(RIGHT)
        .x_label_area_size(layout.names_height)
        .y_label_area_size(LEFT - MARGIN)
        .build_cartesian_2d(0.0..count(marks.len()), 0.0..top)?;
    mesh_of_names(&mut chart, "", 5)?;
    let text = |text: &str, below, style: TextStyle<'static>| Text::new(text.to_owned(), (0, below), style);
    for (slot, mark) in marks.iter().enumerate() {
        let ArmMark { arm, median, low, high } = *mark;
        let colour = colour(arm);
        let left = count(slot);
        let middle = left + 0.5;
        let bar = [(left + 0.25, 0.0), (left + 0.75, median)];
        chart.draw_series([Rectangle::new(bar, colour.mix(0.2).filled())])?;
        chart.draw_series([PathElement::new([(middle, low), (middle, high)], colour.stroke_width(4))])?;
        chart.draw_series([Circle::new((middle, median), 8, colour.filled())])?;
        if layout.numbers {
            let style = text_of(SMALL).pos(Pos::new(HPos::Center, VPos::Bottom));
            chart.draw_series([EmptyElement::at((middle, high)) + text(&number(median), -14, style)])?;
        }
        let name = outcome.arms.get_index(arm).map_or("", |(name, _)| name.as_str());
        let foot = || EmptyElement::at((middle, 0.0));
        if let Some(lines) = layout.letters.and_then(|letters| wrapped(name, letters)) {
            let style = text_of(SMALL).pos(Pos::new(HPos::Center, VPos::Top));
            for (line, below) in lines.iter().zip((0..).map(|line| 12 + LINE * line)) {
                chart.draw_series([foot() + text(line, below, style.clone())])?;
            }
        } else {
            let style = text_of(SMALL).transform(FontTransform::Rotate270);
            let style = style.pos(Pos::new(HPos::Right, VPos::Center));
            chart.draw_series([foot() + text(name, 12, style)])?;
        }
    }
    Ok(())
}
