//! Prints the results of `quell measure clear` for people, or as an HTML page.

use std::fmt::Write;

use quell_host::clear::plot;
use quell_host::clear::report::{PlanChoice, Report, Row, bytes_label};

use quell_model::output::filled;
use quell_model::table::{Cell, Table, number, verdict, words};

/// Returns a table of speeds, one row for each length. A star marks the engine's choice.
pub fn speed_table(rows: &[Row], beside: &[(&str, &[Row])], chosen: &[PlanChoice]) -> Table {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.strategy) {
            names.push(row.strategy);
        }
    }
    let picked = |name: &str| chosen.iter().any(|choice| choice.strategy == name);
    let mut columns = vec![number("extent")];
    columns.extend(names.iter().map(|&name| match picked(name) {
        true => number(name),
        false => number(name).spare(),
    }));
    columns.extend(beside.iter().map(|&(name, _)| number(name)));
    let mut table = Table::new(columns);
    for choice in chosen {
        let figure = |rows: &[Row], name: &str| {
            let mut found = rows.iter();
            found
                .find(|r| r.bytes == choice.bytes && r.strategy == name)
                .map_or("-".into(), |r| format!("{:.1}", r.gbps))
        };
        let mut cells = vec![bytes_label(choice.bytes)];
        cells.extend(names.iter().map(|&name| {
            let mark = if name == choice.strategy { "*" } else { "" };
            format!("{mark}{}", figure(rows, name))
        }));
        cells.extend(beside.iter().map(|(name, rows)| figure(rows, name)));
        table.row(cells);
    }
    table
}

/// Returns a table of the engine's choices, calibrated and by rule.
pub fn choice_table(report: &Report) -> Table {
    let mut table = Table::new([
        number("from length"),
        words("if read next"),
        words("default rule"),
        words("if not read next"),
        words("default rule"),
    ]);
    for row in &report.plan.0 {
        table.row([
            &bytes_label(row.bytes),
            row.hot,
            row.by_rule_hot,
            row.bypassing,
            row.by_rule_bypassing,
        ]);
    }
    table
}

/// Returns the times to clear an extent and then read around the faulting page.
pub fn read_table(report: &Report) -> Table {
    let mut table = Table::new([
        number("extent"),
        words("strategy"),
        number("clear, us"),
        number("read, us"),
        number("both, us"),
    ]);
    for r in &report.clear_then_read {
        let us = |ns: f64| format!("{:.2}", ns / 1e3);
        table.row([
            bytes_label(r.bytes),
            r.way.to_string(),
            us(r.clear_ns),
            us(r.read_ns),
            us(r.total_ns),
        ]);
    }
    table
}

/// Returns the speed of demand faults in the running kernel.
pub fn fault_table(report: &Report) -> Table {
    let mut table = Table::new([number("page"), words("method"), number("GB/s"), words("note")]);
    for fault in &report.demand_fault {
        let refused = fault.note.as_ref().filter(|_| fault.gbps.is_none());
        table.row([
            bytes_label(fault.page_bytes),
            fault.way.to_string(),
            fault.gbps.map_or("-".into(), |gbps| format!("{gbps:.1}")),
            refused.map_or(String::new(), |why| format!("not measured: {why}")),
        ]);
    }
    table
}

/// Returns a table of the targets, and whether each was met.
pub fn verdict_table(report: &Report) -> Table {
    let mut table = Table::new([
        words("verdict"),
        words("target"),
        number("ratio"),
        number("bound"),
        number("extent"),
    ]);
    for v in &report.verdicts {
        table.row([
            verdict(v.pass, if v.pass { "pass" } else { "MISS" }),
            v.target.into(),
            format!("{:.2}", v.ratio).into(),
            v.bound.to_string().into(),
            bytes_label(v.at_bytes).into(),
        ] as [Cell; 5]);
    }
    table
}

/// Returns the whole report, laid out for this width.
pub fn text(report: &Report, width: Option<usize>, colour: bool) -> String {
    let mut out = String::new();
    for (heading, table) in parts(report) {
        let _ = writeln!(out, "{}", filled(&heading, width));
        if let Some(table) = table {
            let _ = writeln!(out, "{}", table.render(width, colour));
        }
    }
    out
}

/// Returns the report's parts in order: headings with their tables, and lines without.
fn parts(report: &Report) -> Vec<(String, Option<Table>)> {
    let mut parts = Vec::new();
    let mut part = |heading: String, table: Option<Table>| parts.push((heading, table));
    let [l1d, l2, last] = report.caches.map(|b| if b == 0 { "?".into() } else { bytes_label(b) });
    part(
        format!(
            "{}; caches {l1d}, {l2}, {last}\nmemory mapped with huge pages: {:.0} %; GB/s = 10^9 bytes per second of CPU time\n",
            report.cpu,
            report.huge_page_share * 100.0
        ),
        None,
    );
    let beside: [(&str, &[Row]); 2] =
        [("memset", &report.memset), ("page-by-page", &report.page_by_page)];
    part(
        "Clearing, one core, GB/s (* = the engine's choice)".into(),
        Some(speed_table(&report.rows, &beside, &report.chosen)),
    );
    part(format!("peak write bandwidth {:.1} GB/s\n", report.peak_write_gbps), None);
    if let Some(all) = &report.all_cores {
        part(
            format!("Clearing, {} cores at once, GB/s in total", all.cores),
            Some(speed_table(&all.rows, &[("memset", &all.memset)], &all.chosen)),
        );
        part(
            format!(
                "peak write bandwidth {:.1} GB/s, page by page {:.1}\n",
                all.peak_write_gbps, all.page_by_page_gbps
            ),
            None,
        );
    }
    part(
        format!("The engine's choices, calibrated in {:.0} ms", report.calibration_ms),
        Some(choice_table(report)),
    );
    part(
        "Time to clear an extent, then read the faulting page and its two neighbours on each side"
            .into(),
        Some(read_table(report)),
    );
    part("Speed of demand faults in the running kernel".into(), Some(fault_table(report)));
    part("Targets".into(), Some(verdict_table(report)));
    part(format!("measured in {:.0} s", report.seconds), None);
    parts
}

/// Returns a self-contained HTML page, with the plot above the tables.
pub fn html(report: &Report) -> String {
    let parts = parts(report).into_iter();
    let tables: Vec<_> =
        parts.map(|(heading, table)| table.unwrap_or_default().for_page(heading)).collect();
    plot::page(report, &tables)
}
