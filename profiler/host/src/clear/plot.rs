//! Plots GB/s over the length of the extent, one line per strategy.

use super::report::{Report, bytes_label};
use quell_model::charts::{self, COLORS, Chart, Line, PageTable, VerticalScale};

/// Draws the figures of one core as SVG. Rings are the engine's choices.
pub fn svg(report: &Report) -> String {
    with_chart(report, |chart| chart.file())
}

/// Builds a page with the drawing above all figures.
pub fn page(report: &Report, tables: &[PageTable]) -> String {
    with_chart(report, |chart| charts::of_tables("Zeroing on this machine", chart, tables))
}

fn with_chart(report: &Report, draw: impl FnOnce(&Chart<'_>) -> String) -> String {
    let mut lines: Vec<Line> = Vec::new();
    let beside = report.memset.iter().chain(&report.page_by_page);
    for row in report.rows.iter().chain(beside) {
        let point = (row.bytes as f64, row.gbps);
        match lines.iter_mut().find(|line| line.name == row.strategy) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name: row.strategy.into(),
                points: vec![point],
                color: COLORS[lines.len() % COLORS.len()],
            }),
        }
    }
    let lengths = report.chosen.iter().map(|choice| choice.bytes);
    if let (Some(least), Some(most)) = (lengths.clone().min(), lengths.max()) {
        lines.push(Line {
            name: "peak write".into(),
            points: [least, most].map(|bytes| (bytes as f64, report.peak_write_gbps)).into(),
            color: "--soft",
        });
    }
    let chosen = report.chosen.iter();
    let rings: Vec<_> = chosen.map(|c| (c.bytes as f64, c.gbps)).collect();
    let chart = Chart {
        title: "Clearing memory, one core",
        lines: &lines,
        rings: &rings,
        right: "length of the extent; rings: the engine's choice",
        power: |bytes| bytes_label(bytes as u64),
        up: "GB/s, one core",
        upward: VerticalScale::Evenly,
    };
    draw(&chart)
}
