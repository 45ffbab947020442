//! The plot: GB/s against the length of the extent, one line per strategy.

use super::report::{Report, Row, bytes_label};
use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (1060, 560);
/// Room for the legend, right of the figures.
const LEGEND: u32 = 200;

/// Colours that stay apart for most eyes and on paper (after Okabe and Ito, with three more).
const COLORS: [RGBColor; 11] = [
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
    RGBColor(0, 158, 115),
    RGBColor(145, 90, 200),
    RGBColor(160, 200, 60),
    RGBColor(213, 94, 0),
    RGBColor(120, 80, 40),
    RGBColor(110, 110, 110),
    RGBColor(0, 0, 0),
];

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

/// The rows by strategy, in the order of the table.
fn lines(report: &Report) -> Vec<(&'static str, Vec<&Row>)> {
    let mut lines: Vec<(&'static str, Vec<&Row>)> = Vec::new();
    let beside = report.memset.iter().chain(&report.page_by_page);
    for row in report.rows.iter().chain(beside) {
        match lines.iter_mut().find(|(name, _)| *name == row.strategy) {
            Some((_, rows)) => rows.push(row),
            None => lines.push((row.strategy, vec![row])),
        }
    }
    lines
}

fn draw(report: &Report, out: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(out, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (figures, legend) = root.split_horizontally(SIZE.0 - LEGEND);
    let lines = lines(report);
    let all = || lines.iter().flat_map(|(_, rows)| rows);
    let log = |bytes: u64| f64::from(bytes.ilog2());
    let from = all().map(|r| log(r.bytes)).fold(f64::MAX, f64::min);
    let to = all().map(|r| log(r.bytes)).fold(0.0, f64::max);
    let top = all().map(|r| r.gbps).fold(report.peak_write_gbps, f64::max);
    let mut chart = ChartBuilder::on(&figures)
        .margin(16)
        .caption(
            format!("Clearing on one core: {}", report.cpu),
            ("sans-serif", 20),
        )
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(from..to, 0.0..top * 1.08)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 14))
        .x_labels((to - from) as usize / 2 + 1)
        .x_label_formatter(&|x| bytes_label(1 << *x as u64))
        .x_desc("length of the extent")
        .y_desc("GB/s")
        .draw()?;

    // The legend's entries lie below each other, each with a sample at its left.
    let entry = |index: usize| (12, 60 + 26 * index as i32);
    let describe = |index: usize, text: &str| {
        let (x, y) = entry(index);
        let text = Text::new(text.to_owned(), (x + 36, y - 8), ("sans-serif", 15));
        legend.draw(&text)
    };
    for (index, (name, rows)) in lines.iter().enumerate() {
        let style = COLORS[index % COLORS.len()].stroke_width(2);
        let points = rows.iter().map(|r| (log(r.bytes), r.gbps));
        chart.draw_series(LineSeries::new(points, style))?;
        let (x, y) = entry(index);
        legend.draw(&PathElement::new([(x, y), (x + 26, y)], style))?;
        describe(index, name)?;
    }
    let dashes = |from, to| DashedLineSeries::new([from, to], 6, 4, BLACK.stroke_width(1));
    let peak = report.peak_write_gbps;
    chart.draw_series(dashes((from, peak), (to, peak)))?;
    let (x, y) = entry(lines.len());
    for dash in [0, 10, 20] {
        let ends = [(x + dash, y), (x + dash + 6, y)];
        legend.draw(&PathElement::new(ends, BLACK.stroke_width(1)))?;
    }
    describe(lines.len(), "peak write bandwidth")?;
    let chosen = report.chosen.iter().map(|c| (log(c.bytes), c.gbps));
    chart.draw_series(chosen.map(|at| Circle::new(at, 5, BLACK.stroke_width(2))))?;
    let (x, y) = entry(lines.len() + 1);
    legend.draw(&Circle::new((x + 13, y), 5, BLACK.stroke_width(2)))?;
    describe(lines.len() + 1, "the engine's choice")?;
    root.present()?;
    Ok(())
}
