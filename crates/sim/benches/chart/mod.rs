//! A chart as the pages show it.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// What it is drawn on.
pub(crate) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Where an axis ends, and what it is of.
pub(crate) type Axis<'a> = (f64, &'a str);

/// Draws curves over axes that begin at 0, with their names in the upper left corner.
pub(crate) fn svg(x: Axis<'_>, y: Axis<'_>, curves: impl FnOnce(&mut Chart<'_, '_>)) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (1600, 760)).into_drawing_area();
        area.fill(&WHITE).unwrap();
        let mut chart = ChartBuilder::on(&area)
            .margin(14)
            .x_label_area_size(70)
            .y_label_area_size(120)
            .build_cartesian_2d(0.0..x.0, 0.0..y.0)
            .unwrap();
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(x.1)
            .y_desc(y.1)
            .label_style(("sans-serif", 26))
            .draw()
            .unwrap();
        curves(&mut chart);
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .margin(20)
            .legend_area_size(40)
            .label_font(("sans-serif", 26))
            .draw()
            .unwrap();
        area.present().unwrap();
    }
    svg
}
