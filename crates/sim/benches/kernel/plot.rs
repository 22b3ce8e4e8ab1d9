//! The distributions of wake-up latencies, kernel and model.

use super::case::Measured;
use anyhow::{Result, anyhow};
use plotters::prelude::*;

const KERNEL: RGBColor = RGBColor(0x00, 0x72, 0xB2);
const MODEL: RGBColor = RGBColor(0xD5, 0x5E, 0x00);
const SIZE: (u32, u32) = (1600, 900);

/// One panel for each case in which somebody sleeps.
pub fn latencies(cases: &[(String, Measured, Measured)]) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, cases).map_err(|error| anyhow!("draw the latencies: {error}"))?;
    Ok(svg)
}

fn draw(svg: &mut String, cases: &[(String, Measured, Measured)]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let first = |measured: &Measured| -> Option<Vec<f64>> {
        measured.latency.iter().flatten().flatten().next().map(|latency| latency.percentiles_us.clone())
    };
    let sleepers =
        cases.iter().filter_map(|(name, kernel, model)| Some((name, first(kernel)?, first(model)?)));
    for ((name, kernel, model), panel) in sleepers.zip(area.split_evenly((2, 2))) {
        let right = kernel.iter().chain(&model).fold(0.0, |most, value| value.max(most)) / 1000.0 * 1.02;
        let mut chart = ChartBuilder::on(&panel)
            .margin(14)
            .caption(name, ("sans-serif", 26))
            .x_label_area_size(60)
            .y_label_area_size(90)
            .build_cartesian_2d(0.0..right, 0.0..100.0)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("wake-up latency, ms")
            .y_desc("of all wake-ups, %")
            .label_style(("sans-serif", 22))
            .draw()?;
        for (label, percentiles, colour) in [("kernel", kernel, KERNEL), ("model", model, MODEL)] {
            let points =
                percentiles.iter().enumerate().map(|(percent, value)| (value / 1000.0, percent as f64));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(4)))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 30, y)], colour.stroke_width(4)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .margin(20)
            .legend_area_size(40)
            .label_font(("sans-serif", 22))
            .draw()?;
    }
    area.present()?;
    Ok(())
}
