//! The figures of a study.

use crate::ReportError;
use crate::number::{extent_of, number};
use crate::plot::{
    AXIS, Area, Drawn, FONT, INK, WIDTH, chart, colour, count, draw, legend, log_axis, mesh, mesh_of_names,
    text_of, text_style,
};
use frontdesk_scenario::{Figure, Mark, Outcome, Series};
use plotters::coord::combinators::{BindKeyPoints, IntoLogRange};
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const HEIGHT: i32 = 700;
/// Height of the title of a figure.
const TITLE: i32 = 50;
/// Up to these percentages, and beyond, a cell of a map is of each of these colours: light to dark.
const STEPS: [(f64, RGBColor); 6] = [
    (0.0, RGBColor(0xE8, 0xF4, 0xEC)),
    (0.1, RGBColor(0xC2, 0xE3, 0xCE)),
    (1.0, RGBColor(0xFB, 0xE3, 0xA6)),
    (10.0, RGBColor(0xF4, 0xB1, 0x6A)),
    (50.0, RGBColor(0xE0, 0x7A, 0x4F)),
    (f64::INFINITY, RGBColor(0xB8, 0x4A, 0x3A)),
];

/// The figures of a study below each other, as a standalone SVG file with a white background.
///
/// # Errors
/// When they cannot be drawn.
pub fn svg_figures(outcome: &Outcome) -> Result<String, ReportError> {
    let each = HEIGHT + TITLE;
    let all = i32::try_from(outcome.figures.len()).unwrap_or(i32::MAX).saturating_mul(each).max(each);
    draw("figures", all, |area| {
        area.fill(&WHITE)?;
        let mut rest = area.clone();
        for figure in &outcome.figures {
            let (top, below) = rest.split_vertically(each);
            let (title, plot) = top.split_vertically(TITLE);
            let style = text_style().pos(Pos::new(HPos::Center, VPos::Center));
            title.draw(&Text::new(title_of(figure).to_owned(), (WIDTH / 2, TITLE / 2), style))?;
            figure_in(&plot, figure)?;
            rest = below;
        }
        Ok(())
    })
}

/// One figure, without its title.
pub(crate) fn figure(figure: &Figure) -> Result<String, ReportError> {
    draw("figure", HEIGHT, |area| figure_in(area, figure))
}

pub(crate) fn title_of(figure: &Figure) -> &str {
    match figure {
        Figure::Chart { title, .. } | Figure::Map { title, .. } => title,
    }
}

fn figure_in(area: &Area<'_>, figure: &Figure) -> Drawn {
    match figure {
        Figure::Chart { x, log_x, y, mark, series, .. } => {
            let entries = series.iter().enumerate();
            let area = &legend(area, entries.map(|(index, of)| (of.name.as_str(), colour(index))))?;
            let points = || series.iter().flat_map(|of| of.points.iter().copied());
            let high = extent_of(points().map(|point| point.1)).map_or(1.0, |of| of.end().max(1e-6)) * 1.05;
            let mut builder = chart(area);
            if *log_x {
                let (range, ticks) = log_axis(points().map(|point| point.0).filter(|at| *at > 0.0));
                let range = (*range.start()..*range.end()).log_scale().with_key_points(ticks);
                let mut chart = builder.build_cartesian_2d(range, 0.0..high)?;
                mesh(&mut chart, &format!("{x} (logarithmic)"), y)?;
                marks(&mut chart, *mark, series, high)
            } else {
                let range = extent_of(points().map(|point| point.0)).unwrap_or(0.0..=1.0);
                let margin = ((range.end() - range.start()) * 0.03).max(1e-3);
                let range = (range.start() - margin)..(range.end() + margin);
                let mut chart = builder.build_cartesian_2d(range, 0.0..high)?;
                mesh(&mut chart, x, y)?;
                marks(&mut chart, *mark, series, high)
            }
        }
        Figure::Map { x, y, columns, rows, cells, .. } => map_in(area, [x, y], [columns, rows], cells),
    }
}

fn marks<X>(
    chart: &mut plotters::chart::ChartContext<
        '_,
        SVGBackend<'_>,
        Cartesian2d<X, plotters::coord::types::RangedCoordf64>,
    >,
    mark: Mark,
    series: &[Series],
    high: f64,
) -> Drawn
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let several = count(series.len().max(1));
    for (index, of) in series.iter().enumerate() {
        let colour = colour(index);
        match mark {
            Mark::Line => {
                chart.draw_series(LineSeries::new(of.points.iter().copied(), colour.stroke_width(5)))?;
            }
            Mark::Dot => {
                let style = colour.mix(0.7).filled();
                chart.draw_series(of.points.iter().map(|point| Circle::new(*point, 8, style)))?;
            }
            Mark::Bar => {
                // The bars of several series stand beside each other.
                let step = of.points.windows(2).map(|pair| pair[1].0 - pair[0].0).reduce(f64::min);
                let width = step.unwrap_or(1.0) * 0.9 / several;
                let bars = of.points.iter().filter(|(_, top)| *top > 0.0).map(|(at, top)| {
                    let left = at + (count(index) - several / 2.0) * width;
                    Rectangle::new([(left, 0.0), (left + width, top.min(high))], colour.filled())
                });
                chart.draw_series(bars)?;
            }
        }
    }
    Ok(())
}

fn map_in(
    area: &Area<'_>,
    [x, y]: [&str; 2],
    [columns, rows]: [&[String]; 2],
    cells: &[Vec<Option<f64>>],
) -> Drawn {
    let steps = STEPS.windows(2).map(|pair| format!("≤ {} %", number(pair[0].0)));
    let names = steps.chain([format!("> {} %", number(STEPS[STEPS.len() - 2].0))]);
    let area = &legend(area, names.zip(STEPS.iter().map(|(_, colour)| *colour)))?;
    let mut chart = chart(area);
    let mut chart = chart.build_cartesian_2d(0.0..count(columns.len()), 0.0..count(rows.len()))?;
    mesh_of_names(&mut chart, y, 0)?;
    for (row, of_row) in cells.iter().enumerate() {
        for (column, value) in of_row.iter().enumerate() {
            let Some(value) = value else { continue };
            let colour = STEPS.iter().find(|(most, _)| value <= most).map_or(AXIS, |(_, colour)| *colour);
            let corners = [(count(column), count(row)), (count(column) + 1.0, count(row) + 1.0)];
            chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            let centre = EmptyElement::at((count(column) + 0.5, count(row) + 0.5));
            let style = text_of(FONT - 2).color(&INK).pos(Pos::new(HPos::Center, VPos::Center));
            chart.draw_series([centre + Text::new(number(*value), (0, 0), style)])?;
        }
    }
    let below = text_style().pos(Pos::new(HPos::Center, VPos::Top));
    let labels = columns.iter().enumerate().map(|(index, name)| {
        EmptyElement::at((count(index) + 0.5, 0.0)) + Text::new(name.clone(), (0, 10), below.clone())
    });
    chart.draw_series(labels)?;
    let left = text_style().pos(Pos::new(HPos::Right, VPos::Center));
    let labels = rows.iter().enumerate().map(|(index, name)| {
        EmptyElement::at((0.0, count(index) + 0.5)) + Text::new(name.clone(), (-10, 0), left.clone())
    });
    chart.draw_series(labels)?;
    let middle = EmptyElement::at((count(columns.len()) / 2.0, 0.0));
    chart.draw_series([middle + Text::new(x.to_owned(), (0, 48), below)])?;
    Ok(())
}
