//! The plot: GB/s against the length of the extent, one line per strategy.

use super::report::{Report, bytes_label};
use anyhow::{Result, anyhow};
use plotters::prelude::*;

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 560;

/// Draws the figures of one core as SVG.
///
/// # Errors
///
/// If the drawing fails, which it does only for want of memory.
pub fn svg(report: &Report) -> Result<String> {
    let mut out = String::new();
    draw(report, &mut out).map_err(|e| anyhow!("cannot draw the plot: {e}"))?;
    Ok(out)
}

fn draw(report: &Report, out: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(out, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let figures = || {
        report
            .rows
            .iter()
            .chain(&report.memset)
            .chain(&report.page_by_page)
    };
    let log = |bytes: u64| f64::from(bytes.ilog2());
    let from = figures().map(|r| log(r.bytes)).fold(f64::MAX, f64::min);
    let to = figures().map(|r| log(r.bytes)).fold(0.0, f64::max);
    let top = figures()
        .map(|r| r.gbps)
        .fold(report.peak_write_gbps, f64::max)
        * 1.08;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .caption(
            format!("Clearing on one core: {}", report.cpu),
            ("sans-serif", 20),
        )
        .x_label_area_size(44)
        .y_label_area_size(56)
        .right_y_label_area_size(8)
        .build_cartesian_2d(from..to, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels((to - from) as usize / 2 + 1)
        .x_label_formatter(&|x| bytes_label(1 << *x as u64))
        .x_desc("extent")
        .y_desc("GB/s")
        .draw()?;
    chart
        .draw_series(DashedLineSeries::new(
            [(from, report.peak_write_gbps), (to, report.peak_write_gbps)],
            6,
            4,
            BLACK.mix(0.6).stroke_width(1),
        ))?
        .label("peak write bandwidth")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK.mix(0.6)));
    let mut names: Vec<&'static str> = Vec::new();
    for row in figures() {
        if !names.contains(&row.strategy) {
            names.push(row.strategy);
        }
    }
    for (index, name) in names.iter().copied().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let points = figures()
            .filter(|r| r.strategy == name)
            .map(|r| (log(r.bytes), r.gbps));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    let chosen = report.chosen.iter().map(|c| (log(c.bytes), c.gbps));
    chart
        .draw_series(chosen.map(|at| Circle::new(at, 5, BLACK.stroke_width(2))))?
        .label("the engine's choice")
        .legend(|(x, y)| Circle::new((x + 10, y), 5, BLACK.stroke_width(2)));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
